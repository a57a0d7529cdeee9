/* SPDX-License-Identifier: Apache-2.0 */
/* workers.c - see workers.h. efs_workers.lock guards the queues, stop and idle. */
#include "workers.h"

#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct worker {
    struct efs_workers *pool;
    struct efs_codec_scratch *scratch;
    unsigned long thread;
};

struct queue {
    struct efs_job *head, **tail;
};

struct efs_workers {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct queue jobs, low; /* low: taken only if jobs is empty */
    bool stop;
    unsigned count, idle;
    struct worker worker[EFS_WORKERS_MAX];
};

static struct efs_job *workers_pop(struct queue *q)
{
    struct efs_job *job = q->head;
    if (job) {
        q->head = job->next;
        if (!q->head)
            q->tail = &q->head;
    }
    return job;
}

static void *workers_work(void *arg)
{
    struct worker *self = arg;
    struct efs_workers *w = self->pool;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->jobs.head && !w->low.head && !w->stop) {
            w->idle++;
            pthread_cond_wait(&w->ready, &w->lock);
            w->idle--;
        }
        struct efs_job *job = workers_pop(w->jobs.head ? &w->jobs : &w->low);
        if (!job)
            break;
        pthread_mutex_unlock(&w->lock);
        job->run(job, self->scratch);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

errint_t efs_workers_start(unsigned count, uint32_t shard_elements, struct efs_workers **out)
{
    *out = NULL;
    struct efs_workers *w = efs_sys_calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ready, NULL);
    w->jobs.tail = &w->jobs.head;
    w->low.tail = &w->low.head;
    for (unsigned i = 0; i < count && i < EFS_WORKERS_MAX; i++) {
        struct worker *worker = &w->worker[i];
        worker->pool = w;
        errint_t rc = efs_codec_scratch_new(shard_elements, &worker->scratch);
        if (rc == 0)
            rc = efs_thread_start(workers_work, worker, "efs-decode", &worker->thread);
        if (rc < 0) {
            efs_codec_scratch_free(worker->scratch);
            efs_workers_stop(w);
            return rc;
        }
        w->count++;
    }
    *out = w;
    return 0;
}

void efs_workers_stop(struct efs_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->ready);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++) {
        pthread_join(w->worker[i].thread, NULL);
        efs_codec_scratch_free(w->worker[i].scratch);
    }
    pthread_cond_destroy(&w->ready);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void efs_workers_push(struct efs_workers *w, struct efs_job *job, enum efs_job_order order)
{
    struct queue *q = order == EFS_JOB_LOW ? &w->low : &w->jobs;
    const bool first = order == EFS_JOB_FIRST;
    pthread_mutex_lock(&w->lock);
    job->next = first ? q->head : NULL;
    if (!first)
        *q->tail = job;
    if (!job->next)
        q->tail = &job->next;
    if (first)
        q->head = job;
    bool wake = w->idle > 0;
    pthread_mutex_unlock(&w->lock);
    if (wake)
        pthread_cond_signal(&w->ready);
}
