/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_simulate.c - the discrete-event model: lanes, the time of the next completion, work-conserving dispatch.
 */
#include "schedule_simulate.h"

#include <string.h>

/* ---- available operations ---------------------------------------------------------------------------------------- */

/* A set of available operations by rank: a bitmap with a summary level. */
struct ready {
    uint64_t *bits;    /* bit r: the set contains rank r */
    uint64_t *summary; /* bit w: bits[w] is not 0 */
    uint32_t words, summary_words;
};

static uint32_t ready_words(uint32_t ranks)
{
    return ranks / 64 + 1;
}

/* Number of uint64_t of memory for a set of ranks 0 .. ranks - 1. */
static uint32_t ready_memory(uint32_t ranks)
{
    return ready_words(ranks) + ready_words(ready_words(ranks));
}

static void ready_init(struct ready *ready, uint32_t ranks, uint64_t *memory)
{
    ready->words = ready_words(ranks);
    ready->summary_words = ready_words(ready->words);
    ready->bits = memory;
    ready->summary = memory + ready->words;
    memset(memory, 0, sizeof *memory * ready_memory(ranks));
}

static void ready_push(struct ready *ready, uint32_t rank)
{
    ready->bits[rank / 64] |= UINT64_C(1) << rank % 64;
    ready->summary[rank / 4096] |= UINT64_C(1) << rank / 64 % 64;
}

/* Removes and returns the lowest rank; EFS_OP_NONE if the set is empty. */
static uint32_t ready_pop(struct ready *ready)
{
    for (uint32_t s = 0; s < ready->summary_words; s++) {
        if (!ready->summary[s])
            continue;
        uint32_t word = s * 64 + (uint32_t)__builtin_ctzll(ready->summary[s]);
        uint32_t rank = word * 64 + (uint32_t)__builtin_ctzll(ready->bits[word]);
        ready->bits[word] &= ready->bits[word] - 1;
        if (!ready->bits[word])
            ready->summary[s] &= ready->summary[s] - 1;
        return rank;
    }
    return EFS_OP_NONE;
}

/* Progress of one request under one schedule. */
struct run {
    const struct efs_graph *graph;
    const struct efs_schedule *schedule;
    uint16_t *needs; /* of every operation: number of unfinished predecessors */
    struct ready worker, stream, executor;
    uint32_t io_next;
    uint32_t left; /* unfinished operations */
};

static uint32_t run_worker_ranks(const struct efs_graph *graph)
{
    return graph->decodes + graph->task_count;
}

static size_t run_ready_bytes(const struct efs_graph *graph)
{
    return sizeof(uint64_t) * ready_memory(run_worker_ranks(graph));
}

size_t efs_simulate_bytes(const struct efs_graph *graph)
{
    return 2 * run_ready_bytes(graph) + sizeof(uint64_t) * ready_memory(graph->expert_count) +
           (graph->op_count * sizeof(uint16_t) + 7) / 8 * 8;
}

static void run_make_available(struct run *run, uint32_t op)
{
    uint32_t rank = run->schedule->rank[op];
    switch (efs_op_resource(run->graph, op)) {
    case EFS_ON_WORKER:
        ready_push(&run->worker, rank);
        break;
    case EFS_ON_STREAM:
        ready_push(&run->stream, rank);
        break;
    case EFS_ON_EXECUTOR:
        ready_push(&run->executor, rank);
        break;
    default:
        break; /* reads have no predecessors: io_next is the next one */
    }
}

static void run_init(struct run *run, const struct efs_graph *graph, const struct efs_schedule *schedule, void *memory)
{
    uint64_t *words = memory;
    uint32_t set = ready_memory(run_worker_ranks(graph)), runs = ready_memory(graph->expert_count);
    *run = (struct run){.graph = graph,
                        .schedule = schedule,
                        .needs = (uint16_t *)(words + 2 * (size_t)set + runs),
                        .left = graph->op_count};
    ready_init(&run->worker, run_worker_ranks(graph), words);
    ready_init(&run->stream, run_worker_ranks(graph), words + set);
    ready_init(&run->executor, graph->expert_count, words + 2 * (size_t)set);
    for (uint32_t op = 0; op < graph->op_count; op++) {
        run->needs[op] = graph->ops[op].needs;
        if (!run->needs[op])
            run_make_available(run, op);
    }
}

