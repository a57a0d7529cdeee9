/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_reuse.h - worth of keeping an expert: an estimate of the time until its layer requests it again.
 *
 * The paper ranks experts by counts (rank.h). In real traces each sequence has its own hot set, and recency within the
 * sequence matters: long-run counts do worse than LRU. On the gpt-oss-20b history the probability of a request for an
 * expert within a few passes fits the product
 *
 *     p  ~  (its rate within the present sequence)^0.8  *  (passes since its last use)^-0.4,
 *
 * where the rate starts as the expert's long-run rate. The callers do not say where a sequence starts: the start of a
 * new one is detected when two consecutive passes request experts that were much less likely than those before.
 *
 * Computed in integers, except for the estimate that compares layers, so that the same requests give the same order on
 * every machine. A pass is one visit of a layer. Not thread-safe.
 */
#ifndef EFS_POLICY_REUSE_H
#define EFS_POLICY_REUSE_H

#include <stdbool.h>
#include <stdint.h>

struct efs_reuse;

/* chosen: mean number of experts in a visit. steady: does not detect new sequences. NULL: out of memory, or a size is 0
 * or above the limits of rank.h. */
struct efs_reuse *efs_reuse_new(unsigned layers, unsigned experts, double chosen, bool steady);
void efs_reuse_free(struct efs_reuse *reuse); /* NULL is allowed */

/* A layer requests experts. True: a new sequence was detected, which started at the latest with the pass that just
 * ended. */
bool efs_reuse_request(struct efs_reuse *reuse, unsigned layer, const uint32_t *expert, unsigned count);

/* Sets the long-run counts of a layer, accumulated over `passes` visits of it, from a trace or an earlier mount. */
void efs_reuse_seed(struct efs_reuse *reuse, unsigned layer, const uint32_t *counts, uint64_t passes);

/*
 * Score of an expert, in units of 1/4096 of a factor of two: a higher score means an earlier use. Scores are comparable
 * within a layer until its next visit; efs_reuse_passes() makes them comparable between layers.
 */
#define EFS_REUSE_UNIT 4096
#define EFS_REUSE_AGES 4096u /* ages above this count as this */

/* Inputs of the scores of a layer, to compute many of them; valid until the next request. */
struct efs_reuse_view {
    const int32_t *log_rate, *age_cost;
    const uint32_t *last;
    uint32_t visits;
    int32_t log_passes;
};
struct efs_reuse_view efs_reuse_view_layer(struct efs_reuse *reuse, unsigned layer);

static inline int32_t efs_reuse_score(const struct efs_reuse_view *view, unsigned expert)
{
    uint32_t age = view->visits - view->last[expert] + 1;

    return view->log_rate[expert] - view->log_passes - view->age_cost[age < EFS_REUSE_AGES ? age : EFS_REUSE_AGES];
}

/* Expected passes until the next request for an expert of this score. */
double efs_reuse_passes(int32_t score);

#endif
