/* The layers of a decoder over the tokens of one step, in one call: norms, products, rotation, paged
 * attention and gated MLPs, in float32.
 *
 * Threads share each part of a layer: each takes the next piece until none is left, so that one which
 * has no core at the moment holds up at most the piece that it has. They wait for the end of a part
 * awake at first, since parts take microseconds, and then asleep. Everything of a token is computed in an
 * order that depends on nothing but its text, so its bits do not depend on what else is in the step. */

#include "kernels.h"
#include "vectors.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

/* How often a thread looks before it sleeps: some ten microseconds. */
#define LOOKS 512
/* Pieces of a part for each thread: so few that taking one costs little. */
#define PIECES 8

enum activation { SILU = 0, GELU_TANH = 1 };

/* Null: the layer has none. */
struct layer {
  struct matrix qkv, output, gate_up, down;
  const float *attention_norm, *attention_post_norm, *mlp_norm, *mlp_post_norm; /* [hidden_size] */
  const float *q_norm, *k_norm;                                                 /* [head_dim] */
  int64_t rope;   /* index of its rotation; -1: none */
  int64_t window; /* as of `struct attention` */
};

/* Cosines and signed sines of the step's tokens: [num_tokens, num_rows] each. */
struct rope {
  const float *cosines, *sines;
  int64_t num_rows;
};

/* What the threads write between two parts. rounded: what a product that rounds reads instead of the
 * floats of the same name, null where there is none. */
struct buffers {
  float *normed;    /* [num_tokens, hidden_size] */
  float *qkv;       /* [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] */
  float *projected; /* [num_tokens, hidden_size] */
  float *gate_up;   /* [2, num_tokens, mlp_size] */
  struct rounded rounded_normed, rounded_attended, rounded_gated;
};

struct step {
  const struct layer *layers;
  const struct rope *ropes;
  const struct attention *attention; /* of the step, without what differs between layers */
  float *rows;                 /* [num_layers, 2, num_kv_heads, num_slots, head_dim] */
  float *hidden;               /* [num_tokens, hidden_size]: embeddings, then sums */
  float *out;                  /* [num_tokens, hidden_size]: behind the final norm */
  const float *final_norm;
  struct buffers buffers;
  int32_t *counters; /* [9 * num_layers + 1, 3], zeros */
  int64_t num_layers, hidden_size, mlp_size, activation;
  float epsilon;
};

/* --- threads --------------------------------------------------------------------------------- */

/* Pieces of a part that are taken, and done; and how many threads sleep until all are. */
struct counter {
  _Atomic int32_t taken, done, num_asleep;
};

INLINE void pause_shortly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Until `done` is no longer what was seen, or for no reason. */
static void sleep_on(struct counter *counter, int32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, &counter->done, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
#else
  (void)counter, (void)seen;
  sched_yield();
#endif
}

