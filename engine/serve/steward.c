/* steward.c - see steward.h. */
#include "steward.h"

#include "counts.h"
#include "gauge.h"
#include "pools.h"
#include "route.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEASURE_SECONDS 0.4
#define MEASURE_BYTES (112u << 20) /* that efs_profile_measure() takes */
#define MEASURE_SHARE 4            /* of what is free at most that part: readers come first */
#define SAVE_SECONDS 300
#define SETTLE_NS 50000000u /* changes that come one after the other are planned for at once */
#define DRIFT_EVERY 256u    /* requests */
#define LEASE_LOOK_NS 50000000
#define KNOWN_PASSES 20000u /* of the history; what is older counts less */
#define PLAN_WORTH 0.95      /* another cut of the pools must cost at most this part of the one that is there */

enum profile_source { PROFILE_ASSUMED, PROFILE_SAVED, PROFILE_MEASURED };
static const char *const profile_sources[] = {"assumed", "saved", "measured"};
enum history_source { HISTORY_NONE, HISTORY_ROUTE, HISTORY_SAVED };
static const char *const history_sources[] = {"none", "route", "saved counts"};

struct efs_steward {
    struct efs *fs;
    unsigned long thread;
    bool started;
    pthread_cond_t wake, first; /* first: planned for the first time */
    /* guarded by efs.lock */
    bool stop, asked, planned;
    double product_ns[2];    /* of a full and of a coded expert, as clients ran them; 0: none did */
    struct efs_history seen; /* since the last plan */
    uint64_t saw;
    uint32_t *ranks;     /* scratch of efs_steward_saw() */
    uint64_t drift_from; /* plans are not judged again before that many requests */
    /* the thread's own, changed with efs.lock held */
    enum profile_source profile_source;
    struct efs_profile profile;
    enum history_source history_source;
    char history_path[512];
    struct efs_history known;
    struct efs_skew skew;
    struct efs_pools plan;
    double drift;
    int64_t planned_at;
    errint_t plan_error;
    unsigned pools; /* that were allowed */
    enum efs_plan_goal goal;
    uint64_t plan_ns;
};

/* ---- the profile ---- */

/* A machine of the middle: only ratios matter for a plan, and only until there is a profile. */
static void assume_profile(const struct efs *fs, struct efs_profile *p)
{
    const struct efs_residency *r = fs->residency;
    *p = (struct efs_profile){.content_hash = fs->store->sb.content_hash,
                              .layers = r->layers,
                              .experts = r->width,
                              .tensors = 3,
                              .shards = 4,
                              .workers = fs->options.workers,
                              .disk_bytes_per_second = 1.5e9,
                              .read_latency_ns = 1e5,
                              .decode_bytes_per_second = 5e9,
                              .copy_bytes_per_second = 7e9,
                              .recode_bytes_per_second = 1e9};
    double sums[EFS_POOLS] = {0};
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        for (unsigned i = 0; i < EFS_POOLS; i++)
            sums[i] += (double)r->bytes[(size_t)r->expert[e].layer * r->width + r->expert[e].index][i];
    double n = fs->store->expert_count;
    p->full_bytes = sums[EFS_POOL_F] / n;
    p->coded_bytes = sums[EFS_POOL_C] / n;
    p->sm_bytes = sums[EFS_POOL_S] / n;
    p->e_bytes = sums[EFS_POOL_E] / n;
}

/* Measuring takes memory for a moment: only where the budget has it to spare. */
static bool reserve_for_measuring(struct efs *fs)
{
    pthread_mutex_lock(&fs->lock);
    bool room = efs_room_used(fs) + MEASURE_SHARE * (uint64_t)MEASURE_BYTES <= fs->options.budget_bytes && !fs->closing;
    if (room)
        fs->fixed_bytes += MEASURE_BYTES;
    pthread_mutex_unlock(&fs->lock);
    return room;
}

