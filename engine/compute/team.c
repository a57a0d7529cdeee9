/* SPDX-License-Identifier: Apache-2.0 */
/* team.c - see team.h. Between runs threads spin for SPIN_NS, then sleep: layers follow each other closely. */
#include "team.h"

#include "expertfs-clock-private.h"
#include "owner.h"
#include "thread.h"
#include "sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS_MAX 256u
#define SPIN_NS 50000u /* about the time that it takes to wake a thread */
#define SPIN_LOOKS 32u /* loads between two reads of the clock */

struct member {
    struct efs_team *team;
    unsigned long thread;
    unsigned number;
    void *scratch;
    size_t scratch_bytes;
};

struct efs_team {
    struct efs_owner owner;
    pthread_mutex_t runs; /* held during a run: one at a time */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t begin, end;
    _Atomic unsigned run; /* number of the current or last run; written with the lock, like busy */
    _Atomic unsigned busy;
    bool stop;
    bool spins; /* each thread has a core; constant */
    void (*work)(void *arg, unsigned thread);
    void *arg;
    unsigned threads, started;
    struct member member[];
};

unsigned efs_team_threads(const struct efs_team *team)
{
    return team->threads;
}

static void team_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void efs_team_spin(const struct efs_team *team, const _Atomic unsigned *number, unsigned seen)
{
    for (uint64_t end = efs_now_ns() + SPIN_NS; team->spins && efs_now_ns() < end;)
        for (unsigned i = 0; i < SPIN_LOOKS; i++) {
            if (atomic_load(number) != seen)
                return;
            team_relax();
        }
}

static void *team_run(void *arg)
{
    struct member *m = arg;
    struct efs_team *team = m->team;
    unsigned done = 0;
    for (;;) {
        efs_team_spin(team, &team->run, done);
        pthread_mutex_lock(&team->lock);
        while (team->run == done && !team->stop)
            pthread_cond_wait(&team->begin, &team->lock);
        bool stop = team->stop;
        done = team->run;
        pthread_mutex_unlock(&team->lock);
        if (stop)
            return NULL;
        team->work(team->arg, m->number);
        pthread_mutex_lock(&team->lock);
        if (--team->busy == 0)
            pthread_cond_signal(&team->end);
        pthread_mutex_unlock(&team->lock);
    }
}

errint_t efs_team_new(unsigned threads, struct efs_team **out)
{
    *out = NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads == 0)
        threads = cores > 0 && cores < (long)THREADS_MAX ? (unsigned)cores : 1;
    if (threads > THREADS_MAX)
        return -EINVAL;
    struct efs_team *team = efs_sys_calloc(1, sizeof(*team) + threads * sizeof(team->member[0]));
    if (!team)
        return -ENOMEM;
    efs_owner_begin(&team->owner);
    pthread_mutex_init(&team->runs, NULL);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begin, NULL);
    pthread_cond_init(&team->end, NULL);
    team->threads = threads;
    team->spins = cores > 0 && threads <= (unsigned long)cores;
    for (unsigned i = 0; i < threads; i++) {
        team->member[i].team = team;
        team->member[i].number = i;
    }
    for (team->started = 1; team->started < threads; team->started++)
        if (efs_thread_start(team_run, &team->member[team->started], "efs-team", &team->member[team->started].thread) <
            0) {
            efs_team_free(team);
            return -ENOMEM;
        }
    *out = team;
    return 0;
}

errint_t efs_team_check(const struct efs_team *team, struct efs_error *err)
{
    return efs_owner_check(&team->owner, "the team of threads", err);
}

static void team_end(struct efs_team *team)
{
    pthread_mutex_lock(&team->lock);
    team->stop = true;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    for (unsigned i = 1; i < team->started; i++)
        pthread_join(team->member[i].thread, NULL);
    pthread_cond_destroy(&team->end);
    pthread_cond_destroy(&team->begin);
    pthread_mutex_destroy(&team->lock);
    pthread_mutex_destroy(&team->runs);
}

void efs_team_free(struct efs_team *team)
{
    if (!team)
        return;
    if (efs_team_check(team, NULL) == 0)
        team_end(team);
    for (unsigned i = 0; i < team->threads; i++)
        free(team->member[i].scratch);
    efs_owner_end(&team->owner);
    free(team);
}

void efs_team_run(struct efs_team *team, void (*work)(void *arg, unsigned thread), void *arg)
{
    pthread_mutex_lock(&team->runs);
    pthread_mutex_lock(&team->lock);
    team->work = work;
    team->arg = arg;
    team->busy = team->threads - 1;
    team->run++;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    work(arg, 0);
    for (unsigned left; (left = atomic_load(&team->busy)) > 0;) {
        efs_team_spin(team, &team->busy, left);
        if (atomic_load(&team->busy) == left)
            break;
    }
    pthread_mutex_lock(&team->lock);
    while (team->busy)
        pthread_cond_wait(&team->end, &team->lock);
    pthread_mutex_unlock(&team->lock);
    pthread_mutex_unlock(&team->runs);
}

void *efs_team_scratch(struct efs_team *team, unsigned thread, size_t bytes)
{
    struct member *m = &team->member[thread];
    if (bytes > m->scratch_bytes) {
        free(m->scratch);
        m->scratch = efs_sys_aligned_alloc(64, (bytes + 63) / 64 * 64);
        m->scratch_bytes = m->scratch ? bytes : 0;
    }
    return m->scratch;
}
