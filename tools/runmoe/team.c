/* SPDX-License-Identifier: Apache-2.0 */
/* team.c - a fixed team of threads. They look for work a little while before they sleep: a layer has many short
 * pieces of work, and waking costs more than some of them. */
#include "matrix.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS 2000

struct team {
    unsigned threads;
    pthread_t *others; /* [threads - 1] */
    unsigned running;
    pthread_mutex_t lock; /* guards what follows, but for reads of round and left while looking */
    pthread_cond_t begin, end;
    _Atomic uint64_t round; /* counts the pieces of work */
    _Atomic unsigned left;  /* others that have not finished this one */
    bool stop;
    unsigned joined; /* numbers given out at the start */
    team_work *work;
    void *arg;
    size_t count;
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void team_stretch(const struct team *team, unsigned number)
{
    size_t begin = team->count * number / team->threads, end = team->count * (number + 1) / team->threads;
    if (begin < end)
        team->work(team->arg, begin, end);
}

static void *member_run(void *arg)
{
    struct team *team = arg;
    pthread_mutex_lock(&team->lock);
    unsigned number = ++team->joined;
    pthread_mutex_unlock(&team->lock);
    for (uint64_t round = 0;; round++) {
        for (unsigned i = 0; i < SPINS && team->round == round; i++)
            pause_briefly();
        pthread_mutex_lock(&team->lock);
        while (team->round == round)
            pthread_cond_wait(&team->begin, &team->lock);
        bool stop = team->stop;
        pthread_mutex_unlock(&team->lock);
        if (stop)
            return NULL;
        team_stretch(team, number);
        if (atomic_fetch_sub(&team->left, 1) == 1) {
            pthread_mutex_lock(&team->lock);
            pthread_cond_signal(&team->end);
            pthread_mutex_unlock(&team->lock);
        }
    }
}

struct team *team_start(unsigned threads)
{
    struct team *team = calloc(1, sizeof(*team));
    if (!team)
        return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begin, NULL);
    pthread_cond_init(&team->end, NULL);
    team->threads = threads;
    team->others = calloc(threads, sizeof(*team->others));
    while (team->others && team->running + 1 < threads &&
           pthread_create(&team->others[team->running], NULL, member_run, team) == 0)
        team->running++;
    if (team->running + 1 == threads)
        return team;
    team_stop(team);
    return NULL;
}

static void start_round(struct team *team)
{
    pthread_mutex_lock(&team->lock);
    team->left = team->running;
    team->round++;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
}

void team_run(struct team *team, team_work *work, void *arg, size_t count)
{
    team->work = work;
    team->arg = arg;
    team->count = count;
    if (team->running > 0)
        start_round(team);
    team_stretch(team, 0);
    for (unsigned i = 0; i < SPINS && team->left > 0; i++)
        pause_briefly();
    pthread_mutex_lock(&team->lock);
    while (team->left > 0)
        pthread_cond_wait(&team->end, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

void team_stop(struct team *team)
{
    if (!team)
        return;
    team->stop = true;
    start_round(team);
    for (unsigned i = 0; i < team->running; i++)
        pthread_join(team->others[i], NULL);
    free(team->others);
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->begin);
    pthread_cond_destroy(&team->end);
    free(team);
}
