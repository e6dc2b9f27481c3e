/* A convolution and its two derivatives, which are each other's derivatives.

   Inputs (n, h, w, c), kernels (kh, kw, c, f), outputs (n, oh, ow, f), float32, and in
   front of them any number of batch axes: where an operand has length 1 and the result
   has not, it is shared. One sample is small and stays in the first cache: it is copied
   between zeros once (no borders afterwards), and a run of kw * c numbers of a row is what
   one row of the kernel sees. XLA has no fast convolution whose kernel differs by sample,
   and writes each patch out before it multiplies.
*/

#include <stdlib.h>
#include <string.h>

#include "xla_call.h"

typedef struct {
  int64_t count;          /* n */
  int64_t height, width;  /* of the inputs */
  int64_t channels, features;
  int64_t window_height, window_width;
  int64_t rows, columns;  /* of the outputs */
  int64_t stride, top, left;
  int64_t run;            /* window_width * channels */
  int64_t pitch;          /* numbers in a padded row */
  int64_t wide_features, wide_run; /* rounded up to LANES */
} Shape;

INLINE int64_t round_up(int64_t value) { return (value + LANES - 1) / LANES * LANES; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Blocks may read and write up to a vector beyond a row's end. */
INLINE int64_t padded_size(const Shape* s) { return s->height * s->pitch + LANES; }

/* The outputs' rows that meet the image with row `ky` of the window. */
INLINE int64_t first_row(const Shape* s, int64_t ky) {
  return s->top > ky ? (s->top - ky + s->stride - 1) / s->stride : 0;
}
INLINE int64_t end_row(const Shape* s, int64_t ky) {
  const int64_t reach = s->height + s->top - ky;
  return reach > 0 ? least(s->rows, (reach + s->stride - 1) / s->stride) : 0;
}

INLINE void pad(const Shape* s, const float* restrict from, float* restrict to) {
  const int64_t length = s->width * s->channels;
  for (int64_t y = 0; y < s->height; y++)
    memcpy(to + y * s->pitch + s->left * s->channels, from + y * length,
           length * sizeof(float));
}

/* Rows of features, each on a vector's border. What follows the features of a row is
   the next one's: those lanes are computed and thrown away. */
INLINE void spread(const Shape* s, const float* restrict from, float* restrict to,
                   int64_t rows) {
  const int64_t length = s->features, wide = s->wide_features;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < wide; j += LANES)
      if (i * length + j + LANES <= rows * length)
        *(lanes*)(to + i * wide + j) = *(const lanes*)(from + i * length + j);
      else
        memcpy(to + i * wide + j, from + i * length + j,
               (rows * length - i * length - j) * sizeof(float));
}

EVERY_CPU static void spread_kernel(const Shape* s, const float* restrict from,
                                    float* restrict to) {
  spread(s, from, to, s->window_height * s->run);
}

INLINE void outputs_block(const Shape* s, const float* restrict padded,
                          const float* restrict kernel, float* restrict to, int64_t y,
                          int64_t x, int64_t feature, const int pixels) {
  lanes sum[8] = {0};
  const int64_t step = s->stride * s->channels, above = y * s->stride - s->top;
  const int64_t end = least(s->window_height, s->height - above);
  for (int64_t ky = most(0, -above); ky < end; ky++) {
    const float* row = padded + (above + ky) * s->pitch + x * step;
    const float* taps = kernel + ky * s->run * s->wide_features + feature;
    for (int64_t j = 0; j < s->run; j++) {
      const lanes tap = *(const lanes*)(taps + j * s->wide_features);
      for (int i = 0; i < pixels; i++) sum[i] += row[i * step + j] * tap;
    }
  }
  const int64_t used = least(LANES, s->features - feature);
  for (int i = 0; i < pixels; i++)
    memcpy(to + (y * s->columns + x + i) * s->features + feature, &sum[i],
           used * sizeof(float));
}

EVERY_CPU static void outputs(const Shape* s, const float* restrict inputs,
                              const float* restrict kernel, float* restrict to,
                              float* restrict padded, float* restrict unused) {
  (void)unused;
  for (int64_t n = 0; n < s->count; n++) {
    pad(s, inputs + n * s->height * s->width * s->channels, padded);
    float* here = to + n * s->rows * s->columns * s->features;
    for (int64_t feature = 0; feature < s->features; feature += LANES)
      for (int64_t y = 0; y < s->rows; y++) {
        int64_t x = 0;
        for (; x + 7 <= s->columns; x += 7)
          outputs_block(s, padded, kernel, here, y, x, feature, 7);
        for (; x + 4 <= s->columns; x += 4)
          outputs_block(s, padded, kernel, here, y, x, feature, 4);
        for (; x < s->columns; x++)
          outputs_block(s, padded, kernel, here, y, x, feature, 1);
      }
  }
}

