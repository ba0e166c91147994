/* What the sources of this folder use of each other. */

#ifndef FLOWFORGE_KERNELS_H
#define FLOWFORGE_KERNELS_H

#include <stdint.h>

static inline int64_t least(int64_t first, int64_t second) { return first < second ? first : second; }

enum kind { F32 = 0, BF16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 4 };

/* A transposed matrix, [num_outputs, depth]; four and eight bits are packed. */
struct matrix {
  const uint8_t *weight;
  const float *bias; /* of outputs, or null */
  int64_t kind, num_outputs, depth;
  int64_t rounds; /* whether rows are rounded to 8 bits before; only with packed weights */
};

/* Values of a row that share a scale, in weights of four and eight bits and in rounded rows. */
#define GROUP 32

/* Outputs that are computed side by side. */
#define PANEL 16

/* Rows in 8 bits. */
struct rounded {
  int8_t *integers; /* [num_rows, depth]; of a group those of k = 8 * s + b at 4 * b + s */
  float *scales;    /* [num_rows, depth / GROUP, 2]: of the integers, and times their sum */
};

/* Rounds values, a multiple of GROUP, to where those of all rows have their place from `first` on. */
void round_rows(const float *x, int64_t length, const struct rounded *to, int64_t first);

/* As `multiply_panels`, for packed weights and a matrix whose rows are to be rounded. */
void multiply_rounded(const struct matrix *matrix, const struct rounded *x, float *out,
                      int64_t num_rows, int adds, int64_t first, int64_t last);

/* Panels [first, last) of out[m, n] = bias[n] + sum over k of x[m, k] * weight[n, k]; added to what is
 * there if `adds`. x: [num_rows, depth], out: [num_rows, num_outputs], contiguous. */
void multiply_panels(const struct matrix *matrix, const float *x, float *out, int64_t num_rows,
                     int adds, int64_t first, int64_t last);

int64_t panels_of(const struct matrix *matrix);

/* Its first or second half of the outputs, whole panels. */
struct matrix half_of(const struct matrix *matrix, int half);

struct span { int64_t query_start, query_len, context_len, first_range; };
struct range { int64_t slot, length; };
/* Positions [start, stop), start a multiple of a tile, of these spans; all find them in the ranges of
 * the first one. */
struct run { int64_t start, stop, first_reader, num_readers; };

/* Attention of one layer. */
struct attention {
  float *keys, *values;         /* [num_kv_heads, num_slots, head_dim] of the layer */
  const float *k, *v;           /* the step's own, [num_tokens, num_kv_heads, head_dim], with strides */
  const float *q;               /* [num_tokens, num_heads, head_dim], with a stride */
  float *out;                   /* [num_tokens, num_heads, head_dim] */
  float *sums;                  /* [num_tokens, num_heads, 2]: largest score, sum of exponentials */
  const int64_t *slots;         /* [num_tokens] */
  const struct span *spans;
  const struct range *ranges;
  const struct run *runs;
  const int64_t *readers;
  int64_t q_stride, k_stride, v_stride; /* elements from token to token */
  int64_t num_tokens, num_heads, num_kv_heads, head_dim, num_slots;
  int64_t num_spans, num_runs, num_parts;
  int64_t window;               /* positions that a query sees, its own included; 0: all */
  int64_t num_threads;
  float scale, softcap;         /* softcap 0: none */
};

/* Of a row of scores. */
struct survey {
  const float *scores;     /* [num_scores] */
  const uint32_t *allowed; /* a bit for each score, the lowest first; null: all are */
  int32_t *likely;         /* room for most_likely: where scores are at least best - depth, rising */
  double total;            /* of all weights */
  int64_t num_scores, most_likely;
  int64_t num_likely;      /* all that there are, also where there is no room for them */
  int64_t has_best;        /* 0: a score is NaN, or none is above minus infinity */
  float best, slope, depth;
};

/* Store K and V of a token and a head. */
void store_key(const struct attention *attention, int64_t token, int64_t head);
void store_value(const struct attention *attention, int64_t token, int64_t head);

/* Lets the queries of a head at a token begin: nothing seen. */
void begin_query(const struct attention *attention, int64_t token, int64_t head);

/* One of num_kv_heads * num_parts tasks, when all rows are stored and all queries have begun. */
void attend_task(const struct attention *attention, int64_t task);

#endif
