/* SPDX-License-Identifier: Apache-2.0 */
/* plan_thread.c - see plan_thread.h: the profile, the history, planning, and the thread. */
#include "plan_thread.h"
#include "stats.h"

#include "budget.h"
#include "counts.h"
#include "deadline.h"
#include "estimator.h"
#include "history.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "full.h"
#include "kernels.h"
#include "machine.h"
#include "placed.h"
#include "pools.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum efs_profile_source { EFS_PROFILE_ASSUMED, EFS_PROFILE_SAVED, EFS_PROFILE_MEASURED };

/* See efs_plan_thread_look(). */
struct plan_inputs {
    uint64_t budget_bytes, leased_peak_bytes;
    bool leases;
};

struct efs_plan_thread {
    struct efs *fs;
    unsigned long thread;
    bool started, plans;             /* plans: the store has a policy, which may be replaced while the thread runs */
    pthread_cond_t wake, first_plan; /* first_plan: signalled by the first plan */
    /* guarded by efs.lock */
    bool stop, plan_requested, planned;
    bool watch, idle;           /* the machine is sampled; the last sample leaves it to warm reads */
    struct efs_machine machine; /* written only by the plan thread, with efs.lock held */
    uint64_t sampled_ns;        /* time of the machine's last sample */
    struct plan_inputs inputs;  /* at the last efs_plan_thread_look() */
    struct efs_history recent;  /* since the last plan */
    uint64_t requests;
    uint32_t *ranks; /* scratch of efs_plan_thread_record() */
    /* written only by the plan thread, with efs.lock held */
    enum efs_profile_source profile_source;
    struct efs_profile profile;
    bool counts_loaded; /* history was loaded from the counts file */
    struct efs_history history;
    struct efs_skew skew;
    struct efs_pools plan;
    uint64_t saved_requests; /* value of requests at the last save */
    double drift;
    int64_t planned_at;
    errint_t plan_error;
    unsigned pools; /* allowed by the last plan */
    enum efs_plan_goal goal;
    uint64_t plan_ns;
};

/* ---- limits of measuring ---- */

#define MEASURE_SECONDS 0.4
#define MEASURE_BYTES (112u << 20) /* memory of efs_profile_measure() */
#define MEASURE_SHARE 4            /* measuring takes at most 1/4 of the free budget, the rest is for readers */

/* ---- the profile ---- */

static void profile_assume(const struct efs *fs, struct efs_profile *p)
{
    *p = (struct efs_profile){.content_hash = fs->store->sb.content_hash,
                              .layers = efs_cache(fs)->layers,
                              .experts = efs_cache(fs)->width,
                              .tensors = 3,
                              .shards = 4,
                              .workers = fs->options.workers,
                              .disk_bytes_per_second = 1.5e9,
                              .read_latency_ns = 1e5,
                              .decode_bytes_per_second = 5e9};
    double sums[EFS_POOLS] = {0};
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        for (unsigned i = 0; i < EFS_POOLS; i++)
            sums[i] += (double)efs_cache_expert_bytes(fs, e)[i];
    double n = fs->store->expert_count;
    p->full_bytes = sums[EFS_POOL_F] / n;
    p->coded_bytes = sums[EFS_POOL_C] / n;
    p->sm_bytes = sums[EFS_POOL_S] / n;
    p->e_bytes = sums[EFS_POOL_E] / n;
}

/* Counts the memory for measuring in the budget. false: the free budget is too small, or the store is closing. */
static bool reserve_for_measuring(struct efs *fs)
{
    efs_lock(fs);
    bool room =
        fs->account.used_bytes + MEASURE_SHARE * (uint64_t)MEASURE_BYTES <= fs->account.budget_bytes && !fs->closing;
    if (room)
        efs_account_charge(&fs->account, EFS_ACCOUNT_MEASURING, MEASURE_BYTES);
    efs_unlock(fs);
    return room;
}

