/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - moe-replay TRACE: policies, plans and schedules on real routing, simulated and on real files. */
#include "ahead.h"
#include "arguments.h"
#include "assign_command.h"
#include "foresight.h"
#include "live.h"
#include "mount.h"
#include "place_command.h"
#include "predictions.h"
#include "report.h"
#include "simulate.h"

#include "failure.h"
#include "interrupt.h"
#include "expertfs-private.h"
#include "progress.h"
#include "size.h"
#include "surroundings.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXIT_USAGE = 2 };

#define MODEL_LAYERS_MAX 256 /* EFS_PLAN_MAX_LAYERS */
#define CHOICES_MAX (2 * (REPLAY_LIST_MAX + 3) * REPLAY_LIST_MAX)

/* What is tried with every budget and batch size. */
struct choice {
    enum replay_runner runner;
    struct replay_policy policy;
    uint32_t predictor; /* of the arguments' list, counted from 1; 0: nothing is guessed */
    bool begins_without;
};

struct session {
    struct replay_arguments *a;
    const char *store; /* NULL: there is a profile alone */
    char mounted_store[4096];
    struct efs_route trace, history;
    bool has_history, table, live_open;
    bool failed; /* a live run, which was told */
    struct replay_live live;
    struct choice choices[CHOICES_MAX];
    uint32_t choice_count;
    struct replay_foresight foresight[REPLAY_LIST_MAX]; /* of this batch size */
    struct replay_report report;
    struct tools_progress progress;
    uint64_t done_tokens, all_tokens;
};

/* ---- what is replayed --------------------------------------------------------------------------------------- */

/* The profile of --profile or of the store; the latter is measured if it never was. */
static errint_t take_profile(const struct session *session, struct efs_profile *profile, struct efs_error *err)
{
    struct efs_store *store;
    struct efs_store_info info;
    char path[4096];
    if (session->a->profile)
        return efs_profile_load(session->a->profile, profile, err);
    errint_t rc = efs_store_open(session->store, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info, sizeof(info));
    rc = efs_profile_path(info.content_hash, path, sizeof(path), err);
    if (rc == 0)
        rc = efs_profile_load(path, profile, err);
    if (rc == -ENOENT) {
        struct efs_error unsaved = {""};
        fprintf(stderr, "moe-replay: %s was not measured here yet: measuring\n", session->store);
        rc = efs_profile_measure(store, 0, 3, profile, err);
        if (rc == 0 && efs_profile_save(profile, &unsaved) < 0)
            fprintf(stderr, "moe-replay: the profile is not saved: %s\n", unsaved.text);
    }
    efs_store_close(store);
    return rc;
}

/* The store that is meant: of --store, of --mount, or of the mount that is there. */
static errint_t find_store(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct stat st;
    session->store = a->shared.store;
    if (!a->mount)
        return 0;
    if (stat(a->mount, &st) != 0)
        return efs_fail(err, -errno, "%s: %s", a->mount, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        session->store = a->mount;
        return 0;
    }
    session->live.mountpoint = a->mount;
    errint_t rc = replay_mount_store(a->mount, session->mounted_store, sizeof(session->mounted_store), err);
    if (rc == 0 && !a->shared.store)
        session->store = session->mounted_store;
    return rc;
}

static errint_t open_live(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct replay_live *live = &session->live;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    live->store = session->store;
    live->profile = &a->setup.profile;
    live->raw = a->raw;
    live->plan_from = a->shared.plan_from;
    live->program = a->program;
    live->compute = a->compute;
    live->threads = a->threads ? a->threads : cores > 0 && cores <= 64 ? (uint32_t)cores : 64;
    live->workers = a->workers;
    live->allowance_bytes = a->allowance_bytes;
    live->prealloc = a->prealloc;
    live->warm = a->warm;
    live->turns = a->turns;
    live->without = a->without;
    if (a->predictor_count > 0)
        replay_mount_print_prefetch(&a->setup.governor, live->prefetch, sizeof(live->prefetch));
    session->live_open = true;
    errint_t rc = replay_live_open(live, err);
    if (rc == 0 && (live->model.layers != a->setup.layers || live->model.experts != a->setup.experts))
        rc = efs_fail(err, -EOPNOTSUPP, "%s: its layers have different numbers of experts", session->store);
    return rc;
}

