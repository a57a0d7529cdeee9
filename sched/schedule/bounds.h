/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bounds.h - how early a request can end at all: the lower bounds of ZipMoE Lemma B.3.
 *
 * One correction. Definition B.2 gives a task that reads its E-chunks the critical path rho*u + max(K*c/min(K, L), u)
 * + p, as if no shard could be decoded before the last E-chunk is there. Decodes start with the first chunk (Figure 6),
 * so that the published Z can exceed the optimum: one S task, K = 2, L = 1, ends at rho*u/2 + 2c + p when c >= rho*u/2,
 * not at rho*u + 2c + p. path_ns is a true bound instead: shard i is there after i chunk reads, and K - i + 1 decodes
 * follow on L workers.
 */
#ifndef EFS_BOUNDS_H
#define EFS_BOUNDS_H

#include "task.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efs_bounds {
    uint64_t io_ns;             /* I: all reads on one I/O thread */
    uint64_t decode_ns;         /* C/L: all decodes (and recoveries that workers do) on L workers, rounded up */
    uint64_t recover_ns;        /* all recoveries on the recovery stream; 0 when workers do them */
    uint64_t run_ns;            /* P: all experts of the request on the executor, full ones too */
    uint64_t path_ns;           /* Z: the longest critical path of a task, corrected as said above */
    uint64_t path_published_ns; /* Z as Definition B.2 has it; no bound */
    uint64_t lower_ns;          /* max(I, C/L, stream, P, Z): no schedule ends earlier */
};

/* Compute all of them. Linear in the number of operations. */
void efs_bounds_compute(const struct efs_graph *graph, struct efs_bounds *bounds);

#ifdef __cplusplus
}
#endif
#endif
