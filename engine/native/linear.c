/* out[m, n] = sum over k of x[m, k] * weight[n, k], in float32, for weights of several kinds.
 *
 * Weights are read as they are stored. Four and eight bit kinds are blocks of 32 values along k, as in
 * GGUF files (llama.cpp, MIT); a value is scale * integer + minimum, rounded once to float32, which is
 * the very number that dequantising gives. So nothing is lost against float32 weights but the order
 * in which products are added up.
 *
 * That order is the same for every output, whatever the number of rows, of threads and of columns:
 * LANES partial sums over k in rising order, then their sum. Rows of a batch therefore get the bits that
 * each of them gets alone.
 *
 * GNU C (GCC, Clang): vector extensions, so that one source serves all processors. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#define GROUP 32
#define STEPS (GROUP / LANES)
/* Rows of x that stay in the second level cache while all weights pass by. */
#define ROW_BLOCK 48
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef int8_t signed_bytes __attribute__((vector_size(LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

enum kind { F32 = 0, BF16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 4 };

INLINE size_t group_bytes(enum kind kind) {
  switch (kind) {
    case F32: return 128;
    case BF16: return 64;
    case Q4_0: return 18;
    case Q4_1: return 20;
    default: return 34;
  }
}

INLINE float half_at(const uint8_t *at) {
#if defined(__F16C__)
  uint16_t bits;
  memcpy(&bits, at, 2);
  return _cvtsh_ss(bits);
#else
  _Float16 value;
  memcpy(&value, at, 2);
  return (float)value;
#endif
}

/* Said outright: a compiler that may choose would not choose alike for every shape of a tile. */
INLINE vec multiply_add(vec left, vec right, vec sum) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)sum);
#elif defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)sum);
#else
  return left * right + sum;
#endif
}

INLINE vec load(const float *at) {
  vec values;
  memcpy(&values, at, sizeof values);
  return values;
}

/* 16 bytes of two integers each: the low halves are the first 16 values, the high halves the rest. */
INLINE void split_halves(const uint8_t *packed, vec values[STEPS]) {
#if defined(__AVX512F__)
  __m128i both = _mm_loadu_si128((const __m128i *)packed), mask = _mm_set1_epi8(15);
  __m128i low = _mm_and_si128(both, mask), high = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
  values[0] = (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(low));
  values[1] = (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(high));
#elif defined(__AVX2__)
  /* All bytes in both lanes, from which shuffles take four each: cheaper than widening. */
  __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)packed));
  __m256i mask = _mm256_set1_epi8(15);
  __m256i low = _mm256_and_si256(both, mask);
  __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  const int none = ~255;
  __m256i first = _mm256_setr_epi32(none, 1 | none, 2 | none, 3 | none, 4 | none,
                                    5 | none, 6 | none, 7 | none);
  __m256i second = _mm256_add_epi8(first, _mm256_set1_epi32(8));
  values[0] = (vec)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(low, first));
  values[1] = (vec)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(low, second));
  values[2] = (vec)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(high, first));
  values[3] = (vec)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(high, second));
#else
  for (int i = 0; i < STEPS / 2; i++) {
    bytes both;
    memcpy(&both, packed + LANES * i, sizeof both);
    values[i] = __builtin_convertvector(__builtin_convertvector(both & 15, ivec), vec);
    values[i + STEPS / 2] = __builtin_convertvector(__builtin_convertvector(both >> 4, ivec), vec);
  }
#endif
}

/* LANES signed integers of one byte. */
INLINE vec widened(const uint8_t *at) {
#if defined(__AVX512F__)
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif defined(__AVX2__)
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
  signed_bytes integers;
  memcpy(&integers, at, sizeof integers);
  return __builtin_convertvector(__builtin_convertvector(integers, ivec), vec);
#endif
}

/* The values of one group, in order of k. */
INLINE void load_group(enum kind kind, const uint8_t *group, vec values[STEPS]) {
  if (kind == F32) {
    memcpy(values, group, 128);
  } else if (kind == BF16) {
    for (int i = 0; i < STEPS; i++) {
      halves bits;
      memcpy(&bits, group + 2 * LANES * i, sizeof bits);
      ivec wide = __builtin_convertvector(bits, ivec) << 16;
      memcpy(&values[i], &wide, sizeof wide);
    }
  } else if (kind == Q8_0) {
    float scale = half_at(group);
    for (int i = 0; i < STEPS; i++) values[i] = widened(group + 2 + LANES * i) * scale;
  } else {
    float scale = half_at(group), offset = kind == Q4_1 ? half_at(group + 2) : -8 * scale;
    vec scales = scale - (vec){0}, offsets = offset - (vec){0};
    split_halves(group + (kind == Q4_1 ? 4 : 2), values);
    for (int i = 0; i < STEPS; i++) values[i] = multiply_add(values[i], scales, offsets);
  }
}