static void get_profile(struct efs_steward *s)
{
    struct efs *fs = s->fs;
    struct efs_profile profile;
    enum profile_source source = PROFILE_ASSUMED;
    struct efs_error err = {""};
    char path[4096];
    if (fs->options.no_state)
        return;
    if (efs_profile_path(fs->store->sb.content_hash, path, sizeof(path), &err) == 0) {
        errint_t rc = efs_profile_load(path, &profile, &err);
        if (rc == 0)
            source = PROFILE_SAVED;
        else if (rc != -ENOENT)
            efs_log(fs, EFS_LOG_WARNING, "%s; it is measured again", err.text);
    }
    if (source == PROFILE_ASSUMED && reserve_for_measuring(fs)) {
        errint_t rc = efs_profile_measure(fs->store, fs->options.workers, MEASURE_SECONDS, &profile, &err);
        pthread_mutex_lock(&fs->lock);
        fs->fixed_bytes -= MEASURE_BYTES;
        pthread_mutex_unlock(&fs->lock);
        if (rc == 0) {
            source = PROFILE_MEASURED;
            if (efs_profile_save(&profile, &err) < 0)
                efs_log(fs, EFS_LOG_WARNING, "the profile is not saved: %s", err.text);
        } else {
            efs_log(fs, EFS_LOG_WARNING, "the machine was not measured: %s", err.text);
        }
    }
    pthread_mutex_lock(&fs->lock);
    if (source != PROFILE_ASSUMED) {
        s->profile = profile;
        efs_gauge_profile(fs->gauge, &profile);
    }
    s->profile_source = source;
    pthread_mutex_unlock(&fs->lock);
}

/* ---- the history ---- */

static errint_t history_of_route(struct efs_steward *s, const char *path, struct efs_error *err)
{
    const struct efs_residency *r = s->fs->residency;
    struct efs_route route = {0};
    errint_t rc = efs_route_read(path, &route, err);
    if (rc < 0)
        return rc;
    rc = efs_counts_from_route(&route, r->layers, r->width, NULL, &s->known);
    efs_route_free(&route);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot plan from it: %s", path, strerror(-rc));
    s->history_source = HISTORY_ROUTE;
    snprintf(s->history_path, sizeof(s->history_path), "%s", path);
    return 0;
}

static errint_t get_history(struct efs_steward *s, const char *path, struct efs_error *err)
{
    struct efs *fs = s->fs;
    const struct efs_residency *r = fs->residency;
    errint_t rc;
    if (path)
        return history_of_route(s, path, err);
    if (!fs->options.no_state) {
        struct efs_error why = {""};
        rc = efs_counts_load(fs->store->sb.content_hash, r->layers, r->width, &s->known, &why);
        if (rc == 0) {
            s->history_source = HISTORY_SAVED;
            return 0;
        }
        efs_history_free(&s->known);
        if (rc != -ENOENT)
            efs_log(fs, EFS_LOG_WARNING, "%s; earlier mounts are forgotten", why.text);
    }
    rc = efs_history_init(&s->known, r->layers, r->width);
    return rc < 0 ? efs_fail(err, rc, "no memory for the history") : 0;
}

/* The policy starts with what is known. */
static void seed(struct efs_steward *s)
{
    struct efs *fs = s->fs;
    for (uint32_t l = 0; l < s->known.layers; l++)
        if (s->known.passes[l])
            efs_policy_seed(fs->residency->policy, l, s->known.counts + (size_t)l * s->known.experts,
                            s->known.passes[l]);
}

static void save_counts(struct efs_steward *s)
{
    struct efs *fs = s->fs;
    struct efs_history all = {0};
    struct efs_error err = {""};
    uint64_t passes = 0;
    if (fs->options.no_state || s->history_source == HISTORY_ROUTE ||
        efs_history_init(&all, s->known.layers, s->known.experts) < 0) {
        efs_history_free(&all);
        return;
    }
    pthread_mutex_lock(&fs->lock);
    efs_history_copy(&all, &s->known);
    efs_history_add(&all, &s->seen);
    for (uint32_t l = 0; l < s->seen.layers; l++)
        passes += s->seen.passes[l];
    pthread_mutex_unlock(&fs->lock);
    errint_t rc = passes ? efs_counts_save(fs->store->sb.content_hash, &all, &err) : 0;
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "the counts are not saved: %s", err.text);
    efs_history_free(&all);
}