/* From (rows of the window, run, features) to (rows, features, run and zeros). */
static void turn_kernel(const Shape* s, const float* restrict from,
                        float* restrict to) {
  for (int64_t ky = 0; ky < s->window_height; ky++)
    for (int64_t f = 0; f < s->features; f++) {
      float* taps = to + (ky * s->features + f) * s->wide_run;
      for (int64_t j = 0; j < s->run; j++)
        taps[j] = from[(ky * s->run + j) * s->features + f];
      memset(taps + s->run, 0, (s->wide_run - s->run) * sizeof(float));
    }
}

/* Rows that lie apart: what one has written is never what the next one reads. */
INLINE void by_inputs_block(const Shape* s, const float* restrict cotangent,
                            const float* restrict kernel, float* restrict padded,
                            int64_t y, int64_t ky, int64_t x, int64_t j, const int tall,
                            const int wide) {
  lanes sum[8];
  const int64_t down = s->stride * s->pitch, next = s->columns * s->features;
  float* row = padded + (y * s->stride + ky - s->top) * s->pitch +
               x * s->stride * s->channels + j;
  const float* out = cotangent + (y * s->columns + x) * s->features;
  for (int t = 0; t < tall; t++)
    for (int i = 0; i < wide; i++)
      sum[t * wide + i] = *(lanes*)(row + t * down + i * LANES);
  for (int64_t f = 0; f < s->features; f++) {
    const float* taps = kernel + (ky * s->features + f) * s->wide_run + j;
    for (int i = 0; i < wide; i++) {
      const lanes tap = *(const lanes*)(taps + i * LANES);
      for (int t = 0; t < tall; t++) sum[t * wide + i] += out[t * next + f] * tap;
    }
  }
  for (int t = 0; t < tall; t++)
    for (int i = 0; i < wide; i++)
      *(lanes*)(row + t * down + i * LANES) = sum[t * wide + i];
}

INLINE void by_inputs_column(const Shape* s, const float* restrict cotangent,
                             const float* restrict kernel, float* restrict padded,
                             int64_t ky, int64_t x) {
  const int64_t end = end_row(s, ky);
  int64_t j = 0;
  for (; j + 4 * LANES <= s->wide_run; j += 4 * LANES) {
    int64_t y = first_row(s, ky);
    for (; y + 2 <= end; y += 2)
      by_inputs_block(s, cotangent, kernel, padded, y, ky, x, j, 2, 4);
    for (; y < end; y++)
      by_inputs_block(s, cotangent, kernel, padded, y, ky, x, j, 1, 4);
  }
  for (; j < s->wide_run; j += LANES) {
    int64_t y = first_row(s, ky);
    for (; y + 7 <= end; y += 7)
      by_inputs_block(s, cotangent, kernel, padded, y, ky, x, j, 7, 1);
    for (; y + 3 <= end; y += 3)
      by_inputs_block(s, cotangent, kernel, padded, y, ky, x, j, 3, 1);
    for (; y < end; y++)
      by_inputs_block(s, cotangent, kernel, padded, y, ky, x, j, 1, 1);
  }
}

EVERY_CPU static void by_inputs(const Shape* s, const float* restrict cotangent,
                                const float* restrict kernel, float* restrict to,
                                float* restrict padded, float* restrict unused) {
  (void)unused;
  const int64_t length = s->width * s->channels;
  for (int64_t n = 0; n < s->count; n++) {
    const float* here = cotangent + n * s->rows * s->columns * s->features;
    memset(padded, 0, padded_size(s) * sizeof(float));
    for (int64_t ky = 0; ky < s->window_height; ky++)
      for (int64_t x = 0; x < s->columns; x++)
        by_inputs_column(s, here, kernel, padded, ky, x);
    for (int64_t y = 0; y < s->height; y++)
      memcpy(to + (n * s->height + y) * length,
             padded + y * s->pitch + s->left * s->channels, length * sizeof(float));
  }
}

INLINE void by_kernel_block(const Shape* s, const float* restrict padded,
                            const float* restrict cotangent, float* restrict to,
                            int64_t ky, int64_t j, int64_t feature, const int block) {
  lanes sum[12] = {0};
  const int64_t step = s->stride * s->channels, end = end_row(s, ky);
  for (int64_t y = first_row(s, ky); y < end; y++) {
    const float* row = padded + (y * s->stride + ky - s->top) * s->pitch + j;
    const float* out = cotangent + y * s->columns * s->wide_features + feature;
    for (int64_t x = 0; x < s->columns; x++) {
      const lanes one = *(const lanes*)(out + x * s->wide_features);
      for (int i = 0; i < block; i++) sum[i] += row[x * step + i] * one;
    }
  }
  const int64_t used = least(LANES, s->features - feature);
  for (int i = 0; i < block && j + i < s->run; i++) {
    float* here = to + (ky * s->run + j + i) * s->features + feature;
    const float* sums = (const float*)&sum[i];
    for (int64_t f = 0; f < used; f++) here[f] += sums[f];
  }
}