/* false: no room in the budget, or measuring failed, which is logged. */
static bool profile_measure(struct efs_plan_thread *s, struct efs_profile *profile)
{
    struct efs *fs = s->fs;
    struct efs_error err = {""};
    if (!reserve_for_measuring(fs))
        return false;
    errint_t rc = efs_profile_measure(fs->store, fs->options.workers, MEASURE_SECONDS, profile, &err);
    efs_lock(fs);
    efs_account_release(&fs->account, EFS_ACCOUNT_MEASURING, MEASURE_BYTES);
    efs_unlock(fs);
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "the machine was not measured: %s", err.text);
    return rc == 0;
}

static void profile_save(struct efs *fs, const struct efs_profile *profile)
{
    struct efs_error err = {""};
    if (!efs_profile_is_steady(profile))
        efs_log(fs, EFS_LOG_INFO,
                "the profile is used, but not saved: its rounds differ by %.0f %% (disk) and %.0f %% (decoding), %.0f "
                "are the most",
                100 * profile->disk_spread, 100 * profile->decode_spread, 100 * EFS_PROFILE_SPREAD_MAX);
    else if (efs_profile_save(profile, &err) < 0)
        efs_log(fs, EFS_LOG_WARNING, "the profile is not saved: %s", err.text);
}

static void profile_set(struct efs_plan_thread *s, const struct efs_profile *profile, enum efs_profile_source source)
{
    efs_lock(s->fs);
    s->profile = *profile;
    s->profile_source = source;
    efs_estimator_profile(s->fs->estimator, profile);
    efs_unlock(s->fs);
}

static void thread_profile(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_profile profile;
    struct efs_error err = {""};
    char path[4096];
    if (fs->options.no_state || fs->store->backed) /* measuring would fetch much that nothing needs from a server */
        return;
    if (efs_profile_path(fs->store->sb.content_hash, path, sizeof(path), &err) == 0) {
        errint_t rc = efs_profile_load(path, &profile, &err);
        if (rc == 0) {
            profile_set(s, &profile, EFS_PROFILE_SAVED);
            bool same_device = profile.device == 0 || profile.device == fs->store->opened_stat.st_dev;
            if (same_device && strcmp(profile.cpu_path, efs_cpu_name()) == 0)
                return;
            efs_log(fs, EFS_LOG_INFO, "%s: measured on another %s; it is measured again", path,
                    same_device ? "processor" : "file system");
        } else if (rc != -ENOENT) {
            efs_log(fs, rc == -ESTALE ? EFS_LOG_INFO : EFS_LOG_WARNING, "%s; it is measured again", err.text);
            if (rc == -ESTALE) /* no mount reports it again, also if the new profile is not steady enough to be saved */
                efs_sys_unlinkat(AT_FDCWD, path, 0);
        }
    }
    if (profile_measure(s, &profile)) {
        profile_save(fs, &profile);
        profile_set(s, &profile, EFS_PROFILE_MEASURED);
    }
}

/* ---- the history ---- */

static errint_t thread_history(struct efs_plan_thread *s, struct efs_error *err)
{
    struct efs *fs = s->fs;
    const uint32_t layers = efs_cache(fs)->layers, width = efs_cache(fs)->width;
    errint_t rc;
    if (!fs->options.no_state) {
        struct efs_error why = {""};
        rc = efs_counts_load(fs->store->sb.content_hash, layers, width, &s->history, &why);
        if (rc == 0) {
            s->counts_loaded = true;
            return 0;
        }
        efs_history_free(&s->history);
        if (rc != -ENOENT)
            efs_log(fs, EFS_LOG_WARNING, "%s; the counts of earlier mounts are not used", why.text);
    }
    rc = efs_history_init(&s->history, layers, width);
    return rc < 0 ? efs_fail(err, rc, "no memory for the history") : 0;
}