void efs_steward_saw(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    struct efs_steward *s = fs->steward;
    if (!s)
        return;
    efs_policy_ranks(fs->residency->policy, layer, ids, count, s->ranks);
    efs_history_request(&s->seen, layer, ids, s->ranks, count);
    s->saw++;
    if (s->saw % DRIFT_EVERY == 0)
        pthread_cond_signal(&s->wake);
}

void efs_steward_nudge(struct efs *fs)
{
    if (fs->steward)
        pthread_cond_signal(&fs->steward->wake);
}

void efs_steward_wake(struct efs *fs)
{
    if (fs->steward) {
        fs->steward->asked = true;
        pthread_cond_signal(&fs->steward->wake);
    }
}

/* ---- the plan ---- */

/*
 * Every other cut of the pools costs what it moves, and rates that are kept current are never quite the same: a plan
 * stays as long as it is nearly as good as the best. *plan: the best one, and then the one to go by.
 */
static void prefer_what_is(const struct efs_steward *s, struct efs_pools_request *request,
                           const struct efs_residency_tuning *tuning, struct efs_pools *plan)
{
    struct efs_pools same = {0};
    request->how = EFS_POOLS_RATIO;
    memcpy(request->ratio, tuning->ratio, sizeof(request->ratio));
    if (!s->planned_at || s->plan_error || s->pools != request->pools || s->goal != request->goal ||
        efs_pools_plan(request, &same) < 0)
        return;
    bool io = request->goal == EFS_PLAN_IO;
    bool stays = (io ? same.io_ns : same.makespan_ns) * PLAN_WORTH <= (io ? plan->io_ns : plan->makespan_ns);
    efs_pools_free(stays ? plan : &same);
    if (stays)
        *plan = same;
}

static int make_plan(struct efs_steward *s, const struct efs_residency_tuning *tuning, uint64_t bytes, unsigned pools,
                     const double product_ns[2], struct efs_skew *skew, struct efs_pools *plan)
{
    const struct efs_profile *p = &s->profile;
    const struct efs_residency *r = s->fs->residency;
    struct efs_rates_now rates; /* as it is by now; what is read is decoded in any plan, what is kept coded in some */
    efs_gauge_now(s->fs->gauge, &rates, NULL, NULL);
    int rc = efs_skew_learn(skew, &s->known, r->layers, r->width, r->config.chosen);
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
                                                  .decode_bytes_per_second = rates.decode_each[EFS_DECODE_KEPT],
                                                  .f_hit_ns = product_ns[EFS_FORM_FULL],
                                                  .c_hit_ns = product_ns[EFS_FORM_CODED]},
                                        .skew = skew,
                                        .budget_bytes = bytes,
                                        .goal = tuning->goal,
                                        .how = tuning->fixed_plan ? EFS_POOLS_RATIO : EFS_POOLS_SHARED};
    request.pools = tuning->fixed_plan ? 0 : pools & efs_pools_possible(&request.costs);
    memcpy(request.ratio, tuning->ratio, sizeof(request.ratio));
    rc = efs_pools_plan(&request, plan);
    if (rc == 0 && !tuning->fixed_plan)
        prefer_what_is(s, &request, tuning, plan);
    return rc;
}

/* F only for those who map or lease whole experts, or whose memory is taken before they come: others are served from
 * the page cache (DESIGN.md section 5, rule 3). */
