/* Normal numbers: the hash and the counters of normal.py, in one pass; alone, or added
   to weighted sums of units.

   XLA hashes into memory, reads that again, and takes a logarithm for every number; here
   hashes stay in the first cache, and polynomials from a table take its place, but for
   one number in 65,000. A key (..., 2) gives (..., count) numbers; any number of keys.
*/

#include <math.h>
#include <stdlib.h>
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

/* 23 random bits as the mantissa of a number in [1, 2), then U[-1, 1). */
INLINE lanes uniform(words bits) { return 2 * (lanes)((bits >> 9) | 0x3F800000u) - 3; }

/* sqrt(2) erfinv(u) / u by v = 1 - |u| from 2^-16 on: a polynomial for each half of an
   octave, chosen by the last five bits of v's exponent and half, in what v has beyond the
   half's middle, as a share of the octave. Fitted at Chebyshev's nodes, relative error
   1.4e-7; tests compare every pattern of bits with the exact number. */
enum { DEGREE = 5, HALVES = 32 };
static const float table[DEGREE + 1][HALVES] = {
    {-0.0143494103f, -0.00264122779f, -0.0147779388f, -0.00272248243f, -0.0152454479f,
     -0.0028113469f, -0.0157578737f, -0.00290900725f, -0.0163223278f, -0.00301688351f,
     -0.0169472937f, -0.00313665951f, -0.0176427066f, -0.00327027868f, -0.0184197593f,
     -0.00341985025f, -0.0192898773f, -0.00358732929f, -0.0202618539f, -0.00377369137f,
     -0.0213349778f, -0.00397708034f, -0.0224845819f, -0.00418915879f, -0.0236359499f,
     -0.00438910443f, -0.0246243458f, -0.00453031482f, -0.0247361325f, -0.00329490611f,
     -0.0139549039f, -0.00256659347f},
    {0.0224528816f, 0.00581408897f, 0.0231395438f, 0.0059971353f, 0.0238902196f,
     0.00619772216f, 0.0247148667f, 0.00641863002f, 0.0256254077f, 0.00666317949f,
     0.0266359933f, 0.00693527143f, 0.0277630035f, 0.00723931938f, 0.029024303f,
     0.00757987611f, 0.0304367002f, 0.00796057191f, 0.0320093334f, 0.00838154834f,
     0.0337288417f, 0.0088340668f, 0.0355302058f, 0.00929077622f, 0.0372504927f,
     0.00969346426f, 0.0386079103f, 0.00998991728f, 0.0405540392f, 0.0134174107f,
     0.0218219329f, 0.00564626511f},
    {-0.0364679098f, -0.0134946862f, -0.0376181751f, -0.0139328446f, -0.0388789177f,
     -0.0144142285f, -0.0402676463f, -0.0149457967f, -0.0418052264f, -0.0155357774f,
     -0.0435160436f, -0.0161936339f, -0.045427382f, -0.0169295426f, -0.0475667268f,
     -0.0177527405f, -0.0499543138f, -0.0186673813f, -0.0525859259f, -0.0196635332f,
     -0.0553978048f, -0.0206999574f, -0.0582043119f, -0.0216755904f, -0.0605985969f,
     -0.0223792493f, -0.0616754405f, -0.0221838318f, -0.0561431684f, -0.0118894922f,
     -0.0354134999f, -0.0130939363f},
    {0.0699888766f, 0.0362756401f, 0.0723012835f, 0.037510924f, 0.0748455226f,
     0.0388733372f, 0.0776588097f, 0.0403833836f, 0.0807843655f, 0.042064447f,
     0.0842700824f, 0.0439413525f, 0.0881633759f, 0.0460361615f, 0.092498146f,
     0.0483582579f, 0.0972662568f, 0.0508841909f, 0.102363877f, 0.0535226986f,
     0.107508257f, 0.0560685024f, 0.112157822f, 0.058185976f, 0.115616426f,
     0.0596177168f, 0.118226573f, 0.0618014112f, 0.131296635f, 0.0863658711f,
     0.0678769127f, 0.035150066f},
    {-0.184271589f, -0.13389793f, -0.191003323f, -0.138941452f, -0.198434681f,
     -0.144513205f, -0.206645593f, -0.150665551f, -0.215696201f, -0.157426834f,
     -0.225592956f, -0.164768964f, -0.23622793f, -0.172551304f, -0.247277677f,
     -0.180430993f, -0.258049041f, -0.187732518f, -0.267267615f, -0.193279743f,
     -0.272822797f, -0.195203215f, -0.271476746f, -0.190693259f, -0.258346915f,
     -0.175320312f, -0.224778399f, -0.139505804f, -0.145238459f, -0.0417306684f,
     -0.178157061f, -0.129323587f},
    {4.11858273f, 4.04041529f, 3.95605493f, 3.8749876f, 3.78739738f, 3.70312762f,
     3.61196876f, 3.52416134f, 3.42906523f, 3.33736372f, 3.23795056f, 3.14200521f,
     3.03792739f, 2.93745112f, 2.82847595f, 2.72334933f, 2.60950303f, 2.49994993f,
     2.38175178f, 2.26860738f, 2.14741135f, 2.03250337f, 1.91096461f, 1.79762375f,
     1.68035233f, 1.57421923f, 1.46907675f, 1.38030541f, 1.30340385f, 1.25848556f,
     4.27555132f, 4.20001554f}};
