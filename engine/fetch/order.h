/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h - in which order the parts of a batch are read and decoded: from what is in memory and what reads and
 * decodes cost here, by the schedules of sched/schedule/schedule.h.
 */
#ifndef EFS_ORDER_H
#define EFS_ORDER_H

#include "fetch.h"

struct efs_order_read {
    struct efs_fetch_part *part;
    bool sm;
};

struct efs_order_plan {
    struct efs_fetch_part **ask;  /* [part_count] in the order of their first read */
    struct efs_fetch_part **here; /* [part_count] scratch of the caller */
    struct efs_order_read
        *reads; /* [read_count] every component of every part: those that need no read are passed over */
    uint32_t read_count;
    uint64_t makespan_ns; /* as simulated; 0: not scheduled */
};

/* Plan, and sort parts by priority. Takes the lock for a look at what is in memory. NULL: no memory. */
struct efs_order_plan *efs_order_new(struct efs *fs, struct efs_fetch_part **parts, uint32_t part_count,
                                     struct efs_fetch **fetches, uint32_t fetch_count);
void efs_order_free(struct efs_order_plan *plan);

#endif
