/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - computes the order of operations from an order of tasks.
 */
#include "schedule.h"

#include <errno.h>

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

/* Computes io, worker, rank, run, and the counts of a schedule from its order. */
static void schedule_list(const struct efs_graph *graph, struct efs_schedule *schedule)
{
    const struct efs_order *order = &schedule->order;
    schedule->io_count = schedule->worker_count = 0;
    for (uint32_t from = 0, to; from < order->count; from = to) {
        for (to = from + 1; to < order->count && order->block[to] == order->block[from]; to++)
            ;
        schedule_list_io(graph, schedule, from, to);
    }
    for (uint32_t i = 0; i < order->count; i++) {
        const struct efs_task *task = &graph->tasks[order->task[i]];
        for (uint32_t k = 0; k <= task->shards; k++) /* the recovery follows the last decode */
            schedule->worker[schedule->worker_count++] = task->decode + k;
    }
    for (uint32_t i = 0; i < schedule->io_count; i++)
        schedule->rank[schedule->io[i]] = i;
    for (uint32_t i = 0; i < schedule->worker_count; i++)
        schedule->rank[schedule->worker[i]] = i;
    schedule_list_runs(graph, schedule);
}

/* Allocates parts of the memory for a schedule; with base NULL it only adds up their sizes. */
struct parts {
    uint8_t *base;
    size_t used;
};

static void *parts_alloc(struct parts *parts, size_t bytes)
{
    size_t at = parts->used;
    parts->used += (bytes + 7) / 8 * 8;
    return parts->base ? parts->base + at : NULL;
}

/* Returns the scratch of efs_order_paper(). */
static uint16_t *schedule_lay_out(const struct efs_graph *graph, struct efs_schedule *schedule, struct parts *parts)
{
    schedule->io = parts_alloc(parts, graph->reads * sizeof *schedule->io);
    schedule->worker = parts_alloc(parts, (graph->decodes + graph->task_count) * sizeof *schedule->worker);
    schedule->rank = parts_alloc(parts, graph->op_count * sizeof *schedule->rank);
    schedule->order.task = parts_alloc(parts, graph->task_count * sizeof *schedule->order.task);
    schedule->order.block = parts_alloc(parts, graph->task_count * sizeof *schedule->order.block);
    return parts_alloc(parts, graph->task_count * sizeof(uint16_t));
}

size_t efs_schedule_bytes(const struct efs_graph *graph)
{
    struct efs_schedule schedule;
    struct parts parts = {0};
    schedule_lay_out(graph, &schedule, &parts);
    return parts.used;
}

/* The order of the request, one block per expert. */
static void order_request(const struct efs_graph *graph, struct efs_order *order)
{
    order->count = graph->task_count;
    for (uint32_t i = 0; i < order->count; i++) {
        bool same = i && graph->tasks[i].expert == graph->tasks[i - 1].expert;
        order->task[i] = (uint16_t)i;
        order->block[i] = i ? (uint16_t)(order->block[i - 1] + !same) : 0;
    }
}

int efs_schedule_make(const struct efs_graph *graph, enum efs_schedule_kind kind, void *memory, size_t bytes,
                      struct efs_schedule *schedule)
{
    if ((unsigned)kind >= EFS_SCHEDULE_KINDS || !memory)
        return -EINVAL;
    if (bytes < efs_schedule_bytes(graph))
        return -ENOSPC;
    *schedule = (struct efs_schedule){0};
    struct parts parts = {.base = memory};
    uint16_t *scratch = schedule_lay_out(graph, schedule, &parts);
    if (kind == EFS_SCHEDULE_PAPER)
        efs_order_paper(graph, scratch, &schedule->order);
    else
        order_request(graph, &schedule->order);
    schedule_list(graph, schedule);
    return 0;
}
