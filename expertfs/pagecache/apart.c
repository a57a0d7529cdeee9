/* SPDX-License-Identifier: Apache-2.0 */
/* apart.c - see apart.h. Calls are raw: sanitizers take all descriptors for those of one table. */
#include "apart.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static long call_now(const long call[6])
{
    long rc = syscall(call[0], call[1], call[2], call[3], call[4], call[5]);
    return rc < 0 ? -errno : rc;
}

/* An empty table of our own: who waits for the daemon to go into the background waits for the end of its output. */
static errint_t apart_leave_table(void)
{
    bool left = syscall(SYS_unshare, CLONE_FILES) == 0 && syscall(SYS_close_range, 0, ~0U, 0) == 0;
    return left ? 0 : -errno;
}

static void *apart_run(void *arg)
{
    struct efsd_apart *apart = arg;
    errint_t rc = apart_leave_table();
    pthread_mutex_lock(&apart->lock);
    apart->result = rc;
    apart->state = rc ? EFSD_APART_STOP : EFSD_APART_DONE;
    atomic_store(&apart->tid, rc ? 0 : gettid());
    pthread_cond_broadcast(&apart->changed);
    while (apart->state != EFSD_APART_STOP) {
        if (apart->state != EFSD_APART_ASKED) {
            pthread_cond_wait(&apart->changed, &apart->lock);
            continue;
        }
        pthread_mutex_unlock(&apart->lock); /* the caller has its turn until this is done: nobody changes the call */
        long result = call_now(apart->call);
        pthread_mutex_lock(&apart->lock);
        apart->result = result;
        apart->state = EFSD_APART_DONE;
        pthread_cond_broadcast(&apart->changed);
    }
    pthread_mutex_unlock(&apart->lock);
    return NULL;
}

/* Until the thread has done what it was asked for. With the lock. */
static long apart_wait(struct efsd_apart *apart)
{
    while (apart->state == EFSD_APART_ASKED)
        pthread_cond_wait(&apart->changed, &apart->lock);
    return apart->result;
}

static void apart_free(struct efsd_apart *apart)
{
    pthread_cond_destroy(&apart->changed);
    pthread_mutex_destroy(&apart->lock);
    pthread_mutex_destroy(&apart->turn);
}

errint_t efsd_apart_start(struct efsd_apart *apart)
{
    apart->state = EFSD_APART_ASKED; /* to begin */
    pthread_mutex_init(&apart->turn, NULL);
    pthread_mutex_init(&apart->lock, NULL);
    pthread_cond_init(&apart->changed, NULL);
    errint_t rc = -pthread_create(&apart->thread, NULL, apart_run, apart);
    if (!rc) {
        pthread_mutex_lock(&apart->lock);
        rc = (errint_t)apart_wait(apart);
        pthread_mutex_unlock(&apart->lock);
        if (rc)
            pthread_join(apart->thread, NULL);
    }
    if (rc)
        apart_free(apart);
    return rc;
}

void efsd_apart_stop(struct efsd_apart *apart)
{
    if (!atomic_load(&apart->tid))
        return;
    pthread_mutex_lock(&apart->lock);
    apart->state = EFSD_APART_STOP;
    pthread_cond_broadcast(&apart->changed);
    pthread_mutex_unlock(&apart->lock);
    pthread_join(apart->thread, NULL);
    atomic_store(&apart->tid, 0);
    apart_free(apart);
}

long efsd_apart_call(struct efsd_apart *apart, long number, long a, long b, long c, long d, long e)
{
    const long call[6] = {number, a, b, c, d, e};
    if (!atomic_load(&apart->tid))
        return call_now(call);
    pthread_mutex_lock(&apart->turn);
    pthread_mutex_lock(&apart->lock);
    for (unsigned i = 0; i < 6; i++)
        apart->call[i] = call[i];
    apart->state = EFSD_APART_ASKED;
    pthread_cond_broadcast(&apart->changed);
    long result = apart_wait(apart);
    pthread_mutex_unlock(&apart->lock);
    pthread_mutex_unlock(&apart->turn);
    return result;
}