static void thread_save(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_history all = {0};
    struct efs_error err = {""};
    if ((fs->options.no_state && !fs->placed) || efs_history_init(&all, s->history.layers, s->history.experts) < 0) {
        efs_history_free(&all);
        return;
    }
    efs_history_copy(&all, &s->history); /* which only this thread changes */
    efs_lock(fs);
    efs_history_add(&all, &s->recent);
    uint64_t requests = s->requests;
    efs_unlock(fs);
    const bool save =
        !efs_placed_counts(fs, &all) && !fs->options.no_state && (requests != s->saved_requests || fs->placed);
    errint_t rc = save ? efs_counts_save(fs->store->sb.content_hash, &all, &err) : 0;
    if (rc == 0)
        s->saved_requests = requests;
    else
        efs_log(fs, EFS_LOG_WARNING, "the counts are not saved: %s", err.text);
    efs_history_free(&all);
}

/* ---- planning ---- */

#define HISTORY_PASSES 20000u /* per layer of the history; older passes are scaled down */
#define PLAN_IMPROVEMENT 0.95 /* a new plan replaces the current one if it costs less than this part of it */

/*
 * Replaces *plan, the best one, by the current ratios if those cost at most 1 / PLAN_IMPROVEMENT of it: changing the
 * ratios moves experts, and the measured rates vary from plan to plan.
 */
static void prefer_current_plan(const struct efs_plan_thread *s, struct efs_pools_request *request,
                                const struct efs_cache_tuning *tuning, unsigned pools, struct efs_pools *plan)
{
    struct efs_pools same = {0};
    request->how = EFS_POOLS_RATIO;
    memcpy(request->ratio, tuning->ratio, sizeof(request->ratio));
    if (!s->planned_at || s->plan_error || s->pools != pools || s->goal != request->goal ||
        efs_pools_plan(request, &same) < 0)
        return;
    bool stays = same.makespan_ns * PLAN_IMPROVEMENT <= plan->makespan_ns &&
                 (request->goal != EFS_PLAN_IO || same.io_ns * PLAN_IMPROVEMENT <= plan->io_ns);
    if (stays)
        *plan = same;
}

static int make_plan(struct efs_plan_thread *s, const struct efs_cache_tuning *tuning, uint64_t bytes, unsigned pools,
                     struct efs_skew *skew, struct efs_pools *plan)
{
    const struct efs_profile *p = &s->profile;
    struct efs_rates_now rates; /* current; how much is kept coded and decoded later depends on the plan */
    efs_estimator_now(s->fs->estimator, &rates, NULL, NULL);
    int rc = efs_skew_learn(skew, &s->history, efs_cache(s->fs)->layers, efs_cache(s->fs)->width, EFS_CACHE_CHOSEN);
    if (rc < 0)
        return rc;
    struct efs_pools_request request = {.costs = {.full_bytes = p->full_bytes,
                                                  .coded_bytes = p->coded_bytes,
                                                  .sm_bytes = p->sm_bytes,
                                                  .e_bytes = p->e_bytes,
                                                  .tensors = p->tensors,
                                                  .shards = p->shards,
                                                  .workers = p->workers,
                                                  .disk_bytes_per_second = rates.disk_bytes_per_second,
                                                  .read_latency_ns = rates.read_latency_ns,
                                                  .decode_bytes_per_second = rates.decode_each[EFS_DECODE_CACHED]},
                                        .skew = skew,
                                        .budget_bytes = bytes,
                                        .goal = tuning->goal,
                                        .how = tuning->fixed_plan ? EFS_POOLS_RATIO : EFS_POOLS_SHARED};
    request.pools = tuning->fixed_plan ? 0 : pools & efs_pools_possible(&request.costs);
    memcpy(request.ratio, tuning->ratio, sizeof(request.ratio));
    rc = efs_pools_plan(&request, plan);
    if (rc == 0 && !tuning->fixed_plan)
        prefer_current_plan(s, &request, tuning, pools, plan);
    return rc;
}

/* Pool F only if clients map or lease experts, or memory is preallocated for them: other readers are served through the
 * page cache. */
static unsigned pools_now(struct efs *fs)
{
    unsigned pools = efs_cache_tuning(fs)->pools;
    if (!fs->options.full_pool || (efs_cache(fs)->leases == 0 && !fs->options.prealloc))
        pools &= ~EFS_PLAN_POOL(EFS_POOL_F);
    return pools;
}

