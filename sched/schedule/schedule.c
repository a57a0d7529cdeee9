/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - from an order of tasks to an order of operations; which order to take.
 */
#include "schedule.h"
#include "bounds.h"
#include "schedule_order.h"
#include "schedule_simulate.h"

#include <errno.h>

/* Decodes that Algorithm 1 may simulate. For 8 experts x 3 tensors x 3 shards it wants some 2,000, 15,600 at the most;
 * as one candidate among others, cut short, it wins as often. */
#define EFFORT 20000u
#define EFFORT_AS_CANDIDATE 600u

static void schedule_list_io(const struct efs_graph *graph, struct efs_schedule *schedule, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const struct efs_task *task = &graph->tasks[schedule->order.task[i]];
        for (uint32_t k = 0; task->read_e != EFS_OP_NONE && k < task->shards; k++)
            schedule->io[schedule->io_count++] = task->read_e + k;
    }
    for (uint32_t i = from; i < to; i++) {
        const struct efs_task *task = &graph->tasks[schedule->order.task[i]];
        if (task->read_sm != EFS_OP_NONE)
            schedule->io[schedule->io_count++] = task->read_sm;
    }
}

static void schedule_list_runs(const struct efs_graph *graph, struct efs_schedule *schedule)
{
    bool listed[EFS_TASK_MAX_EXPERTS] = {false};
    uint32_t count = 0;
    for (uint32_t n = 0; n < graph->expert_count; n++) {
        if (graph->ops[graph->first_run + n].needs)
            continue;
        listed[n] = true;
        schedule->run[count++] = (uint16_t)n;
    }
    for (uint32_t i = 0; i < schedule->order.count; i++) {
        uint32_t n = graph->tasks[schedule->order.task[i]].expert;
        if (listed[n])
            continue;
        listed[n] = true;
        schedule->run[count++] = (uint16_t)n;
    }
    for (uint32_t i = 0; i < count; i++)
        schedule->rank[graph->first_run + schedule->run[i]] = i;
}

/* Fill io, worker, rank, run, and the counts of a schedule from its order. */
static void schedule_list(const struct efs_graph *graph, struct efs_schedule *schedule)
{
    const struct efs_order *order = &schedule->order;
    schedule->io_count = schedule->worker_count = 0;
    for (uint32_t from = 0, to; from < order->count; from = to) {
        for (to = from + 1; to < order->count && order->block[to] == order->block[from]; to++)
            ;
        schedule_list_io(graph, schedule, from, to);
    }
    schedule->block_count = order->count ? order->block[order->count - 1] + 1u : 0;
    for (uint32_t i = 0; i < order->count; i++) {
        const struct efs_task *task = &graph->tasks[order->task[i]];
        for (uint32_t k = 0; k <= task->shards; k++) /* the recovery comes behind the last decode */
            schedule->worker[schedule->worker_count++] = task->decode + k;
    }
    for (uint32_t i = 0; i < schedule->io_count; i++)
        schedule->rank[schedule->io[i]] = i;
    for (uint32_t i = 0; i < schedule->worker_count; i++)
        schedule->rank[schedule->worker[i]] = i;
    schedule_list_runs(graph, schedule);
}

/* The parts of the memory for a schedule; with base NULL only their sum counts. */
struct parts {
    uint8_t *base;
    size_t used;
};

static void *parts_take(struct parts *parts, size_t bytes)
{
    size_t at = parts->used;
    parts->used += (bytes + 7) / 8 * 8;
    return parts->base ? parts->base + at : NULL;
}

static void schedule_lay_out(const struct efs_graph *graph, struct efs_schedule *schedule, struct parts *parts)
{
    schedule->io = parts_take(parts, graph->reads * sizeof *schedule->io);
    schedule->worker = parts_take(parts, (graph->decodes + graph->task_count) * sizeof *schedule->worker);
    schedule->rank = parts_take(parts, graph->op_count * sizeof *schedule->rank);
    schedule->order.task = parts_take(parts, graph->task_count * sizeof *schedule->order.task);
    schedule->order.block = parts_take(parts, graph->task_count * sizeof *schedule->order.block);
}

