/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h - the I/O thread.
 *
 * io/ runs the reads of a served store on one thread and jobs on the decode workers, and measures the rates of both.
 * core/, cache/, budget/, planner/, prefetch/, fetch/ and serve/ call it. It never takes efs.lock, except in callbacks,
 * and never knows experts: it gets offsets, memory and jobs.
 *
 * The I/O thread owns an io_uring, with the store's file and the chunk pool's segments registered, and is the only
 * thread that reads the store while it is served.
 */
#ifndef EFS_DISK_H
#define EFS_DISK_H

#include "arena.h"
#include "expertfs.h"

/* A change of a queued read. */
enum efs_disk_change {
    EFS_DISK_UNCHANGED,
    EFS_DISK_RAISE, /* a thread waits for it: it becomes demand */
    EFS_DISK_CANCEL /* no longer needed: complete() is called with -ECANCELED */
};

/* A read of the store, or the unregistration of a segment (bytes = 0). The caller keeps it allocated until the I/O
 * thread calls complete(), which may free it and must not block. */
struct efs_disk_request {
    struct efs_disk_request *next;
    struct efs_disk_request *joined; /* of the I/O thread: the next request of a joined read (disk_queue.h) */
    uint64_t offset;                 /* in the store; a multiple of 4 KiB */
    size_t bytes;                    /* a multiple of 4 KiB; 0: unregister */
    uint8_t *data;                   /* inside segment */
    uint32_t segment;                /* index into the arena */
    bool ahead;                      /* read-ahead: queued behind demand */
    bool speculative;                /* read only while no other read is queued or in flight, in pieces of
                                                       EFS_DISK_PIECE_BYTES; a burst with such a read is not passed to the estimator */
    _Atomic uint8_t change;          /* enum efs_disk_change: set by the caller before complete() is called, followed by
                                        efs_disk_apply_changes(); without effect once its last piece is in flight */
    bool separate; /* of the I/O thread: its joined read failed or was short, so it is read separately */
    void (*complete)(struct efs_disk_request *request, errint_t error);
    bool direct;               /* of the I/O thread: submitted with O_DIRECT */
    size_t done, submitted;    /* of the I/O thread: bytes read; bytes read before the last submission */
    uint64_t begin_ns, end_ns; /* start of the last submission, completion time; for complete() */
};

struct efs_disk;
struct efs_disk_options {
    int fd;                  /* the store; with O_DIRECT where that works */
    int buffered_fd;         /* without O_DIRECT, used if reads of fd are rejected; equal to fd if fd has no O_DIRECT */
    struct efs_arena *arena; /* the I/O thread reads segments[i].base and writes segments[i].registered */
    struct efs_stats_counters *stats;
    struct efs_estimator *estimator; /* gets the measured bursts of reads; may be NULL */
    void (*completed)(void *arg);    /* called on the I/O thread after it has completed a batch of reads, and before it
                                    sleeps;    must not block; may be NULL */
    /* Called on the I/O thread when `what` ("O_DIRECT" or "io_uring") was rejected with error why and is no longer
     * used. At most once for each; may be NULL. */
    void (*fell_back)(void *arg, const char *what, errint_t why);
    void *arg;
};
#define EFS_DISK_WINDOW_BYTES (16u << 20)     /* no read is submitted while this many bytes are in flight */
#define EFS_DISK_SPECULATIVE_BYTES (4u << 20) /* of speculative reads in flight, or one read */
#define EFS_DISK_PIECE_BYTES (1u << 20)       /* a demand read waits for at most this much of it */
/* Starts the thread. If io_uring is rejected, at the start or later, it uses pread(2), one read at a time; if
 * O_DIRECT is rejected, it reads through the page cache. 0 or -errno. */
errint_t efs_disk_start(const struct efs_disk_options *options, struct efs_disk **disk);
/* Completes all requests, then joins the thread. NULL is allowed. */
void efs_disk_stop(struct efs_disk *disk);
/* Instead of efs_disk_stop() in a forked child: closes the child's copies and frees it. NULL is allowed. */
void efs_disk_close_in_child(struct efs_disk *disk);
/* Submits one request or a list linked by `next`, in order. Any thread; cannot fail. */
void efs_disk_submit(struct efs_disk *disk, struct efs_disk_request *requests);
/* Makes the I/O thread examine the `change` of all queued requests. Any thread; does not wait for it. */
void efs_disk_apply_changes(struct efs_disk *disk);

#endif
