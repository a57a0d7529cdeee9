/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loading.h - a program that loads a model goes through a mapped file once, in order. Who is found to do so is helped
 * in two ways, by a thread of its own.
 *
 * Pages ahead of him. The kernel asks for the next piece of a mapped file when its reader begins with the one before:
 * one request at a time, a quarter of a MiB, and the reader makes the pages for it. The thread has the kernel read the
 * file some MiB ahead, so that pages are made beside the reader and pieces are decoded by all threads.
 *   Where he is we learn from what he asks for. So at the end of each stretch one page is left out: he asks for it when
 * he comes there. Its bytes are kept here meanwhile, since what it is decoded from may be gone by then.
 *
 * Room behind him. A file that is larger than the memory that there is pushes itself out, page by page, in the time of
 * the reader; and at the end the page cache holds the last part of it, which is the wrong one: who has loaded a model
 * begins again with its first layer. So when the memory is full, what he has just passed is given up, all pages of a
 * stretch in one go. What he read first stays.
 *
 * Pages that the thread has read count for the daemon's memory cgroup. So only readers of that cgroup are helped.
 *
 * The thread waits for the kernel, which waits for answers of receiving threads and workers. Nobody waits for the
 * thread (see pagecache.h), and its lock is never held over a call.
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

/* A page that was left out. */
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
    _Atomic pid_t tid; /* of the thread, as the kernel names it in requests; 0: none */
    _Atomic bool stop;
    pthread_mutex_t lock; /* guards the rest */
    uint32_t node;        /* that is gone through; EFSD_ROOT: none */
    pid_t reader;         /* who asked, when it was found */
    uint64_t at;          /* the end of what he asked for last */
    uint64_t until;       /* what was read ahead for him ends here */
    uint64_t news;        /* requests so far, of his and of the thread's own */
    uint64_t unanswered;  /* of them; also of those that were followed before */
    uint64_t under_way;   /* bytes that the kernel was told to read ahead and that were not answered yet */
    pthread_cond_t answered;
    pid_t refused; /* who was not of our memory cgroup when he was found last; 0: nobody */
    struct efsd_signpost signposts[EFSD_SIGNPOSTS];
    uint32_t next_signpost;
};

/* Start the thread; the mount answers already. 0 or -errno. */
errint_t efsd_loading_start(struct efsd *daemon);
/* End and join it, while the receiving threads still answer. */
void efsd_loading_stop(struct efsd *daemon);

/* When no thread is left. */
void efsd_loading_free(struct efsd *daemon);

/* Is the process id of a request that of our own thread? */
bool efsd_loading_is_own(const struct efsd *daemon, pid_t pid);
/* A read for the page cache has come, of somebody else; scan: after a long run of them. true: it is of the one who is
 * followed, and efsd_loading_answered() is to be called for it. Any thread, never waits. */
bool efsd_loading_read(struct efsd *daemon, uint32_t node, pid_t reader, uint64_t offset, uint64_t bytes, bool scan);
/* A read of our own has come. Any thread. */
void efsd_loading_own_read(struct efsd *daemon);
/* A read of our own was answered, or one of him who is followed. Any thread. */
void efsd_loading_answered(struct efsd *daemon, bool own, uint64_t bytes);
/* If it is for a page that was left out, and its bytes are here: answer it. Any thread. false: it was not. */
bool efsd_loading_answer(struct efsd *daemon, struct fuse_req *req, uint32_t node, uint64_t offset, size_t bytes);

#endif
