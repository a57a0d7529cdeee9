/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - a group of threads for one task. The calling thread waits for them and reports progress. The first error
 * stops all of them.
 */
#ifndef EFS_PARALLEL_H
#define EFS_PARALLEL_H

#include "expertfs-pack.h"

#include <pthread.h>

#define EFS_PARALLEL_MAX 264u /* threads */

/* Works until no work is left or efs_parallel.stop is set. Returning an error stops the other threads. */
typedef errint_t efs_parallel_fn(void *arg, struct efs_error *err);

struct efs_parallel {
    pthread_mutex_t lock;      /* guards the following members and the caller's shared state */
    pthread_cond_t changed;    /* signalled when a thread exits and when stop is set */
    void (*wake)(void *owner); /* wakes threads that wait on other conditions, called with lock held; may be NULL */
    void *owner;
    uint64_t done_bytes; /* passed to progress() */
    unsigned count, running;
    bool stop;
    errint_t rc; /* the first error */
    struct efs_error err;
    struct efs_parallel_thread {
        struct efs_parallel *parallel;
        efs_parallel_fn *work;
        void *arg;
        unsigned long id;
    } threads[EFS_PARALLEL_MAX];
};

void efs_parallel_begin(struct efs_parallel *parallel, void (*wake)(void *owner), void *owner);
/* Starts count threads, the nth with args + n * bytes. Returns 0 if at least one thread started; else -errno, which
 * the caller passes to efs_parallel_fail(). */
errint_t efs_parallel_start(struct efs_parallel *parallel, const char *name, efs_parallel_fn *work, void *args,
                            size_t bytes, unsigned count);
/* Stops all threads. text: message of the error rc. */
void efs_parallel_fail(struct efs_parallel *parallel, errint_t rc, const char *text);
/* Blocks until all threads have exited. Calls progress (may be NULL) about every 100 ms; if it returns true, stops
 * the threads with -ECANCELED. Returns the first error. */
errint_t efs_parallel_end(struct efs_parallel *parallel, efs_progress_fn *progress, void *arg, uint64_t total_bytes,
                          const char *phase, struct efs_error *err);

/* The number of threads (1 .. `threads`) for which memory_bytes suffice, if each needs fixed_bytes and a buffer of
 * at least *buffer_bytes. The remaining memory enlarges *buffer_bytes, up to most_bytes. */
unsigned efs_parallel_fit(size_t memory_bytes, size_t fixed_bytes, size_t *buffer_bytes, size_t most_bytes,
                          unsigned threads);
/* Number of CPUs that this process may run on. */
unsigned efs_cores(void);

#endif
