/* What every C source of the package needs: vectors, and how XLA calls it. */

#include <stddef.h>
#include <stdint.h>

#include "xla_ffi.h"

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__linux__)
#define EVERY_CPU \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define ON_WIDE_CPU __attribute__((target("arch=x86-64-v4")))
/* Whether what is ON_WIDE_CPU may run: AVX-512. */
static inline int is_wide(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
#define EVERY_CPU
#define ON_WIDE_CPU
static inline int is_wide(void) { return 0; }
#endif

/* 16 numbers, wherever they lie; may_alias: what is read was written as float. */
typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* XLA first calls to ask for which version of its interface a function was built. */
static inline int asked_for_version(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start == NULL ||
      frame->extension_start->type != XLA_FFI_Extension_Metadata)
    return 0;
  XLA_FFI_Metadata* metadata =
      ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  return 1;
}

static inline XLA_FFI_Error* refuse(XLA_FFI_CallFrame* frame, const char* words) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, words,
                                    XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return frame->api->XLA_FFI_Error_Create(&args);
}
