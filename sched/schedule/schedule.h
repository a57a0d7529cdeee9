/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - orders the operations of a request: cache-affinity scheduling.
 *
 * schedule/ models one request: its operations as a graph (task.h), their order, and their end times
 * (schedule_simulate.h). simulate/ calls it; planner/ and moe-replay use its types. It never allocates, and is never
 * called by the engine.
 *
 * ZipMoE 3.3, Algorithm 1 and Definition A.1. A schedule is an ordered list of blocks of tasks. It contains no times:
 * the I/O thread and each worker take the first available operation in priority order and never idle while one is
 * available (schedule_simulate.h). I/O is ordered by block, with the E-chunks of a block's tasks before their
 * SM-chunks; decoding is in the order of the tasks.
 *
 * Pure, and deterministic: ties go to the task requested first.
 */
#ifndef EFS_SCHEDULE_H
#define EFS_SCHEDULE_H

#include "task.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efs_schedule_kind {
    EFS_SCHEDULE_REQUEST, /* as mounts do: by expert, in the order of the request, E-chunks before SM-chunks */
    EFS_SCHEDULE_PAPER,   /* Algorithm 1 */
    EFS_SCHEDULE_KINDS
};

/* The order of tasks, divided into blocks. */
struct efs_order {
    uint16_t *task;  /* task[i]: the task with priority i */
    uint16_t *block; /* block[i]: its block, from 0, non-decreasing */
    uint32_t count;
};

/* The arrays are in the memory given to efs_schedule_make. */
struct efs_schedule {
    struct efs_order order;
    uint32_t *io;     /* operations READ_E and READ_SM in priority order */
    uint32_t *worker; /* operations DECODE and RECOVER in priority order (RECOVER also if they run on a stream) */
    uint32_t *rank;   /* of every operation: its index in io or worker; of a run: its index in run */
    uint32_t io_count, worker_count;
    uint16_t run[EFS_TASK_MAX_EXPERTS]; /* experts in priority order: F first, then by their first task */
};

/* Bytes of memory for a schedule of this graph, including scratch. */
size_t efs_schedule_bytes(const struct efs_graph *graph);

/*
 * Computes the schedule of a request in memory (bytes long, aligned for uint64_t). The caller owns it, and keeps it and
 * the graph valid while it uses the schedule. -EINVAL: unknown kind; -ENOSPC: less than efs_schedule_bytes(). Algorithm
 * 1 takes 10 to 50 microseconds for 8 experts of 3 tensors, and more with more operations.
 *
 * Theorem 3.1 (makespan <= (3 - 1/L) times the optimum) assumes that all tensors are alike. Where they differ,
 * Algorithm 1 can exceed it.
 */
int efs_schedule_make(const struct efs_graph *graph, enum efs_schedule_kind kind, void *memory, size_t bytes,
                      struct efs_schedule *schedule);

/* Algorithm 1 alone: fills the arrays of order; these and scratch have graph->task_count entries. See
 * schedule_zipmoe.c. */
void efs_order_paper(const struct efs_graph *graph, uint16_t *scratch, struct efs_order *order);

/* The resources that execute operations. */
enum efs_resource { EFS_ON_IO, EFS_ON_WORKER, EFS_ON_STREAM, EFS_ON_EXECUTOR, EFS_RESOURCES };

/* The resource of an operation. */
static inline enum efs_resource efs_op_resource(const struct efs_graph *graph, uint32_t op)
{
    switch (graph->ops[op].kind) {
    case EFS_OP_READ_E:
    case EFS_OP_READ_SM:
        return EFS_ON_IO;
    case EFS_OP_DECODE:
        return EFS_ON_WORKER;
    case EFS_OP_RECOVER:
        return graph->recovery == EFS_RECOVER_WORKER ? EFS_ON_WORKER : EFS_ON_STREAM;
    default:
        return EFS_ON_EXECUTOR;
    }
}

#ifdef __cplusplus
}
#endif
#endif
