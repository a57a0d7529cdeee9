/* SPDX-License-Identifier: Apache-2.0 */
/* idle.c - see idle.h. The thread is woken by a semaphore, which needs no lock. */
#include "idle.h"

#include "expertfs-clock-private.h"
#include "cores.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

struct efs_idle {
    sem_t wake; /* posted after each change of the following */
    _Atomic(struct efs_job *) job;
    atomic_bool stop;
    struct efs_cores cores; /* of the thread */
    unsigned long thread;
};

/* Waits until there is a job and it may run. NULL: stop. */
static struct efs_job *idle_take(struct efs_idle *idle)
{
    while (!atomic_load(&idle->stop)) {
        bool queued = atomic_load(&idle->job);
        uint64_t pause = queued ? efs_cores_pause(&idle->cores, efs_now_ns()) : 0;
        const struct timespec until = efs_from_now((int64_t)pause);
        if (queued && !pause)
            return atomic_exchange(&idle->job, NULL);
        if (queued)
            sem_clockwait(&idle->wake, CLOCK_MONOTONIC, &until);
        else
            sem_wait(&idle->wake);
    }
    return NULL;
}

static void *idle_run(void *arg)
{
    struct efs_idle *idle = arg;
    struct efs_job *job;
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}); /* fails only by a filter of system calls */
    while ((job = idle_take(idle)))
        job->run(job, NULL);
    return NULL;
}

errint_t efs_idle_start(struct efs_idle **out)
{
    struct efs_idle *idle = efs_sys_calloc(1, sizeof(*idle));
    *out = NULL;
    if (!idle)
        return -ENOMEM;
    sem_init(&idle->wake, 0, 0);
    efs_cores_open(&idle->cores);
    errint_t rc = efs_thread_start(idle_run, idle, "efs-idle", &idle->thread);
    if (rc < 0) {
        efs_cores_close(&idle->cores);
        free(idle);
    } else {
        *out = idle;
    }
    return rc;
}

void efs_idle_stop(struct efs_idle *idle)
{
    if (!idle)
        return;
    atomic_store(&idle->stop, true);
    sem_post(&idle->wake);
    pthread_join(idle->thread, NULL);
}

void efs_idle_free(struct efs_idle *idle)
{
    if (!idle)
        return;
    efs_cores_close(&idle->cores);
    sem_destroy(&idle->wake);
    free(idle);
}

void efs_idle_close_in_child(struct efs_idle *idle)
{
    if (idle)
        efs_cores_close(&idle->cores);
}

void efs_idle_push(struct efs_idle *idle, struct efs_job *job)
{
    atomic_store(&idle->job, job);
    sem_post(&idle->wake);
}