static void thread_plan(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_cache_tuning *now = efs_cache_tuning(fs);
    struct efs_skew skew = {0};
    struct efs_pools plan = {0};
    efs_lock(fs);
    s->plan_requested = false;
    efs_history_add(&s->history, &s->recent);
    efs_history_clear(&s->recent);
    efs_history_fade(&s->history, HISTORY_PASSES);
    efs_budget_cut(fs); /* updates the bytes of the pools, with the previous ratios */
    struct efs_cache_tuning tuning = *now;
    uint64_t bytes = efs_cache(fs)->pools_bytes;
    unsigned pools = pools_now(fs);
    efs_unlock(fs);
    uint64_t begin = efs_now_ns();
    int rc = bytes && (pools || tuning.fixed_plan) ? make_plan(s, &tuning, bytes, pools, &skew, &plan) : -ENODATA;
    uint64_t took = efs_now_ns() - begin;
    efs_lock(fs);
    if (rc == 0 && !tuning.fixed_plan && !now->fixed_plan)
        memcpy(now->ratio, plan.ratio, sizeof(now->ratio));
    if (rc == 0) {
        efs_budget_cut(fs);
        efs_count(fs->stats, plans, 1);
    }
    efs_skew_free(&s->skew);
    s->skew = skew;
    s->plan = plan;
    s->plan_error = rc;
    s->pools = pools;
    s->goal = tuning.goal;
    s->planned_at = time(NULL);
    s->plan_ns = took;
    s->planned = true;
    pthread_cond_broadcast(&s->first_plan);
    efs_unlock(fs);
}

/* ---- times ---- */

#define SAVE_SECONDS 300            /* between two saves of the counts */
#define SAVE_PLACED_SECONDS 60      /* with a placement: they also say that this server is there */
#define SETTLE_NS 50000000u         /* changes within 50 ms after a first one lead to one plan */
#define DRIFT_EVERY 256u            /* requests between checks for drift */
#define SAMPLE_NS 500000000u        /* between two readings of the memory that is left; ... */
#define WAITING_SAMPLE_NS 50000000u /* ... while leases wait, the budget is exceeded, or closed experts are mapped */
#define SAMPLE_MAPPED 32u           /* experts that are looked at each time: a quarter of a millisecond */

/* ---- events ---- */

void efs_plan_thread_record(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    efs_policy_ranks(efs_cache(fs)->policy, layer, ids, count, s->ranks);
    efs_history_request(&s->recent, layer, ids, s->ranks, count);
    s->requests++;
    if (s->requests % DRIFT_EVERY == 0)
        pthread_cond_signal(&s->wake);
}

void efs_plan_thread_kick(struct efs *fs)
{
    if (fs->plan_thread)
        pthread_cond_signal(&fs->plan_thread->wake);
}

void efs_plan_thread_replan(struct efs *fs)
{
    if (fs->plan_thread && efs_cache(fs)->policy) {
        fs->plan_thread->plan_requested = true;
        pthread_cond_signal(&fs->plan_thread->wake);
    }
}

static struct plan_inputs plan_inputs(const struct efs *fs)
{
    const struct efs_cache *r = efs_cache(fs);
    return (struct plan_inputs){fs->account.budget_bytes, r->leased_peak_bytes, r->leases != 0};
}

void efs_plan_thread_look(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    const struct plan_inputs now = plan_inputs(fs);
    if (now.budget_bytes != s->inputs.budget_bytes || now.leased_peak_bytes != s->inputs.leased_peak_bytes ||
        now.leases != s->inputs.leases)
        efs_plan_thread_replan(fs);
    s->inputs = now;
}

/* ---- the thread ---- */

static bool has_drifted(struct efs_plan_thread *s)
{
    if (!s->skew.inclusion)
        return false;
    s->drift = efs_history_drift(&s->skew, &s->recent);
    return efs_history_drifted(&s->skew, &s->recent, EFS_DRIFT_REPLAN);
}

