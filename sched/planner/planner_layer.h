/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_layer.h - internals of the planner: precomputed sums of one layer, which make a split cheap to evaluate.
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
    double *f; /* [experts + 1] prefix sums of the inclusion probabilities */
    unsigned steps;
};

/* Checks the request, fits q and computes the sums. Errors as in efs_plan_evaluate(). The request must stay valid until
 * efs_plan_close(). */
int efs_plan_open(struct efs_plan_layer_state *layer, const struct efs_plan_request *request);
void efs_plan_close(struct efs_plan_layer_state *layer);

/* Expected makespan of a split. 0 or -ENOMEM. */
int efs_plan_expect(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], double *makespan_ns);

/* Expected I/O and CPU time of a split: hits are sums of inclusion probabilities, so no hit patterns are needed. */
struct efs_share efs_plan_expect_share(const struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS]);

/* Fills in all fields of a plan for a split. 0 or -ENOMEM. */
int efs_plan_fill_in(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], struct efs_plan *plan);

/* Algorithm 4 for an open layer with this budget. Of equally good splits it takes the first, in the order of falling F,
 * C, S, E. 0 or -ENOMEM. */
int efs_plan_search(struct efs_plan_layer_state *layer, uint64_t budget_bytes, struct efs_plan *plan);

#endif