static unsigned pools_now(const struct efs *fs)
{
    unsigned pools = fs->residency->tuning.pools;
    if (!fs->options.full_pool || (fs->residency->leases == 0 && !fs->options.prealloc))
        pools &= ~EFS_PLAN_POOL(EFS_POOL_F);
    return pools;
}

static void plan_now(struct efs_steward *s)
{
    struct efs *fs = s->fs;
    struct efs_residency *r = fs->residency;
    struct efs_disk_request *submit = NULL;
    struct efs_skew skew = {0};
    struct efs_pools plan = {0};
    pthread_mutex_lock(&fs->lock);
    s->asked = false;
    efs_history_add(&s->known, &s->seen);
    efs_history_clear(&s->seen);
    efs_history_fade(&s->known, KNOWN_PASSES);
    efs_residency_resize(fs, &submit); /* what is left for the pools, at the ratios of before */
    struct efs_residency_tuning tuning = r->tuning;
    uint64_t bytes = r->pools_bytes;
    unsigned pools = pools_now(fs);
    const double product_ns[2] = {s->product_ns[0], s->product_ns[1]};
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    submit = NULL;
    uint64_t begin = efs_now_ns();
    int rc = bytes && (pools || tuning.fixed_plan) ? make_plan(s, &tuning, bytes, pools, product_ns, &skew, &plan)
                                                   : -ENODATA;
    uint64_t took = efs_now_ns() - begin;
    pthread_mutex_lock(&fs->lock);
    if (rc == 0 && !tuning.fixed_plan && !r->tuning.fixed_plan)
        memcpy(r->tuning.ratio, plan.ratio, sizeof(r->tuning.ratio));
    if (rc == 0) {
        efs_residency_resize(fs, &submit);
        efs_count(&fs->stats, plans, 1);
    }
    efs_skew_free(&s->skew);
    efs_pools_free(&s->plan);
    s->skew = skew;
    s->plan = plan;
    s->plan_error = rc;
    s->pools = pools;
    s->goal = tuning.goal;
    s->planned_at = time(NULL);
    s->plan_ns = took;
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    efs_full_retry(fs);
    efs_coded_retry(fs);
}

/* ---- the thread ---- */

static bool has_drifted(struct efs_steward *s)
{
    struct efs *fs = s->fs;
    if (!s->skew.inclusion)
        return false;
    s->drift = efs_history_drift(&s->skew, &s->seen);
    if (!efs_history_drifted(&s->skew, &s->seen, EFS_DRIFT_REPLAN))
        return false;
    efs_count(&fs->stats, drifts, 1);
    return true;
}

/* Leases wait for room, or what was held when the budget became smaller is still above it. */
static bool is_short(const struct efs *fs)
{
    return fs->lease_queue || efs_room_used(fs) > fs->options.budget_bytes;
}

static void look_for_room(struct efs *fs)
{
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    efs_room_shrink(fs, &submit);
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    efs_full_retry(fs);
}

static void *run(void *arg)
{
    struct efs_steward *s = arg;
    struct efs *fs = s->fs;
    get_profile(s);
    plan_now(s);
    uint64_t saved = efs_now_ns();
    pthread_mutex_lock(&fs->lock);
    s->planned = true;
    pthread_cond_broadcast(&s->first);
    while (!s->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += SAVE_SECONDS;
        if (is_short(fs)) { /* nobody tells when a mapping ends that outlived its lease: look now and then */
            until.tv_sec -= SAVE_SECONDS;
            until.tv_nsec += LEASE_LOOK_NS;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
        }
        if (!s->asked)
            pthread_cond_timedwait(&s->wake, &fs->lock, &until);
        bool look = is_short(fs);
        bool plan = !s->stop && (s->asked || has_drifted(s));
        pthread_mutex_unlock(&fs->lock);
        if (look)
            look_for_room(fs);
        if (plan) {
            struct timespec settle = {0, SETTLE_NS};
            nanosleep(&settle, NULL);
            plan_now(s);
        }
        if (efs_now_ns() - saved > SAVE_SECONDS * 1000000000ull) {
            save_counts(s);
            saved = efs_now_ns();
        }
        pthread_mutex_lock(&fs->lock);
    }
    pthread_mutex_unlock(&fs->lock);
    save_counts(s);
    return NULL;
}