static void wake_all(struct counter *counter) {
#if defined(__linux__)
  syscall(SYS_futex, &counter->done, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
#else
  (void)counter;
#endif
}

static void wait_for(struct counter *counter, int32_t num_pieces) {
  for (int looks = 0; looks < LOOKS; looks++) {
    if (atomic_load(&counter->done) == num_pieces) return;
    pause_shortly();
  }
  atomic_fetch_add(&counter->num_asleep, 1);
  int32_t seen;
  while ((seen = atomic_load(&counter->done)) != num_pieces) sleep_on(counter, seen);
  atomic_fetch_sub(&counter->num_asleep, 1);
}

/* What a part of a layer is computed from. */
struct work {
  const struct step *step;
  const struct layer *layer;
  int64_t layer_idx;
};

typedef void (*part)(const struct work *, int64_t piece, int64_t num_pieces);

/* Takes pieces of a part until there is none; returns when all are done. */
static void share(const struct work *work, struct counter **counter, part compute,
                  int64_t num_pieces) {
  struct counter *of_part = (*counter)++;
  int64_t piece;
  while ((piece = atomic_fetch_add(&of_part->taken, 1)) < num_pieces) {
    compute(work, piece, num_pieces);
    if (atomic_fetch_add(&of_part->done, 1) + 1 == num_pieces &&
        atomic_load(&of_part->num_asleep) > 0)
      wake_all(of_part);
  }
  wait_for(of_part, (int32_t)num_pieces);
}

/* --- parts of a layer ------------------------------------------------------------------------ */

static float sum_lanes(vec a) {
  float lane[LANES];
  store(lane, a);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  return lane[0];
}

/* to = x / sqrt(mean of x * x + epsilon) * weight; length: a multiple of LANES. to may be x. */
static void norm(const float *x, const float *weight, float epsilon, int64_t length, float *to) {
  vec sum = all(0.0f);
  for (int64_t i = 0; i < length; i += LANES) sum = multiply_add(load(x + i), load(x + i), sum);
  vec scale = all(1.0f / sqrtf(sum_lanes(sum) / (float)length + epsilon));
  for (int64_t i = 0; i < length; i += LANES)
    store(to + i, load(x + i) * scale * load(weight + i));
}

/* Pieces are pairs of panels, which one row is multiplied with at once. */
static int64_t first_panel(int64_t num_panels, int64_t piece, int64_t num_pieces) {
  return least(2 * ((num_panels + 1) / 2 * piece / num_pieces), num_panels);
}

/* Rows as products read them: rounded if the matrix wants them so. */
struct input {
  const float *x;
  const struct rounded *rounded;
};

static void multiply_some(const struct matrix *matrix, struct input input, float *out,
                          int64_t num_rows, int adds, int64_t first, int64_t last) {
  if (matrix->rounds) multiply_rounded(matrix, input.rounded, out, num_rows, adds, first, last);
  else multiply_panels(matrix, input.x, out, num_rows, adds, first, last);
}

static void multiply(const struct matrix *matrix, struct input input, float *out, int64_t num_rows,
                     int adds, int64_t piece, int64_t num_pieces) {
  int64_t panels = panels_of(matrix);
  multiply_some(matrix, input, out, num_rows, adds, first_panel(panels, piece, num_pieces),
                first_panel(panels, piece + 1, num_pieces));
}

static struct input normed_of(const struct step *step) {
  return (struct input){step->buffers.normed, &step->buffers.rounded_normed};
}

static void multiply_qkv(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct step *step = work->step;
  multiply(&work->layer->qkv, normed_of(step), step->buffers.qkv, step->attention->num_tokens, 0,
           piece, num_pieces);
}

/* Adds a product to the hidden states, or leaves it for the norm behind it. */
static void project(const struct step *step, const struct matrix *matrix, struct input input,
                    const float *post_norm, int64_t piece, int64_t num_pieces) {
  multiply(matrix, input, post_norm ? step->buffers.projected : step->hidden,
           step->attention->num_tokens, post_norm == 0, piece, num_pieces);
}

static void project_attended(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct step *step = work->step;
  struct input input = {step->attention->out, &step->buffers.rounded_attended};
  project(step, &work->layer->output, input, work->layer->attention_post_norm, piece, num_pieces);
}

static void project_gated(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct step *step = work->step;
  struct input input = {step->buffers.gate_up + step->attention->num_tokens * step->mlp_size,
                        &step->buffers.rounded_gated};
  project(step, &work->layer->down, input, work->layer->mlp_post_norm, piece, num_pieces);
}

/* hidden += norm(projected), if there is a weight for that, then to = norm(hidden), for a product with
 * `next`; null: for whoever reads the last hidden states. */
static void norm_rows(const struct step *step, const float *post_norm, const float *weight,
                      const struct matrix *next, int64_t piece, int64_t num_pieces) {
  float *to = next ? step->buffers.normed : step->out;
  int64_t num_tokens = step->attention->num_tokens, size = step->hidden_size;
  int64_t last = num_tokens * (piece + 1) / num_pieces;
  for (int64_t m = num_tokens * piece / num_pieces; m < last; m++) {
    float *hidden = step->hidden + m * size, *projected = step->buffers.projected + m * size;
    if (post_norm) {
      norm(projected, post_norm, step->epsilon, size, projected);
      for (int64_t i = 0; i < size; i++) hidden[i] += projected[i];
    }
    norm(hidden, weight, step->epsilon, size, to + m * size);
    if (next && next->rounds)
      round_rows(to + m * size, size, &step->buffers.rounded_normed, m * size);
  }
}

static void norm_embedded(const struct work *work, int64_t piece, int64_t num_pieces) {
  norm_rows(work->step, 0, work->layer->attention_norm, &work->layer->qkv, piece, num_pieces);
}

static void norm_attended(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct layer *layer = work->layer;
  norm_rows(work->step, layer->attention_post_norm, layer->mlp_norm, &layer->gate_up, piece,
            num_pieces);
}

/* For the next layer, or behind the last one. */
static void norm_layer(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct step *step = work->step;
  const struct layer *next = work->layer_idx + 1 < step->num_layers ? work->layer + 1 : 0;
  norm_rows(step, work->layer->mlp_post_norm, next ? next->attention_norm : step->final_norm,
            next ? &next->qkv : 0, piece, num_pieces);
}

/* x = x * cosines + (x rolled by half) * sines, of its first rows. */
static void rotate(float *x, const struct rope *rope, int64_t token) {
  int64_t half = rope->num_rows / 2;
  /* Four places that do not overlap, which is what lets a compiler take several lanes at once. */
  float *restrict low = x, *restrict high = x + half;
  const float *restrict cosines = rope->cosines + token * rope->num_rows;
  const float *restrict sines = rope->sines + token * rope->num_rows;
  for (int64_t i = 0; i < half; i++) {
    float first = low[i], second = high[i];
    low[i] = first * cosines[i] + second * sines[i];
    high[i] = second * cosines[i + half] + first * sines[i + half];
  }
}

/* Where the layer's rows are, and what of them its queries see. */
static struct attention attention_of(const struct work *work) {
  struct attention attention = *work->step->attention;
  int64_t size = attention.num_kv_heads * attention.num_slots * attention.head_dim;
  attention.keys = work->step->rows + 2 * work->layer_idx * size;
  attention.values = attention.keys + size;
  attention.window = work->layer->window;
  return attention;
}

/* A head of Q, K or V at a token, from the product to where attention finds it. */
static void place_head(const struct work *work, const struct attention *attention, int64_t token,
                       int64_t head) {
  const struct step *step = work->step;
  int64_t num_heads = attention->num_heads, num_turned = num_heads + attention->num_kv_heads;
  if (head < num_turned) {
    float *x = step->buffers.qkv + token * attention->q_stride + head * attention->head_dim;
    const float *weight = head < num_heads ? work->layer->q_norm : work->layer->k_norm;
    if (weight) norm(x, weight, step->epsilon, attention->head_dim, x);
    if (work->layer->rope >= 0) rotate(x, step->ropes + work->layer->rope, token);
  }
  if (head < num_heads) begin_query(attention, token, head);
  else if (head < num_turned) store_key(attention, token, head - num_heads);
  else store_value(attention, token, head - num_turned);
}

static void place_heads(const struct work *work, int64_t piece, int64_t num_pieces) {
  struct attention attention = attention_of(work);
  int64_t num_heads = attention.num_heads + 2 * attention.num_kv_heads;
  int64_t last = attention.num_tokens * (piece + 1) / num_pieces;
  for (int64_t token = attention.num_tokens * piece / num_pieces; token < last; token++)
    for (int64_t head = 0; head < num_heads; head++) place_head(work, &attention, token, head);
}

static void attend(const struct work *work, int64_t piece, int64_t num_pieces) {
  struct attention attention = attention_of(work);
  (void)num_pieces;
  attend_task(&attention, piece);
}

static void round_attended(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct attention *attention = work->step->attention;
  int64_t size = attention->num_heads * attention->head_dim;
  int64_t first = attention->num_tokens * piece / num_pieces;
  int64_t last = attention->num_tokens * (piece + 1) / num_pieces;
  struct rounded rounded = work->step->buffers.rounded_attended;
  round_rows(attention->out + first * size, (last - first) * size, &rounded, first * size);
}

INLINE vec silu(vec x) {
  vec turned = all(0.0f) - x;
  return x / (all(1.0f) + exponential(smaller(all(88.0f), turned)));
}

/* x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE vec gelu_tanh(vec x) {
  vec turned = all(-1.5957691216057308f) * (x + all(0.044715f) * x * x * x);
  return x / (all(1.0f) + exponential(smaller(all(88.0f), turned)));
}

/* Gate and up of some panels, and their product in the place of up. */
static void gate(const struct work *work, int64_t piece, int64_t num_pieces) {
  const struct step *step = work->step;
  int64_t size = step->mlp_size, num_tokens = step->attention->num_tokens;
  int64_t first = first_panel(size / PANEL, piece, num_pieces);
  int64_t last = first_panel(size / PANEL, piece + 1, num_pieces);
  float *halves[2] = {step->buffers.gate_up, step->buffers.gate_up + num_tokens * size};
  for (int half = 0; half < 2; half++) {
    struct matrix matrix = half_of(&work->layer->gate_up, half);
    multiply_some(&matrix, normed_of(step), halves[half], num_tokens, 0, first, last);
  }
  struct rounded rounded = step->buffers.rounded_gated;
  for (int64_t m = 0; m < num_tokens; m++) {
    float *gates = halves[0] + m * size, *gated = halves[1] + m * size;
    for (int64_t i = first * PANEL; i < last * PANEL; i += LANES) {
      vec x = load(gates + i);
      vec opened = step->activation == SILU ? silu(x) : gelu_tanh(x);
      store(gated + i, opened * load(gated + i));
    }
    /* Pairs of panels are groups of the next product. */
    if (work->layer->down.rounds)
      round_rows(gated + first * PANEL, (last - first) * PANEL, &rounded, m * size + first * PANEL);
  }
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Pieces of a part whose length is a number of panels, or of tokens. */
static int64_t pieces_of(int64_t length, int num_threads) {
  if (num_threads == 1 || length < 1) return 1;
  return least(length, PIECES * num_threads);
}

static void run_layers(const struct step *step, int num_threads) {
  struct work work = {.step = step, .layer = step->layers};
  struct counter *counter = (struct counter *)step->counters;
  const struct attention *attention = step->attention;
  int64_t by_token = pieces_of(attention->num_tokens, num_threads);
  share(&work, &counter, norm_embedded, by_token);
  for (; work.layer_idx < step->num_layers; work.layer_idx++, work.layer++) {
    const struct layer *layer = work.layer;
    share(&work, &counter, multiply_qkv, pieces_of(panels_of(&layer->qkv) / 2, num_threads));
    share(&work, &counter, place_heads, by_token);
    share(&work, &counter, attend, attention->num_kv_heads * attention->num_parts);
    if (layer->output.rounds) share(&work, &counter, round_attended, by_token);
    share(&work, &counter, project_attended, pieces_of(panels_of(&layer->output) / 2, num_threads));
    share(&work, &counter, norm_attended, by_token);
    share(&work, &counter, gate, pieces_of(step->mlp_size / PANEL / 2, num_threads));
    share(&work, &counter, project_gated, pieces_of(panels_of(&layer->down) / 2, num_threads));
    share(&work, &counter, norm_layer, by_token);
  }
}

void flowforge_layers(const struct step *step) {
#pragma omp parallel num_threads((int)step->attention->num_threads) \
    if (step->attention->num_threads > 1)
  {
    int num_threads = 1;
#if defined(_OPENMP)
    num_threads = omp_get_num_threads();
#endif
    run_layers(step, num_threads);
  }
}
