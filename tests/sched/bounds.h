/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bounds.h - lower bounds of the time of a request: Lemma B.3 of ZipMoE.
 *
 * One correction. Definition B.2 gives a task that reads its E-chunks the critical path rho*u + max(K*c/min(K, L), u) +
 * p, as if no shard could be decoded before the last E-chunk is read. Decodes start with the first chunk (Figure 6), so
 * the published Z can exceed the optimum: one S task with K = 2, L = 1 ends at rho*u/2 + 2c + p when c >= rho*u/2, not
 * at rho*u + 2c + p. path_ns is a true bound: shard i is in memory after i chunk reads, and K - i + 1 decodes on L
 * workers follow.
 */
#ifndef BOUNDS_H
#define BOUNDS_H

#include "task.h"

struct bounds {
    uint64_t io_ns;             /* I: all reads on one I/O thread */
    uint64_t decode_ns;         /* C/L: all decodes (and recoveries that workers do) on L workers, rounded up */
    uint64_t recover_ns;        /* all recoveries on the recovery stream; 0 when workers do them */
    uint64_t run_ns;            /* P: all experts of the request on the executor, including those in state F */
    uint64_t path_ns;           /* Z: the longest critical path of a task, corrected as described above */
    uint64_t path_published_ns; /* Z of Definition B.2; not a bound */
    uint64_t lower_ns;          /* max(I, C/L, stream, P, Z): no schedule ends earlier */
};

static inline uint64_t bounds_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t bounds_divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* The shortest time to read, decode and recover one task alone and to run its expert. */
static inline uint64_t task_critical_path(const struct efs_graph *graph, const struct efs_task *task)
{
    uint64_t workers = graph->workers, shards = task->shards;
    /* Decodes of a fused graph wait for the SM-chunk, so reading it first is the best order. */
    uint64_t before_ns = graph->fused ? task->sm_read_ns : 0;
    uint64_t decoded_ns = 0;
    for (uint64_t i = 1; i <= shards; i++)
        decoded_ns = bounds_larger(decoded_ns, before_ns + i * task->e_read_ns +
                                                   bounds_divide_up(shards - i + 1, workers) * task->decode_ns);
    uint64_t read_ns = shards * task->e_read_ns + task->sm_read_ns;
    return bounds_larger(decoded_ns, read_ns) + task->recover_ns + task->run_ns;
}

/* Eq. 3 of the paper, with K*c/min(K, L) rounded down, plus the recovery, which the paper omits. */
static inline uint64_t task_published_path(const struct efs_graph *graph, const struct efs_task *task)
{
    uint64_t shards = task->shards, threads = graph->workers < shards ? graph->workers : shards;
    return shards * task->e_read_ns + bounds_larger(shards * task->decode_ns / threads, task->sm_read_ns) +
           task->recover_ns + task->run_ns;
}

/* Computes all bounds. Linear in the number of operations. */
static inline void bounds_compute(const struct efs_graph *graph, struct bounds *bounds)
{
    uint64_t decode_ns = 0, recover_ns = 0;
    *bounds = (struct bounds){0};
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        bounds->io_ns += task->shards * task->e_read_ns + task->sm_read_ns;
        decode_ns += task->shards * task->decode_ns;
        recover_ns += task->recover_ns;
        bounds->path_ns = bounds_larger(bounds->path_ns, task_critical_path(graph, task));
        bounds->path_published_ns = bounds_larger(bounds->path_published_ns, task_published_path(graph, task));
    }
    for (uint32_t n = 0; n < graph->expert_count; n++)
        bounds->run_ns += graph->ops[graph->first_run + n].cost_ns;
    if (graph->recovery == EFS_RECOVER_WORKER)
        decode_ns += recover_ns;
    else
        bounds->recover_ns = recover_ns;
    bounds->decode_ns = bounds_divide_up(decode_ns, graph->workers);
    bounds->lower_ns = bounds_larger(bounds_larger(bounds->io_ns, bounds->decode_ns),
                                     bounds_larger(bounds_larger(bounds->recover_ns, bounds->run_ns), bounds->path_ns));
}

#endif
