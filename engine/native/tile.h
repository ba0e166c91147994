/* Queries at one tile of keys and values: scores, weights, and sums of weighted rows.
 *
 * A query's sums are taken in one order, whatever queries are beside it: products of q and k in lanes,
 * which then add up in pairs; weighted rows in rising order. */

#ifndef FLOWFORGE_TILE_H
#define FLOWFORGE_TILE_H

#include "kernels.h"
#include "vectors.h"

#include <math.h>

#define TILE 32
#define NUM_VECS (TILE / LANES)
#define MOST_QUERIES 3 /* whose sums are in registers at once */
#define BATCH 48       /* a multiple of MOST_QUERIES and LANES */
#define BLOCK 4        /* vectors of a result that stay in registers, for each query */

/* Where the rows of a tile are, in elements from the first of all. Those from `num_rows` on are the
 * first one, and count nowhere. */
struct tile {
  const float *keys, *values;
  int64_t at[TILE], num_rows;
};

/* One query of one head at one tile, of whose rows it sees [first, last). */
struct query {
  const float *q;
  float *out, *sums;
  int32_t first, last;
};

/* Queries at a tile. All take each part of the work before any takes the next, since what is computed
 * for one waits for itself, and not for others. */
struct batch {
  float weights[BATCH][TILE]; /* scores at first */
  float largest[BATCH], sums[BATCH], kept[BATCH];
  struct query queries[BATCH];
  int length;
};

/* --- lanes ----------------------------------------------------------------------------------- */

enum joint { SUM, LARGEST };

INLINE vec joined(vec first, vec second, enum joint joint) {
  return joint == SUM ? first + second : larger(first, second);
}