errint_t efs_steward_start(struct efs *fs, const char *history_path, struct efs_error *err)
{
    if (!fs->residency->policy) {
        struct efs_disk_request *none = NULL;
        efs_residency_resize(fs, &none);
        return 0;
    }
    struct efs_steward *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    s->fs = fs;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&s->first, NULL);
    fs->steward = s;
    s->ranks = efs_sys_calloc(fs->residency->width + 1u, sizeof(*s->ranks));
    if (!s->ranks || efs_history_init(&s->seen, fs->residency->layers, fs->residency->width) < 0)
        return efs_fail(err, -ENOMEM, "no memory for the planner");
    assume_profile(fs, &s->profile);
    errint_t rc = get_history(s, history_path, err);
    if (rc < 0)
        return rc;
    seed(s);
    struct efs_disk_request *none = NULL;
    efs_residency_resize(fs, &none);
    rc = efs_thread_start(run, s, "efs-plan", &s->thread);
    s->started = rc == 0;
    return rc < 0 ? efs_fail(err, rc, "cannot start the planner: %s", strerror(-rc)) : 0;
}

void efs_steward_stop(struct efs *fs)
{
    struct efs_steward *s = fs->steward;
    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&fs->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&fs->lock);
        pthread_join(s->thread, NULL);
        s->started = false;
    }
}

void efs_steward_free(struct efs *fs)
{
    struct efs_steward *s = fs->steward;
    if (!s)
        return;
    efs_history_free(&s->seen);
    efs_history_free(&s->known);
    efs_skew_free(&s->skew);
    efs_pools_free(&s->plan);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->first);
    free(s->ranks);
    free(s);
    fs->steward = NULL;
}

void efs_steward_wait(struct efs *fs)
{
    struct efs_steward *s = fs->steward;
    if (!s)
        return;
    pthread_mutex_lock(&fs->lock);
    while (s->started && !s->planned)
        pthread_cond_wait(&s->first, &fs->lock);
    pthread_mutex_unlock(&fs->lock);
}

void efs_steward_product(struct efs *fs, enum efs_form form, uint64_t ns)
{
    struct efs_steward *s = fs->steward;
    if (!s || (form != EFS_FORM_FULL && form != EFS_FORM_CODED))
        return;
    pthread_mutex_lock(&fs->lock);
    double *mean = &s->product_ns[form];
    if (*mean == 0)
        efs_steward_wake(fs);
    *mean += ((double)ns - *mean) * (*mean == 0 ? 1 : 0.02);
    pthread_mutex_unlock(&fs->lock);
}

void efs_steward_costs(struct efs *fs, struct efs_steward_costs *costs)
{
    *costs = (struct efs_steward_costs){1e9 / 1.5e9, 1e9 / 5e9};
    if (!fs->steward)
        return;
    struct efs_rates_now now;
    efs_gauge_now(fs->gauge, &now, NULL, NULL);
    costs->read_ns_per_byte = 1e9 / now.disk_bytes_per_second;
    costs->decode_ns_per_byte = 1e9 / now.decode_bytes_per_second;
}

/* ---- for people ---- */

