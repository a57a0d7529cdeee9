/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - the queue of reads of a store, and its I/O thread.
 *
 * io/ runs the reads of a served store on one thread and jobs on the decode workers, and measures the rates of both.
 * core/, cache/, budget/, planner/, prefetch/, fetch/ and serve/ call it. It never takes efs.lock, except in callbacks,
 * and never knows experts: it gets offsets, memory and jobs.
 *
 * The I/O thread reads the store while it is served; threads that may wait read a few pages themselves (direct.h). The
 * bytes come from a backing (backing.h).
 */
#ifndef EFS_IO_QUEUE_H
#define EFS_IO_QUEUE_H

#include "arena.h"
#include "backing.h"

/* Priorities, highest first. */
enum efs_io_class {
    EFS_IO_DEMAND, /* a thread waits for it */
    EFS_IO_AHEAD,
    EFS_IO_IDLE, /* read only while no other read is queued or in flight, in pieces of EFS_IO_PIECE_BYTES; a burst with
                    such a read is not passed to the estimator */
    EFS_IO_CLASSES
};

/* A change of a queued read. */
enum efs_io_change {
    EFS_IO_UNCHANGED,
    EFS_IO_RAISE, /* a thread waits for it: it becomes demand */
    EFS_IO_CANCEL /* no longer needed: complete() is called with -ECANCELED */
};

/* A read of the store, or the unregistration of a segment (bytes = 0). The caller keeps it allocated until the I/O
 * thread calls complete(), which may free it and must not block. */
struct efs_io {
    struct efs_io *next;
    struct efs_io *joined;  /* of the I/O thread: the next request of a joined read */
    uint64_t offset;        /* in the store */
    size_t bytes;           /* offset and bytes: multiples of 4 KiB, or of the backing's align; 0: unregister */
    uint8_t *data;          /* inside segment */
    uint32_t segment;       /* index into the arena; EFS_NONE: other memory */
    uint8_t class;          /* enum efs_io_class */
    _Atomic uint8_t change; /* enum efs_io_change: set by the caller before complete() is called, followed by
                               efs_io_apply_changes(); without effect once its last piece is in flight, unless the
                               backing can cancel it there */
    bool separate;          /* of the I/O thread: its joined read failed or was short, so it is read separately */
    void (*complete)(struct efs_io *io, errint_t error);
    void *owner;               /* for complete() */
    size_t done;               /* of the I/O thread: bytes read */
    uint64_t begin_ns, end_ns; /* start of the last submission (0: cancelled before), completion time */
};

struct efs_io_queue;
struct efs_io_options {
    struct efs_backing *backing; /* NULL: -ENOMEM */
    struct efs_arena *arena;     /* segments are registered at their first read; NULL: all reads are to other memory */
    struct efs_stats_counters *stats;
    struct efs_estimator *estimator; /* gets the measured bursts of reads; may be NULL */
    void (*completed)(void *arg);    /* called on the I/O thread after it has completed a batch of reads, and before it
                                        sleeps; must not block; may be NULL */
    void (*say)(void *arg, const char *line); /* of the backing; may be NULL */
    void *arg;
};
#define EFS_IO_IDLE_BYTES (4u << 20)  /* of idle reads in flight, or one read */
#define EFS_IO_PIECE_BYTES (1u << 20) /* a demand read waits for at most this many bytes of an idle read */
/* Starts the I/O thread. The queue owns the backing from here on: it is closed also after an error. 0 or -errno. */
errint_t efs_io_queue_start(const struct efs_io_options *options, struct efs_io_queue **queue);
/* From now on reads that no thread waits for (AHEAD and IDLE, not raised) are completed with -ECANCELED, if they have
 * not been submitted or the backing can cancel them. NULL is allowed. */
void efs_io_queue_cancel(struct efs_io_queue *queue);
/* The same; completes all other requests, joins the thread and closes the backing. NULL is allowed. */
void efs_io_queue_stop(struct efs_io_queue *queue);
/* After efs_io_queue_stop(), when no thread is in a call with the queue: efs_io_submit() may wake the I/O thread after
 * it has completed the request. NULL is allowed. */
void efs_io_queue_free(struct efs_io_queue *queue);
/* Both, but returns the backing, for another queue. */
struct efs_backing *efs_io_queue_end(struct efs_io_queue *queue);
/* Instead of both in a forked child: closes the child's copies and frees it. NULL is allowed. */
void efs_io_queue_close_in_child(struct efs_io_queue *queue);
/* No read is submitted while this many bytes are in flight. */
size_t efs_io_window_bytes(const struct efs_io_queue *queue);
/* Submits one request or a list linked by `next`, in order. Any thread; cannot fail. */
void efs_io_submit(struct efs_io_queue *queue, struct efs_io *requests);
/* Makes the I/O thread examine the `change` of all queued requests. Any thread; does not wait for it. */
void efs_io_apply_changes(struct efs_io_queue *queue);
/* Has the I/O thread call `completed` of its options soon. Takes no lock: also for threads that may lose their
 * processor at any time (idle.h). */
void efs_io_wake(struct efs_io_queue *queue);
/* The descriptor for reads by other threads (direct.h); offsets are those of the store. -1: read by efs_io_submit(),
 * because the backing is no single file, or idle reads are queued or in flight, which must not compete with demand. */
int efs_io_direct_fd(const struct efs_io_queue *queue);
/* Reads to any memory and waits, as an efs_store_read_fn: queue is a struct efs_io_queue. offset, bytes and data are
 * multiples of the backing's align. Up to 16 pieces of its best_bytes are in flight. Not on the I/O thread. 0 or
 * -errno; -EINVAL: not aligned; -EIO also if the source ends before. */
errint_t efs_io_read_sync(void *queue, uint64_t offset, void *data, size_t bytes);

#endif