static bool can_guess(const struct session *session, enum replay_runner runner, const struct replay_policy *policy,
                      uint32_t predictor)
{
    if (runner == REPLAY_EXPERTFS)
        return replay_mount_predicts(session->a->predictors[predictor].name);
    return runner == REPLAY_SIMULATE && policy->keeper == REPLAY_KEEP_NONE && policy->pools != REPLAY_RAW;
}

/* A policy by itself, then with each predictor that it can be with; with turns of these beginning without, then with.
 */
static void session_add_choice(struct session *session, enum replay_runner runner, const struct replay_policy *policy)
{
    bool turns = session->a->turns && runner == REPLAY_EXPERTFS;
    session->choices[session->choice_count++] = (struct choice){runner, *policy, turns, turns};
    for (uint32_t p = 0; p < session->a->predictor_count; p++)
        if (can_guess(session, runner, policy, p))
            session->choices[session->choice_count++] = (struct choice){runner, *policy, p + 1, false};
}

static void session_make_choices(struct session *session)
{
    static const struct replay_policy paged = {.name = "page-cache", .pools = REPLAY_RAW},
                                      last_used = {.name = "lru", .kind = EFS_POLICY_LRU, .pools = REPLAY_RAW},
                                      own = {.name = "lru", .kind = EFS_POLICY_LRU, .pools = REPLAY_CODED};
    const struct replay_arguments *a = session->a;
    for (uint32_t p = 0; a->mount && session->live.has_policies && p < a->policy_count; p++)
        if (replay_mount_has(&a->policy[p]))
            session_add_choice(session, REPLAY_EXPERTFS, &a->policy[p]);
    if (a->mount && !session->live.has_policies)
        session_add_choice(session, REPLAY_EXPERTFS, &own);
    for (uint32_t p = 0; a->simulate && p < a->policy_count; p++) /* after the real ones, of which it learns */
        session_add_choice(session, REPLAY_SIMULATE, &a->policy[p]);
    for (uint32_t p = 0; p < a->peer_count; p++)
        session_add_choice(session, a->peer[p], a->peer[p] == REPLAY_MMAP ? &paged : &last_used);
}

/* ---- the runs ----------------------------------------------------------------------------------------------- */

static bool show_progress(void *arg, uint64_t tokens)
{
    struct session *session = arg;
    return tools_progress_tell(&session->progress, session->done_tokens + tokens, session->all_tokens, "replaying");
}

