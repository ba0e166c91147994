/* Products of packed weights, of four and eight bits, with rows that are rounded to 8 bits, in integers.
 *
 * A group of GROUP values of a row becomes a scale times integers of -127 to 127, as llama.cpp (MIT)
 * does. Products of integers are added up exactly within a group, and groups in float32 in rising
 * order: so here, too, an output has the same bits whatever the number of rows, of threads and of
 * columns, and on every processor with fused multiply and add. */

#include "kernels.h"
#include "vectors.h"
#include "panels.h"

#if LANES != 8
#error "a lane holds four integers of an output, eight lanes half a panel"
#endif

/* Rows of x at once: what is summed up of a group stays in registers. */
#define MOST_ROWS 4
/* A group of smaller values is one of zeros: the inverse of their scale would be infinite. */
#define LEAST 1e-30f
/* Rows of x that a panel is multiplied with before the next one is read. */
#define ROW_BLOCK 64

typedef int8_t bytes __attribute__((vector_size(4 * LANES)));

/* --- rounding -------------------------------------------------------------------------------- */

/* As `exponential` rounds. */
INLINE ivec nearest(vec x) {
  return __builtin_convertvector((x + all(12582912.0f)) - all(12582912.0f), ivec);
}

INLINE float largest_lane(vec a) {
  float lane[LANES], largest = 0.0f;
  store(lane, a);
  for (int i = 0; i < LANES; i++) largest = lane[i] > largest ? lane[i] : largest;
  return largest;
}

/* Integers lie as packed words want them: four of k = 8 * s + b for each b. */
static void round_group(const float *x, int8_t *integers, float *scales) {
  vec x_of[4], most = all(0.0f), spoiled = all(0.0f);
  for (int s = 0; s < 4; s++) {
    x_of[s] = load(x + LANES * s);
    most = larger(most, larger(x_of[s], all(0.0f) - x_of[s]));
    spoiled += x_of[s] * all(0.0f); /* NaN where a value is not finite */
  }
  float largest = largest_lane(most), spoil = 0.0f, lane[LANES];
  store(lane, spoiled);
  for (int i = 0; i < LANES; i++) spoil += lane[i];
  vec factor = all(largest > LEAST && spoil == 0.0f ? 127.0f / largest : 0.0f);
  ivec words = (ivec)all(0.0f), sums = words;
  for (int s = 0; s < 4; s++) {
    ivec rounded = nearest(x_of[s] * factor);
    sums += rounded;
    words |= (rounded & 255) << 8 * s;
  }
  memcpy(integers, &words, sizeof words);
  int sum = 0;
  for (int i = 0; i < LANES; i++) sum += sums[i];
  scales[0] = largest / 127.0f + spoil;
  scales[1] = scales[0] * (float)sum;
}

void round_rows(const float *x, int64_t length, const struct rounded *to, int64_t first) {
  for (int64_t k = 0; k < length; k += GROUP)
    round_group(x + k, to->integers + first + k, to->scales + 2 * ((first + k) / GROUP));
}

/* --- products -------------------------------------------------------------------------------- */

INLINE bytes load_bytes(const void *at) {
  bytes values;
  memcpy(&values, at, sizeof values);
  return values;
}

/* Four integers of a row, in all lanes. */
INLINE bytes same_four(const int8_t *at) {
  int32_t four;
  memcpy(&four, at, sizeof four);
  return (bytes)((ivec)all(0.0f) + four);
}

/* What is added up of products within a group: pairs in 16 bits where that is all there is, which
 * 8 * 2 * 15 * 127 fits in; `sum_of_pairs` makes lanes of it. */
INLINE ivec add_fours(enum kind kind, ivec sum, bytes weights, bytes x) {
#if defined(__AVX2__)
  __m256i unsigned_weights = (__m256i)weights, signed_x = (__m256i)x;
  if (kind == Q8_0) {
    signed_x = _mm256_sign_epi8(signed_x, unsigned_weights);
    unsigned_weights = _mm256_abs_epi8(unsigned_weights);
  }
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (ivec)_mm256_dpbusd_epi32((__m256i)sum, unsigned_weights, signed_x);
#else
  __m256i pairs = _mm256_maddubs_epi16(unsigned_weights, signed_x);
  if (kind != Q8_0) {
    sum = (ivec)_mm256_add_epi16((__m256i)sum, pairs);
    /* Added now: GCC would collect all terms of a sum first, more than there are registers. */
    __asm__("" : "+x"(sum));
    return sum;
  }
  return sum + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
#else
  (void)kind;
  for (int i = 0; i < LANES; i++)
    for (int b = 0; b < 4; b++) sum[i] += weights[4 * i + b] * x[4 * i + b];
  return sum;
#endif
}

INLINE ivec sum_of_pairs(enum kind kind, ivec sum) {
#if defined(__AVX2__) && !(defined(__AVX512VNNI__) && defined(__AVX512VL__))
  if (kind != Q8_0) return (ivec)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
  (void)kind;
  return sum;
}