static void tell_plan(struct efs_steward *s, FILE *out)
{
    static const char names[] = "FCSE";
    const struct efs_residency *r = s->fs->residency;
    fprintf(out, "policy: %s\n", efs_policy_name(r->config.kind));
    fprintf(out, "plan: %s\n", r->tuning.fixed_plan ? "explicit" : "auto");
    fprintf(out, "goal: %s\n", r->tuning.goal == EFS_PLAN_IO ? "io" : "makespan");
    fprintf(out, "allowed: ");
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (s->pools & EFS_PLAN_POOL(p))
            fputc(names[p], out);
    fprintf(out, "%s\nplanned_at: %lld\n", s->pools ? "" : "-", (long long)s->planned_at);
    fprintf(out, "planning_ns: %llu\n", (unsigned long long)s->plan_ns);
    fprintf(out, "error: %s\n", s->plan_error == 0 ? "-" : strerror(-s->plan_error));
    fprintf(out, "pools_bytes: %llu\n", (unsigned long long)r->pools_bytes);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "ratio_%c: %.4f\n", names[p] + 32, r->tuning.ratio[p]);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "hits_%c: %.4f\n", names[p] + 32, s->plan.hits[p]);
    fprintf(out, "misses: %.4f\n", s->plan.hits[EFS_POOLS]);
    fprintf(out, "io_ns: %.0f\n", s->plan.io_ns);
    fprintf(out, "makespan_ns: %.0f\n", s->plan.makespan_ns);
    fprintf(out, "product_full_ns: %.0f\n", s->product_ns[EFS_FORM_FULL]);
    fprintf(out, "product_coded_ns: %.0f\n", s->product_ns[EFS_FORM_CODED]);
    fprintf(out, "profile: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "history: %s\n", history_sources[s->history_source]);
    fprintf(out, "history_path: %s\n", *s->history_path ? s->history_path : "-");
    fprintf(out, "history_passes: %llu\n", (unsigned long long)s->skew.passes);
    fprintf(out, "skew: %s\n", efs_skew_source_name(s->skew.source));
    fprintf(out, "chosen: %.3f\n", s->skew.mean_chosen);
    fprintf(out, "drift: %.4f\n", s->drift);
}

static void tell_profile(const struct efs_steward *s, FILE *out)
{
    fprintf(out, "source: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "store_hash: %016llx\n", (unsigned long long)s->profile.content_hash);
    fprintf(out, "measured_at: %lld\n", (long long)s->profile.measured_at);
    fprintf(out, "cpu_path: %s\n", *s->profile.cpu_path ? s->profile.cpu_path : "-");
#define LINE(name, help) fprintf(out, "%s: %.10g\n", #name, s->profile.name);
    EFS_PROFILE_NUMBERS(LINE)
#undef LINE
    struct efs_rates_now now;
    uint64_t bursts, decoded_bytes;
    efs_gauge_now(s->fs->gauge, &now, &bursts, &decoded_bytes);
    fprintf(out, "live_bursts: %llu\nlive_decoded_bytes: %llu\n", (unsigned long long)bursts,
            (unsigned long long)decoded_bytes);
    fprintf(out, "live_disk_bytes_per_second: %.10g\n", now.disk_bytes_per_second);
    fprintf(out, "live_read_latency_ns: %.10g\n", now.read_latency_ns);
    fprintf(out, "live_read_together: %.4f\n", now.together);
    fprintf(out, "live_read_window_bytes: %u\n", EFS_DISK_WINDOW_BYTES);
    fprintf(out, "live_decode_bytes_per_second: %.10g\n", now.decode_bytes_per_second);
    fprintf(out, "live_decode_fresh_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_FRESH]);
    fprintf(out, "live_decode_kept_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_KEPT]);
}

errint_t efs_steward_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    bool plan = strcmp(what, "plan") == 0, memory = strcmp(what, "memory") == 0;
    *text = NULL;
    if (!plan && !memory && strcmp(what, "profile") != 0)
        return -ENODATA;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    pthread_mutex_lock(&fs->lock);
    if (memory)
        efs_arena_describe(&fs->arena, out);
    else if (!fs->steward)
        fprintf(out, "plan: none\n");
    else if (plan)
        tell_plan(fs->steward, out);
    else
        tell_profile(fs->steward, out);
    pthread_mutex_unlock(&fs->lock);
    if (fclose(out) == 0)
        return 0;
    free(*text);
    *text = NULL;
    return -ENOMEM;
}
