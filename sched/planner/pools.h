/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pools.h - computes the bytes of each pool.
 *
 * planner/ divides a budget among the cache pools, from the skew of the observed workload (history.h) and the measured
 * rates of disk and decoding (rates.h). planner/ and io/ of the engine and moe-replay call it; cache/ and control/ of
 * the engine use its types. It never measures anything and never reads a clock: counts and times are arguments.
 *
 * Daemon and simulator call the planner (planner.h) only through this file. Pure; times in nanoseconds. Allocates
 * scratch and frees it.
 */
#ifndef EFS_POOLS_H
#define EFS_POOLS_H

#include "history.h"
#include "planner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Measured (a profile has these numbers under the same names); averages over the experts. */
struct efs_pools_costs {
    double full_bytes, coded_bytes, sm_bytes, e_bytes; /* of an expert in F, C, S, E; e_bytes 0: no E-chunks */
    double tensors, shards, workers;                   /* n, K, L */
    double disk_bytes_per_second, read_latency_ns, decode_bytes_per_second;
};
/* Converts to the costs of Algorithm 3 (extended), and to whole bytes. */
struct efs_cost efs_pools_cost(const struct efs_pools_costs *costs, uint64_t expert_bytes[EFS_POOLS]);
/* Pools that make sense at these sizes: only F and C if experts have no E-chunks. */
unsigned efs_pools_possible(const struct efs_pools_costs *costs);

enum efs_pools_how {
    EFS_POOLS_SHARED, /* planned, shared by all layers (efs_plan_share) */
    EFS_POOLS_RATIO   /* given in ratio: fractions of the budget, which sum to at most 1 */
};

struct efs_pools_request {
    struct efs_pools_costs costs;
    const struct efs_skew *skew; /* owned by the caller */
    uint64_t budget_bytes;       /* over all layers */
    unsigned pools; /* allowed, bits EFS_PLAN_POOL; 0: all possible ones; -EINVAL if none of them is possible */
    enum efs_plan_goal goal;
    double step; /* of the grid; 0: 0.05 */
    enum efs_pools_how how;
    double ratio[EFS_POOLS]; /* EFS_POOLS_RATIO; 1 for a single pool */
};

struct efs_pools {
    uint64_t pool_bytes[EFS_POOLS]; /* over all layers; sums to at most the budget */
    unsigned layers;
    double ratio[EFS_POOLS];    /* pool_bytes over the budget */
    double experts[EFS_POOLS];  /* capacity in experts of a layer, on average */
    double hits[EFS_POOLS + 1]; /* expected hits of a request, on average; the last: misses. They sum to chosen */
    double io_ns, makespan_ns;  /* expected, of one pass through all layers */
};

/*
 * Plans. -EINVAL: a number out of range, no pool possible; -ENOMEM; -E2BIG: more layers than EFS_PLAN_MAX_LAYERS;
 * -EDOM, -ELOOP: invalid skew (ipf.h).
 */
int efs_pools_plan(const struct efs_pools_request *request, struct efs_pools *plan);

#ifdef __cplusplus
}
#endif
#endif
