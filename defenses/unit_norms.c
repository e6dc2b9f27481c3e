/* L2 norms of the rows of (..., units, size): one pass, as clipping.py defines them.

   XLA writes the scaled rows and their squares to memory before it adds them up.
*/

#include "xla_call.h"

/* Before squaring, so that norms from 1e-13 to 1e25 are told: see clipping.py. */
static const float SCALE = 0x1p-20f;

EVERY_CPU static void norms(const float* restrict rows, float* restrict to,
                            int64_t units, int64_t size) {
  enum { TOGETHER = 4 };
  for (int64_t unit = 0; unit < units; unit++, rows += size) {
    lanes sums[TOGETHER] = {0};
    int64_t at = 0;
    for (; at + TOGETHER * LANES <= size; at += TOGETHER * LANES)
      for (int i = 0; i < TOGETHER; i++) {
        const lanes scaled = *(const lanes*)(rows + at + i * LANES) * SCALE;
        sums[i] += scaled * scaled;
      }
    const lanes sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    for (; at < size; at++) {
      const float scaled = rows[at] * SCALE;
      total += scaled * scaled;
    }
    to[unit] = __builtin_sqrtf(total) / SCALE;
  }
}

XLA_FFI_Error* unit_norms(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  const XLA_FFI_Buffer* rows = frame->args.args[0];
  const XLA_FFI_Buffer* result = frame->rets.rets[0];
  int64_t units = 1;
  for (int64_t axis = 0; axis < rows->rank - 1; axis++) units *= rows->dims[axis];
  norms(rows->data, result->data, units, rows->dims[rows->rank - 1]);
  return NULL;
}
