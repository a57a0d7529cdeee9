/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_order.c - the simple orders: by tokens, as asked for, by Johnson's rule.
 */
#include "schedule_order.h"

#include <string.h>

void efs_order_sort(const struct efs_graph *graph, uint16_t *sorted)
{
    uint16_t experts[EFS_TASK_MAX_EXPERTS];
    uint32_t count = 0, out = 0, first[EFS_TASK_MAX_EXPERTS + 1], task = 0;
    for (uint32_t n = 0; n < graph->expert_count; n++) { /* tasks of expert n: first[n] .. first[n + 1] - 1 */
        first[n] = task;
        while (task < graph->task_count && graph->tasks[task].expert == n)
            task++;
        uint64_t run_ns = graph->ops[graph->first_run + n].cost_ns;
        uint32_t at = count++;
        for (; at && graph->ops[graph->first_run + experts[at - 1]].cost_ns < run_ns; at--)
            experts[at] = experts[at - 1];
        experts[at] = (uint16_t)n;
    }
    first[graph->expert_count] = task;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = first[experts[i]]; t < first[experts[i] + 1]; t++)
            sorted[out++] = (uint16_t)t;
}

void efs_order_request(const struct efs_graph *graph, struct efs_order *order)
{
    order->count = graph->task_count;
    for (uint32_t i = 0; i < order->count; i++) {
        bool same = i && graph->tasks[i].expert == graph->tasks[i - 1].expert;
        order->task[i] = (uint16_t)i;
        order->block[i] = i ? (uint16_t)(order->block[i - 1] + !same) : 0;
    }
}

/* Johnson's rule: who reads shorter than it runs goes first, shortest read first; the others by falling run time. */
static bool johnson_before(uint64_t read_a, uint64_t run_a, uint64_t read_b, uint64_t run_b)
{
    bool early_a = read_a <= run_a, early_b = read_b <= run_b;
    if (early_a != early_b)
        return early_a;
    if (early_a && read_a != read_b)
        return read_a < read_b;
    return run_a > run_b;
}

void efs_order_johnson(const struct efs_graph *graph, bool one_block, struct efs_order *order)
{
    uint64_t read_ns[EFS_TASK_MAX_EXPERTS], run_ns[EFS_TASK_MAX_EXPERTS];
    uint16_t experts[EFS_TASK_MAX_EXPERTS], first[EFS_TASK_MAX_EXPERTS], tasks[EFS_TASK_MAX_EXPERTS];
    uint32_t count = 0;
    memset(read_ns, 0, graph->expert_count * sizeof *read_ns);
    memset(tasks, 0, graph->expert_count * sizeof *tasks);
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        uint32_t n = task->expert;
        if (tasks[n]++ == 0)
            first[n] = (uint16_t)i;
        read_ns[n] += task->shards * task->e_read_ns + task->sm_read_ns;
        run_ns[n] = task->run_ns;
    }
    for (uint32_t n = 0; n < graph->expert_count; n++) {
        uint32_t at = count;
        if (!tasks[n])
            continue;
        for (; at && johnson_before(read_ns[n], run_ns[n], read_ns[experts[at - 1]], run_ns[experts[at - 1]]); at--)
            experts[at] = experts[at - 1];
        experts[at] = (uint16_t)n;
        count++;
    }
    order->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t t = 0; t < tasks[experts[i]]; t++) {
            order->task[order->count] = (uint16_t)(first[experts[i]] + t);
            order->block[order->count++] = (uint16_t)(one_block ? 0 : i);
        }
    }
}

void efs_order_guard(const struct efs_graph *graph, struct efs_order *order)
{
    const struct efs_task *all = graph->tasks;
    order->count = graph->task_count;
    for (uint32_t i = 0; i < order->count; i++) {
        uint32_t at = i;
        for (; at; at--) {
            const struct efs_task *before = &all[order->task[at - 1]];
            if (!johnson_before(all[i].e_read_ns * graph->workers, all[i].decode_ns, before->e_read_ns * graph->workers,
                                before->decode_ns))
                break;
            order->task[at] = order->task[at - 1];
        }
        order->task[at] = (uint16_t)i;
        order->block[i] = 0;
    }
}