size_t efs_schedule_bytes(const struct efs_graph *graph)
{
    struct efs_schedule schedule;
    struct parts parts = {0};
    schedule_lay_out(graph, &schedule, &parts);
    return parts.used + efs_simulate_bytes(graph);
}

static void order_make(const struct efs_graph *graph, enum efs_schedule_kind kind, uint32_t effort,
                       struct efs_order *order)
{
    switch (kind) {
    case EFS_SCHEDULE_PAPER:
    case EFS_SCHEDULE_ORDERED:
        efs_order_paper(graph, kind == EFS_SCHEDULE_ORDERED, effort, order);
        break;
    case EFS_SCHEDULE_JOHNSON:
    case EFS_SCHEDULE_JOHNSON_ONE:
        efs_order_johnson(graph, kind == EFS_SCHEDULE_JOHNSON_ONE, order);
        break;
    case EFS_SCHEDULE_GUARD:
        efs_order_guard(graph, order);
        break;
    default:
        efs_order_request(graph, order);
    }
}

struct contest {
    const struct efs_graph *graph;
    struct efs_schedule *schedule; /* lists of the last candidate; chosen and makespan_ns of the best */
    enum efs_schedule_kind last;
    void *scratch;
};

static void contest_try(struct contest *contest, enum efs_schedule_kind kind)
{
    struct efs_schedule *schedule = contest->schedule;
    struct efs_sim_result result;
    order_make(contest->graph, kind, EFFORT_AS_CANDIDATE, &schedule->order);
    schedule_list(contest->graph, schedule);
    efs_simulate(contest->graph, schedule, contest->scratch, NULL, &result);
    contest->last = kind;
    if (result.makespan_ns >= schedule->makespan_ns)
        return;
    schedule->makespan_ns = result.makespan_ns;
    schedule->chosen = kind;
}

/* Simulate candidate after candidate, stop at one that meets the lower bound, and keep what ended first. */
static void schedule_make_best(const struct efs_graph *graph, struct efs_schedule *schedule, void *scratch)
{
    static const enum efs_schedule_kind candidates[] = {EFS_SCHEDULE_JOHNSON_ONE, EFS_SCHEDULE_JOHNSON,
                                                        EFS_SCHEDULE_REQUEST, EFS_SCHEDULE_ORDERED};
    struct contest contest = {.graph = graph, .schedule = schedule, .scratch = scratch};
    struct efs_bounds bounds;
    efs_bounds_compute(graph, &bounds);
    schedule->makespan_ns = UINT64_MAX;
    for (uint32_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++)
        if (schedule->makespan_ns > bounds.lower_ns)
            contest_try(&contest, candidates[i]);
    /* In doubt about Theorem 3.1. Divided, as the products might overflow. */
    if (schedule->makespan_ns / (3 * graph->workers - 1) >= bounds.lower_ns / graph->workers &&
        schedule->makespan_ns > bounds.lower_ns)
        contest_try(&contest, EFS_SCHEDULE_GUARD);
    if (schedule->chosen == contest.last)
        return;
    order_make(graph, schedule->chosen, EFFORT_AS_CANDIDATE, &schedule->order);
    schedule_list(graph, schedule);
}

int efs_schedule_make(const struct efs_graph *graph, enum efs_schedule_kind kind, void *memory, size_t bytes,
                      struct efs_schedule *schedule)
{
    if ((unsigned)kind >= EFS_SCHEDULE_KINDS || !memory)
        return -EINVAL;
    if (bytes < efs_schedule_bytes(graph))
        return -ENOSPC;
    *schedule = (struct efs_schedule){.chosen = kind};
    struct parts parts = {.base = memory};
    schedule_lay_out(graph, schedule, &parts);
    if (kind == EFS_SCHEDULE_BEST) {
        schedule_make_best(graph, schedule, parts_take(&parts, efs_simulate_bytes(graph)));
    } else {
        order_make(graph, kind, EFFORT, &schedule->order);
        schedule_list(graph, schedule);
    }
    return 0;
}
