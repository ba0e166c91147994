/* Attention of one layer over paged K and V: softmax(cap(scale * q . k)) v for each query, over the
 * rows that it sees, with the sums of flash attention (Dao et al., 2022).
 *
 * Rows are taken in tiles of TILE positions, counted from the start of a text, and a query goes through
 * its tiles in rising order. So a query's result has the same bits whatever else is in the step,
 * wherever rows lie, whether a prompt came in chunks, and whether others read the same tile. A tile
 * that several texts share is read once and used for all of their queries while it is near. */

#include "kernels.h"
#include "tile.h"

#include <math.h>
#include <stddef.h>

#define MOST_TOKENS 64
#define MOST_TOKENS_TIMES_GROUP 128

/* The first position that the query at a position sees. */
INLINE int64_t first_seen(const struct attention *c, int64_t position) {
  return c->window && position >= c->window ? position - c->window + 1 : 0;
}

/* The next row of a text: so many behind the first one of a range. */
struct place {
  const struct range *range;
  int64_t offset;
};

/* The next rows of a text, of one head. */
static void fill(struct tile *tile, const struct attention *c, struct place *place, int64_t num_rows,
                 int64_t head) {
  tile->keys = c->keys;
  tile->values = c->values;
  tile->num_rows = num_rows;
  for (int64_t row = 0; row < num_rows; row++) {
    while (place->offset == place->range->length) {
      place->range++;
      place->offset = 0;
    }
    tile->at[row] = (head * c->num_slots + place->range->slot + place->offset++) * c->head_dim;
  }
  for (int64_t row = num_rows; num_rows && row < TILE; row++) tile->at[row] = tile->at[0];
}

/* Tokens whose queries go through a run together: so few that what they need stays near. */
struct block {
  int64_t at[MOST_TOKENS], position[MOST_TOKENS]; /* in the step, and in its text */
  int64_t length, low, high;                      /* positions that any of them sees: [low, high) */
};

static void add_query(const struct attention *c, struct batch *batch, int64_t token, int64_t head,
                      int64_t first, int64_t last) {
  int64_t i = token * c->num_heads + head;
  batch->largest[batch->length] = c->sums[2 * i];
  batch->sums[batch->length] = c->sums[2 * i + 1];
  batch->queries[batch->length++] = (struct query){
      .q = c->q + token * c->q_stride + head * c->head_dim,
      .out = c->out + i * c->head_dim,
      .sums = c->sums + 2 * i,
      .first = (int32_t)first,
      .last = (int32_t)last,
  };
}

/* Lets a block see a tile that begins at a position. */
static void use(const struct attention *c, const struct tile *tile, const struct tile *next,
                struct batch *batch, const struct block *block, int64_t start, int64_t head) {
  int64_t group = c->num_heads / c->num_kv_heads, stop = start + tile->num_rows;
  for (int64_t token = 0; token < block->length; token++) {
    int64_t position = block->position[token], first = first_seen(c, position);
    int64_t last = least(position + 1, stop);
    first = first > start ? first : start;
    if (first >= last) continue;
    for (int64_t i = head * group; i < (head + 1) * group; i++) {
      add_query(c, batch, block->at[token], i, first - start, last - start);
      if (batch->length == BATCH)
        attend_batch(tile, next, batch, c->head_dim, c->scale, c->softcap);
    }
  }
  if (batch->length) attend_batch(tile, next, batch, c->head_dim, c->scale, c->softcap);
}

/* The tiles of a run, for one block. */
static void sweep(const struct attention *c, struct batch *batch, const struct run *run,
                  const struct range *range, struct block *block, int64_t head) {
  int64_t start = block->low / TILE * TILE, stop = least(block->high, run->stop);
  start = start > run->start ? start : run->start;
  struct place place = {range, start};
  struct tile tiles[2];
  if (start < stop) {
    while (place.offset >= place.range->length) place.offset -= place.range++->length;
    fill(tiles, c, &place, least(TILE, stop - start), head);
  }
  for (int turn = 0; start < stop; start += TILE, turn = !turn) {
    struct tile *tile = tiles + turn, *next = tiles + !turn;
    fill(next, c, &place, least(TILE, stop - start - tile->num_rows), head);
    use(c, tile, next, batch, block, start, head);
  }
  block->length = 0;
}

/* One head of tokens [low, high) of the step. */
static void attend_part(const struct attention *c, int64_t head, int64_t low, int64_t high) {
  struct batch batch;
  struct block block = {.length = 0};
  batch.length = 0;
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
        if (block.length == most) sweep(c, &batch, run, range, &block, head);
      }
    }
    if (block.length) sweep(c, &batch, run, range, &block, head);
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