/* Samples the memory that other processes leave, and which closed files they map; no event reports changes of either.
 */
struct sampler {
    uint64_t read_ns, counted_ns; /* the last reading; the last one that counts for a rise of the effective budget */
};

/* efs.lock held: the time until the next reading; 0: it is due. */
static uint64_t sampler_delay(const struct sampler *sampler, const struct efs *fs)
{
    bool waiting = fs->items_waiting || fs->account.used_bytes > fs->account.budget_bytes ||
                   atomic_load_explicit(&efs_full_pool(fs)->mapped_count, memory_order_relaxed);
    uint64_t period = waiting ? WAITING_SAMPLE_NS : SAMPLE_NS, passed = efs_now_ns() - sampler->read_ns;
    return passed < period ? period - passed : 0;
}

static void sampler_read(struct sampler *sampler, struct efs *fs)
{
    uint64_t now = efs_now_ns();
    bool counts = now - sampler->counted_ns >= SAMPLE_NS;
    sampler->read_ns = now;
    sampler->counted_ns = counts ? now : sampler->counted_ns;
    efs_full_sample(fs, SAMPLE_MAPPED);
    efs_grow(fs, counts);
}

/* Waits SETTLE_NS for further changes. Returns false immediately when the thread has to stop, so that closing a store
 * does not wait. */
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

/* efs.lock held: the time until the next sample of the machine; 0: it is due. UINT64_MAX: none is needed. */
static uint64_t machine_delay(const struct efs_plan_thread *s)
{
    uint64_t period = s->idle ? EFS_MACHINE_RUNNING_NS : EFS_MACHINE_SAMPLE_NS, passed = efs_now_ns() - s->sampled_ns;
    return !s->watch ? UINT64_MAX : passed < period ? period - passed : 0;
}

/* Without lock. */
static void machine_sample(struct efs_plan_thread *s, uint64_t now_ns)
{
    struct efs_machine machine = s->machine; /* only this thread changes it */
    bool idle = efs_machine_sample(&machine, now_ns);
    efs_lock(s->fs);
    s->machine = machine;
    s->sampled_ns = now_ns;
    s->idle = idle;
    if (idle)
        s->fs->hooks->use_idle_disk(s->fs);
    efs_unlock(s->fs);
}

static void *plan_thread_run(void *arg)
{
    struct efs_plan_thread *s = arg;
    struct efs *fs = s->fs;
    if (s->plans) {
        thread_profile(s);
        thread_plan(s);
    }
    const uint64_t start = efs_now_ns(),
                   save_ns = (fs->placed ? SAVE_PLACED_SECONDS : SAVE_SECONDS) * UINT64_C(1000000000);
    uint64_t saved = fs->placed ? 0 : start; /* a server is seen at once */
    struct sampler sampler = {start, start};
    efs_lock(fs);
    while (!s->stop) {
        const uint64_t delays[] = {sampler_delay(&sampler, fs), machine_delay(s), efs_placed_delay(fs)};
        uint64_t delay = delays[0] < delays[1] ? delays[0] : delays[1];
        const struct timespec until = efs_from_now((int64_t)(delays[2] < delay ? delays[2] : delay));
        bool signalled = s->plan_requested || pthread_cond_timedwait(&s->wake, &fs->lock, &until) == 0;
        bool due = efs_now_ns() - saved > save_ns, sample = sampler_delay(&sampler, fs) == 0;
        bool plan = s->plans && !s->stop && (s->plan_requested || ((signalled || due) && has_drifted(s)));
        bool watch = machine_delay(s) == 0, turn = efs_placed_delay(fs) == 0;
        efs_unlock(fs);
        if (sample)
            sampler_read(&sampler, fs);
        if (watch)
            machine_sample(s, efs_now_ns());
        if (turn)
            efs_placed_turn(fs);
        if (plan && settle(s))
            thread_plan(s);
        if (due && s->plans) {
            thread_save(s);
            saved = efs_now_ns();
        }
        efs_lock(fs);
    }
    efs_unlock(fs);
    if (s->plans)
        thread_save(s);
    return NULL;
}

