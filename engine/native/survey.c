/* What a draw among the scores of a row needs to know of all of them, in two passes: the best one, how
 * much all weigh, and which are likely enough to be looked at. A weight is exp(slope * (score - best)).
 *
 * Sums are those of one thread in one order, so a row has the same survey wherever it is. */

#include "kernels.h"
#include "vectors.h"

#include <math.h>
#include <stddef.h>

#define BLOCK 32 /* scores that one word of a mask is about */
#define NUM_VECS (BLOCK / LANES)

/* A block of a row; those that are not allowed, or behind its end, are minus infinity. */
static void load_block(const struct survey *survey, int64_t start, vec scores[NUM_VECS]) {
  const ivec bits = {1, 2, 4, 8, 16, 32, 64, 128};
  int64_t length = survey->num_scores - start;
  float last[BLOCK];
  const float *from = survey->scores + start;
  if (length < BLOCK) {
    for (int i = 0; i < BLOCK; i++) last[i] = i < length ? from[i] : -INFINITY;
    from = last;
  }
  uint32_t allowed = survey->allowed ? survey->allowed[start / BLOCK] : UINT32_MAX;
  for (int i = 0; i < NUM_VECS; i++) {
    ivec is_allowed = (((ivec){0} + (int32_t)(allowed >> LANES * i & 255)) & bits) != 0;
    scores[i] = chosen(is_allowed, load(from + LANES * i), all(-INFINITY));
  }
}

static int is_any(ivec flags) {
  int64_t halves[sizeof flags / sizeof(int64_t)];
  memcpy(halves, &flags, sizeof flags);
  int64_t found = 0;
  for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) found |= halves[i];
  return found != 0;
}

static int is_skipped(const struct survey *survey, int64_t start) {
  return survey->allowed && survey->allowed[start / BLOCK] == 0;
}

static void find_best(struct survey *survey) {
  vec scores[NUM_VECS], high = all(-INFINITY);
  ivec is_no_number = {0};
  for (int64_t start = 0; start < survey->num_scores; start += BLOCK) {
    if (is_skipped(survey, start)) continue;
    load_block(survey, start, scores);
    for (int i = 0; i < NUM_VECS; i++) {
      is_no_number |= scores[i] != scores[i];
      high = chosen(scores[i] > high, scores[i], high);
    }
  }
  float lane[LANES];
  store(lane, high);
  survey->best = lane[0];
  for (int i = 1; i < LANES; i++)
    if (lane[i] > survey->best) survey->best = lane[i];
  survey->has_best = !is_any(is_no_number) && survey->best > -INFINITY;
}

/* Notes those of a block that are likely. */
static void list(struct survey *survey, int64_t start, const vec scores[NUM_VECS], float least) {
  float values[BLOCK];
  for (int i = 0; i < NUM_VECS; i++) store(values + LANES * i, scores[i]);
  for (int i = 0; i < BLOCK; i++) {
    if (!(values[i] >= least)) continue;
    if (survey->num_likely < survey->most_likely) survey->likely[survey->num_likely] = (int32_t)(start + i);
    survey->num_likely++;
  }
}

void flowforge_survey(struct survey *survey) {
  find_best(survey);
  survey->total = 0.0;
  survey->num_likely = 0;
  if (!survey->has_best) return;
  const float best = survey->best, least = best - survey->depth;
  for (int64_t start = 0; start < survey->num_scores; start += BLOCK) {
    if (is_skipped(survey, start)) continue;
    vec scores[NUM_VECS], weight = all(0.0f);
    ivec is_likely = {0};
    load_block(survey, start, scores);
    for (int i = 0; i < NUM_VECS; i++) {
      weight += exponential((scores[i] - all(best)) * all(survey->slope));
      is_likely |= scores[i] >= all(least);
    }
    float lane[LANES];
    store(lane, weight);
    for (int i = 0; i < LANES; i++) survey->total += (double)lane[i];
    if (is_any(is_likely)) list(survey, start, scores, least);
  }
}
