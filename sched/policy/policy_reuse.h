/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_reuse.h - worth of keeping an expert: an estimate of the time until its layer requests it again.
 *
 * The paper ranks experts by counts (rank.h). In real traces each sequence has its own hot set, and recency within the
 * sequence matters: long-run counts do worse than LRU. On the gpt-oss-20b history the probability of a request for an
 * expert within a few passes fits the product
 *
 *     p  ~  (its rate within the present request)^0.8  *  (passes since its last use)^-0.4,
 *
 * where the rate starts as the expert's long-run rate. "Request" means one sequence here. The start of a new one is
 * detected when two consecutive passes request experts that were much less likely than those before.
 *
 * Computed in integers, except for the estimate that compares layers, so that the same requests give the same order on
 * every machine. A pass is one visit of a layer. Not thread-safe.
 */
#ifndef EFS_POLICY_VALUE_H
#define EFS_POLICY_VALUE_H

#include <stdbool.h>
#include <stdint.h>

struct efs_value;

/* chosen: mean number of experts in a visit. steady: does not detect new requests. NULL: out of memory, or a size is 0
 * or above the limits of rank.h. */
struct efs_value *efs_value_new(unsigned layers, unsigned experts, double chosen, bool steady);
void efs_value_free(struct efs_value *value); /* NULL is allowed */

/* A layer requests experts. True: a new request was detected, which started at the latest with the pass that just
 * ended. */
bool efs_value_request(struct efs_value *value, unsigned layer, const uint32_t *expert, unsigned count);

/* Sets the long-run counts of a layer, accumulated over `passes` visits of it, from a trace or an earlier mount. */
void efs_value_seed(struct efs_value *value, unsigned layer, const uint32_t *counts, uint64_t passes);

/*
 * Score of an expert, in units of 1/4096 of a factor of two: a higher score means an earlier use. Scores are comparable
 * within a layer until its next visit; efs_value_reuse() makes them comparable between layers.
 */
#define EFS_VALUE_UNIT 4096
#define EFS_VALUE_AGES 4096u /* ages above this count as this */

/* Inputs of the scores of a layer, to compute many of them; valid until the next request. */
struct efs_value_view {
    const int32_t *log_rate, *age_cost;
    const uint32_t *last;
    uint32_t visits;
    int32_t log_passes;
};
struct efs_value_view efs_value_look(struct efs_value *value, unsigned layer);

static inline int32_t efs_value_score(const struct efs_value_view *view, unsigned expert)
{
    uint32_t age = view->visits - view->last[expert] + 1;

    return view->log_rate[expert] - view->log_passes - view->age_cost[age < EFS_VALUE_AGES ? age : EFS_VALUE_AGES];
}

/* Expected passes until the next request for an expert of this score. */
double efs_value_reuse(int32_t score);

#endif
