/* Normal numbers: the hash, the counters and the formula of normal.py, in one pass.

   XLA hashes into memory, reads that again, and takes a logarithm for any number; here
   hashes stay in the first cache, the logarithm is for (0, 1], and the formula's tails
   (one number in 300) are computed only where there is one. A key (..., 2) gives
   (..., count) numbers; any number of keys.
*/

#include <string.h>

#include "xla_call.h"

typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t signs __attribute__((vector_size(64), aligned(4), may_alias));

typedef struct {
  words left, right;
} Pair;

INLINE words rotated(words value, const int distance) {
  return (value << distance) | (value >> (32 - distance));
}

/* threefry 2x32, 20 rounds. */
INLINE Pair hashed(const uint32_t* key, words left, words right) {
  static const int distances[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  left += keys[0];
  right += keys[1];
#pragma GCC unroll 5
  for (int group = 0; group < 5; group++) {
#pragma GCC unroll 4
    for (int round = 0; round < 4; round++) {
      left += right;
      right = rotated(right, distances[group % 2][round]) ^ left;
    }
    left += keys[(group + 1) % 3];
    right += keys[(group + 2) % 3] + (uint32_t)(group + 1);
  }
  return (Pair){left, right};
}

/* 23 random bits as the mantissa of a number in [1, 2), then U[-1, 1), and -1 bounded. */
INLINE lanes uniform(words bits) {
  const lanes unit = 2 * (lanes)((bits >> 9) | 0x3F800000u) - 3;
  const signs lowest = unit <= -1.0f;
  return (lanes)(((signs)unit & ~lowest) | (lowest & (int32_t)0xBF7FFFFF));
}

/* -log(v) for v in (0, 1], within 1e-7: v = 2^e (1 + r) with 1 + r in [2/3, 4/3). */
INLINE lanes minus_log(lanes value) {
  const signs exponent = ((signs)value - 0x3F2AAAAB) >> 23;
  const lanes r = (lanes)((signs)value - (exponent << 23)) - 1;
  lanes sum = r * -0.15630799531936646f + 0.17128030955791473f;
  sum = sum * r - 0.16382670402526855f;
  sum = sum * r + 0.1979600191116333f;
  sum = sum * r - 0.25008025765419006f;
  sum = sum * r + 0.3333755135536194f;
  sum = sum * r - 0.5f;
  sum = sum * (r * r) + r;
  return __builtin_convertvector(exponent, lanes) * -0.693147180559945f - sum;
}

/* Giles 2010, Approximating the erfinv function, single precision: centre and tails. */
static const float centre[9] = {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f,
                                -4.39150654e-06f, 0.00021858087f, -0.00125372503f,
                                -0.00417768164f, 0.246640727f,    1.50140941f};
static const float tails[9] = {-0.000200214257f, 0.000100950558f, 0.00134934322f,
                               -0.00367342844f,  0.00573950773f,  -0.0076224613f,
                               0.00943887047f,   1.00167406f,     2.83297682f};

INLINE lanes polynomial(const float* coefficients, lanes x) {
  lanes total = x * coefficients[0] + coefficients[1];
#pragma GCC unroll 7
  for (int i = 2; i < 9; i++) total = total * x + coefficients[i];
  return total;
}

/* The sign says which: compared, gcc takes vectors apart. */
INLINE signs beyond(lanes w) { return (signs)(5 - w); }

INLINE lanes with_tails(lanes total, lanes w) {
  lanes root;
  for (int i = 0; i < LANES; i++) root[i] = __builtin_sqrtf(w[i]);
  const signs outer = beyond(w) >> 31;
  return (lanes)(((signs)total & ~outer) |
                 ((signs)polynomial(tails, root - 3) & outer));
}

/* Halved until it fits a register: gcc would take out one number after the other. */
INLINE int any_negative(signs values) {
  typedef int32_t eight __attribute__((vector_size(32)));
  typedef int64_t two __attribute__((vector_size(16)));
  eight parts[2];
  memcpy(parts, &values, sizeof parts);
  const eight either = parts[0] | parts[1];
  two last[2];
  memcpy(last, &either, sizeof last);
  const two both = last[0] | last[1];
  return ((both[0] | both[1]) & (int64_t)0x8000000080000000) != 0;
}

/* sqrt(2) erfinv(u), u uniform. */
INLINE lanes normal_of(words bits) {
  const lanes unit = uniform(bits);
  const lanes w = minus_log((1 - unit) * (1 + unit));
  lanes inverse = polynomial(centre, w - 2.5f);
  if (any_negative(beyond(w))) inverse = with_tails(inverse, w);
  return 1.41421356237f * inverse * unit;
}

/* Hashes of a block first, then their numbers: each loop is short enough that the
   processor works on several of its turns at once. */
enum { BLOCK = 32 * LANES };

INLINE void convert(const uint32_t* bits, float* to, int64_t count) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES)
    *(lanes*)(to + at) = normal_of(*(const words*)(bits + at));
  if (at >= count) return;
  words last = {0};
  memcpy(&last, bits + at, (count - at) * sizeof(uint32_t));
  const lanes numbers = normal_of(last);
  memcpy(to + at, &numbers, (count - at) * sizeof(float));
}

EVERY_CPU static void draw(const uint32_t* key, float* to, int64_t count) {
  const int64_t half = (count + 1) / 2;
  uint32_t left[BLOCK], right[BLOCK];
  words counters;
  for (int i = 0; i < LANES; i++) counters[i] = i;
  for (int64_t from = 0; from < half; from += BLOCK) {
    const int64_t used = half - from < BLOCK ? half - from : BLOCK;
    for (int64_t at = 0; at < used; at += LANES) {
      const words here = counters + (uint32_t)(from + at);
      const Pair pair = hashed(key, here, here + (uint32_t)half);
      *(words*)(left + at) = pair.left;
      *(words*)(right + at) = pair.right;
    }
    convert(left, to + from, used);
    const int64_t rest = count - half - from;
    convert(right, to + half + from, rest < used ? rest : used);
  }
}

EVERY_CPU static void convert_all(const uint32_t* bits, float* to, int64_t count) {
  convert(bits, to, count);
}

/* The formula alone, of bits that are given: its test takes every pattern. */
XLA_FFI_Error* normal_of_bits(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  const XLA_FFI_Buffer* bits = frame->args.args[0];
  const XLA_FFI_Buffer* numbers = frame->rets.rets[0];
  convert_all(bits->data, numbers->data, bits->dims[0]);
  return NULL;
}

XLA_FFI_Error* normal_numbers(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  const XLA_FFI_Buffer* keys = frame->args.args[0];
  const XLA_FFI_Buffer* numbers = frame->rets.rets[0];
  const int64_t count = numbers->dims[numbers->rank - 1];
  int64_t draws = 1;
  for (int64_t axis = 0; axis < keys->rank - 1; axis++) draws *= keys->dims[axis];
  for (int64_t i = 0; i < draws; i++)
    draw((const uint32_t*)keys->data + 2 * i, (float*)numbers->data + i * count, count);
  return NULL;
}