static const float SMALLEST = 0x1p-16f;

/* With AVX-512 a table is two registers, elsewhere memory. */
INLINE lanes chosen(const float* from, words which, const int wide) {
#if __has_builtin(__builtin_shuffle)
  if (wide)
    return __builtin_shuffle(*(const lanes*)from, *(const lanes*)(from + LANES), which);
#endif
  uint32_t places[LANES];
  float found[LANES];
  memcpy(places, &which, sizeof places);
  for (int i = 0; i < LANES; i++) found[i] = from[places[i] % HALVES];
  return *(const lanes*)found;
}

INLINE lanes by_table(lanes unit, lanes v, const int wide) {
  const words which = (words)v >> 22;
  const lanes x = (lanes)(((words)v & 0x3FFFFFu) | 0x3F800000u) - 1.25f;
  lanes total = chosen(table[0], which, wide);
#pragma GCC unroll 5
  for (int i = 1; i <= DEGREE; i++) total = total * x + chosen(table[i], which, wide);
  return total * unit;
}

/* Giles 2010, Approximating the erfinv function, single precision: the tails, where
   -log(1 - u^2) is 5 and more. Of -1, the number next to it. */
static double tail_of(float unit) {
  static const double tails[9] = {-0.000200214257, 0.000100950558, 0.00134934322,
                                  -0.00367342844,  0.00573950773,  -0.0076224613,
                                  0.00943887047,   1.00167406,     2.83297682};
  const double u = unit <= -1 ? -0.99999994 : unit;
  const double x = sqrt(-log((1 - u) * (1 + u))) - 3;
  double total = tails[0];
  for (int i = 1; i < 9; i++) total = total * x + tails[i];
  return 1.4142135623730951 * total * u;
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

/* sqrt(2) erfinv(u), u uniform. One vector in 4,000 has a number beyond the table. */
INLINE lanes normal_of(words bits, const int wide) {
  const lanes unit = uniform(bits);
  const lanes v = 1 - (lanes)((words)unit & 0x7FFFFFFFu);
  lanes numbers = by_table(unit, v, wide);
  if (any_negative((signs)(v - SMALLEST)))
    for (int i = 0; i < LANES; i++)
      if (v[i] < SMALLEST) numbers[i] = tail_of(unit[i]);
  return numbers;
}

/* Hashes of a block first, then their numbers: each loop is short enough that the
   processor works on several of its turns at once. */
enum { BLOCK = 32 * LANES };

/* Writes numbers, or adds `std` times them to what is there. */
INLINE void convert(const uint32_t* bits, float* to, int64_t count, const int adds,
                    float std, const int wide) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) {
    lanes numbers = normal_of(*(const words*)(bits + at), wide);
    if (adds) numbers = *(const lanes*)(to + at) + std * numbers;
    *(lanes*)(to + at) = numbers;
  }
  if (at >= count) return;
  words last = {0};
  memcpy(&last, bits + at, (count - at) * sizeof(uint32_t));
  const lanes numbers = normal_of(last, wide);
  for (int i = 0; at < count; at++, i++)
    to[at] = adds ? to[at] + std * numbers[i] : numbers[i];
}

INLINE void draw(const uint32_t* key, float* to, int64_t count, const int adds,
                 float std, const int wide) {
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
    convert(left, to + from, used, adds, std, wide);
    const int64_t rest = count - half - from;
    convert(right, to + half + from, rest < used ? rest : used, adds, std, wide);
  }
}

ON_WIDE_CPU static void write_wide(const uint32_t* key, float* to, int64_t count) {
  draw(key, to, count, 0, 0, 1);
}

EVERY_CPU static void write_narrow(const uint32_t* key, float* to, int64_t count) {
  draw(key, to, count, 0, 0, 0);
}

ON_WIDE_CPU static void add_wide(const uint32_t* key, float* to, int64_t count,
                                 float std) {
  draw(key, to, count, 1, std, 1);
}

EVERY_CPU static void add_narrow(const uint32_t* key, float* to, int64_t count,
                                 float std) {
  draw(key, to, count, 1, std, 0);
}