/* Rows of x at a group: where their integers are, and their scales. */
struct group_of_rows {
  const int8_t *integers;
  const float *scales;
  int64_t depth;
};

INLINE void add_words(enum kind kind, int rows, const uint8_t *words,
                      const struct group_of_rows *x, ivec dots[MOST_ROWS][VECS]) {
  for (int b = 0; b < (kind == Q8_0 ? 8 : 4); b++)
    for (int v = 0; v < VECS; v++) {
      bytes word = load_bytes(words + 4 * PANEL * b + 4 * LANES * v);
      bytes high = (bytes)(((ivec)word >> 4) & 0x0f0f0f0f);
      if (kind != Q8_0) word &= 15;
      for (int m = 0; m < rows; m++) {
        const int8_t *integers = x->integers + m * x->depth + 4 * b;
        dots[m][v] = add_fours(kind, dots[m][v], word, same_four(integers));
        if (kind != Q8_0) dots[m][v] = add_fours(kind, dots[m][v], high, same_four(integers + 16));
      }
    }
}

INLINE void add_group(enum kind kind, int rows, const uint8_t *group,
                      const struct group_of_rows *x, vec sums[MOST_ROWS][VECS]) {
  ivec dots[MOST_ROWS][VECS];
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < VECS; v++) dots[m][v] = (ivec)all(0.0f);
  add_words(kind, rows, group + head_bytes(kind), x, dots);
  for (int v = 0; v < VECS; v++) {
    vec scale = load_halves(group + 2 * LANES * v), minimum = scale * all(-8.0f);
    if (kind == Q4_1) minimum = load_halves(group + 2 * PANEL + 2 * LANES * v);
    for (int m = 0; m < rows; m++) {
      const float *scales = x->scales + 2 * m * (x->depth / GROUP);
      vec dot = __builtin_convertvector(sum_of_pairs(kind, dots[m][v]), vec);
      sums[m][v] = multiply_add(dot, scale * all(scales[0]), sums[m][v]);
      if (kind != Q8_0) sums[m][v] = multiply_add(minimum, all(scales[1]), sums[m][v]);
    }
  }
}

INLINE void multiply_tile(enum kind kind, int rows, const uint8_t *panel, struct group_of_rows x,
                          const struct target *target, int64_t first_row) {
  vec sums[MOST_ROWS][VECS];
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < VECS; v++) sums[m][v] = all(0.0f);
  for (int64_t k = 0; k < x.depth; k += GROUP) {
    add_group(kind, rows, panel, &x, sums);
    panel += PANEL * group_bytes(kind), x.integers += GROUP, x.scales += 2;
  }
  for (int m = 0; m < rows; m++) finish(sums[m], target, first_row + m);
}

/* Panels [first, last) for some rows of x. */
INLINE void multiply_block(enum kind kind, const struct matrix *matrix, const struct rounded *x,
                           float *out, int64_t start, int64_t num_rows, int adds, int64_t first,
                           int64_t last) {
  size_t panel_bytes = (size_t)(matrix->depth / GROUP) * PANEL * group_bytes(kind);
  int64_t tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
  for (int64_t idx = first; idx < last; idx++) {
    const uint8_t *panel = matrix->weight + idx * panel_bytes;
    struct target target = target_of(matrix, out, adds, idx);
    for (int64_t tile = 0; tile < tiles; tile++) {
      int64_t m = start + num_rows * tile / tiles, end = start + num_rows * (tile + 1) / tiles;
      struct group_of_rows rows = {x->integers + m * matrix->depth,
                                   x->scales + 2 * m * (matrix->depth / GROUP), matrix->depth};
      if (end - m == 1) multiply_tile(kind, 1, panel, rows, &target, m);
      else if (end - m == 2) multiply_tile(kind, 2, panel, rows, &target, m);
      else if (end - m == 3) multiply_tile(kind, 3, panel, rows, &target, m);
      else multiply_tile(kind, 4, panel, rows, &target, m);
    }
  }
}

#define BLOCK(KIND)                                                                                \
  static void multiply_block_##KIND(const struct matrix *matrix, const struct rounded *x,          \
                                    float *out, int64_t start, int64_t num_rows, int adds,         \
                                    int64_t first, int64_t last) {                                 \
    multiply_block(KIND, matrix, x, out, start, num_rows, adds, first, last);                      \
  }
BLOCK(Q4_0)
BLOCK(Q4_1)
BLOCK(Q8_0)

void multiply_rounded(const struct matrix *matrix, const struct rounded *x, float *out,
                      int64_t num_rows, int adds, int64_t first, int64_t last) {
  for (int64_t start = 0; start < num_rows; start += ROW_BLOCK) {
    int64_t rows = num_rows - start < ROW_BLOCK ? num_rows - start : ROW_BLOCK;
    if (matrix->kind == Q4_0)
      multiply_block_Q4_0(matrix, x, out, start, rows, adds, first, last);
    else if (matrix->kind == Q4_1)
      multiply_block_Q4_1(matrix, x, out, start, rows, adds, first, last);
    else
      multiply_block_Q8_0(matrix, x, out, start, rows, adds, first, last);
  }
}
