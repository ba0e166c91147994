/* Attention of one layer over paged K and V: softmax(cap(scale * q . k)) v for each query, over the
 * rows that it sees, with the sums of flash attention (Dao et al., 2022).
 *
 * Rows are taken in tiles of TILE positions, counted from the start of a text, and a query goes through
 * its tiles in rising order. So a query's result has the same bits whatever else is in the step,
 * wherever rows lie, whether a prompt came in chunks, and whether others read the same tile. A tile
 * that several texts share is read once and used for all of their queries while it is near. */

#include "kernels.h"
#include "vectors.h"

#include <math.h>
#include <stddef.h>

#define TILE 32
#define NUM_VECS (TILE / LANES)
#define MOST_QUERIES 3
#define MOST_TOKENS 64
#define MOST_TOKENS_TIMES_GROUP 128
#define BLOCK 4 /* vectors of a result that stay in registers, for each query */

/* The sums of four vectors, each as two: of its lanes 0 to 3, and 4 to 7. */
INLINE vec fours_of(const vec a[4]) {
  vec pairs[2];
  for (int i = 0; i < 2; i++)
    pairs[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               SHUFFLE(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  return SHUFFLE(pairs[0], pairs[1], 0, 1, 8, 9, 4, 5, 12, 13) +
         SHUFFLE(pairs[0], pairs[1], 2, 3, 10, 11, 6, 7, 14, 15);
}

INLINE vec eights_of(vec low, vec high) {
  return SHUFFLE(low, high, 0, 1, 2, 3, 8, 9, 10, 11) +
         SHUFFLE(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
}

INLINE float sum_of(vec a) {
  float lane[LANES];
  store(lane, a);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

INLINE float max_of(vec a) {
  float lane[LANES];
  store(lane, a);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  return lane[0];
}

INLINE float exponential_of(float x) {
  float lane[LANES];
  store(lane, exponential(all(x)));
  return lane[0];
}

/* cap * tanh(x / cap) */
INLINE vec capped(vec x, float cap) {
  vec small = x * all(2.0f / cap);
  ivec is_high = small > all(80.0f);
  small = chosen(is_high, all(80.0f), small);
  return all(cap) - all(2.0f * cap) / (exponential(small) + all(1.0f));
}

/* Where the rows of a tile are. */
struct tile {
  const float *k[TILE], *v[TILE];
};

/* One query of one head at one tile, of whose rows it sees [first, last). */
struct query {
  const float *q;
  float *out, *sums;
  int32_t first, last;
};

/* Scores of N queries for four rows, each as two partial sums: lanes 0 to 3, and 4 to 7. */
INLINE void half_scores(int n, const struct query *queries, const float *const *k, int64_t head_dim,
                        vec found[MOST_QUERIES]) {
  vec parts[MOST_QUERIES][4] = {{{0}}};
  for (int64_t d = 0; d < head_dim; d += LANES) {
    vec of_q[MOST_QUERIES];
    for (int i = 0; i < n; i++) of_q[i] = load(queries[i].q + d);
    for (int row = 0; row < 4; row++) {
      vec of_k = load(k[row] + d);
      for (int i = 0; i < n; i++) parts[i][row] = multiply_add(of_q[i], of_k, parts[i][row]);
    }
  }
  for (int i = 0; i < n; i++) found[i] = fours_of(parts[i]);
}

/* Lets N queries see a tile. Rows that a query does not see count with weight 0, if at all. */
INLINE void attend(int n, const struct tile *tile, const struct query *queries, int64_t head_dim,
                   float scale, float softcap) {
  float weights[MOST_QUERIES][TILE], kept[MOST_QUERIES];
  vec quarters[TILE / 4][MOST_QUERIES];
  const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  int first = queries[0].first, last = queries[0].last;
  for (int i = 1; i < n; i++) {
    first = queries[i].first < first ? queries[i].first : first;
    last = queries[i].last > last ? queries[i].last : last;
  }
  for (int i = 0; i < TILE / 4; i++) {
    if (4 * i < last && 4 * i + 4 > first)
      half_scores(n, queries, tile->k + 4 * i, head_dim, quarters[i]);
    else
      for (int j = 0; j < n; j++) quarters[i][j] = all(0.0f);
  }
  for (int i = 0; i < n; i++) {
    const struct query *query = queries + i;
    vec scores[NUM_VECS], total = all(0.0f), high = all(-INFINITY);
    for (int part = 0; part < NUM_VECS; part++) {
      vec found = eights_of(quarters[2 * part][i], quarters[2 * part + 1][i]) * all(scale);
      if (softcap != 0.0f) found = capped(found, softcap);
      ivec at = lanes + part * LANES;
      ivec is_seen = (at >= query->first) & (at < query->last);
      scores[part] = chosen(is_seen, found, all(-INFINITY));
      high = chosen(scores[part] > high, scores[part], high);
    }
    float before = query->sums[0], most = max_of(high);
    most = most > before ? most : before;
    for (int part = 0; part < NUM_VECS; part++) {
      vec weight = exponential(scores[part] - all(most));
      store(weights[i] + part * LANES, weight);
      total += weight;
    }
    kept[i] = most > before ? exponential_of(before - most) : 1.0f;
    query->sums[0] = most;
    query->sums[1] = query->sums[1] * kept[i] + sum_of(total);
  }
  int64_t d = 0;
  for (; d + BLOCK * LANES <= head_dim; d += BLOCK * LANES) {
    vec results[MOST_QUERIES][BLOCK];
    for (int i = 0; i < n; i++)
      for (int j = 0; j < BLOCK; j++)
        results[i][j] = load(queries[i].out + d + j * LANES) * all(kept[i]);
    for (int row = first; row < last; row++) {
      const float *v = tile->v[row] + d;
      vec of_row[MOST_QUERIES];
      for (int i = 0; i < n; i++) of_row[i] = all(weights[i][row]);
      for (int j = 0; j < BLOCK; j++) {
        vec of_v = load(v + j * LANES);
        for (int i = 0; i < n; i++) results[i][j] = multiply_add(of_row[i], of_v, results[i][j]);
      }
    }
    for (int i = 0; i < n; i++)
      for (int j = 0; j < BLOCK; j++) store(queries[i].out + d + j * LANES, results[i][j]);
  }
  for (; d < head_dim; d += LANES)
    for (int i = 0; i < n; i++) {
      vec result = load(queries[i].out + d) * all(kept[i]);
      for (int row = first; row < last; row++)
        result = multiply_add(all(weights[i][row]), load(tile->v[row] + d), result);
      store(queries[i].out + d, result);
    }
}

/* Of constant numbers, so that sums stay in registers. */
static void attend_1(const struct tile *t, const struct query *q, int64_t d, float s, float c) {
  attend(1, t, q, d, s, c);
}
static void attend_2(const struct tile *t, const struct query *q, int64_t d, float s, float c) {
  attend(2, t, q, d, s, c);
}
static void attend_3(const struct tile *t, const struct query *q, int64_t d, float s, float c) {
  attend(3, t, q, d, s, c);
}

/* The first position that the query at a position sees. */
INLINE int64_t first_seen(const struct attention *c, int64_t position) {
  return c->window && position >= c->window ? position - c->window + 1 : 0;
}

/* The rows of a tile of one head; those past the last are the first one, and count nowhere. */
static void fill(struct tile *tile, const struct attention *c, const struct range **range, int64_t *offset,
                 int64_t num_rows, int64_t head) {
  for (int64_t row = 0; row < num_rows; row++) {
    while (*offset == (*range)->length) {
      (*range)++;
      *offset = 0;
    }
    int64_t at = (head * c->num_slots + (*range)->slot + (*offset)++) * c->head_dim;
    tile->k[row] = c->keys + at;
    tile->v[row] = c->values + at;
  }
  for (int64_t row = num_rows; row < TILE; row++) {
    tile->k[row] = tile->k[0];
    tile->v[row] = tile->v[0];
  }
}

/* Tokens whose queries go through a run together: so few that what they need stays near. */
struct block {
  int64_t at[MOST_TOKENS], position[MOST_TOKENS]; /* in the step, and in its text */
  int64_t length, low, high;                      /* positions that any of them sees: [low, high) */
};

static void use(const struct tile *tile, const struct attention *c, const struct block *block,
                int64_t start, int64_t stop, int64_t head) {
  int64_t group = c->num_heads / c->num_kv_heads;
  struct query queries[MOST_QUERIES];
  int length = 0;
  for (int64_t token = 0; token < block->length; token++) {
    int64_t at = block->at[token], position = block->position[token];
    int64_t last = position + 1 < stop ? position + 1 : stop, first = first_seen(c, position);
    first = first > start ? first : start;
    if (first >= last) continue;
    for (int64_t i = head * group; i < (head + 1) * group; i++) {
      queries[length++] = (struct query){
          .q = c->q + at * c->q_stride + i * c->head_dim,
          .out = c->out + (at * c->num_heads + i) * c->head_dim,
          .sums = c->sums + (at * c->num_heads + i) * 2,
          .first = (int32_t)(first - start),
          .last = (int32_t)(last - start),
      };
      if (length == MOST_QUERIES) {
        attend_3(tile, queries, c->head_dim, c->scale, c->softcap);
        length = 0;
      }
    }
  }
  if (length == 2) attend_2(tile, queries, c->head_dim, c->scale, c->softcap);
  if (length == 1) attend_1(tile, queries, c->head_dim, c->scale, c->softcap);
}

/* The tiles of a run, for one block. */
static void sweep(const struct attention *c, struct tile *tile, const struct run *run,
                  const struct range *range, struct block *block, int64_t head) {
  int64_t start = block->low / TILE * TILE, stop = block->high < run->stop ? block->high : run->stop;
  start = start > run->start ? start : run->start;
  int64_t offset = start;
  while (offset >= range->length) offset -= range++->length;
  for (; start < stop; start += TILE) {
    int64_t end = start + TILE < stop ? start + TILE : stop;
    fill(tile, c, &range, &offset, end - start, head);
    use(tile, c, block, start, end, head);
  }
  block->length = 0;
}

/* One head of tokens [low, high) of the step. */
static void attend_part(const struct attention *c, int64_t head, int64_t low, int64_t high) {
  struct tile tile;
  struct block block = {.length = 0};
  int64_t most = MOST_TOKENS_TIMES_GROUP * c->num_kv_heads / c->num_heads;
  most = most < 1 ? 1 : most > MOST_TOKENS ? MOST_TOKENS : most;
  for (int64_t i = 0; i < c->num_runs; i++) {
    const struct run *run = c->runs + i;
    const int64_t *readers = c->readers + run->first_reader;
    const struct range *range = c->ranges + c->spans[readers[0]].first_range;
    for (int64_t j = 0; j < run->num_readers; j++) {
      const struct span *span = c->spans + readers[j];
      int64_t begin = span->context_len - span->query_len - span->query_start;
      int64_t end = span->query_start + span->query_len;
      end = end < high ? end : high;
      for (int64_t at = span->query_start < low ? low : span->query_start; at < end; at++) {
        int64_t position = begin + at, first = first_seen(c, position);
        if (block.length == 0 || first < block.low) block.low = first;
        if (block.length == 0 || position >= block.high) block.high = position + 1;
        block.at[block.length] = at;
        block.position[block.length++] = position;
        if (block.length == most) sweep(c, &tile, run, range, &block, head);
      }
    }
    if (block.length) sweep(c, &tile, run, range, &block, head);
  }
}

static void store_row(const struct attention *c, float *rows, const float *from, int64_t token,
                      int64_t head) {
  int64_t to = (head * c->num_slots + c->slots[token]) * c->head_dim;
  memcpy(rows + to, from + head * c->head_dim, (size_t)c->head_dim * sizeof(float));
}

void store_key(const struct attention *c, int64_t token, int64_t head) {
  store_row(c, c->keys, c->k + token * c->k_stride, token, head);
}

void store_value(const struct attention *c, int64_t token, int64_t head) {
  store_row(c, c->values, c->v + token * c->v_stride, token, head);
}

void begin_query(const struct attention *c, int64_t token, int64_t head) {
  int64_t i = token * c->num_heads + head;
  memset(c->out + i * c->head_dim, 0, (size_t)c->head_dim * sizeof(float));
  c->sums[2 * i] = -INFINITY;
  c->sums[2 * i + 1] = 0.0f;
}

static void divide(const struct attention *c, int64_t head, int64_t low, int64_t high) {
  int64_t group = c->num_heads / c->num_kv_heads;
  for (int64_t token = low; token < high; token++)
    for (int64_t i = token * c->num_heads + head * group, g = 0; g < group; g++, i++)
      for (int64_t d = 0; d < c->head_dim; d++) c->out[i * c->head_dim + d] /= c->sums[2 * i + 1];
}

void attend_task(const struct attention *c, int64_t task) {
  int64_t head = task / c->num_parts, part = task % c->num_parts;
  int64_t low = c->num_tokens * part / c->num_parts, high = c->num_tokens * (part + 1) / c->num_parts;
  attend_part(c, head, low, high);
  divide(c, head, low, high);
}

void flowforge_attention(const struct attention *c) {
  int64_t num_tasks = c->num_kv_heads * c->num_parts;
#pragma omp parallel num_threads((int)c->num_threads) if (c->num_threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t token = 0; token < c->num_tokens; token++) {
      for (int64_t head = 0; head < c->num_kv_heads; head++) {
        store_key(c, token, head);
        store_value(c, token, head);
      }
      for (int64_t head = 0; head < c->num_heads; head++) begin_query(c, token, head);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < num_tasks; task++) attend_task(c, task);
  }
}
