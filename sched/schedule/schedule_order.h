/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_order.h - inside sched/schedule/: the orders among which the scheduler chooses.
 *
 * Each function fills order->task, order->block and order->count (arrays of graph->task_count entries).
 */
#ifndef EFS_SCHEDULE_ORDER_H
#define EFS_SCHEDULE_ORDER_H

#include "schedule.h"

/* A task whose SM-chunk has to be read is of Type I, any other of Type II (ZipMoE 3.3, task partition). */
static inline bool efs_task_type_one(const struct efs_task *task)
{
    return task->state == EFS_TASK_M || task->state == EFS_TASK_E;
}

/* Task numbers by non-increasing p_n, tasks of an expert together, ties as asked for. sorted: task_count entries. */
void efs_order_sort(const struct efs_graph *graph, uint16_t *sorted);

/* Expert after expert as asked for, one block each. */
void efs_order_request(const struct efs_graph *graph, struct efs_order *order);

/* Algorithm 1, as published or so repaired that tasks of a type keep their order (see schedule_paper.c). effort: how
 * many decodes it may simulate in search of positions, about 13 ns each. */
void efs_order_paper(const struct efs_graph *graph, bool ordered, uint32_t effort, struct efs_order *order);

/* Johnson's rule for reading and then running experts, one block each or all in one block. */
void efs_order_johnson(const struct efs_graph *graph, bool one_block, struct efs_order *order);

/*
 * All in one block, by Johnson's rule on the read of a chunk and its decode by L workers. With L = 1 this is the flow
 * shop of two machines: the last decode ends as early as it can in any schedule. So all is recovered by the optimum (as
 * the reads are done by then, too), and the runs add no more than P, which is another optimum at the most: the makespan
 * is within twice the optimum, which is 3 - 1/L, whatever the sizes.
 */
void efs_order_guard(const struct efs_graph *graph, struct efs_order *order);

#endif