/* Lanes 0 to 3 of each of four vectors as one, and 4 to 7. */
INLINE vec fours_of(const vec a[4], enum joint joint) {
  vec pairs[2];
  for (int i = 0; i < 2; i++)
    pairs[i] = joined(SHUFFLE(a[2 * i], a[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13),
                      SHUFFLE(a[2 * i], a[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15), joint);
  return joined(SHUFFLE(pairs[0], pairs[1], 0, 1, 8, 9, 4, 5, 12, 13),
                SHUFFLE(pairs[0], pairs[1], 2, 3, 10, 11, 6, 7, 14, 15), joint);
}

INLINE vec eights_of(vec low, vec high, enum joint joint) {
  return joined(SHUFFLE(low, high, 0, 1, 2, 3, 8, 9, 10, 11),
                SHUFFLE(low, high, 4, 5, 6, 7, 12, 13, 14, 15), joint);
}

/* The lanes of each of eight vectors as one. */
INLINE vec lanes_of(const vec a[LANES], enum joint joint) {
  return eights_of(fours_of(a, joint), fours_of(a + 4, joint), joint);
}

/* --- scores ---------------------------------------------------------------------------------- */

/* The rows that any of N queries sees: [first, last). */
struct seen {
  int first, last;
};

INLINE struct seen seen_by(int n, const struct query *queries) {
  struct seen seen = {queries[0].first, queries[0].last};
  for (int i = 1; i < n; i++) {
    seen.first = queries[i].first < seen.first ? queries[i].first : seen.first;
    seen.last = queries[i].last > seen.last ? queries[i].last : seen.last;
  }
  return seen;
}

/* N queries times four keys, each as two sums: of lanes 0 to 3, and 4 to 7. */
INLINE void half_scores(int n, const float *keys, const int64_t at[4], const struct query *queries,
                        int64_t head_dim, vec found[MOST_QUERIES]) {
  vec parts[MOST_QUERIES][4] = {{{0}}};
  const float *k[4];
  for (int row = 0; row < 4; row++) k[row] = keys + at[row];
  for (int64_t d = 0; d < head_dim; d += LANES) {
    vec of_q[MOST_QUERIES];
    for (int i = 0; i < n; i++) of_q[i] = held(load(queries[i].q + d));
    for (int row = 0; row < 4; row++) {
      vec of_k = held(load(k[row] + d));
      for (int i = 0; i < n; i++) parts[i][row] = multiply_add(of_q[i], of_k, parts[i][row]);
    }
  }
  for (int i = 0; i < n; i++) found[i] = fours_of(parts[i], SUM);
}

/* Asks for a part of a row, to the second level of the cache: the first one waits for few lines only. */
INLINE void fetch(const float *from, int64_t length) {
  for (int64_t d = 0; d < length; d += 16) __builtin_prefetch(from + d, 0, 2);
}

/* N queries times the keys that any of them sees, and neighbours of these. next: whose keys are asked
 * for meanwhile, or null. */
INLINE void score(int n, const struct tile *tile, const struct tile *next, struct batch *batch, int from,
                  int64_t head_dim) {
  const struct query *queries = batch->queries + from;
  struct seen seen = seen_by(n, queries);
  for (int row = seen.first / LANES * LANES; row < seen.last; row += LANES) {
    vec low[MOST_QUERIES], high[MOST_QUERIES];
    for (int i = row; next && i < row + LANES; i++) fetch(next->keys + next->at[i], head_dim);
    half_scores(n, tile->keys, tile->at + row, queries, head_dim, low);
    half_scores(n, tile->keys, tile->at + row + 4, queries, head_dim, high);
    for (int i = 0; i < n; i++)
      store(batch->weights[from + i] + row, eights_of(low[i], high[i], SUM));
  }
}

/* --- weights --------------------------------------------------------------------------------- */

/* cap * tanh(x / cap) */
INLINE vec capped(vec x, float cap) {
  vec small = smaller(all(80.0f), x * all(2.0f / cap));
  return all(cap) - all(2.0f * cap) / (exponential(small) + all(1.0f));
}

static void cap_scores(struct batch *batch, float scale, float softcap) {
  for (int i = 0; i < batch->length; i++)
    for (int row = 0; row < TILE; row += LANES) {
      float *scores = batch->weights[i] + row;
      store(scores, capped(load(scores) * all(scale), softcap));
    }
}

/* Scores times a factor, -infinity where the query does not see; returns the largest, by lanes. */
INLINE vec finish_scores(const struct query *query, float *scores, float factor) {
  const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  int sees_all = query->first <= 0 && query->last >= TILE;
  vec high = all(-INFINITY);
  for (int row = 0; row < TILE; row += LANES) {
    vec found = load(scores + row) * all(factor);
    if (!sees_all) {
      ivec at = lanes + row;
      found = chosen((at >= query->first) & (at < query->last), found, all(-INFINITY));
    }
    store(scores + row, found);
    high = larger(found, high);
  }
  return high;
}

/* Scores to weights, which are powers of two; returns their sum, by lanes. */
INLINE vec make_weights(float *scores, float largest) {
  vec total = all(0.0f);
  for (int row = 0; row < TILE; row += LANES) {
    vec weights = power_of_two(load(scores + row) - all(largest));
    store(scores + row, weights);
    total += weights;
  }
  return total;
}

/* Makes weights of the scores of a batch, and says how much of what was summed before is kept. */
static void weigh(struct batch *batch, float scale, float softcap) {
  float factor = softcap == 0.0f ? scale * LOG2_E : LOG2_E;
  if (softcap != 0.0f) cap_scores(batch, scale, softcap);
  for (int from = 0; from < batch->length; from += LANES) {
    int stop = (int)least(batch->length, from + LANES);
    vec high[LANES] = {{0}}, before = load(batch->largest + from);
    for (int i = from; i < stop; i++)
      high[i - from] = finish_scores(batch->queries + i, batch->weights[i], factor);
    vec largest = larger(lanes_of(high, LARGEST), before);
    store(batch->largest + from, largest);
    store(batch->kept + from, power_of_two(before - largest));
  }
  for (int from = 0; from < batch->length; from += LANES) {
    int stop = (int)least(batch->length, from + LANES);
    vec totals[LANES] = {{0}};
    for (int i = from; i < stop; i++)
      totals[i - from] = make_weights(batch->weights[i], batch->largest[i]);
    vec before = load(batch->sums + from) * load(batch->kept + from);
    store(batch->sums + from, before + lanes_of(totals, SUM));
  }
  for (int i = 0; i < batch->length; i++) {
    batch->queries[i].sums[0] = batch->largest[i];
    batch->queries[i].sums[1] = batch->sums[i];
  }
}

/* --- results --------------------------------------------------------------------------------- */

/* Adds weighted rows to the results of N queries. Rows that a query does not see count with weight 0,
 * if at all. next: whose values are asked for meanwhile, or null. */
INLINE void gather(int n, const struct tile *tile, const struct tile *next, const struct batch *batch,
                   int from, int64_t head_dim) {
  const struct query *queries = batch->queries + from;
  const float (*weights)[TILE] = batch->weights + from, *kept = batch->kept + from;
  struct seen seen = seen_by(n, queries);
  int64_t d = 0;
  for (; d + BLOCK * LANES <= head_dim; d += BLOCK * LANES) {
    vec results[MOST_QUERIES][BLOCK];
    for (int i = 0; i < n; i++)
      for (int j = 0; j < BLOCK; j++)
        results[i][j] = load(queries[i].out + d + j * LANES) * all(kept[i]);
    for (int row = seen.first; row < seen.last; row++) {
      const float *v = tile->values + tile->at[row] + d;
      if (next) fetch(next->values + next->at[row] + d, BLOCK * LANES);
      vec of_row[MOST_QUERIES];
      for (int i = 0; i < n; i++) of_row[i] = held(all(weights[i][row]));
      for (int j = 0; j < BLOCK; j++) {
        vec of_v = held(load(v + j * LANES));
        for (int i = 0; i < n; i++) results[i][j] = multiply_add(of_row[i], of_v, results[i][j]);
      }
    }
    for (int i = 0; i < n; i++)
      for (int j = 0; j < BLOCK; j++) store(queries[i].out + d + j * LANES, results[i][j]);
  }
  for (; d < head_dim; d += LANES)
    for (int i = 0; i < n; i++) {
      vec result = load(queries[i].out + d) * all(kept[i]);
      for (int row = seen.first; row < seen.last; row++)
        result = multiply_add(all(weights[i][row]), load(tile->values + tile->at[row] + d), result);
      store(queries[i].out + d, result);
    }
}

/* --- batches --------------------------------------------------------------------------------- */

/* Numbers of queries are constants, so that sums stay in registers. */
INLINE void score_some(int n, const struct tile *tile, const struct tile *next, struct batch *batch,
                       int from, int64_t head_dim) {
  if (n >= 3) score(3, tile, next, batch, from, head_dim);
  else if (n == 2) score(2, tile, next, batch, from, head_dim);
  else score(1, tile, next, batch, from, head_dim);
}

INLINE void gather_some(int n, const struct tile *tile, const struct tile *next,
                        const struct batch *batch, int from, int64_t head_dim) {
  if (n >= 3) gather(3, tile, next, batch, from, head_dim);
  else if (n == 2) gather(2, tile, next, batch, from, head_dim);
  else gather(1, tile, next, batch, from, head_dim);
}

/* Lets a batch see a tile, and leaves it empty; asks for the next tile meanwhile, which has no rows
 * behind the last one. */
static void attend_batch(const struct tile *tile, const struct tile *next, struct batch *batch,
                         int64_t head_dim, float scale, float softcap) {
  int length = batch->length, first = length < MOST_QUERIES ? length : MOST_QUERIES;
  const struct tile *asked = next->num_rows ? next : 0;
  score_some(first, tile, asked, batch, 0, head_dim);
  for (int i = first; i < length; i += MOST_QUERIES)
    score_some(length - i, tile, 0, batch, i, head_dim);
  weigh(batch, scale, softcap);
  gather_some(first, tile, asked, batch, 0, head_dim);
  for (int i = first; i < length; i += MOST_QUERIES)
    gather_some(length - i, tile, 0, batch, i, head_dim);
  batch->length = 0;
}

#endif
