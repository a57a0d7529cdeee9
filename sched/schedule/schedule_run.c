/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_run.c - work-conserving execution: which operation comes next on each resource.
 */
#include "schedule.h"

static uint32_t run_worker_ranks(const struct efs_graph *graph)
{
    return graph->decodes + graph->task_count;
}

static size_t run_ready_bytes(const struct efs_graph *graph)
{
    return sizeof(uint64_t) * efs_ready_memory(run_worker_ranks(graph));
}

size_t efs_run_bytes(const struct efs_graph *graph)
{
    return 2 * run_ready_bytes(graph) + sizeof(uint64_t) * efs_ready_memory(graph->expert_count) +
           (graph->op_count * sizeof(uint16_t) + 7) / 8 * 8;
}

static void run_make_available(struct efs_run *run, uint32_t op)
{
    uint32_t rank = run->schedule->rank[op];
    switch (efs_op_resource(run->graph, op)) {
    case EFS_ON_WORKER:
        efs_ready_put(&run->worker, rank);
        break;
    case EFS_ON_STREAM:
        efs_ready_put(&run->stream, rank);
        break;
    case EFS_ON_EXECUTOR:
        efs_ready_put(&run->executor, rank);
        break;
    default:
        break; /* reads wait for nothing: io_next says which are left */
    }
}

void efs_run_init(struct efs_run *run, const struct efs_graph *graph, const struct efs_schedule *schedule, void *memory)
{
    uint64_t *words = memory;
    uint32_t set = efs_ready_memory(run_worker_ranks(graph)), runs = efs_ready_memory(graph->expert_count);
    *run = (struct efs_run){.graph = graph,
                            .schedule = schedule,
                            .needs = (uint16_t *)(words + 2 * (size_t)set + runs),
                            .left = graph->op_count};
    efs_ready_init(&run->worker, run_worker_ranks(graph), words);
    efs_ready_init(&run->stream, run_worker_ranks(graph), words + set);
    efs_ready_init(&run->executor, graph->expert_count, words + 2 * (size_t)set);
    for (uint32_t op = 0; op < graph->op_count; op++) {
        run->needs[op] = graph->ops[op].needs;
        if (!run->needs[op])
            run_make_available(run, op);
    }
}

uint32_t efs_run_take(struct efs_run *run, enum efs_resource resource)
{
    const struct efs_schedule *schedule = run->schedule;
    uint32_t rank;
    switch (resource) {
    case EFS_ON_IO:
        return run->io_next < schedule->io_count ? schedule->io[run->io_next++] : EFS_OP_NONE;
    case EFS_ON_WORKER:
        rank = efs_ready_take(&run->worker);
        return rank == EFS_READY_NONE ? EFS_OP_NONE : schedule->worker[rank];
    case EFS_ON_STREAM:
        rank = efs_ready_take(&run->stream);
        return rank == EFS_READY_NONE ? EFS_OP_NONE : schedule->worker[rank];
    case EFS_ON_EXECUTOR:
        rank = efs_ready_take(&run->executor);
        return rank == EFS_READY_NONE ? EFS_OP_NONE : run->graph->first_run + schedule->run[rank];
    default:
        return EFS_OP_NONE;
    }
}

void efs_run_done(struct efs_run *run, uint32_t op)
{
    const struct efs_op *done = &run->graph->ops[op];
    run->left--;
    for (uint32_t i = 0; i < done->successors; i++)
        if (--run->needs[done->successor + i] == 0)
            run_make_available(run, done->successor + i);
}
