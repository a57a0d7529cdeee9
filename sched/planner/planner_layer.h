/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_layer.h - inside the planner: one layer made ready, so that each split is cheap to judge.
 */
#ifndef EFS_PLANNER_LAYER_H
#define EFS_PLANNER_LAYER_H

#include "hits.h"
#include "planner.h"

struct efs_plan_layer_state {
    const struct efs_plan_request *request;
    struct efs_hits_table *table;
    double all; /* Phi_N(k) */
    struct efs_share share[EFS_POOLS + 1];
    double *f; /* [experts + 1] sums of the first inclusion probabilities */
    unsigned steps;
};

/* Check the request, fit q, lay out the sums. Errors as of efs_plan_evaluate(). The request stays borrowed. */
int efs_plan_open(struct efs_plan_layer_state *layer, const struct efs_plan_request *request);
void efs_plan_close(struct efs_plan_layer_state *layer);

/* Expected makespan of a split; -ENOMEM. */
int efs_plan_expect(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], double *makespan_ns);

/* Expected I/O and CPU time of a split: hits are sums of inclusion probabilities, so these need no patterns. */
struct efs_share efs_plan_expect_share(const struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS]);

/* Everything that a plan says about a split. */
int efs_plan_fill_in(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], struct efs_plan *plan);

/* Algorithm 4 for a layer that is open, with this budget. Of splits that are equally good the first counts, in the
 * order of falling F, C, S, E. */
int efs_plan_search(struct efs_plan_layer_state *layer, uint64_t budget_bytes, struct efs_plan *plan);

#endif
