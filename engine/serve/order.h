/*
 * order.h - in which order the pieces of a batch are read and decoded: from what is in memory and what reads and
 * decodes cost here, by the schedules of sched/schedule.h.
 */
#ifndef EFS_ORDER_H
#define EFS_ORDER_H

#include "execute.h"

struct efs_order_read {
    struct efs_fill_piece *piece;
    bool sm;
};

struct efs_order_plan {
    struct efs_fill_piece **ask;  /* [piece_count] in the order of their first read */
    struct efs_fill_piece **here; /* [piece_count] scratch of the caller */
    struct efs_order_read *reads; /* [read_count] every half of every piece: those that need no read are passed over */
    uint32_t read_count;
    uint64_t makespan_ns; /* as simulated; 0: not scheduled */
};

/* Plan, and sort pieces by priority. Takes the lock for a look at what is in memory. NULL: no memory. */
struct efs_order_plan *efs_order_new(struct efs *fs, struct efs_fill_piece **pieces, uint32_t piece_count,
                                     struct efs_fill **fills, uint32_t fill_count);
void efs_order_free(struct efs_order_plan *plan);

#endif
