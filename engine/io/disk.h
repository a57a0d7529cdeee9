/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h - the one I/O thread: it owns an io_uring with the store's file and the chunk pool's segments registered, and
 * nobody else reads the store while it is served.
 */
#ifndef EFS_DISK_H
#define EFS_DISK_H

#include "arena.h"
#include "expertfs.h"

/* What has become of a read that waits behind others. */
enum efs_disk_change {
    EFS_DISK_AS_IT_IS,
    EFS_DISK_RAISE, /* somebody waits for it: it is demand */
    EFS_DISK_CANCEL /* nobody wants it: complete() is called with -ECANCELED */
};

/* A read of the store, or the unpinning of a segment (bytes = 0). Owned by the caller until complete() is called, on
 * the I/O thread; complete() may free it and must not block. */
struct efs_disk_request {
    struct efs_disk_request *next;
    struct efs_disk_request *joined; /* the I/O thread's: read with it, by disk_queue.h */
    uint64_t offset;                 /* in the store, a multiple of 4 KiB */
    size_t bytes;                    /* a multiple of 4 KiB; 0: unpin */
    uint8_t *data;                   /* inside segment */
    uint32_t segment;                /* index into the arena */
    bool ahead;                      /* read-ahead: waits behind demand */
    bool spare_time; /* read only while nothing else is under way or waits, in pieces of EFS_DISK_PIECE_BYTES, after
                      * each of which others go first, and but EFS_DISK_SPARE_BYTES at once; tells nothing of what the
                      * disk can do */
    _Atomic uint8_t change; /* enum efs_disk_change: set by the caller while it owns the request, then efs_disk_look();
                             * nothing comes of it once its last piece has begun */
    bool alone;             /* the I/O thread's: what it was read with has failed, or ended early */
    void (*complete)(struct efs_disk_request *request, errint_t error);
    bool direct;               /* the I/O thread's: it was begun with O_DIRECT */
    size_t done, begun;        /* the I/O thread's: bytes that are read; of them, when it was begun last */
    uint64_t begin_ns, end_ns; /* when the read was begun, and had ended: for complete() */
};

struct efs_disk;
struct efs_disk_options {
    int fd;                  /* the store, O_DIRECT where that works */
    int buffered_fd;         /* without O_DIRECT, read where fd refuses reads; the same as fd if that has none */
    struct efs_arena *arena; /* segments[i].base is read, segments[i].pinned written by the I/O thread */
    struct efs_stats_counters *stats;
    struct efs_estimator *estimator; /* hears of bursts of reads; NULL: none */
    void (*ended)(void *arg); /* on the I/O thread, must not block: no more reads have ended by now; NULL: none */
    /* On the I/O thread: `what` was refused with -errno, and is not used any more. Once for each; NULL: none. */
    void (*fell_back)(void *arg, const char *what, errint_t why);
    void *arg;
};
#define EFS_DISK_WINDOW_BYTES (16u << 20) /* under way at once: no more are begun from there on */
#define EFS_DISK_SPARE_BYTES (4u << 20)   /* of spare time begun at once, or one read */
#define EFS_DISK_PIECE_BYTES (1u << 20)   /* of such a read under way: who asks meanwhile waits for them */
/* Start the thread. Where io_uring is refused, now or later, it serves by pread(2), one read at a time; where O_DIRECT
 * is refused, through the page cache. */
errint_t efs_disk_start(const struct efs_disk_options *options, struct efs_disk **disk);
/* Finishes all requests, then joins. NULL is fine. */
void efs_disk_stop(struct efs_disk *disk);
/* In its place, in a forked process: close what that one has of it. NULL is fine. */
void efs_disk_leave(struct efs_disk *disk);
/* One, or a list by `next`, in that order. Any thread; never fails. */
void efs_disk_submit(struct efs_disk *disk, struct efs_disk_request *requests);
/* Requests have changed: those that are not begun are looked through. Any thread; does not wait for it. */
void efs_disk_look(struct efs_disk *disk);

#endif
