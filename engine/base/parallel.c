/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - see parallel.h. */
#include "parallel.h"

#include "deadline.h"
#include "thread.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define TICK_NS 100000000L /* between two calls of progress() */
#define BUFFER_ALIGN 4096u

void efs_parallel_begin(struct efs_parallel *p, void (*wake)(void *owner), void *owner)
{
    *p = (struct efs_parallel){.wake = wake, .owner = owner};
    pthread_mutex_init(&p->lock, NULL);
    efs_cond_init(&p->changed);
}

void efs_parallel_fail(struct efs_parallel *p, errint_t rc, const char *text)
{
    pthread_mutex_lock(&p->lock);
    if (p->rc == 0)
        p->rc = efs_fail(&p->err, rc, "%s", text);
    p->stop = true;
    if (p->wake)
        p->wake(p->owner);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void parallel_count(struct efs_parallel *p, int more)
{
    pthread_mutex_lock(&p->lock);
    p->running += (unsigned)more;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void *parallel_run(void *arg)
{
    struct efs_parallel_thread *t = arg;
    struct efs_error err = {""};
    errint_t rc = t->work(t->arg, &err);
    if (rc < 0)
        efs_parallel_fail(t->parallel, rc, err.text);
    parallel_count(t->parallel, -1);
    return NULL;
}

errint_t efs_parallel_start(struct efs_parallel *p, const char *name, efs_parallel_fn *work, void *args, size_t bytes,
                            unsigned count)
{
    errint_t rc = -EAGAIN;
    for (unsigned i = 0; i < count && p->count < EFS_PARALLEL_MAX; i++) {
        struct efs_parallel_thread *t = &p->threads[p->count];
        *t = (struct efs_parallel_thread){.parallel = p, .work = work, .arg = (char *)args + i * bytes};
        parallel_count(p, 1);
        rc = efs_thread_start(parallel_run, t, name, &t->id);
        if (rc < 0) {
            parallel_count(p, -1);
            return i > 0 ? 0 : rc;
        }
        p->count++;
    }
    return rc;
}

errint_t efs_parallel_end(struct efs_parallel *p, efs_progress_fn *progress, void *arg, uint64_t total_bytes,
                          const char *phase, struct efs_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->running > 0) {
        const struct timespec until = efs_from_now(TICK_NS);
        if (pthread_cond_timedwait(&p->changed, &p->lock, &until) != ETIMEDOUT || !progress || p->stop)
            continue;
        uint64_t done = p->done_bytes;
        pthread_mutex_unlock(&p->lock);
        if (progress(arg, done, total_bytes, phase))
            efs_parallel_fail(p, -ECANCELED, "interrupted");
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->count; i++)
        pthread_join(p->threads[i].id, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    return p->rc < 0 ? efs_fail(err, p->rc, "%s", p->err.text) : 0;
}

unsigned efs_parallel_fit(size_t memory_bytes, size_t fixed_bytes, size_t *buffer_bytes, size_t most_bytes,
                          unsigned threads)
{
    size_t most = memory_bytes / (fixed_bytes + *buffer_bytes);
    if (threads > most)
        threads = most > 1 ? (unsigned)most : 1;
    size_t each = memory_bytes / threads, buffer = each > fixed_bytes ? each - fixed_bytes : 0;
    if (buffer > most_bytes)
        buffer = most_bytes;
    buffer -= buffer % BUFFER_ALIGN;
    if (*buffer_bytes < buffer)
        *buffer_bytes = buffer;
    return threads;
}

unsigned efs_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (unsigned)n : 1;
}