INLINE float total(vec sums) {
  float lanes[LANES];
  memcpy(lanes, &sums, sizeof sums);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

/* rows x columns outputs at once; both are constants where this is called. */
INLINE void tile(enum kind kind, int rows, int columns, const uint8_t *weight, size_t stride,
                 const float *x, int64_t depth, float *out, int64_t out_stride) {
  vec sums[4][4];
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) sums[m][n] = (vec){0};
  for (int64_t group = 0; group < depth / GROUP; group++) {
    if (kind == F32) {
      for (int i = 0; i < STEPS; i++) {
        vec of_row[4];
        for (int m = 0; m < rows; m++) of_row[m] = load(x + m * depth + group * GROUP + i * LANES);
        for (int n = 0; n < columns; n++) {
          vec values = load((const float *)(weight + n * stride) + group * GROUP + i * LANES);
          for (int m = 0; m < rows; m++)
            sums[m][n] = multiply_add(of_row[m], values, sums[m][n]);
        }
      }
      continue;
    }
    for (int n = 0; n < columns; n++) {
      vec values[STEPS];
      load_group(kind, weight + n * stride + group * group_bytes(kind), values);
      for (int m = 0; m < rows; m++)
        for (int i = 0; i < STEPS; i++)
          sums[m][n] = multiply_add(load(x + m * depth + group * GROUP + i * LANES), values[i],
                                    sums[m][n]);
    }
  }
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) out[m * out_stride + n] = total(sums[m][n]);
}

INLINE void columns_of(enum kind kind, int columns, const uint8_t *weight, size_t stride,
                       const float *x, int64_t num_rows, int64_t depth, float *out,
                       int64_t out_stride) {
  int64_t m = 0;
  for (; m + 3 <= num_rows; m += 3)
    tile(kind, 3, columns, weight, stride, x + m * depth, depth, out + m * out_stride, out_stride);
  x += m * depth, out += m * out_stride;
  if (num_rows - m == 2) tile(kind, 2, columns, weight, stride, x, depth, out, out_stride);
  if (num_rows - m == 1) tile(kind, 1, columns, weight, stride, x, depth, out, out_stride);
}

#define WIDE(COLUMNS)                                                                             \
  static __attribute__((noinline)) void wide_##COLUMNS(const uint8_t *weight, size_t stride,      \
                                                       const float *x, int64_t num_rows,          \
                                                       int64_t depth, float *out,                 \
                                                       int64_t out_stride) {                      \
    columns_of(F32, COLUMNS, weight, stride, x, num_rows, depth, out, out_stride);                \
  }
WIDE(4)
WIDE(1)

/* Columns [first, last) of the outputs. */
INLINE void part(enum kind kind, const uint8_t *weight, const float *x, float *out,
                 int64_t num_rows, int64_t num_columns, int64_t depth, int64_t first, int64_t last) {
  /* Four rows of weights, unpacked; on a cache line. */
  float *panel = kind == F32 ? 0 : __builtin_alloca_with_align(4 * depth * sizeof(float), 512);
  size_t stride = (size_t)(depth / GROUP) * group_bytes(kind);
  for (int64_t start = 0; start < num_rows; start += ROW_BLOCK) {
    int64_t rows = num_rows - start < ROW_BLOCK ? num_rows - start : ROW_BLOCK;
    const float *from = x + start * depth;
    float *to = out + start * num_columns;
    for (int64_t n = first; n < last; n += 4) {
      const uint8_t *at = weight + n * stride;
      size_t at_stride = stride;
      int count = last - n < 4 ? (int)(last - n) : 4;
      int is_wide = kind == F32;
      if (!is_wide && rows > 3) {
        /* Unpacked once for all rows. */
        for (int c = 0; c < count; c++)
          for (int64_t group = 0; group < depth / GROUP; group++)
            load_group(kind, at + c * stride + group * group_bytes(kind),
                       (vec *)(panel + c * depth + group * GROUP));
        at = (const uint8_t *)panel, at_stride = 4 * depth, is_wide = 1;
      }
      int width = count == 4 ? 4 : 1;
      for (int c = 0; c < count; c += width) {
        const uint8_t *column = at + c * at_stride;
        float *target = to + n + c;
        if (is_wide && width == 4)
          wide_4(column, at_stride, from, rows, depth, target, num_columns);
        else if (is_wide)
          wide_1(column, at_stride, from, rows, depth, target, num_columns);
        else if (width == 4)
          columns_of(kind, 4, column, at_stride, from, rows, depth, target, num_columns);
        else
          columns_of(kind, 1, column, at_stride, from, rows, depth, target, num_columns);
      }
    }
  }
}

#define PART(KIND)                                                                                \
  static void part_##KIND(const uint8_t *weight, const float *x, float *out, int64_t num_rows,    \
                          int64_t num_columns, int64_t depth, int64_t first, int64_t last) {      \
    part(KIND, weight, x, out, num_rows, num_columns, depth, first, last);                        \
  }
PART(F32)
PART(BF16)
PART(Q4_0)
PART(Q4_1)
PART(Q8_0)

/* x: [num_rows, depth], out: [num_rows, num_columns], both contiguous. depth: a multiple of 32, at
 * most 32,768, for the stack of a thread holds four rows of weights. */
void flowforge_linear(int kind, const uint8_t *weight, const float *x, float *out, int64_t num_rows,
                      int64_t num_columns, int64_t depth, int num_threads) {
  static void (*const parts[])(const uint8_t *, const float *, float *, int64_t, int64_t, int64_t,
                               int64_t, int64_t) = {part_F32, part_BF16, part_Q4_0, part_Q4_1,
                                                    part_Q8_0};
  int64_t tiles = (num_columns + 3) / 4;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
  for (int thread = 0; thread < num_threads; thread++) {
    int64_t first = 4 * (tiles * thread / num_threads);
    int64_t last = 4 * (tiles * (thread + 1) / num_threads);
    if (last > num_columns) last = num_columns;
    parts[kind](weight, x, out, num_rows, num_columns, depth, first, last);
  }
}
