/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner.h - how much of the memory each cache pool gets: the split with the smallest expected makespan.
 *
 * ZipMoE 3.4 and appendix C, Algorithm 4. A layer's experts are ordered by how often they are chosen; F takes the first
 * ranks, then C, S and E; what is left is missing. Every split of the budget in steps is tried, its expected makespan
 * is the sum over all hit patterns of their probability (hits.h) times their makespan (makespan.h).
 *
 * Beyond the paper, each by a switch: leftovers of the rounding to whole experts are used (fill), layers share their
 * pools (efs_plan_share), costs as measured (efs_cost.extended).
 *
 * Pure; times in nanoseconds. Allocates scratch and frees it.
 */
#ifndef EFS_PLANNER_H
#define EFS_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

#include "makespan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_PLAN_MAX_EXPERTS 4096u
#define EFS_PLAN_MAX_CHOSEN 64u
#define EFS_PLAN_MAX_LAYERS 256u

/* Bit of a pool in efs_plan_request.pools; all four, the paper's Lambda at its largest. */
#define EFS_PLAN_POOL(pool) (1u << (pool))
#define EFS_PLAN_ALL_POOLS 15u

/* What a plan is to make small. */
enum efs_plan_goal {
    EFS_PLAN_MAKESPAN, /* the paper's: the expected makespan */
    EFS_PLAN_IO        /* the expected I/O time; of splits that read alike, the makespan */
};

/* One layer. What it points to is borrowed for the call. */
struct efs_plan_request {
    const double *inclusion;          /* f_r by rank, the most frequent first; sums to chosen (ipf.h) */
    unsigned experts, chosen;         /* N, k */
    uint64_t budget_bytes;            /* of this layer */
    uint64_t expert_bytes[EFS_POOLS]; /* of an average expert in F, C, S, E: none 0 */
    unsigned pools;                   /* allowed: Lambda, bits EFS_PLAN_POOL */
    double step;                      /* grid size delta, 0.01 to 1; ratios are multiples of 1 / round(1 / step) */
    enum efs_plan_goal goal;
    bool fill;            /* what rounding leaves goes to the first allowed pools that it fits */
    struct efs_cost cost; /* u and v of an average expert */
};

struct efs_plan {
    unsigned capacity[EFS_POOLS];   /* S_p: experts */
    uint64_t used_bytes[EFS_POOLS]; /* what these take */
    double makespan_ns;             /* expected, of the layer */
    double io_ns;                   /* expected I/O part of it */
    double hits[EFS_POOLS];         /* expected hits in each pool; chosen less their sum are misses */
};

/*
 * What a split is expected to cost. capacity is cut to the experts that there are. -EINVAL: a count, size, step or pool
 * set out of range; -EDOM, -ELOOP: the inclusion probabilities (ipf.h); -ENOMEM.
 */
int efs_plan_evaluate(const struct efs_plan_request *request, const unsigned capacity[EFS_POOLS],
                      struct efs_plan *plan);

/* Pools that all layers share. */
struct efs_plan_shared {
    uint64_t pool_bytes[EFS_POOLS]; /* over all layers: sums to at most the budget */
    double experts[EFS_POOLS];      /* experts of a layer, on average */
    double hits[EFS_POOLS];         /* expected hits of a layer in each pool, on average */
    double makespan_ns, io_ns;      /* expected, of a layer, on average */
};

/*
 * Plan for layers that share their pools: then a layer need not hold whole experts of a pool on average, and what
 * rounding to whole experts leaves over in one layer serves another. The layer is planned for budgets around its mean
 * share, and the two of these plans are mixed that cost least together at just the budget. request: the average layer
 * (its budget_bytes is ignored); budget_bytes: of all. About 17 times the work of
 * Algorithm 4. Errors as of efs_plan_evaluate().
 */
int efs_plan_share(const struct efs_plan_request *request, unsigned layers, uint64_t budget_bytes,
                   struct efs_plan_shared *plan);

#ifdef __cplusplus
}
#endif
#endif
