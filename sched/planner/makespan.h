/* SPDX-License-Identifier: Apache-2.0 */
/*
 * makespan.h - the estimated time of a sparse layer when its experts are found in given pools.
 *
 * ZipMoE appendix C, Algorithm 3: the larger of the I/O time and of the decoding time divided among L threads. The time
 * to run the experts is the same for every plan and omitted.
 *
 * Pure; times in nanoseconds.
 */
#ifndef EFS_MAKESPAN_H
#define EFS_MAKESPAN_H

#include <stdbool.h>

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Costs of a machine, a store and a model. Averages over the tensors of the experts. */
struct efs_cost {
    double sm_read_ns; /* u: read one SM-chunk (one tensor) */
    double e_read_ns;  /* v: read one E-chunk (one shard) */
    double decode_ns;  /* c: decode one E-chunk; if extended, as measured, with merging and writing the result */
    unsigned threads;  /* L */
    unsigned shards;   /* K: E-chunks of a tensor */
    unsigned tensors;  /* n: tensors of an expert */

    /*
     * Beyond the paper. Algorithm 3 charges a worker for the reads of the E-chunks that it decodes, treats a hit in F
     * as free, and assumes that everything else overlaps perfectly. Extended, decoding costs the measured CPU time;
     * reads are charged only to the disk, plus a fixed cost for each read; and the last shard read is decoded after all
     * I/O.
     */
    bool extended;
    double request_ns; /* of each separate read: an S or E hit or a miss makes one per expert */
};

/*
 * Algorithm 3. Both workloads are sums over the chosen experts, so an expert found in pool p (EFS_POOL_M: missing) has
 * its own share of each. A planner scales the shares where experts differ in size. threads, shards and tensors of 0
 * count as 1.
 */
struct efs_share {
    double io_ns, cpu_ns; /* cpu_ns is already divided by L */
};
struct efs_share efs_makespan_share(const struct efs_cost *cost, enum efs_pool pool);

/* The makespan of summed shares; reads: whether any expert of the sum reads from the disk. */
double efs_makespan_of(const struct efs_cost *cost, struct efs_share sum, bool reads);

#ifdef __cplusplus
}
#endif
#endif