EVERY_CPU static void by_kernel(const Shape* s, const float* restrict inputs,
                                const float* restrict cotangent, float* restrict to,
                                float* restrict padded, float* restrict wide) {
  memset(to, 0, s->window_height * s->run * s->features * sizeof(float));
  for (int64_t n = 0; n < s->count; n++) {
    pad(s, inputs + n * s->height * s->width * s->channels, padded);
    const int64_t pixels = s->rows * s->columns;
    spread(s, cotangent + n * pixels * s->features, wide, pixels);
    for (int64_t feature = 0; feature < s->features; feature += LANES)
      for (int64_t ky = 0; ky < s->window_height; ky++) {
        int64_t j = 0;
        for (; j + 8 < s->run; j += 12)
          by_kernel_block(s, padded, wide, to, ky, j, feature, 12);
        for (; j + 4 < s->run; j += 8)
          by_kernel_block(s, padded, wide, to, ky, j, feature, 8);
        for (; j < s->run; j += 4)
          by_kernel_block(s, padded, wide, to, ky, j, feature, 4);
      }
  }
}

typedef void Map(const Shape*, const float* restrict, const float* restrict,
                 float* restrict, float* restrict, float* restrict);

/* The distance from one sample to the next along each batch axis; 0 where it is shared. */
static void strides_of(const XLA_FFI_Buffer* buffer, int64_t batch, int64_t* strides) {
  int64_t size = 1;
  for (int64_t axis = buffer->rank - 1; axis >= 0; axis--) {
    if (axis < batch) strides[axis] = buffer->dims[axis] == 1 ? 0 : size;
    size *= buffer->dims[axis];
  }
}

static XLA_FFI_Error* run(XLA_FFI_CallFrame* frame, Map* map) {
  if (asked_for_version(frame)) return NULL;
  enum { MOST_AXES = 16 };
  const XLA_FFI_Buffer* first = frame->args.args[0];
  const XLA_FFI_Buffer* second = frame->args.args[1];
  const XLA_FFI_Buffer* result = frame->rets.rets[0];
  const int64_t batch = result->rank - 4;
  if (batch > MOST_AXES) return refuse(frame, "a convolution has too many batch axes");
  const XLA_FFI_Buffer* in = map == by_inputs ? result : first;
  const XLA_FFI_Buffer* kernel = map == by_kernel ? result : second;
  const XLA_FFI_Buffer* out =
      map == outputs ? result : map == by_inputs ? first : second;
  const int64_t* geometry = ((XLA_FFI_Array*)frame->attrs.attrs[0])->data;
  const int64_t *i = in->dims + batch, *k = kernel->dims + batch, *o = out->dims + batch;
  Shape s = {.count = i[0], .height = i[1], .width = i[2], .channels = i[3],
             .features = k[3], .window_height = k[0], .window_width = k[1],
             .rows = o[1], .columns = o[2],
             .stride = geometry[0], .top = geometry[1], .left = geometry[2]};
  const int64_t seen = (s.columns - 1) * s.stride + s.window_width;
  s.pitch = most(seen, s.left + s.width) * s.channels;
  s.run = s.window_width * s.channels;
  s.wide_features = round_up(s.features);
  s.wide_run = round_up(s.run);
  int64_t packed = s.window_height * s.run * s.wide_features;
  if (map == by_inputs) packed = s.window_height * s.features * s.wide_run;
  if (map == by_kernel) packed = s.rows * s.columns * s.wide_features;
  float* padded = calloc(padded_size(&s) + packed, sizeof(float));
  if (padded == NULL) return refuse(frame, "no memory for a convolution");
  float* aside = padded + padded_size(&s);
  int64_t total = 1, by_first[MOST_AXES], by_second[MOST_AXES], by_result[MOST_AXES];
  strides_of(first, batch, by_first);
  strides_of(second, batch, by_second);
  strides_of(result, batch, by_result);
  for (int64_t axis = 0; axis < batch; axis++) total *= result->dims[axis];
  const float* prepared = NULL;
  for (int64_t sample = 0; sample < total; sample++) {
    int64_t rest = sample, a = 0, b = 0, c = 0;
    for (int64_t axis = batch - 1; axis >= 0; axis--) {
      const int64_t place = rest % result->dims[axis];
      rest /= result->dims[axis];
      a += place * by_first[axis];
      b += place * by_second[axis];
      c += place * by_result[axis];
    }
    const float* other = (const float*)second->data + b;
    if (map != by_kernel && other != prepared) {
      (map == outputs ? spread_kernel : turn_kernel)(&s, other, aside);
      prepared = other;
    }
    map(&s, (const float*)first->data + a, map == by_kernel ? other : aside,
        (float*)result->data + c, padded, aside);
  }
  free(padded);
  return NULL;
}

XLA_FFI_Error* convolution_outputs(XLA_FFI_CallFrame* f) { return run(f, outputs); }
XLA_FFI_Error* convolution_by_inputs(XLA_FFI_CallFrame* f) { return run(f, by_inputs); }
XLA_FFI_Error* convolution_by_kernel(XLA_FFI_CallFrame* f) { return run(f, by_kernel); }
