/* The layers of a decoder over the tokens of one step, in one call: norms, products, rotation, paged
 * attention and gated MLPs, in float32.
 *
 * Threads share each part of a layer and meet behind it. They wait for each other awake, since parts
 * take microseconds; where others want the cores they yield. Everything of a token is computed in an
 * order that depends on nothing but its text, so its bits do not depend on what else is in the step. */

#include "kernels.h"
#include "vectors.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

/* How often a thread looks before it yields: some ten microseconds. */
#define LOOKS 512

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

/* What the threads write between two parts. */
struct buffers {
  float *normed;    /* [num_tokens, hidden_size] */
  float *qkv;       /* [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] */
  float *projected; /* [num_tokens, hidden_size] */
  float *gate_up;   /* [2, num_tokens, mlp_size] */
};

struct step {
  const struct layer *layers;
  const struct rope *ropes;
  struct attention *attention; /* of the step; what differs between layers is set here */
  float *rows;                 /* [num_layers, 2, num_kv_heads, num_slots, head_dim] */
  float *hidden;               /* [num_tokens, hidden_size]: embeddings, then sums */
  float *out;                  /* [num_tokens, hidden_size]: behind the final norm */
  const float *final_norm;
  struct buffers buffers;
  int64_t *next_tasks; /* [num_layers], zeros */
  int64_t num_layers, hidden_size, mlp_size, activation;
  float epsilon;
};

/* --- threads --------------------------------------------------------------------------------- */

struct team {
  int num_threads;
  atomic_int num_there, round;
};

INLINE void pause_shortly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Returns when all threads have come. */
static void meet(struct team *team) {
  if (team->num_threads == 1) return;
  int round = atomic_load_explicit(&team->round, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team->num_there, 1, memory_order_acq_rel) + 1 ==
      team->num_threads) {
    atomic_store_explicit(&team->num_there, 0, memory_order_relaxed);
    atomic_store_explicit(&team->round, round + 1, memory_order_release);
    return;
  }
  for (int looks = 0; atomic_load_explicit(&team->round, memory_order_acquire) == round; looks++) {
    if (looks < LOOKS) pause_shortly();
    else sched_yield();
  }
}

/* A thread's share of `length` things: [*first, the result). */
struct thread {
  int idx, num_threads;
};

INLINE int64_t first_of(const struct thread *thread, int64_t length) {
  return length * thread->idx / thread->num_threads;
}

