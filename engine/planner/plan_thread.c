/* SPDX-License-Identifier: Apache-2.0 */
/* plan_thread.c - see plan_thread.h. */
#include "plan_thread_core.h"

#include "budget.h"

#include "estimator.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAVE_SECONDS 300
#define LOOK_NS 2000000000
#define SETTLE_NS 50000000u /* changes that come one after the other are planned for at once */
#define DRIFT_EVERY 256u    /* requests */
#define LEASE_LOOK_NS 50000000
#define MEMORY_LOOK_NS 500000000

/* ---- what it hears ---- */

void efs_plan_thread_saw(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    efs_cache_ranks(fs, layer, ids, count, s->ranks);
    efs_history_request(&s->seen, layer, ids, s->ranks, count);
    s->saw++;
    if (s->saw % DRIFT_EVERY == 0)
        pthread_cond_signal(&s->wake);
}

void efs_plan_thread_kick(struct efs *fs)
{
    if (fs->plan_thread)
        pthread_cond_signal(&fs->plan_thread->wake);
}

void efs_plan_thread_wake(struct efs *fs)
{
    if (fs->plan_thread) {
        fs->plan_thread->asked = true;
        pthread_cond_signal(&fs->plan_thread->wake);
    }
}

/* ---- the thread ---- */

static bool has_drifted(struct efs_plan_thread *s)
{
    if (!s->skew.inclusion)
        return false;
    s->drift = efs_history_drift(&s->skew, &s->seen);
    return efs_history_drifted(&s->skew, &s->seen, EFS_DRIFT_REPLAN);
}

/* Leases wait for room, or what was held when the budget became smaller is still above it. */
static bool is_short(const struct efs *fs)
{
    return fs->leases_waiting || efs_budget_used(fs) > fs->account.budget_bytes;
}

static void look_for_room(struct efs *fs)
{
    efs_lock(fs);
    efs_budget_shrink(fs);
    efs_again(fs, EFS_AGAIN_LEASES);
    efs_unlock(fs);
}

/* Returns false when the thread has to stop, at once: each close of a store would wait for it otherwise. */
static bool settle(struct efs_plan_thread *s)
{
    const struct timespec until = efs_from_now(SETTLE_NS);
    efs_lock(s->fs);
    while (!s->stop && pthread_cond_timedwait(&s->wake, &s->fs->lock, &until) != ETIMEDOUT)
        ;
    bool settled = !s->stop;
    efs_unlock(s->fs);
    return settled;
}

static void *plan_thread_run(void *arg)
{
    struct efs_plan_thread *s = arg;
    struct efs *fs = s->fs;
    efs_plan_thread_profile(s);
    efs_plan_thread_plan(s);
    uint64_t saved = efs_now_ns(), looked = saved;
    efs_lock(fs);
    s->planned = true;
    pthread_cond_broadcast(&s->first);
    while (!s->stop) {
        /* nobody tells when a mapping ends that outlived its lease: look now and then */
        const struct timespec until = efs_from_now(is_short(fs) ? LEASE_LOOK_NS : LOOK_NS);
        bool told = s->asked || pthread_cond_timedwait(&s->wake, &fs->lock, &until) == 0;
        bool due = efs_now_ns() - saved > SAVE_SECONDS * 1000000000ull;
        bool look = is_short(fs);
        bool plan = !s->stop && (s->asked || ((told || due) && has_drifted(s)));
        efs_unlock(fs);
        if (efs_now_ns() - looked > MEMORY_LOOK_NS) {
            efs_supply_look(fs);
            looked = efs_now_ns();
        }
        if (look)
            look_for_room(fs);
        if (plan && settle(s))
            efs_plan_thread_plan(s);
        if (due) {
            efs_plan_thread_save(s);
            saved = efs_now_ns();
        }
        efs_lock(fs);
    }
    efs_unlock(fs);
    efs_plan_thread_save(s);
    return NULL;
}

/* The policy starts with what is known. */
static void plan_thread_seed(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    for (uint32_t l = 0; l < s->known.layers; l++)
        if (s->known.passes[l])
            efs_cache_seed(fs, l, s->known.counts + (size_t)l * s->known.experts, s->known.passes[l]);
}

errint_t efs_plan_thread_start(struct efs *fs, const char *history_path, struct efs_error *err)
{
    if (!efs_cache_has_policy(fs)) {
        efs_budget_cut(fs);
        return 0;
    }
    struct efs_plan_thread *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    s->fs = fs;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&s->first, NULL);
    fs->plan_thread = s;
    s->ranks = efs_sys_calloc(efs_cache_width(fs) + 1u, sizeof(*s->ranks));
    if (!s->ranks || efs_history_init(&s->seen, efs_cache_layers(fs), efs_cache_width(fs)) < 0)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    efs_plan_thread_assume(fs, &s->profile);
    errint_t rc = efs_plan_thread_history(s, history_path, err);
    if (rc < 0)
        return rc;
    plan_thread_seed(s);
    efs_budget_cut(fs);
    rc = efs_thread_start(plan_thread_run, s, "efs-plan", &s->thread);
    s->started = rc == 0;
    return rc < 0 ? efs_fail(err, rc, "cannot start the planner: %s", strerror(-rc)) : 0;
}

void efs_plan_thread_stop(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    if (s->started) {
        efs_lock(fs);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        efs_unlock(fs);
        pthread_join(s->thread, NULL);
        s->started = false;
    }
}

void efs_plan_thread_free(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    efs_history_free(&s->seen);
    efs_history_free(&s->known);
    efs_skew_free(&s->skew);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->first);
    free(s->ranks);
    free(s);
    fs->plan_thread = NULL;
}

void efs_plan_thread_wait(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    efs_lock(fs);
    while (s->started && !s->planned)
        pthread_cond_wait(&s->first, &fs->lock);
    efs_unlock(fs);
}

void efs_plan_thread_product(struct efs *fs, enum efs_form form, uint32_t experts, uint64_t all_ns)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s || (form != EFS_FORM_FULL && form != EFS_FORM_CODED))
        return;
    uint64_t ns = all_ns / experts;
    efs_lock(fs);
    double *mean = &s->product_ns[form];
    if (*mean == 0)
        efs_plan_thread_wake(fs);
    *mean += ((double)ns - *mean) * (*mean == 0 ? 1 : 0.02);
    efs_unlock(fs);
}