/* Initialises the policy's counts from the history. */
static void plan_thread_seed(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    for (uint32_t l = 0; l < s->history.layers; l++)
        if (s->history.passes[l])
            efs_policy_seed(efs_cache(fs)->policy, l, s->history.counts + (size_t)l * s->history.experts,
                            s->history.passes[l]);
}

/* Allocates the state that plans need. */
static errint_t plan_thread_prepare(struct efs_plan_thread *s, struct efs_error *err)
{
    struct efs *fs = s->fs;
    s->ranks = efs_sys_calloc(efs_cache(fs)->width + 1u, sizeof(*s->ranks));
    if (!s->ranks || efs_history_init(&s->recent, efs_cache(fs)->layers, efs_cache(fs)->width) < 0)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    profile_assume(fs, &s->profile);
    errint_t rc = thread_history(s, err);
    if (rc == 0)
        plan_thread_seed(s);
    return rc;
}

errint_t efs_plan_thread_start(struct efs *fs, struct efs_error *err)
{
    struct efs_plan_thread *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    s->fs = fs;
    efs_cond_init(&s->wake);
    pthread_cond_init(&s->first_plan, NULL);
    s->inputs = plan_inputs(fs);
    fs->plan_thread = s;
    efs_machine_open(&s->machine);
    s->plans = efs_cache(fs)->policy;
    errint_t rc = s->plans ? plan_thread_prepare(s, err) : 0;
    if (rc < 0)
        return rc;
    efs_budget_cut(fs); /* before there is a thread */
    rc = efs_placed_open(fs, err);
    if (rc < 0)
        return rc;
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
    efs_placed_stop(fs);
}

void efs_plan_thread_free(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return;
    efs_history_free(&s->recent);
    efs_history_free(&s->history);
    efs_skew_free(&s->skew);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->first_plan);
    efs_machine_close(&s->machine);
    free(s->ranks);
    free(s);
    efs_placed_close(fs);
    fs->plan_thread = NULL;
}

void efs_plan_thread_close_in_child(struct efs *fs)
{
    if (fs->plan_thread)
        efs_machine_close(&fs->plan_thread->machine);
    efs_placed_close_in_child(fs);
}

bool efs_plan_thread_machine_idle(struct efs *fs, bool watch)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s)
        return false;
    if (watch && !s->watch)
        s->machine.at_ns = s->machine.free_ns = 0;
    s->idle = s->idle && watch && s->watch;
    s->watch = watch;
    return s->idle;
}

const struct efs_machine *efs_plan_thread_machine(const struct efs *fs)
{
    return fs->plan_thread ? &fs->plan_thread->machine : NULL;
}

bool efs_plan_thread_planned(const struct efs *fs)
{
    return fs->plan_thread && fs->plan_thread->planned;
}

void efs_plan_thread_wait(struct efs *fs)
{
    struct efs_plan_thread *s = fs->plan_thread;
    if (!s || !s->plans)
        return;
    efs_lock(fs);
    while (s->started && !s->planned)
        pthread_cond_wait(&s->first_plan, &fs->lock);
    efs_unlock(fs);
}

/* ---- the texts "plan", "profile" and "memory" ---- */

static const char *const profile_sources[] = {"assumed", "saved", "measured"};