INLINE int64_t last_of(const struct thread *thread, int64_t length) {
  return length * (thread->idx + 1) / thread->num_threads;
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

static void multiply(const struct thread *thread, const struct matrix *matrix, const float *x,
                     float *out, int64_t num_rows, int adds) {
  int64_t panels = panels_of(matrix);
  multiply_panels(matrix, x, out, num_rows, adds, first_of(thread, panels), last_of(thread, panels));
}

/* hidden += norm(projected), if there is a weight for that, then to = norm(hidden). */
static void norm_rows(const struct thread *thread, const struct step *step, const float *post_norm,
                      const float *weight, float *to) {
  int64_t num_tokens = step->attention->num_tokens, size = step->hidden_size;
  for (int64_t m = first_of(thread, num_tokens); m < last_of(thread, num_tokens); m++) {
    float *hidden = step->hidden + m * size, *projected = step->buffers.projected + m * size;
    if (post_norm) {
      norm(projected, post_norm, step->epsilon, size, projected);
      for (int64_t i = 0; i < size; i++) hidden[i] += projected[i];
    }
    norm(hidden, weight, step->epsilon, size, to + m * size);
  }
}

/* x = x * cosines + (x rolled by half) * sines, of its first rows. */
static void rotate(float *x, const struct rope *rope, int64_t token) {
  int64_t half = rope->num_rows / 2;
  const float *cosines = rope->cosines + token * rope->num_rows;
  const float *sines = rope->sines + token * rope->num_rows;
  for (int64_t i = 0; i < half; i++) {
    float low = x[i], high = x[i + half];
    x[i] = low * cosines[i] + high * sines[i];
    x[i + half] = high * cosines[i + half] + low * sines[i + half];
  }
}

/* A head of Q, K or V at a token, from the product to where attention finds it. */
static void place_head(const struct step *step, const struct layer *layer, int64_t token,
                       int64_t head) {
  const struct attention *attention = step->attention;
  int64_t num_heads = attention->num_heads, num_turned = num_heads + attention->num_kv_heads;
  if (head < num_turned) {
    float *x = step->buffers.qkv + token * attention->q_stride + head * attention->head_dim;
    const float *weight = head < num_heads ? layer->q_norm : layer->k_norm;
    if (weight) norm(x, weight, step->epsilon, attention->head_dim, x);
    if (layer->rope >= 0) rotate(x, step->ropes + layer->rope, token);
  }
  if (head < num_heads) begin_query(attention, token, head);
  else if (head < num_turned) store_key(attention, token, head - num_heads);
  else store_value(attention, token, head - num_turned);
}

static void place_heads(const struct thread *thread, const struct step *step,
                        const struct layer *layer) {
  const struct attention *attention = step->attention;
  int64_t num_heads = attention->num_heads + 2 * attention->num_kv_heads;
  int64_t length = attention->num_tokens * num_heads;
  for (int64_t i = first_of(thread, length); i < last_of(thread, length); i++)
    place_head(step, layer, i / num_heads, i % num_heads);
}

INLINE vec silu(vec x) {
  vec turned = all(0.0f) - x;
  ivec is_high = turned > all(88.0f);
  return x / (all(1.0f) + exponential(chosen(is_high, all(88.0f), turned)));
}

/* x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE vec gelu_tanh(vec x) {
  vec turned = all(-1.5957691216057308f) * (x + all(0.044715f) * x * x * x);
  ivec is_high = turned > all(88.0f);
  return x / (all(1.0f) + exponential(chosen(is_high, all(88.0f), turned)));
}

/* Gate and up of the thread's own panels, and their product in the place of up. */
static void gate(const struct thread *thread, const struct step *step, const struct layer *layer) {
  int64_t size = step->mlp_size, panels = size / PANEL, num_tokens = step->attention->num_tokens;
  int64_t first = first_of(thread, panels), last = last_of(thread, panels);
  float *halves[2] = {step->buffers.gate_up, step->buffers.gate_up + num_tokens * size};
  for (int half = 0; half < 2; half++) {
    struct matrix matrix = half_of(&layer->gate_up, half);
    multiply_panels(&matrix, step->buffers.normed, halves[half], num_tokens, 0, first, last);
  }
  for (int64_t m = 0; m < num_tokens; m++)
    for (int64_t i = first * PANEL; i < last * PANEL; i += LANES) {
      vec x = load(halves[0] + m * size + i);
      vec opened = step->activation == SILU ? silu(x) : gelu_tanh(x);
      store(halves[1] + m * size + i, opened * load(halves[1] + m * size + i));
    }
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Adds a product to the hidden states, or leaves it for the norm behind it. */
static void project(const struct thread *thread, const struct step *step,
                    const struct matrix *matrix, const float *x, const float *post_norm) {
  multiply(thread, matrix, x, post_norm ? step->buffers.projected : step->hidden,
           step->attention->num_tokens, post_norm == 0);
}

static void attend(const struct step *step, int64_t layer_idx) {
  const struct attention *attention = step->attention;
  int64_t num_tasks = attention->num_kv_heads * attention->num_parts, task;
  while ((task = __atomic_fetch_add(step->next_tasks + layer_idx, 1, __ATOMIC_RELAXED)) < num_tasks)
    attend_task(attention, task);
}

/* Whoever is first sets what differs between layers; others wait for the end of its part anyway. */
static void choose_layer(const struct step *step, int64_t layer_idx) {
  struct attention *attention = step->attention;
  int64_t size = attention->num_kv_heads * attention->num_slots * attention->head_dim;
  attention->keys = step->rows + 2 * layer_idx * size;
  attention->values = attention->keys + size;
  attention->window = step->layers[layer_idx].window;
}

static void run_layers(const struct thread *thread, const struct step *step, struct team *team) {
  int64_t num_tokens = step->attention->num_tokens;
  const struct buffers *buffers = &step->buffers;
  norm_rows(thread, step, 0, step->layers[0].attention_norm, buffers->normed);
  for (int64_t idx = 0; idx < step->num_layers; idx++) {
    const struct layer *layer = step->layers + idx;
    meet(team);
    if (thread->idx == 0) choose_layer(step, idx);
    multiply(thread, &layer->qkv, buffers->normed, buffers->qkv, num_tokens, 0);
    meet(team);
    place_heads(thread, step, layer);
    meet(team);
    attend(step, idx);
    meet(team);
    project(thread, step, &layer->output, step->attention->out, layer->attention_post_norm);
    meet(team);
    norm_rows(thread, step, layer->attention_post_norm, layer->mlp_norm, buffers->normed);
    meet(team);
    gate(thread, step, layer);
    meet(team);
    project(thread, step, &layer->down, buffers->gate_up + num_tokens * step->mlp_size,
            layer->mlp_post_norm);
    meet(team);
    int is_last = idx + 1 == step->num_layers;
    norm_rows(thread, step, layer->mlp_post_norm,
              is_last ? step->final_norm : layer[1].attention_norm,
              is_last ? step->out : buffers->normed);
  }
}

void flowforge_layers(const struct step *step) {
  struct team team = {.num_threads = 1};
#pragma omp parallel num_threads((int)step->attention->num_threads) \
    if (step->attention->num_threads > 1)
  {
    struct thread thread = {0, 1};
#if defined(_OPENMP)
    thread = (struct thread){omp_get_thread_num(), omp_get_num_threads()};
#pragma omp single
    team.num_threads = thread.num_threads;
#endif
    run_layers(&thread, step, &team);
  }
}
