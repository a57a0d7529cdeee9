/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing.h - a source of a store's bytes, by one interface: local files (backing_file.c), or a backing around another
 * one.
 *
 * The queue (queue.h) orders, joins, splits and retries reads. A backing starts each read and reports its result once.
 * The I/O thread of the queue makes all calls, so that a backing needs no lock and completions have one thread. The
 * threads of a source, if it has any, append results to a list and write to wake_fd; wait() reports the list.
 *
 * A backing around another one is the inner one's owner: its start() calls efs_backing_start_inner(), its other
 * operations call those of the inner one, also with reads of its own, and the results are passed to its function.
 */
#ifndef EFS_BACKING_H
#define EFS_BACKING_H

#include "expertfs.h"

#include <sys/uio.h>

#define EFS_IO_JOIN_READS 16u /* buffers of a read */
#define EFS_IO_DEPTH_MAX 64u

struct efs_backing;
struct efs_io;
struct efs_stats_counters;
struct stat;

struct efs_backing_info {
    uint32_t align;      /* offsets and lengths of reads are multiples of it */
    uint32_t best_bytes; /* joined reads have at most this length, and 8 times this is in flight at most, or one read */
    uint32_t max_bytes;  /* limit of one read, at least best_bytes; 0: none */
    uint32_t depth;      /* limit of reads in flight, 1 to EFS_IO_DEPTH_MAX; the backing may lower it */
    bool joins;          /* adjacent reads are submitted as one with several buffers */
    bool registers;      /* memory() makes reads faster; the backing may clear it */
};

struct efs_backing_read {
    uint64_t offset;
    size_t bytes;                            /* sum of the buffers */
    struct iovec buffers[EFS_IO_JOIN_READS]; /* valid until the result is reported */
    unsigned buffer_count;
    bool idle;            /* nothing waits for it: the lowest priority that the source has */
    uint32_t segment;     /* the registered segment that contains the only buffer; EFS_NONE: none */
    uintptr_t own;        /* for the backing */
    struct efs_io *first; /* of the owner */
};

struct efs_backing_ops {
    /* The first call of a thread, with no read in flight: the owner's thread may change. May be NULL. */
    void (*start)(struct efs_backing *backing);
    /* Starts a read. Does not block and does not report a result: wait() reports errors, too. */
    void (*submit)(struct efs_backing *backing, struct efs_backing_read *read);
    /* Blocks until a read has ended or wake_fd is readable, then reads wake_fd and reports the results that are
     * available, each by efs_backing_read_ended(). */
    void (*wait)(struct efs_backing *backing);
    /* Cancels a read in flight. true: no result is reported for it and its buffers are not written any more; false: too
     * late. May be NULL: always too late. */
    bool (*cancel)(struct efs_backing *backing, struct efs_backing_read *read);
    /* Registers the memory of a segment, or forgets it (base NULL). 0 or -errno; after an error of forgetting, the call
     * is repeated after the next wait(). May be NULL if info.registers is false. */
    errint_t (*memory)(struct efs_backing *backing, uint32_t segment, void *base, size_t bytes);
    /* Frees the backing; no read is in flight. in_child: in a forked child instead, which must not change state that is
     * shared with the parent. */
    void (*close)(struct efs_backing *backing, bool in_child);
};

struct efs_backing {
    const struct efs_backing_ops *ops;
    struct efs_backing_info info;
    _Atomic int direct_fd; /* the file at address 0, if there is no other: any thread may read it; -1: none, or reads of
                              it are rejected */
    /* Set by the owner before start(): the queue, or the backing around this one. */
    void (*ended)(void *owner, struct efs_backing_read *read, ssize_t result);
    void *owner;
    /* Reports a fault of the source, once for all reads that it fails: "NAME: reason\nhint: ...". On the I/O thread,
     * must not block; may be NULL. */
    void (*say)(void *arg, const char *line);
    void *say_arg;
    struct efs_stats_counters *stats;
    uint32_t segments; /* that can be registered */
    int wake_fd;       /* an eventfd */
};

/* For start() of a backing around another one: starts the inner one, whose results are passed to ended(owner). */
void efs_backing_start_inner(struct efs_backing *inner, const struct efs_backing *outer,
                             void (*ended)(void *owner, struct efs_backing_read *read, ssize_t result), void *owner);

/* Reports the result of a read, from wait(): the number of bytes read, which may be short (0: end of the source), or
 * -errno. The queue retries the rest of a short read, and reads that failed with -EAGAIN or -EINTR. */
static inline void efs_backing_read_ended(struct efs_backing *backing, struct efs_backing_read *read, ssize_t result)
{
    backing->ended(backing->owner, read, result);
}

struct efs_backing_part {
    int fd;           /* with O_DIRECT where that works */
    int buffered_fd;  /* without O_DIRECT, used if reads of fd are rejected; equal to fd if fd has no O_DIRECT */
    uint64_t address; /* offset of the file's first byte in the backing */
    uint64_t bytes;   /* zeros are read from its end up to the end of the page */
};

struct efs_backing_file_options {
    int fd, buffered_fd;                  /* of the only file, as in a part at address 0; not used if there are parts */
    const struct efs_backing_part *parts; /* several files, by address; copied. No read may touch two of them. */
    unsigned part_count;
    /* Called on the I/O thread after a read of a part, with arg check_arg; an error fails the read. May be NULL. */
    errint_t (*check)(void *arg, unsigned part);
    void *check_arg;
    /* Called on the I/O thread when `what` ("O_DIRECT" or "io_uring") was rejected with error why and is no longer
     * used. At most once for each; may be NULL. */
    void (*fell_back)(void *arg, const char *what, errint_t why);
    void *arg;
};
/* One or several local files. If io_uring is rejected, at the start or later, it is read by pread(2), one read at a
 * time; if O_DIRECT is rejected, through the page cache. The caller closes the descriptors. NULL: no memory. */
struct efs_backing *efs_backing_file_new(const struct efs_backing_file_options *options);

struct efs_store;
/* Opens a store of `bytes` bytes that the backing reads, on a queue that the store owns: all readers of the store use
 * it. name: for messages; st: of the source, for efs_store_info(). The store owns the backing, which is closed also
 * after an error; NULL: -ENOMEM. Blocks. Errors of efs_store_open(). */
errint_t efs_store_open_backing(const char *name, uint64_t bytes, const struct stat *st, struct efs_backing *backing,
                                struct efs_store **store, struct efs_error *err);
/* Has the chunks of an open store read by the backing from here on, as by efs_store_open_backing(). */
errint_t efs_store_back(struct efs_store *store, struct efs_backing *backing, struct efs_error *err);
/* The backing of an open store: its file, the files of a checkpoint that is served in place, or the backing that it was
 * opened on, which the store then no longer reads until efs_store_read_by(). direct: use O_DIRECT. fell_back and arg:
 * as in the options. The store must stay open. NULL: no memory. */
struct efs_backing *efs_backing_of_store(const struct efs_store *store, bool direct,
                                         void (*fell_back)(void *arg, const char *what, errint_t why), void *arg);

struct efs_local;
#define EFS_BACKING_LOCAL_THREADS 4u
/* A backing around another one, which it owns: pages that the local copy has are read from there, and pages that it
 * lacks are offered to it (local.h). local must stay open. NULL: no memory, or inner is NULL; inner is closed then. */
struct efs_backing *efs_backing_local_new(struct efs_backing *inner, struct efs_local *local);

#endif