static errint_t workload_open(const struct session *session, const struct efs_route *route, const char *path,
                              uint32_t batch, uint64_t tokens, struct replay_workload *w, struct efs_error *err)
{
    const struct replay_setup *s = &session->a->setup;
    int rc = replay_workload_make(route, s->layers, s->experts, batch, tokens, w);
    if (rc == -E2BIG)
        return efs_fail(err, rc, "%s: batches of %u with %u experts a token ask for more than %u experts at once", path,
                        batch, route->chosen, REPLAY_REQUEST_MAX);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* What the real run of the same was told to be like; not known: there was none. */
static struct replay_learned learned_beside(const struct session *session, const struct replay_run_record *record)
{
    const struct replay_run_record *runs = session->report.runs;
    for (size_t i = session->report.count; i-- > 0;)
        if (runs[i].runner == REPLAY_EXPERTFS && runs[i].batch == record->batch &&
            runs[i].predictor == record->predictor && runs[i].budget == record->budget &&
            runs[i].policy.pools == record->policy.pools && strcmp(runs[i].policy.name, record->policy.name) == 0)
            return runs[i].learned;
    return (struct replay_learned){0};
}

static errint_t simulated_run(struct session *session, const struct replay_workload *w,
                              const struct replay_history *history, uint32_t predictor,
                              struct replay_run_record *record, struct efs_error *err)
{
    struct replay_setup as_it_was = session->a->setup;
    const struct replay_setup *s = &as_it_was;
    const struct replay_learned *learned = &record->learned;
    record->learned = learned_beside(session, record);
    replay_learned_apply(learned, &as_it_was);
    const struct replay_foresight *foresight = predictor ? &session->foresight[predictor - 1] : NULL;
    uint64_t kept_bytes = record->budget_bytes - (foresight ? replay_ahead_held_bytes(s, record->budget_bytes) : 0);
    int rc = 0;
    if (learned->known) {
        record->plan = (struct replay_plan){.io_ns = learned->io_ns, .makespan_ns = learned->makespan_ns};
        memcpy(record->plan.capacity, learned->pools[learned->plans - 1].capacity, sizeof(record->plan.capacity));
    } else {
        rc = replay_plan_make(s, &record->policy, history, kept_bytes, &record->plan);
    }
    if (rc < 0)
        return efs_fail(err, rc, "planning %s for %s failed: %s", session->a->budgets[record->budget],
                        record->policy.name, strerror(-rc));
    rc = replay_simulate(s, w, &record->policy, history, &record->plan, foresight, record->budget_bytes, show_progress,
                         session, &record->result);
    replay_plan_free(&record->plan);
    return rc < 0 ? efs_fail(err, rc, "replaying with %s failed: %s", record->policy.name, strerror(-rc)) : 0;
}

/* A live run that fails is told, and the others go on. */
static errint_t live_run(struct session *session, const struct replay_workload *w, struct replay_run_record *record)
{
    struct efs_error err = {""};
    char name[64];
    replay_run_name(&session->report, record, name, sizeof(name));
    errint_t rc = replay_live_run(&session->live, &session->a->setup, w, show_progress, session, record, &err);
    if (rc < 0 && rc != -ECANCELED) {
        fprintf(stderr, "moe-replay: %s with %s: %s\n", name, session->a->budgets[record->budget], err.text);
        session->failed = true;
    }
    return rc;
}

static void print_plan(const struct replay_run_record *run)
{
    static const char letters[EFS_POOLS] = {'F', 'C', 'S', 'E'};
    char size[16];
    if (run->plan.makespan_ns <= 0)
        return;
    printf("%24s", "plan:");
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (run->plan.capacity[p])
            printf(" %c %s", letters[p], tools_size_print(run->plan.capacity[p], size, sizeof(size)));
    printf("; %.3f ms I/O, %.3f ms in all expected of a pass\n", run->plan.io_ns / 1e6, run->plan.makespan_ns / 1e6);
}

/* What a simulation goes by that has a real run beside it. */
static void print_learned(const struct replay_run_record *run)
{
    const struct replay_learned *l = &run->learned;
    if (run->runner != REPLAY_SIMULATE || !l->known)
        return;
    printf("%24s disk %.3g GB/s and %.0f us, reads end together %.2f", "as it was:", l->disk_bytes_per_second / 1e9,
           l->read_latency_ns / 1e3, l->read_together);
    if (l->layer_ns > 0) {
        printf("; %.0f us beside a layer's reads; an expert runs %.0f us; all else in a layer %.0f us\n",
               l->read_turn_ns / 1e3, l->run_ns / 1e3, l->layer_ns / 1e3);
        return;
    }
    printf(
        ", decode %.3g GB/s just read and %.3g kept; %.0f, %.0f and %.0f us beside a layer's reads, decodes, nothing; "
        "a worker wakes in %.0f us, is back in %.1f us; an expert runs %.0f us\n",
        l->decode_fresh_bytes_per_second / 1e9, l->decode_kept_bytes_per_second / 1e9, l->read_turn_ns / 1e3,
        l->coded_turn_ns / 1e3, l->full_turn_ns / 1e3, l->wake_ns / 1e3, l->between_ns / 1e3, l->run_ns / 1e3);
}

static errint_t run_one(struct session *session, const struct replay_workload *w, const struct replay_history *history,
                        uint32_t budget, const struct choice *choice, bool first, struct efs_error *err)
{
    struct replay_run_record *record = &session->report.runs[session->report.count];
    const struct replay_setup *s = &session->a->setup;
    *record = (struct replay_run_record){
        .runner = choice->runner, .policy = choice->policy, .batch = w->batch, .budget = budget};
    record->begins_without = choice->begins_without;
    if (choice->predictor)
        record->predictor = session->a->predictors[choice->predictor - 1].name;
    double raw_bytes = (double)s->bytes[EFS_POOL_F] * s->layers * s->experts;
    replay_budget_parse(session->a->budgets[budget], raw_bytes, &record->budget_bytes); /* it was looked at already */
    errint_t rc = choice->runner == REPLAY_SIMULATE ? simulated_run(session, w, history, choice->predictor, record, err)
                                                    : live_run(session, w, record);
    if (choice->runner != REPLAY_SIMULATE && record->result.tokens == 0)
        rc = session->failed || tools_interrupted() ? 0 : rc; /* told already; nothing is known of it */
    else if (rc == 0 || choice->runner != REPLAY_SIMULATE) {
        rc = 0;
        session->report.count++;
        if (session->table && first)
            replay_report_head(&session->report);
        if (session->table)
            replay_report_row(&session->report);
        if (session->table)
            replay_report_ahead(&session->report);
        if (session->table)
            print_plan(record);
        if (session->table)
            print_learned(record);
        fflush(stdout);
    }
    session->done_tokens += record->result.tokens;
    return rc;
}

static errint_t foresee(struct session *session, uint32_t p, const struct replay_workload *past,
                        const struct replay_workload *w, struct efs_error *err)
{
    const struct predict_choice *choice = &session->a->predictors[p];
    if (!replay_foresight_possible(choice, past, w))
        return choice->named
                   ? efs_fail(err, -ENODATA, "--predict %s: %s has no hidden states and routers for this model",
                              choice->name, session->a->trace)
                   : 0; /* its runs are left out */
    int rc = replay_foresight_make(choice, past, w, session->a->setup.distances, &session->foresight[p]);
    if (rc == -ECANCELED)
        return 0; /* what is known so far is told */
    return rc < 0 ? efs_fail(err, rc, "%s: %s", choice->name, strerror(-rc)) : 0;
}

/* Guesses of it were made. */
static bool can_run(const struct session *session, const struct choice *choice)
{
    return choice->predictor == 0 || choice->runner == REPLAY_EXPERTFS ||
           session->foresight[choice->predictor - 1].first;
}

/* All budgets and choices for one batch size. */
static errint_t run_batch(struct session *session, uint32_t batch, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct replay_workload w = {0}, past = {0};
    struct replay_history history = {0};
    errint_t rc = workload_open(session, &session->trace, a->trace, batch, a->shared.tokens, &w, err);
    if (rc == 0 && session->has_history)
        rc = workload_open(session, &session->history, a->shared.plan_from, batch, 0, &past, err);
    if (rc == 0 && a->simulate) {
        rc = replay_history_learn(&a->setup, session->has_history ? &past : NULL, w.chosen, &history);
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", session->has_history ? a->shared.plan_from : a->trace, strerror(-rc));
    }
    for (uint32_t p = 0; rc == 0 && a->simulate && !tools_interrupted() && p < a->predictor_count; p++)
        rc = foresee(session, p, session->has_history && !a->mount ? &past : NULL, &w, err);
    for (uint32_t b = 0; rc == 0 && !tools_interrupted() && b < a->budget_count; b++) {
        size_t before = session->report.count;
        for (uint32_t c = 0; rc == 0 && !tools_interrupted() && c < session->choice_count; c++)
            if (can_run(session, &session->choices[c]))
                rc = run_one(session, &w, &history, b, &session->choices[c], session->report.count == before, err);
    }
    for (uint32_t p = 0; p < a->predictor_count; p++)
        replay_foresight_free(&session->foresight[p]);
    replay_history_free(&history);
    replay_workload_free(&past);
    replay_workload_free(&w);
    return rc;
}

/* ---- what is said first ------------------------------------------------------------------------------------- */

static void print_live(const struct session *session)
{
    const struct replay_live *live = &session->live;
    char allowance[16];
    printf("live: compute %s with %u threads, from a cold start%s%s; ", replay_compute_name(live->compute),
           live->threads, live->prealloc ? ", memory taken before" : "", live->warm ? ", expertfs warms" : "");
    if (live->stage.cgroup.path[0])
        printf("each run with all its processes in a memory cgroup (v%d) of its budget and %s\n",
               live->stage.cgroup.v2 ? 2 : 1, tools_size_print(live->allowance_bytes, allowance, sizeof(allowance)));
    else
        printf("no memory cgroup holds a run to its budget: %s\n", live->stage.no_cgroup.text);
}

static void print_head(const struct session *session)
{
    const struct replay_arguments *a = session->a;
    const struct replay_setup *s = &a->setup;
    const struct efs_profile *p = &s->profile;
    const struct efs_route *t = &session->trace;
    uint64_t tokens = a->shared.tokens && a->shared.tokens < t->tokens ? a->shared.tokens : t->tokens;
    printf("%s: %s, %u layers of %u experts, %u a token; %llu of %llu tokens, cold start\n", a->trace, t->name,
           t->layers, t->experts, t->chosen, (unsigned long long)tokens, (unsigned long long)t->tokens);
    if (s->layers != t->layers || s->experts != t->experts)
        printf("mapped onto %u layers of %u experts: layers and experts modulo\n", s->layers, s->experts);
    printf("profile %016llx: disk %.3g GB/s and %.0f us, decode %.3g GB/s on each of %u workers; expert F %.2f C %.2f "
           "S %.2f E %.2f MiB\n",
           (unsigned long long)p->content_hash, p->disk_bytes_per_second / 1e9, p->read_latency_ns / 1e3,
           p->decode_bytes_per_second / 1e9, s->workers, (double)s->bytes[EFS_POOL_F] / 1048576,
           (double)s->bytes[EFS_POOL_C] / 1048576, (double)s->bytes[EFS_POOL_S] / 1048576,
           (double)s->bytes[EFS_POOL_E] / 1048576);
    if (session->has_history)
        printf("plan from %s: %llu tokens; schedule %s\n", a->shared.plan_from,
               (unsigned long long)session->history.tokens, replay_schedule_name(s->schedule));
    else
        printf("plan from an assumed skew (--plan-from gives a history); schedule %s\n",
               replay_schedule_name(s->schedule));
    if (a->simulate && s->open_ns)
        printf("simulated: an expert that was not full takes %.0f us to be handed out\n", (double)s->open_ns / 1e3);
    if (session->live_open)
        print_live(session);
}

/* ---- from the options to the report ------------------------------------------------------------------------- */

/* Read everything and check what could not be checked before. */
static errint_t session_prepare(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct replay_setup *s = &a->setup;
    errint_t rc = efs_route_read(a->trace, &session->trace, err);
    if (rc == 0 && a->shared.plan_from) {
        rc = efs_route_read(a->shared.plan_from, &session->history, err);
        session->has_history = rc == 0;
    }
    if (rc == 0)
        rc = find_store(session, err);
    if (rc == 0)
        rc = take_profile(session, &s->profile, err);
    if (rc < 0)
        return rc;
    s->layers = a->profile ? session->trace.layers : (uint32_t)s->profile.layers;
    s->experts = a->profile ? session->trace.experts : (uint32_t)s->profile.experts;
    if (s->layers > MODEL_LAYERS_MAX || s->experts > EFS_PLAN_MAX_EXPERTS)
        return efs_fail(err, -E2BIG, "%s: %u layers of %u experts are more than the planner takes",
                        session->store ? session->store : a->trace, s->layers, s->experts);
    s->run_coded = a->compute == REPLAY_COMPUTE_FFN_CODED;
    replay_setup_fill(s);
    if (rc == 0 && (a->mount || a->peer_count > 0))
        rc = open_live(session, err);
    if (rc == 0 && a->simulate && a->mount && !a->open_given && a->compute != REPLAY_COMPUTE_FFN_CODED)
        rc = replay_live_handout(&session->live, &s->open_ns, err);
    return rc;
}

static errint_t open_report(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    uint64_t tokens =
        a->shared.tokens && a->shared.tokens < session->trace.tokens ? a->shared.tokens : session->trace.tokens;
    size_t runs = (size_t)a->shared.batch_count * a->budget_count * session->choice_count;
    session->all_tokens = tokens * runs;
    session->report = (struct replay_report){.setup = &a->setup,
                                             .trace = session->trace.name,
                                             .history = a->shared.plan_from,
                                             .budgets = (const char *const *)a->budgets,
                                             .budget_count = a->budget_count,
                                             .live = session->live_open,
                                             .turns = a->turns};
    session->live.compares = runs > 1;
    session->report.runs = calloc(runs + 1, sizeof(*session->report.runs));
    return session->report.runs ? 0 : efs_fail(err, -ENOMEM, "no memory");
}

static errint_t session_replay(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    tools_interrupt_catch();
    errint_t rc = session_prepare(session, err);
    if (rc < 0)
        return rc;
    session_make_choices(session);
    if (session->choice_count == 0)
        return efs_fail(err, -EINVAL, "%s: a mount has none of these policies", a->mount);
    rc = open_report(session, err);
    if (rc < 0)
        return rc;
    session->table = !a->json || strcmp(a->json, "-") != 0;
    if (session->table)
        print_head(session);
    tools_progress_init(&session->progress, a->shared.quiet);
    session->progress.unit = "tokens";
    for (uint32_t i = 0; rc == 0 && !tools_interrupted() && i < a->shared.batch_count; i++)
        rc = run_batch(session, a->shared.batch[i], err);
    if (rc < 0)
        return rc;
    if (session->table)
        replay_report_summary(&session->report);
    if (!replay_report_checks(&session->report, session->table))
        session->failed = true;
    if (a->json)
        rc = replay_report_json(&session->report, a->json, err);
    return rc < 0 ? rc : tools_interrupted() ? -ECANCELED : 0;
}

static void print_version(FILE *to, struct argp_state *state)
{
    (void)state;
    fprintf(to, "moe-replay (expertfs) %s\n", efs_version());
}

static struct {
    char title[24]; /* in place of argv[0] */
    int (*main)(int argc, char **argv);
} commands[] = {{"moe-replay predict", predict_main},
                {"moe-replay assign", replay_assign_main},
                {"moe-replay place", replay_place_main}};

int main(int argc, char **argv)
{
    struct replay_arguments a;
    struct efs_error err = {""};
    tools_surroundings();
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version_hook = print_version;
    for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], strchr(commands[i].title, ' ') + 1) == 0) {
            argv[1] = commands[i].title;
            return commands[i].main(argc - 1, argv + 1);
        }
    replay_arguments_parse(argc, argv, &a);
    struct session *session = calloc(1, sizeof(*session));
    if (!session)
        return tools_fail("moe-replay", -ENOMEM, &err);
    session->a = &a;
    errint_t rc = session_replay(session, &err);
    bool failed = session->failed;
    if (session->live_open)
        replay_live_close(&session->live);
    efs_route_free(&session->trace);
    efs_route_free(&session->history);
    for (size_t i = 0; i < session->report.count; i++)
        free(session->report.runs[i].pass_ns);
    free(session->report.runs);
    free(session);
    if (rc < 0)
        return tools_fail("moe-replay", rc, &err);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
