/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - in which order the operations of a request are to be done: cache-affinity scheduling.
 *
 * ZipMoE 3.3, Algorithm 1 and Definition A.1. A schedule is an ordered list of blocks of tasks. It says nothing about
 * times: the I/O thread and the workers each take the first operation available in priority order and never idle while
 * there is one (schedule_simulate.h). The order of I/O is, block by block, the E-chunks of its tasks and then their
 * SM-chunks; that of decoding is the order of the tasks.
 *
 * Pure, and deterministic: ties go to the task that was asked for first.
 */
#ifndef EFS_SCHEDULE_H
#define EFS_SCHEDULE_H

#include "task.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efs_schedule_kind {
    EFS_SCHEDULE_REQUEST, /* as mounts do: expert after expert, as asked for, its E-chunks, then its SM-chunks */
    EFS_SCHEDULE_PAPER,   /* Algorithm 1 */
    EFS_SCHEDULE_KINDS
};

/* The order of tasks, cut in blocks. */
struct efs_order {
    uint16_t *task;  /* task[i]: the i-th in priority */
    uint16_t *block; /* block[i]: the block it is in, from 0, never falling */
    uint32_t count;
};

/* The arrays lie in the memory given to efs_schedule_make. */
struct efs_schedule {
    struct efs_order order;
    uint32_t *io;     /* operations READ_E and READ_SM in priority order */
    uint32_t *worker; /* operations DECODE and RECOVER in priority order (RECOVER here also if a stream does them) */
    uint32_t *rank;   /* of every operation: its place in io or in worker; of a run: its place among the runs */
    uint32_t io_count, worker_count;
    uint16_t run[EFS_TASK_MAX_EXPERTS]; /* experts in priority order: F first, then by their first task */
};

/* Bytes of memory for a schedule of this graph, what computing it needs included. */
size_t efs_schedule_bytes(const struct efs_graph *graph);

/*
 * Schedule a request into memory (bytes long, aligned for uint64_t, owned by the caller, who keeps it and the graph as
 * long as the schedule). -EINVAL: unknown kind; -ENOSPC: fewer bytes than efs_schedule_bytes says. Algorithm 1 takes 10
 * to 50 microseconds for 8 experts of 3 tensors, and more with more operations.
 *
 * Theorem 3.1 (makespan <= (3 - 1/L) times the optimum) is about tensors that are all alike. Where they differ,
 * Algorithm 1 can exceed it.
 */
int efs_schedule_make(const struct efs_graph *graph, enum efs_schedule_kind kind, void *memory, size_t bytes,
                      struct efs_schedule *schedule);

/* Algorithm 1 alone: fills the arrays of order (graph->task_count entries). See schedule_paper.c. */
void efs_order_paper(const struct efs_graph *graph, struct efs_order *order);

/* Who does an operation. */
enum efs_resource { EFS_ON_IO, EFS_ON_WORKER, EFS_ON_STREAM, EFS_ON_EXECUTOR, EFS_RESOURCES };

/* Which resource does this operation. */
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
