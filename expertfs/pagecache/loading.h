/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loading.h - read-ahead in the page cache for a program that reads a mapped file once and in order, as loading a model
 * does. A thread of its own helps one such reader at a time, in two ways.
 *
 * Pages ahead of the reader. The kernel reads a mapped file ahead one request at a time, a quarter of a MiB each, and
 * the reader itself allocates the pages. The thread has the kernel read some MiB ahead: pages are allocated beside the
 * reader, and all workers decode.
 *   The reader's position is known only from its page faults. So the last page of each stretch is left out (a
 * signpost): its fault shows that the reader is there. The page's bytes are kept until then, since the extents that
 * they are decoded from may be evicted.
 *
 * Memory behind the reader. A file larger than memory evicts its own pages one by one, at the reader's expense, and
 * leaves the end of the file in the page cache, while the model's first layers are needed next. So when memory is full
 * the thread drops the stretches that the reader has just passed, each at once. What was read first stays.
 *
 * Pages that the thread reads are charged to the daemon's memory cgroup, so only readers of that cgroup are helped.
 *
 * The thread waits for the kernel, which waits for answers of receiving threads and workers. Neither of them waits for
 * this thread: they store numbers and signal an eventfd, and its lock is never held over a call. It is joined before
 * they end. A daemon that is killed during such a wait ends all the same: own.h for opens and reads; guard.h for an
 * invalidation, which needs the daemon's FUSE device.
 */
#ifndef EFSD_LOADING_H
#define EFSD_LOADING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "expertfs.h"

struct efsd;
struct efsd_open;
struct fuse_req;

#define EFSD_PAGE 4096u

/* A page that was left out of the read-ahead. */
struct efsd_signpost {
    uint8_t data[EFSD_PAGE];
    struct efsd *daemon;
    uint64_t offset;
    uint32_t node;
    unsigned state; /* NONE, COMING, HERE, AWAITED */
};
#define EFSD_SIGNPOSTS 8u

struct efsd_loading {
    /* constant while the thread runs */
    pthread_t thread;
    int event_fd; /* wakes the thread */
    /* shared */
    _Atomic bool started;
    _Atomic bool stop;
    pthread_mutex_t lock; /* guards the rest */
    uint32_t node;        /* the file that is read; EFSD_ROOT: none */
    pid_t reader;         /* the process that was found to read it */
    uint64_t at;          /* the end of its last request */
    uint64_t until;       /* the end of what was read ahead */
    uint64_t news;        /* requests so far, the reader's and the thread's own */
    uint64_t unanswered;  /* of them; also of earlier readers */
    uint64_t under_way;   /* bytes asked of the kernel and not answered yet */
    pthread_cond_t answered;
    pid_t refused; /* the last reader found that is not of our memory cgroup; 0: none */
    struct efsd_signpost signposts[EFSD_SIGNPOSTS];
    uint32_t next_signpost;
};

/* Start the thread; the mount answers already. 0 or -errno. */
errint_t efsd_loading_start(struct efsd *daemon);
/* End and join it, while the receiving threads still answer. */
void efsd_loading_stop(struct efsd *daemon);

/* When no thread is left. */
void efsd_loading_free(struct efsd *daemon);

/* A read for the page cache that is not our own; scan: it ends a long run in order. true: it is of the reader that is
 * helped, and efsd_loading_answered() must be called for it. Any thread, never waits. */
bool efsd_loading_read(struct efsd *daemon, uint32_t node, pid_t reader, uint64_t offset, uint64_t bytes, bool scan);
/* A read of our own has come. Any thread. */
void efsd_loading_own_read(struct efsd *daemon);
/* A read of our own, or of the reader that is helped, was answered. Any thread. */
void efsd_loading_answered(struct efsd *daemon, bool own, uint64_t bytes);
/* Answer a read of a page that was left out, if its bytes are here; else false. Any thread. */
bool efsd_loading_answer(struct efsd *daemon, struct fuse_req *req, uint32_t node, uint64_t offset, size_t bytes);

#endif