/* The first operation available to a resource, which the caller must then execute; EFS_OP_NONE: none available. */
static uint32_t run_pop(struct run *run, enum efs_resource resource)
{
    const struct efs_schedule *schedule = run->schedule;
    uint32_t rank;
    switch (resource) {
    case EFS_ON_IO:
        return run->io_next < schedule->io_count ? schedule->io[run->io_next++] : EFS_OP_NONE;
    case EFS_ON_WORKER:
        rank = ready_pop(&run->worker);
        return rank == EFS_OP_NONE ? EFS_OP_NONE : schedule->worker[rank];
    case EFS_ON_STREAM:
        rank = ready_pop(&run->stream);
        return rank == EFS_OP_NONE ? EFS_OP_NONE : schedule->worker[rank];
    case EFS_ON_EXECUTOR:
        rank = ready_pop(&run->executor);
        return rank == EFS_OP_NONE ? EFS_OP_NONE : run->graph->first_run + schedule->run[rank];
    default:
        return EFS_OP_NONE;
    }
}

static void run_done(struct run *run, uint32_t op)
{
    const struct efs_op *done = &run->graph->ops[op];
    run->left--;
    for (uint32_t i = 0; i < done->successors; i++)
        if (--run->needs[done->successor + i] == 0)
            run_make_available(run, done->successor + i);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

struct lanes {
    uint32_t count;
    uint64_t busy_ns;               /* the I/O thread starts no read before this time */
    uint32_t op[EFS_SIM_LANES];     /* EFS_OP_NONE: idle */
    uint64_t end_ns[EFS_SIM_LANES]; /* UINT64_MAX: idle */
};

static enum efs_resource lane_resource(uint32_t lane, uint32_t workers)
{
    if (lane == 0)
        return EFS_ON_IO;
    if (lane <= workers)
        return EFS_ON_WORKER;
    return lane == workers + 1 ? EFS_ON_STREAM : EFS_ON_EXECUTOR;
}

/* Assigns to every idle lane the first operation available to it. */
static void lanes_dispatch(struct run *run, struct lanes *lanes, uint64_t now_ns, struct efs_sim_op *times)
{
    const struct efs_op *ops = run->graph->ops;
    uint32_t workers = run->graph->workers;
    bool none[EFS_RESOURCES] = {false};
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        enum efs_resource resource = lane_resource(lane, workers);
        if (lanes->op[lane] != EFS_OP_NONE || none[resource])
            continue;
        uint32_t op = run_pop(run, resource);
        none[resource] = op == EFS_OP_NONE;
        if (op == EFS_OP_NONE)
            continue;
        lanes->op[lane] = op;
        uint64_t start_ns = resource == EFS_ON_IO && lanes->busy_ns > now_ns ? lanes->busy_ns : now_ns;
        lanes->end_ns[lane] = start_ns + ops[op].cost_ns;
        if (times)
            times[op] = (struct efs_sim_op){.start_ns = start_ns, .end_ns = lanes->end_ns[lane], .lane = lane};
    }
}

void efs_simulate(const struct efs_graph *graph, const struct efs_schedule *schedule, uint64_t busy_ns, void *memory,
                  struct efs_sim_op *times, struct efs_sim_result *result)
{
    struct lanes lanes = {.count = graph->workers + 3, .busy_ns = busy_ns};
    for (uint32_t lane = 0; lane < lanes.count; lane++) {
        lanes.op[lane] = EFS_OP_NONE;
        lanes.end_ns[lane] = UINT64_MAX;
    }
    *result = (struct efs_sim_result){0};
    struct run run;
    run_init(&run, graph, schedule, memory);
    uint64_t now_ns = 0;
    while (run.left) {
        lanes_dispatch(&run, &lanes, now_ns, times);
        now_ns = UINT64_MAX;
        for (uint32_t lane = 0; lane < lanes.count; lane++)
            now_ns = lanes.end_ns[lane] < now_ns ? lanes.end_ns[lane] : now_ns;
        for (uint32_t lane = 0; lane < lanes.count; lane++) {
            if (lanes.end_ns[lane] != now_ns)
                continue;
            uint32_t op = lanes.op[lane];
            enum efs_resource resource = lane_resource(lane, graph->workers);
            result->busy_ns[resource] += graph->ops[op].cost_ns;
            result->end_ns[resource] = now_ns;
            run_done(&run, op);
            lanes.op[lane] = EFS_OP_NONE;
            lanes.end_ns[lane] = UINT64_MAX;
        }
    }
    result->makespan_ns = now_ns;
}
