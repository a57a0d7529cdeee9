/* SPDX-License-Identifier: Apache-2.0 */
/*
 * makespan.h - the estimated time of a sparse layer when its experts are found in given pools.
 *
 * ZipMoE appendix C, Algorithm 3: the larger of the I/O time and of the decoding time shared out over L threads. What
 * running the experts takes is the same for every plan and left out.
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

/* What a machine, a store and a model cost. Averages over the tensors of the experts. */
struct efs_cost {
    double sm_read_ns; /* u: read one SM-chunk (one tensor) */
    double e_read_ns;  /* v: read one E-chunk (one shard) */
    double decode_ns;  /* c: decode one E-chunk; with merging and writing it out, as measured, if extended */
    unsigned threads;  /* L */
    unsigned shards;   /* K: E-chunks of a tensor */
    unsigned tensors;  /* n: tensors of an expert */

    /*
     * Beyond the paper. Algorithm 3 charges a worker for the reads of the E-chunks that it decodes, takes a hit in F
     * as free and the rest as perfectly overlapped. Extended, the CPU pays for decoding as measured; reads are charged
     * to the disk alone, with a fixed cost for each request to it; and the last shard read is decoded after all I/O.
     */
    bool extended;
    double request_ns; /* of each separate read: an S or E hit or a miss makes one per expert */

    /*
     * For a client that computes on the coded form (extended only): the measured time of an expert's product, all
     * threads on it; what is not full is then never decoded, and the last expert read runs after all I/O. 0: it is
     * decoded. f_hit_ns, the product of a full expert, matters only beside it.
     */
    double c_hit_ns, f_hit_ns;
};

/*
 * Algorithm 3. Both workloads are sums over the chosen experts, so an expert found in pool p (EFS_POOL_M: missing) has
 * its own share of each. A planner scales them where experts differ in size. threads, shards and tensors of 0 count as
 * 1.
 */
struct efs_share {
    double io_ns, cpu_ns; /* cpu_ns is already divided by L */
};
struct efs_share efs_makespan_share(const struct efs_cost *cost, enum efs_pool pool);

/* The makespan of summed shares; reads: whether any expert of the sum reads something. */
double efs_makespan_of(const struct efs_cost *cost, struct efs_share sum, bool reads);

#ifdef __cplusplus
}
#endif
#endif
