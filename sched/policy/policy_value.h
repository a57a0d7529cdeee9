/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_value.h - what it is worth to keep an expert: an estimate of when its layer will ask for it again.
 *
 * The paper ranks experts by counts (rank.h). On real traces each sequence has a hot set of its own, and recency within
 * it matters: long-run counts do worse than LRU. On the gpt-oss-20b history the chance that an expert is asked for soon
 * fits a product well,
 *
 *     p  ~  (its rate within the present request)^0.8  *  (passes since its last use)^-0.4,
 *
 * where the rate begins as the expert's long-run rate. "Request" is one sequence here. A new one is
 * detected: two passes in a row ask for experts that were much less likely than those before.
 *
 * Integers but for the estimate that compares layers, so that the same requests give the same order everywhere. A pass
 * is one visit of a layer. Not thread-safe.
 */
#ifndef EFS_POLICY_VALUE_H
#define EFS_POLICY_VALUE_H

#include <stdbool.h>
#include <stdint.h>

struct efs_value;

/* chosen: experts that a layer asks for at once, on average. steady: new requests are not looked for. NULL: no memory,
 * or sizes 0 or above those of rank.h. */
struct efs_value *efs_value_new(unsigned layers, unsigned experts, double chosen, bool steady);
void efs_value_free(struct efs_value *value); /* NULL is fine */

/* A layer asks for experts. True: a new request was seen to have begun (before the pass that just ended). */
bool efs_value_request(struct efs_value *value, unsigned layer, const uint32_t *expert, unsigned count);

/* Long-run counts of a layer from a trace or an earlier mount, made in passes visits of it. */
void efs_value_seed(struct efs_value *value, unsigned layer, const uint32_t *counts, uint64_t passes);

/*
 * Worth of an expert, in 1/4096 of a factor of two: higher is sooner. Comparable within a layer until the layer is
 * visited again, and between layers by efs_value_reuse.
 */
#define EFS_VALUE_UNIT 4096
#define EFS_VALUE_AGES 4096u /* an expert not used for longer counts as this old */

/* What the scores of a layer are made of, for many of them at once; good until the next request. */
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

/* Expected passes until an expert of this score is asked for again. */
double efs_value_reuse(int32_t score);

#endif
