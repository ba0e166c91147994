/* Products with transposed matrices: out[m, n] = sum over k of x[m, k] * weight[n, k], in float32, for
 * weights of several kinds.
 *
 * Weights of four and eight bits are those of GGUF files (llama.cpp, MIT): groups of GROUP values along
 * k; a value is scale * integer + minimum, rounded once to float32, which is the very number that
 * dequantising gives. So nothing is lost against float32 weights but the order in which products are
 * added up.
 *
 * PANEL outputs are computed side by side, a lane each, over k in rising order. So an output has the
 * same bits whatever the number of rows, of threads and of columns: rows of a batch get the bits that
 * each of them gets alone. Four and eight bits are packed once (`flowforge_pack`) so that the integers
 * of a panel lie in the lanes where they are needed; an integer is masked and converted in its place,
 * and the scale takes the power of two that the place stands for. */

#if defined(__AVX512F__)
#define LANES 16
#endif
#include "kernels.h"
#include "vectors.h"
#include "panels.h"

#include <stddef.h>

/* Rows of x at once: their sums and what they are multiplied with stay in registers. */
#define MOST_ROWS 6
/* Packed weights are multiplied as they are unpacked with so many rows at most. */
#define MOST_DIRECT 4
#define MOST_VECS (MOST_DIRECT * VECS)
/* Rows of x for which a panel is unpacked once. */
#ifndef ROW_BLOCK
#define ROW_BLOCK 48
#endif
/* Of the depth, what of a panel is unpacked at once: it stays in the first level cache. */
#define DEPTH_BLOCK 256

typedef float eight __attribute__((vector_size(32)));
typedef int32_t eight_integers __attribute__((vector_size(32)));

INLINE ivec load_integers(const uint8_t *at) {
  ivec values;
  memcpy(&values, at, sizeof values);
  return values;
}

/* A word of 32 bits holds integers of one output, of k = words * s + b for its place s: all words of a
 * group are gone through for one place after the other, so k rises. */
INLINE int places_of(enum kind kind) { return kind == Q8_0 ? 4 : 8; }

/* How integers come out of words in one place, and what they count there. */
struct place {
  int is_highest, shift;
  ivec mask;
  vec scale[MOST_VECS], minimum[MOST_VECS];
};

INLINE ivec all_integers(int32_t value) { return (ivec)all(0.0f) + value; }

/* The lowest place, of `panels` panels that lie a stride apart. */
INLINE struct place first_place(enum kind kind, int panels, const uint8_t *group, size_t stride) {
  struct place place = {
      .shift = 24, .mask = all_integers(kind == Q8_0 ? (int32_t)0xff000000 : 15)};
  for (int i = 0; i < panels * VECS; i++) {
    const uint8_t *head = group + i / VECS * stride + 2 * LANES * (i % VECS);
    vec scale = load_halves(head);
    if (kind == Q8_0) place.scale[i] = scale * all(1.0f / (1 << 24));
    else place.scale[i] = scale;
    if (kind == Q4_0) place.minimum[i] = scale * all(-8.0f);
    if (kind == Q4_1) place.minimum[i] = load_halves(head + 2 * PANEL);
  }
  return place;
}

INLINE void next_place(enum kind kind, int panels, struct place *place) {
  place->shift -= 8;
  if (kind == Q8_0) return;
  place->mask <<= 4;
  for (int i = 0; i < panels * VECS; i++) place->scale[i] *= all(1.0f / 16);
}

INLINE void last_place(enum kind kind, int panels, struct place *place) {
  place->is_highest = 1;
  if (kind == Q8_0) return;
  for (int i = 0; i < panels * VECS; i++) place->scale[i] *= all((float)(1 << 28));
}

