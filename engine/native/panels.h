/* Panels of outputs, as the products of this folder read and write them. */

#ifndef FLOWFORGE_PANELS_H
#define FLOWFORGE_PANELS_H

#include "kernels.h"
#include "vectors.h"

#include <stddef.h>

#define VECS (PANEL / LANES)

INLINE vec load_halves(const uint8_t *at) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#elif defined(__F16C__) && LANES == 8
  return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#else
  vec values;
  for (int i = 0; i < LANES; i++) {
    _Float16 value;
    memcpy(&value, at + 2 * i, 2);
    values[i] = (float)value;
  }
  return values;
#endif
}

/* Bytes of a group of one output, as in a file, and of a packed panel's share of it. */
INLINE size_t group_bytes(enum kind kind) {
  switch (kind) {
    case F32: return 4 * GROUP;
    case BF16: return 2 * GROUP;
    case Q4_0: return 18;
    case Q4_1: return 20;
    default: return 34;
  }
}

INLINE int is_packed(enum kind kind) { return kind >= Q4_0; }

INLINE size_t head_bytes(enum kind kind) { return (kind == Q4_1 ? 4 : 2) * PANEL; }

/* Where the sums of a panel go. */
struct target {
  float *out;
  const float *bias;
  int64_t stride;
  int num_outputs, adds;
};

INLINE void finish(const vec *sums, const struct target *target, int64_t m) {
  float values[PANEL];
  for (int v = 0; v < VECS; v++) store(values + LANES * v, sums[v]);
  float *out = target->out + m * target->stride;
  for (int n = 0; n < target->num_outputs; n++) {
    float value = target->bias ? values[n] + target->bias[n] : values[n];
    out[n] = target->adds ? out[n] + value : value;
  }
}

INLINE struct target target_of(const struct matrix *matrix, float *out, int adds, int64_t panel) {
  int64_t n = panel * PANEL, left = matrix->num_outputs - n;
  return (struct target){
      .out = out + n,
      .bias = matrix->bias ? matrix->bias + n : 0,
      .stride = matrix->num_outputs,
      .num_outputs = left < PANEL ? (int)left : PANEL,
      .adds = adds,
  };
}

#endif
