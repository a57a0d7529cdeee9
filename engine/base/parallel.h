/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - threads that share one piece of work and end with it: the first error stops all of them, while the
 * caller's thread waits and reports progress.
 */
#ifndef EFS_PARALLEL_H
#define EFS_PARALLEL_H

#include "expertfs-pack.h"

#include <pthread.h>

#define EFS_PARALLEL_MAX 264u /* threads */

/* Work until none is left, or efs_parallel.stop is set. An error stops the others. */
typedef errint_t efs_parallel_fn(void *arg, struct efs_error *err);

struct efs_parallel {
    pthread_mutex_t lock;      /* guards what follows, and the shared state of the caller */
    pthread_cond_t changed;    /* a thread ended, or stop was set */
    void (*wake)(void *owner); /* wakes threads that wait on other conditions, with lock held; may be NULL */
    void *owner;
    uint64_t done_bytes; /* for progress */
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
/* Start count threads, the nth with args + n * bytes. Fewer will do, but one must start: else -errno, for
 * efs_parallel_fail(). */
errint_t efs_parallel_start(struct efs_parallel *parallel, const char *name, efs_parallel_fn *work, void *args,
                            size_t bytes, unsigned count);
/* Stop all threads; text: of the error. */
void efs_parallel_fail(struct efs_parallel *parallel, errint_t rc, const char *text);
/* Blocks until all threads have ended, and calls progress (which may be NULL) meanwhile; when that returns true:
 * -ECANCELED. Returns the first error. */
errint_t efs_parallel_end(struct efs_parallel *parallel, efs_progress_fn *progress, void *arg, uint64_t total_bytes,
                          const char *phase, struct efs_error *err);

/* How many threads, up to `threads`, memory_bytes are enough for, where each takes fixed_bytes and a buffer of
 * *buffer_bytes or more: at least one. The rest of the memory makes the buffers larger, up to most_bytes. */
unsigned efs_parallel_fit(size_t memory_bytes, size_t fixed_bytes, size_t *buffer_bytes, size_t most_bytes,
                          unsigned threads);
/* Cores that this process may use. */
unsigned efs_cores(void);

#endif