INLINE vec value_at(enum kind kind, const struct place *place, const uint8_t *word, int i) {
  ivec integers = load_integers(word);
  if (kind == Q8_0) {
    if (!place->is_highest) integers <<= place->shift;
    return __builtin_convertvector(integers & place->mask, vec) * place->scale[i];
  }
  /* Four bits are taken where they are, but for the highest, which would be negative there. */
  integers = place->is_highest ? (integers >> 28) & 15 : integers & place->mask;
  return multiply_add(__builtin_convertvector(integers, vec), place->scale[i], place->minimum[i]);
}

/* Does something with the values of each place of a group, of which the last is another function for
 * the compiler. */
#define FOR_PLACES(KIND, PANELS, GROUP_AT, STRIDE, DO)                                              struct place place = first_place(KIND, PANELS, GROUP_AT, STRIDE);                                 _Pragma("GCC unroll 1") for (int s = 0; s < places_of(KIND) - 1; s++) {                             DO;                                                                                               next_place(KIND, PANELS, &place);                                                               }                                                                                                 last_place(KIND, PANELS, &place);                                                                 DO;

INLINE void add_place(enum kind kind, int panels, int rows, const struct place *place,
                      const uint8_t *words, size_t stride, const float *x, int64_t x_stride,
                      vec sums[MOST_VECS]) {
#pragma GCC unroll 8
  for (int b = 0; b < GROUP / places_of(kind); b++)
    for (int i = 0; i < panels * VECS; i++) {
      const uint8_t *word = words + i / VECS * stride + 4 * PANEL * b + 4 * LANES * (i % VECS);
      vec value = value_at(kind, place, word, i);
      for (int m = 0; m < rows; m++) {
        vec *sum = sums + m * panels * VECS + i;
        *sum = multiply_add(all(x[m * x_stride + b]), value, *sum);
      }
    }
}

/* Adds a group's products to the sums of `rows` rows for `panels` panels. */
INLINE void add_packed(enum kind kind, int panels, int rows, const uint8_t *group, size_t stride,
                       const float *x, int64_t x_stride, vec sums[MOST_VECS]) {
  const int words_len = GROUP / places_of(kind);
  const uint8_t *words = group + head_bytes(kind);
  FOR_PLACES(kind, panels, group, stride, {
    add_place(kind, panels, rows, &place, words, stride, x, x_stride, sums);
    x += words_len;
  })
}

INLINE void unpack_place(enum kind kind, const struct place *place, const uint8_t *words,
                         float *to) {
  for (int b = 0; b < GROUP / places_of(kind); b++)
    for (int v = 0; v < VECS; v++) {
      const uint8_t *word = words + 4 * PANEL * b + 4 * LANES * v;
      store(to + b * PANEL + v * LANES, value_at(kind, place, word, v));
    }
}

/* The values of a packed group as [GROUP, PANEL]. */
INLINE void unpack(enum kind kind, const uint8_t *group, float *to) {
  const int words_len = GROUP / places_of(kind);
  const uint8_t *words = group + head_bytes(kind);
  FOR_PLACES(kind, 1, group, 0, {
    unpack_place(kind, &place, words, to);
    to += words_len * PANEL;
  })
}

/* Adds products with values of [length, PANEL]. */
INLINE void add_values(int rows, const float *values, int64_t length, const float *x,
                       int64_t x_stride, vec sums[MOST_ROWS][VECS]) {
  for (int64_t k = 0; k < length; k++) {
    vec of_k[VECS];
    for (int v = 0; v < VECS; v++) of_k[v] = load(values + k * PANEL + v * LANES);
    for (int m = 0; m < rows; m++) {
      vec of_x = all(x[m * x_stride + k]);
      for (int v = 0; v < VECS; v++) sums[m][v] = multiply_add(of_x, of_k[v], sums[m][v]);
    }
  }
}

/* --- weights as rows ------------------------------------------------------------------------- */

INLINE eight load_eight(enum kind kind, const uint8_t *at) {
  eight values;
  if (kind == F32) {
    memcpy(&values, at, sizeof values);
  } else {
    uint16_t bits __attribute__((vector_size(16)));
    memcpy(&bits, at, sizeof bits);
    values = (eight)(__builtin_convertvector(bits, eight_integers) << 16);
  }
  return values;
}