ON_WIDE_CPU static void convert_wide(const uint32_t* bits, float* to, int64_t count) {
  convert(bits, to, count, 0, 0, 1);
}

EVERY_CPU static void convert_narrow(const uint32_t* bits, float* to, int64_t count) {
  convert(bits, to, count, 0, 0, 0);
}

/* The formula alone, of bits that are given: its test takes every pattern. */
XLA_FFI_Error* normal_of_bits(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  const XLA_FFI_Buffer* bits = frame->args.args[0];
  const XLA_FFI_Buffer* numbers = frame->rets.rets[0];
  (is_wide() ? convert_wide : convert_narrow)(bits->data, numbers->data, bits->dims[0]);
  return NULL;
}

/* How often a function is called for: the axes in front of the last ones. */
static int64_t batch_size(const XLA_FFI_Buffer* buffer, int64_t last) {
  int64_t size = 1;
  for (int64_t axis = 0; axis < buffer->rank - last; axis++) size *= buffer->dims[axis];
  return size;
}

XLA_FFI_Error* normal_numbers(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  const XLA_FFI_Buffer* keys = frame->args.args[0];
  const XLA_FFI_Buffer* numbers = frame->rets.rets[0];
  const int64_t count = numbers->dims[numbers->rank - 1], draws = batch_size(keys, 1);
  for (int64_t i = 0; i < draws; i++)
    (is_wide() ? write_wide : write_narrow)((const uint32_t*)keys->data + 2 * i,
                                            (float*)numbers->data + i * count, count);
  return NULL;
}

/* The sum over units of the outer products of left (units, rows) and right (units,
   wide), of whose columns the first ones count. A row's last vector may write into the
   next row, which comes after it, and not beyond the end. */
EVERY_CPU static void sum_of_products(const float* restrict left,
                                      const float* restrict right, float* restrict to,
                                      int64_t units, int64_t rows, int64_t columns,
                                      int64_t wide) {
  const float* end = to + rows * columns;
  for (int64_t row = 0; row < rows; row++, to += columns)
    for (int64_t at = 0; at < columns; at += LANES) {
      lanes sum = {0};
      if (at + LANES <= wide)
        for (int64_t unit = 0; unit < units; unit++)
          sum += left[unit * rows + row] * *(const lanes*)(right + unit * wide + at);
      else
        for (int64_t unit = 0; unit < units; unit++)
          for (int64_t i = 0; i < columns - at; i++)
            sum[i] += left[unit * rows + row] * right[unit * wide + at + i];
      if (to + at + LANES <= end)
        *(lanes*)(to + at) = sum;
      else
        memcpy(to + at, &sum, (end - to - at) * sizeof(float));
    }
}

/* Rows of columns, each with room for whole vectors. */
static void spread(const float* from, float* to, int64_t rows, int64_t columns,
                   int64_t wide) {
  for (int64_t row = 0; row < rows; row++)
    memcpy(to + row * wide, from + row * columns, columns * sizeof(float));
}

/* Keys (..., 2), stds (...), then for each tensor a pair of left (..., units, rows) and
   right (..., units, columns): one vector (..., count) of the tensors' sums one behind
   the other, plus std times the numbers of `normal_numbers`. */
XLA_FFI_Error* noisy_sums(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  XLA_FFI_Buffer** args = (XLA_FFI_Buffer**)frame->args.args;
  const XLA_FFI_Buffer* result = frame->rets.rets[0];
  const int64_t count = result->dims[result->rank - 1], calls = batch_size(result, 1);
  for (int64_t call = 0; call < calls; call++) {
    float *begin = (float*)result->data + call * count, *to = begin;
    for (int64_t pair = 2; pair + 1 < frame->args.size; pair += 2) {
      const int64_t *dims = args[pair]->dims + args[pair]->rank - 2, units = dims[0];
      const int64_t rows = dims[1], columns = args[pair + 1]->dims[args[pair + 1]->rank - 1];
      const float* left = (const float*)args[pair]->data + call * units * rows;
      const float* right = (const float*)args[pair + 1]->data + call * units * columns;
      if (rows == 1) {
        sum_of_products(left, right, to, units, rows, columns, columns);
      } else {
        const int64_t wide = (columns + LANES - 1) / LANES * LANES;
        float* room = calloc(units * wide, sizeof(float));
        if (room == NULL) return refuse(frame, "no memory for a sum of products");
        spread(right, room, units, columns, wide);
        sum_of_products(left, room, to, units, rows, columns, wide);
        free(room);
      }
      to += rows * columns;
    }
    (is_wide() ? add_wide : add_narrow)((const uint32_t*)args[0]->data + 2 * call, begin,
                                        count, ((const float*)args[1]->data)[call]);
  }
  return NULL;
}
