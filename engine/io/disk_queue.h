/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_queue.h - reads that wait for the I/O thread, in order, and which of them are read as one. All of it belongs to
 * that thread.
 */
#ifndef EFS_DISK_QUEUE_H
#define EFS_DISK_QUEUE_H

#include "disk.h"

#include <sys/uio.h>

struct efs_disk_queue {
    struct efs_disk_request *head, **tail;
};

static inline void efs_disk_put(struct efs_disk_queue *q, struct efs_disk_request *r)
{
    r->next = NULL;
    *q->tail = r;
    q->tail = &r->next;
}

static inline void efs_disk_put_first(struct efs_disk_queue *q, struct efs_disk_request *r)
{
    r->next = q->head;
    if (!q->head)
        q->tail = &r->next;
    q->head = r;
}

static inline struct efs_disk_request *efs_disk_take(struct efs_disk_queue *q)
{
    struct efs_disk_request *r = q->head;
    if (r) {
        q->head = r->next;
        if (!q->head)
            q->tail = &q->head;
        r->joined = NULL;
    }
    return r;
}

#define EFS_DISK_JOIN_BYTES                                                                                            \
    (2u << 20) /* of what is read as one, at most; with 4 MiB a request of 8 experts took 4 %                          \
                * longer, since less is under way at its end */
#define EFS_DISK_JOIN_READS 16u

/* The first of the queue, with what waits there and goes on behind it in the store: joined, by request->joined. Extents
 * end anywhere in a page, so that the last page of one can be the first of the next. */
struct efs_disk_request *efs_disk_take_joined(struct efs_disk_queue *q);
/* Where a joined read goes, EFS_DISK_JOIN_READS buffers at most; their number. A page of two is read for the first. */
unsigned efs_disk_joined_buffers(const struct efs_disk_request *first, struct iovec *buffers);
/* So many bytes of it were read: each has its own of them (done), a page of two is copied. */
void efs_disk_joined_done(struct efs_disk_request *first, size_t bytes);

#endif
