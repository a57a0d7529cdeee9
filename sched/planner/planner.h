/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner.h - divides the memory among the cache pools: the split with the smallest expected makespan.
 *
 * ZipMoE 3.4 and appendix C, Algorithm 4. A layer's experts are ordered by how often they are chosen; F takes the first
 * ranks, then C, S and E; the rest is missing. The planner tries every split of the budget in steps; the expected
 * makespan of a split is the sum over all hit patterns of their probability (hits.h) times their makespan (makespan.h).
 *
 * Beyond the paper, each by a switch: memory left by the rounding to whole experts is used (fill), layers share their
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

/* The quantity that a plan minimises. */
enum efs_plan_goal {
    EFS_PLAN_MAKESPAN, /* the paper's: the expected makespan */
    EFS_PLAN_IO        /* the expected I/O time; of splits with equal I/O, the makespan */
};

/* One layer. The caller owns inclusion, which must stay valid during the call. */
struct efs_plan_request {
    const double *inclusion;          /* f_r by rank, the most frequent first; sums to chosen (ipf.h) */
    unsigned experts, chosen;         /* N, k */
    uint64_t budget_bytes;            /* of this layer */
    uint64_t expert_bytes[EFS_POOLS]; /* of an average expert in F, C, S, E: each at least 1 */
    unsigned pools;                   /* allowed: Lambda, bits EFS_PLAN_POOL */
    double step;                      /* grid size delta, 0.01 to 1; ratios are multiples of 1 / round(1 / step) */
    enum efs_plan_goal goal;
    bool fill;            /* memory left by rounding goes to the first allowed pools in which another expert fits */
    struct efs_cost cost; /* u and v of an average expert */
};

struct efs_plan {
    unsigned capacity[EFS_POOLS];   /* S_p: experts */
    uint64_t used_bytes[EFS_POOLS]; /* of these experts */
    double makespan_ns;             /* expected, of the layer */
    double io_ns;                   /* its expected I/O part */
    double hits[EFS_POOLS];         /* expected hits in each pool; the rest of chosen are misses */
};

/*
 * Computes the expected costs of a split. The capacities are limited to experts in total. -EINVAL: a count, size, step
 * or pool set out of range; -EDOM, -ELOOP: the inclusion probabilities (ipf.h); -ENOMEM.
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
 * Plans pools that layers share: a layer then need not hold whole experts of a pool on average, and memory left by
 * rounding to whole experts in one layer serves another. Plans the layer for budgets around its mean share, and mixes
 * the two of these plans that together cost least at exactly the budget. request: the average layer (its budget_bytes
 * is ignored); budget_bytes: of all layers. Takes about 17 times the time of Algorithm 4. Errors as in
 * efs_plan_evaluate().
 */
int efs_plan_share(const struct efs_plan_request *request, unsigned layers, uint64_t budget_bytes,
                   struct efs_plan_shared *plan);

#ifdef __cplusplus
}
#endif
#endif