static void print_plan(struct efs_plan_thread *s, FILE *out)
{
    static const char names[] = "FCSE";
    const struct efs_cache_tuning *tuning = efs_cache_tuning(s->fs);
    fprintf(out, "policy: %s\n", efs_policy_name(tuning->policy));
    fprintf(out, "plan: %s\n", tuning->fixed_plan ? "explicit" : "auto");
    fprintf(out, "goal: %s\n", tuning->goal == EFS_PLAN_IO ? "io" : "makespan");
    fprintf(out, "allowed: ");
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (s->pools & EFS_PLAN_POOL(p))
            fputc(names[p], out);
    fprintf(out, "%s\nplanned_at: %lld\n", s->pools ? "" : "-", (long long)s->planned_at);
    fprintf(out, "planning_ns: %llu\n", (unsigned long long)s->plan_ns);
    fprintf(out, "error: %s\n", s->plan_error == 0 ? "-" : strerror(-s->plan_error));
    fprintf(out, "effective_budget_bytes: %llu\n", (unsigned long long)s->fs->account.budget_bytes);
    fprintf(out, "pools_bytes: %llu\n", (unsigned long long)efs_cache(s->fs)->pools_bytes);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "ratio_%c: %.4f\n", names[p] + 32, tuning->ratio[p]);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "hits_%c: %.4f\n", names[p] + 32, s->plan.hits[p]);
    fprintf(out, "misses: %.4f\n", s->plan.hits[EFS_POOLS]);
    fprintf(out, "io_ns: %.0f\n", s->plan.io_ns);
    fprintf(out, "makespan_ns: %.0f\n", s->plan.makespan_ns);
    fprintf(out, "profile: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "history: %s\n", s->counts_loaded ? "saved counts" : "none");
    fprintf(out, "history_passes: %llu\n", (unsigned long long)s->skew.passes);
    fprintf(out, "skew: %s\n", efs_skew_source_name(s->skew.source));
    fprintf(out, "chosen: %.3f\n", s->skew.mean_chosen);
    fprintf(out, "drift: %.4f\n", s->drift);
}

static void print_profile(const struct efs_plan_thread *s, FILE *out)
{
    fprintf(out, "source: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "store_hash: %016llx\n", (unsigned long long)s->profile.content_hash);
    fprintf(out, "measured_at: %lld\n", (long long)s->profile.measured_at);
    struct timespec now_real;
    clock_gettime(CLOCK_REALTIME, &now_real);
    bool dated = s->profile.measured_at > 0 && now_real.tv_sec > s->profile.measured_at;
    fprintf(out, "age_seconds: %lld\n", dated ? (long long)(now_real.tv_sec - s->profile.measured_at) : 0);
    fprintf(out, "cpu_path: %s\n", *s->profile.cpu_path ? s->profile.cpu_path : "-");
#define LINE(name, help) fprintf(out, "%s: %.10g\n", #name, s->profile.name);
    EFS_PROFILE_NUMBERS(LINE)
#undef LINE
    struct efs_rates_now now;
    uint64_t bursts, decoded_bytes;
    efs_estimator_now(s->fs->estimator, &now, &bursts, &decoded_bytes);
    fprintf(out, "live_bursts: %llu\nlive_decoded_bytes: %llu\n", (unsigned long long)bursts,
            (unsigned long long)decoded_bytes);
    fprintf(out, "live_disk_bytes_per_second: %.10g\n", now.disk_bytes_per_second);
    fprintf(out, "live_read_latency_ns: %.10g\n", now.read_latency_ns);
    fprintf(out, "live_read_together: %.4f\n", now.together);
    fprintf(out, "live_read_window_bytes: %zu\n", efs_io_window_bytes(s->fs->io));
    fprintf(out, "live_decode_bytes_per_second: %.10g\n", now.decode_bytes_per_second);
    fprintf(out, "live_decode_fresh_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_READ]);
    fprintf(out, "live_decode_kept_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_CACHED]);
}

errint_t efs_plan_thread_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    bool plan = strcmp(what, "plan") == 0, memory = strcmp(what, "memory") == 0;
    *text = NULL;
    if (strcmp(what, "placement") == 0)
        return efs_placed_describe(fs, text, bytes);
    if (!plan && !memory && strcmp(what, "profile") != 0)
        return -ENODATA;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    efs_lock(fs);
    if (memory)
        efs_arena_describe(&fs->arena, out);
    else if (!efs_cache(fs)->policy)
        fprintf(out, "plan: none\n");
    else if (plan)
        print_plan(fs->plan_thread, out);
    else
        print_profile(fs->plan_thread, out);
    efs_unlock(fs);
    return efs_text_stream_end(out, text);
}