#if defined(__clang__) || __GNUC__ >= 12
#define PAIR(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PAIR(a, b, ...) __builtin_shuffle(a, b, (eight_integers){__VA_ARGS__})
#endif

/* Rows to columns: to[k][row] = rows[row][k]. */
INLINE void transpose(const eight rows[8], float *to) {
  eight pairs[8], fours[8];
  for (int i = 0; i < 4; i++) {
    pairs[2 * i] = PAIR(rows[2 * i], rows[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[2 * i + 1] = PAIR(rows[2 * i], rows[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      fours[4 * i + 2 * j] = PAIR(pairs[4 * i + j], pairs[4 * i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[4 * i + 2 * j + 1] =
          PAIR(pairs[4 * i + j], pairs[4 * i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int k = 0; k < 4; k++) {
    eight low = PAIR(fours[k], fours[4 + k], 0, 1, 2, 3, 8, 9, 10, 11);
    eight high = PAIR(fours[k], fours[4 + k], 4, 5, 6, 7, 12, 13, 14, 15);
    memcpy(to + k * PANEL, &low, sizeof low);
    memcpy(to + (k + 4) * PANEL, &high, sizeof high);
  }
}

/* As `unpack`, of a group of rows; past the last one the last again, which counts nowhere. */
INLINE void turn(enum kind kind, const uint8_t *group, int num_rows, size_t stride, float *to) {
  const size_t size = kind == F32 ? 4 : 2;
  for (int first = 0; first < PANEL; first += 8)
    for (int k = 0; k < GROUP; k += 8) {
      eight rows[8];
      for (int i = 0; i < 8; i++) {
        int row = first + i < num_rows ? first + i : num_rows - 1;
        rows[i] = load_eight(kind, group + row * stride + k * size);
      }
      transpose(rows, to + k * PANEL + first);
    }
}

/* --- panels ---------------------------------------------------------------------------------- */

struct source {
  const uint8_t *weight;
  size_t stride; /* of rows, or of packed panels */
  const float *x;
  int64_t depth;
  int num_outputs; /* of a panel of rows */
};

/* Few rows of packed weights: straight into the products. */
INLINE void few(enum kind kind, int panels, int rows, const struct source *source,
                const struct target *targets) {
  vec sums[MOST_VECS];
  for (int i = 0; i < MOST_VECS; i++) sums[i] = all(0.0f);
  const uint8_t *group = source->weight;
  for (int64_t k = 0; k < source->depth; k += GROUP, group += PANEL * group_bytes(kind))
    add_packed(kind, panels, rows, group, source->stride, source->x + k, source->depth, sums);
  for (int p = 0; p < panels; p++)
    for (int m = 0; m < rows; m++) finish(sums + (m * panels + p) * VECS, targets + p, m);
}

INLINE void add_block(int rows, const float *values, int64_t length, const float *x,
                      int64_t depth, float *kept) {
  vec sums[MOST_ROWS][VECS];
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < VECS; v++) sums[m][v] = load(kept + m * PANEL + v * LANES);
  add_values(rows, values, length, x, depth, sums);
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < VECS; v++) store(kept + m * PANEL + v * LANES, sums[m][v]);
}

#define ADD_BLOCK(ROWS)                                                                           \
  static void add_block_##ROWS(const float *values, int64_t length, const float *x,               \
                               int64_t depth, float *kept) {                                      \
    add_block(ROWS, values, length, x, depth, kept);                                              \
  }
ADD_BLOCK(1) ADD_BLOCK(2) ADD_BLOCK(3) ADD_BLOCK(4) ADD_BLOCK(5) ADD_BLOCK(6)

/* Many rows: a panel is unpacked once for a block of them. */
INLINE void many(enum kind kind, const struct source *source, const struct target *target,
                 int64_t num_rows) {
  static void (*const adders[])(const float *, int64_t, const float *, int64_t, float *) = {
      add_block_1, add_block_2, add_block_3, add_block_4, add_block_5, add_block_6};
  float values[DEPTH_BLOCK * PANEL], kept[ROW_BLOCK * PANEL];
  memset(kept, 0, (size_t)num_rows * PANEL * sizeof(float));
  for (int64_t start = 0; start < source->depth; start += DEPTH_BLOCK) {
    int64_t length = source->depth - start < DEPTH_BLOCK ? source->depth - start : DEPTH_BLOCK;
    for (int64_t k = 0; k < length; k += GROUP) {
      int64_t group = (start + k) / GROUP;
      if (is_packed(kind))
        unpack(kind, source->weight + group * PANEL * group_bytes(kind), values + k * PANEL);
      else
        turn(kind, source->weight + group * group_bytes(kind), source->num_outputs, source->stride,
             values + k * PANEL);
    }
    /* Of nearly equal height: a low one is as slow as a high one. */
    int64_t tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t tile = 0; tile < tiles; tile++) {
      int64_t m = num_rows * tile / tiles, rows = num_rows * (tile + 1) / tiles - m;
      adders[rows - 1](values, length, source->x + m * source->depth + start, source->depth,
                       kept + m * PANEL);
    }
  }
  for (int64_t m = 0; m < num_rows; m++) {
    vec sums[VECS];
    for (int v = 0; v < VECS; v++) sums[v] = load(kept + m * PANEL + v * LANES);
    finish(sums, target, m);
  }
}

/* Panels [first, last) of the outputs. */
INLINE void part(enum kind kind, const struct matrix *matrix, const float *x, float *out,
                 int64_t num_rows, int adds, int64_t first, int64_t last) {
  size_t row_bytes = (size_t)(matrix->depth / GROUP) * group_bytes(kind);
  for (int64_t start = 0; start < num_rows; start += ROW_BLOCK) {
    int64_t rows = num_rows - start < ROW_BLOCK ? num_rows - start : ROW_BLOCK;
    int64_t step = 1;
    for (int64_t panel = first; panel < last; panel += step) {
      struct target targets[2];
      for (int p = 0; p < 2; p++) {
        targets[p] = target_of(matrix, out + start * matrix->num_outputs, adds, panel + p);
      }
      struct source source = {
          .weight = matrix->weight + panel * PANEL * row_bytes,
          .stride = is_packed(kind) ? PANEL * row_bytes : row_bytes,
          .x = x + start * matrix->depth,
          .depth = matrix->depth,
          .num_outputs = targets[0].num_outputs,
      };
      /* One row is too little to do while a sum is waited for: two panels at once. */
      step = is_packed(kind) && rows == 1 && panel + 2 <= last ? 2 : 1;
      if (!is_packed(kind) || rows > MOST_DIRECT) many(kind, &source, targets, rows);
      else if (step == 2) few(kind, 2, 1, &source, targets);
      else if (rows == 1) few(kind, 1, 1, &source, targets);
      else if (rows == 2) few(kind, 1, 2, &source, targets);
      else if (rows == 3) few(kind, 1, 3, &source, targets);
      else few(kind, 1, 4, &source, targets);
    }
  }
}

#define PART(KIND)                                                                                \
  static void part_##KIND(const struct matrix *matrix, const float *x, float *out,                \
                          int64_t num_rows, int adds, int64_t first, int64_t last) {              \
    part(KIND, matrix, x, out, num_rows, adds, first, last);                                      \
  }
PART(F32)
PART(BF16)
PART(Q4_0)
PART(Q4_1)
PART(Q8_0)

void multiply_panels(const struct matrix *matrix, const float *x, float *out, int64_t num_rows,
                     int adds, int64_t first, int64_t last) {
  static void (*const parts[])(const struct matrix *, const float *, float *, int64_t, int, int64_t,
                               int64_t) = {part_F32, part_BF16, part_Q4_0, part_Q4_1, part_Q8_0};
  parts[matrix->kind](matrix, x, out, num_rows, adds, first, last);
}

int64_t panels_of(const struct matrix *matrix) { return (matrix->num_outputs + PANEL - 1) / PANEL; }

struct matrix half_of(const struct matrix *matrix, int half) {
  struct matrix result = *matrix;
  int64_t first = half ? matrix->num_outputs / 2 : 0;
  result.num_outputs = matrix->num_outputs / 2;
  result.weight += first * (matrix->depth / GROUP) * (int64_t)group_bytes(matrix->kind);
  if (matrix->bias) result.bias += first;
  return result;
}

/* x: [num_rows, depth], out: [num_rows, num_outputs], both contiguous. rounded: to be written, for a
 * matrix whose rows are rounded. */
void flowforge_linear(const struct matrix *matrix, const float *x, const struct rounded *rounded,
                      float *out, int64_t num_rows, int num_threads) {
  /* By one thread: a thousandth of the product, less than a wait for each other takes. */
  if (matrix->rounds) round_rows(x, num_rows * matrix->depth, rounded, 0);
  /* More pieces than threads, for one that has no core at the moment. */
  int64_t pairs = (panels_of(matrix) + 1) / 2, pieces = num_threads > 1 ? 8 * num_threads : 1;
  if (pieces > pairs) pieces = pairs;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads) if (num_threads > 1)
  for (int64_t piece = 0; piece < pieces; piece++) {
    int64_t first = 2 * (pairs * piece / pieces), last = 2 * (pairs * (piece + 1) / pieces);
    last = last < panels_of(matrix) ? last : panels_of(matrix);
    if (matrix->rounds) multiply_rounded(matrix, rounded, out, num_rows, 0, first, last);
    else multiply_panels(matrix, x, out, num_rows, 0, first, last);
  }
}

/* --- packing --------------------------------------------------------------------------------- */

/* A group of an output, as a file has it, to its lane of a panel's. */
static void pack_group(enum kind kind, const uint8_t *from, uint8_t *to, int lane) {
  size_t head = kind == Q4_1 ? 4 : 2;
  for (size_t i = 0; i < head / 2; i++) memcpy(to + (i * PANEL + lane) * 2, from + 2 * i, 2);
  from += head, to += head * PANEL;
  if (kind == Q8_0) {
    for (int k = 0; k < GROUP; k++)
      to[4 * (PANEL * (k % 8) + lane) + k / 8] = from[k];
    return;
  }
  for (int b = 0; b < 4; b++) {
    uint32_t word = 0;
    for (int s = 0; s < 8; s++) {
      int k = 4 * s + b;
      uint32_t integer = k < GROUP / 2 ? from[k] & 15 : from[k - GROUP / 2] >> 4;
      word |= integer << 4 * s;
    }
    for (int i = 0; i < 4; i++) to[4 * (PANEL * b + lane) + i] = (uint8_t)(word >> 8 * i);
  }
}

/* From rows of groups, as a file has them, to panels: as many bytes, and groups of zeros for the
 * outputs that the last panel lacks. */
void flowforge_pack(int kind, const uint8_t *from, uint8_t *to, int64_t num_outputs, int64_t depth,
                    int num_threads) {
  int64_t groups = depth / GROUP, panels = (num_outputs + PANEL - 1) / PANEL;
  size_t size = group_bytes(kind);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
  for (int64_t panel = 0; panel < panels; panel++)
    for (int64_t group = 0; group < groups; group++) {
      uint8_t *panel_group = to + (panel * groups + group) * PANEL * size;
      memset(panel_group, 0, PANEL * size);
      for (int lane = 0; lane < PANEL && panel * PANEL + lane < num_outputs; lane++)
        pack_group(kind, from + ((panel * PANEL + lane) * groups + group) * size, panel_group, lane);
    }
}
