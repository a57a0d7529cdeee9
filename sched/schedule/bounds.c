/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bounds.c - Lemma B.3 with a corrected critical path.
 */
#include "bounds.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* The least time in which one task alone can be read, decoded, recovered and its expert run. */
static uint64_t task_critical_path(const struct efs_graph *graph, const struct efs_task *task)
{
    uint64_t workers = graph->workers, shards = task->shards;
    /* Decodes of a fused graph wait for the SM-chunk, which is best read first. */
    uint64_t before_ns = graph->fused ? task->sm_read_ns : 0;
    uint64_t decoded_ns = 0;
    for (uint64_t i = 1; i <= shards; i++)
        decoded_ns =
            larger(decoded_ns, before_ns + i * task->e_read_ns + divide_up(shards - i + 1, workers) * task->decode_ns);
    uint64_t read_ns = shards * task->e_read_ns + task->sm_read_ns;
    return larger(decoded_ns, read_ns) + task->recover_ns + task->run_ns;
}

/* Eq. 3 of the paper, K*c/min(K, L) rounded down, and its recovery, which the paper leaves out. */
static uint64_t task_published_path(const struct efs_graph *graph, const struct efs_task *task)
{
    uint64_t shards = task->shards, threads = graph->workers < shards ? graph->workers : shards;
    return shards * task->e_read_ns + larger(shards * task->decode_ns / threads, task->sm_read_ns) + task->recover_ns +
           task->run_ns;
}

void efs_bounds_compute(const struct efs_graph *graph, struct efs_bounds *bounds)
{
    uint64_t decode_ns = 0, recover_ns = 0;
    *bounds = (struct efs_bounds){0};
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        bounds->io_ns += task->shards * task->e_read_ns + task->sm_read_ns;
        decode_ns += task->shards * task->decode_ns;
        recover_ns += task->recover_ns;
        bounds->path_ns = larger(bounds->path_ns, task_critical_path(graph, task));
        bounds->path_published_ns = larger(bounds->path_published_ns, task_published_path(graph, task));
    }
    for (uint32_t n = 0; n < graph->expert_count; n++)
        bounds->run_ns += graph->ops[graph->first_run + n].cost_ns;
    if (graph->recovery == EFS_RECOVER_WORKER)
        decode_ns += recover_ns;
    else
        bounds->recover_ns = recover_ns;
    bounds->decode_ns = divide_up(decode_ns, graph->workers);
    bounds->lower_ns = larger(larger(bounds->io_ns, bounds->decode_ns),
                              larger(larger(bounds->recover_ns, bounds->run_ns), bounds->path_ns));
}
