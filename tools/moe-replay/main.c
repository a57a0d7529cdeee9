/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - moe-replay TRACE: replays a routing trace in the simulator or on real files. */
#include "prefetch_sim.h"
#include "arguments.h"
#include "assign_command.h"
#include "prediction_list.h"
#include "place_command.h"
#include "live_run.h"
#include "predictions.h"
#include "report.h"
#include "simulate.h"

#include "process.h"
#include "interrupt.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct session {
    struct replay_arguments *a;
    struct efs_route trace, history;
    bool table;
    struct replay_predictions predicted[PREDICT_LIST_MAX]; /* for the current batch size */
    struct replay_report report;
    struct tools_progress progress;
    uint64_t done_tokens, all_tokens;
};

static bool show_progress(void *arg, uint64_t tokens)
{
    struct session *session = arg;
    return tools_progress_report(&session->progress, session->done_tokens + tokens, session->all_tokens, "replaying");
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

/* ---- simulated ---------------------------------------------------------------------------------------------- */

/* Loads the profile of --profile or of the store; if the store has none, measures it for three seconds and saves it. */
static errint_t take_profile(const struct replay_arguments *a, struct efs_profile *profile, struct efs_error *err)
{
    struct efs_store *store;
    struct efs_store_info info;
    char path[4096];
    if (a->profile)
        return efs_profile_load(a->profile, profile, err);
    errint_t rc = efs_store_open(a->store, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    rc = efs_profile_path(info.content_hash, path, sizeof(path), err);
    if (rc == 0)
        rc = efs_profile_load(path, profile, err);
    if (rc == -ENOENT) {
        struct efs_error unsaved = {""};
        fprintf(stderr, "moe-replay: %s was not measured here yet: measuring\n", a->store);
        rc = efs_profile_measure(store, 0, 3, profile, err);
        if (rc == 0 && !efs_profile_is_steady(profile))
            fprintf(
                stderr,
                "moe-replay: warning: the machine is busy, the profile is not saved: its rounds differ by "
                "%.0f %%\n",
                100 * (profile->disk_spread > profile->decode_spread ? profile->disk_spread : profile->decode_spread));
        else if (rc == 0 && efs_profile_save(profile, &unsaved) < 0)
            fprintf(stderr, "moe-replay: the profile is not saved: %s\n", unsaved.text);
    }
    efs_store_close(store);
    return rc;
}

static void print_head(const struct session *session)
{
    const struct replay_arguments *a = session->a;
    const struct replay_setup *s = &a->setup;
    const struct efs_profile *p = &s->profile;
    const struct efs_route *t = &session->trace;
    uint64_t tokens = a->tokens && a->tokens < t->tokens ? a->tokens : t->tokens;
    printf("%s: %s, %u layers of %u experts, %u a token; %llu of %llu tokens, cold start\n", a->trace.word[0], t->name,
           t->layers, t->experts, t->chosen, (unsigned long long)tokens, (unsigned long long)t->tokens);
    if (s->layers != t->layers || s->experts != t->experts)
        printf("mapped onto %u layers of %u experts: layers and experts modulo\n", s->layers, s->experts);
    if (replay_arguments_live(a))
        return;
    printf("profile %016llx: disk %.3g GB/s and %.0f us, decode %.3g GB/s on each of %u workers; expert F %.2f C %.2f "
           "S %.2f E %.2f MiB\nplan from %s; schedule %s\n",
           (unsigned long long)p->content_hash, p->disk_bytes_per_second / 1e9, p->read_latency_ns / 1e3,
           p->decode_bytes_per_second / 1e9, s->workers, (double)s->bytes[EFS_POOL_F] / 1048576,
           (double)s->bytes[EFS_POOL_C] / 1048576, (double)s->bytes[EFS_POOL_S] / 1048576,
           (double)s->bytes[EFS_POOL_E] / 1048576,
           a->plan_from ? a->plan_from : "an assumed skew (--plan-from gives a history)",
           replay_schedule_name(s->schedule));
}

/* Adds the record of a completed run to the report and prints its row. */
static void take_record(struct session *session, bool first)
{
    struct replay_report *report = &session->report;
    session->done_tokens += report->runs[report->count++].result.tokens;
    if (session->table && first)
        replay_report_head(report);
    if (session->table)
        replay_report_row(report);
    fflush(stdout);
}

static errint_t simulate_one(struct session *session, const struct replay_workload *w,
                             const struct replay_history *history, const struct replay_predictions *predicted,
                             struct replay_run_record *record, struct efs_error *err)
{
    const struct replay_setup *s = &session->a->setup;
    uint64_t kept_bytes = record->budget_bytes - (predicted ? replay_prefetch_cap_bytes(s, record->budget_bytes) : 0);
    int rc = replay_plan_make(s, &record->policy, history, kept_bytes, &record->plan);
    if (rc < 0)
        return efs_fail(err, rc, "planning %s for %s failed: %s", session->a->budgets.word[record->budget],
                        record->policy.name, strerror(-rc));
    rc = replay_simulate(s, w, &record->policy, history, &record->plan, predicted, record->budget_bytes, show_progress,
                         session, &record->result);
    return rc < 0 ? efs_fail(err, rc, "replaying with %s failed: %s", record->policy.name, strerror(-rc)) : 0;
}

static bool can_predict(const struct replay_policy *policy)
{
    return policy->cache == REPLAY_CACHE_NONE && policy->pools != REPLAY_RAW;
}

/* Runs each policy without prefetch, then with each predictor. */
static errint_t simulate_budget(struct session *session, const struct replay_workload *w,
                                const struct replay_history *history, uint32_t budget, struct efs_error *err)
{
    const struct replay_arguments *a = session->a;
    const struct replay_setup *s = &a->setup;
    errint_t rc = 0;
    bool first = true;
    for (uint32_t i = 0; i < a->policies.count; i++)
        for (uint32_t p = 0; p <= a->predictor_count && rc == 0 && !tools_interrupted(); p++) {
            const struct replay_predictions *predicted = p ? &session->predicted[p - 1] : NULL;
            struct replay_run_record *record = &session->report.runs[session->report.count];
            if (predicted && (!predicted->first || !can_predict(&a->policy[i])))
                continue;
            *record = (struct replay_run_record){.policy = a->policy[i],
                                                 .predictor = p ? a->predictors[p - 1].name : NULL,
                                                 .batch = w->batch,
                                                 .budget = budget};
            replay_budget_parse(a->budgets.word[budget], (double)s->bytes[EFS_POOL_F] * s->layers * s->experts,
                                &record->budget_bytes);
            rc = simulate_one(session, w, history, predicted, record, err);
            if (rc == 0)
                take_record(session, first);
            first = false;
        }
    return rc;
}

static errint_t make_predictions(struct session *session, uint32_t p, const struct replay_workload *past,
                                 const struct replay_workload *w, struct efs_error *err)
{
    const struct predict_choice *choice = &session->a->predictors[p];
    if (!replay_predictions_possible(choice, past, w))
        return choice->named ? efs_fail(err, -ENODATA, "--predict %s: %s has no hidden states%s for this model",
                                        choice->name, session->a->trace.word[0],
                                        efs_predictor_needs_gates(choice->config.kind) ? " and routers" : "")
                             : 0; /* skip its runs */
    int rc = replay_predictions_make(choice, past, w, REPLAY_DISTANCES, &session->predicted[p]);
    if (rc == -ECANCELED)
        return 0; /* interrupted: print the completed runs */
    if (rc == -ENODATA)
        return choice->named
                   ? efs_fail(err, rc, "--predict %s: no --plan-from with hidden states to train on", choice->name)
                   : 0;
    return rc < 0 ? efs_fail(err, rc, "%s: %s", choice->name, strerror(-rc)) : 0;
}

/* Runs all budgets, policies and predictors for one batch size. */
static errint_t simulate_batch(struct session *session, uint32_t batch, struct efs_error *err)
{
    const struct replay_arguments *a = session->a;
    struct replay_workload w = {0}, past = {0};
    struct replay_history history = {0};
    errint_t rc = workload_open(session, &session->trace, a->trace.word[0], batch, a->tokens, &w, err);
    if (rc == 0 && a->plan_from)
        rc = workload_open(session, &session->history, a->plan_from, batch, 0, &past, err);
    if (rc == 0) {
        rc = replay_history_learn(&a->setup, a->plan_from ? &past : NULL, w.chosen, &history);
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", a->plan_from ? a->plan_from : a->trace.word[0], strerror(-rc));
    }
    for (uint32_t p = 0; rc == 0 && !tools_interrupted() && p < a->predictor_count; p++)
        rc = make_predictions(session, p, a->plan_from ? &past : NULL, &w, err);
    for (uint32_t b = 0; rc == 0 && !tools_interrupted() && b < a->budgets.count; b++)
        rc = simulate_budget(session, &w, &history, b, err);
    for (uint32_t p = 0; p < a->predictor_count; p++)
        replay_predictions_free(&session->predicted[p]);
    replay_history_free(&history);
    replay_workload_free(&past);
    replay_workload_free(&w);
    return rc;
}

static errint_t simulate_all(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct replay_setup *s = &a->setup;
    errint_t rc = take_profile(a, &s->profile, err);
    if (rc < 0)
        return rc;
    s->layers = a->profile ? session->trace.layers : (uint32_t)s->profile.layers;
    s->experts = a->profile ? session->trace.experts : (uint32_t)s->profile.experts;
    if (s->layers > EFS_PLAN_MAX_LAYERS || s->experts > EFS_PLAN_MAX_EXPERTS)
        return efs_fail(err, -E2BIG, "%s: %u layers of %u experts are more than the planner takes",
                        a->store ? a->store : a->trace.word[0], s->layers, s->experts);
    replay_setup_fill(s);
    if (session->table)
        print_head(session);
    for (uint32_t i = 0; rc == 0 && !tools_interrupted() && i < a->batch.count; i++)
        rc = simulate_batch(session, (uint32_t)a->batch.number[i], err);
    if (rc == 0 && session->table)
        replay_report_summary(&session->report);
    return rc;
}

/* ---- on real files ------------------------------------------------------------------------------------------ */

/* Opens a mount with its settings, or a store by the library with the settings of the record. */
static errint_t open_client(const struct replay_arguments *a, const struct replay_model *model,
                            struct replay_run_record *record, struct replay_reader **reader, struct efs_error *err)
{
    struct efs_options options = {.budget_bytes = record->budget_bytes,
                                  .lease_wait = true,
                                  .prealloc = true,
                                  .policy = record->policy.name,
                                  .prefetch = record->predictor ? "on" : NULL};
    bool full = record->policy.pools == REPLAY_FULL, coded = a->compute == REPLAY_COMPUTE_TOUCH_CODED;
    enum efs_form form = coded ? EFS_FORM_CODED : EFS_FORM_FULL;
    struct stat st;
    if (stat(a->mount, &st) == 0 && S_ISDIR(st.st_mode)) {
        errint_t rc = replay_mount_describe(a->mount, record, err);
        return rc == 0 ? replay_reader_client(a->mount, NULL, model, form, EFS_FORM_ANY, reader, err) : rc;
    }
    if (!replay_engine_pools(&record->policy, &options.plan, &options.goal))
        return efs_fail(err, -EINVAL, "--policy %s: the simulator alone has it", a->policies.word[0]);
    options.full_pool = full || (a->compute != REPLAY_COMPUTE_FFN_CODED && !coded);
    return replay_reader_client(a->mount, &options, model, form, full ? EFS_FORM_FULL : EFS_FORM_CODED, reader, err);
}

static errint_t open_peer(const struct replay_raw *raw, struct replay_run_record *record, struct replay_reader **reader,
                          struct efs_error *err)
{
    snprintf(record->policy.name, sizeof(record->policy.name), "%s",
             record->runner == REPLAY_MMAP       ? "page-cache"
             : record->runner == REPLAY_READ_LRU ? "lru"
             : record->runner == REPLAY_READ_LFU ? "lfu"
                                                 : "layers");
    record->policy.pools = REPLAY_RAW;
    return record->runner == REPLAY_MMAP ? replay_reader_mmap(raw, reader, err)
                                         : replay_reader_slots(raw, record->runner, record->budget_bytes, reader, err);
}

static errint_t play_one(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    struct replay_run_record *record = session->report.runs;
    struct replay_raw raw = {0};
    struct replay_model of_store = {0};
    struct replay_reader *reader = NULL;
    struct replay_workload w = {0};
    errint_t rc = a->mount ? replay_client_model(a->mount, &of_store, err) : replay_raw_open(a->raw, &raw, err);
    const struct replay_model *model = a->mount ? &of_store : &raw.model;
    *record = (struct replay_run_record){.runner = a->mount ? REPLAY_EXPERTFS : REPLAY_MMAP + a->peer,
                                         .policy = a->policy[0],
                                         .predictor = a->predictor_count ? a->predictors[0].name : NULL,
                                         .batch = (uint32_t)a->batch.number[0]};
    a->setup.layers = model->layers;
    a->setup.experts = model->experts;
    a->setup.workers = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (rc == 0)
        rc = workload_open(session, &session->trace, a->trace.word[0], record->batch, a->tokens, &w, err);
    if (rc == 0 && strcmp(a->budgets.word[0], REPLAY_BUDGET_AUTO) != 0)
        replay_budget_parse(a->budgets.word[0], (double)model->expert_bytes * model->layers * model->experts,
                            &record->budget_bytes);
    if (rc == 0)
        rc = a->mount ? open_client(a, model, record, &reader, err) : open_peer(&raw, record, &reader, err);
    if (rc == 0 && session->table)
        print_head(session);
    fflush(stdout);
    if (rc == 0)
        rc = replay_run_live(reader, model, &w, a->compute, a->setup.layer_ns, show_progress, session, record, err);
    if (reader)
        reader->close(reader);
    if (record->result.tokens > 0)
        take_record(session, true);
    if (session->table && record->result.tokens > 0)
        printf("check of what was computed (%s): %016llx\n", record->compute, (unsigned long long)record->check);
    replay_workload_free(&w);
    replay_raw_close(&raw);
    replay_model_free(&of_store);
    return rc;
}

/* ---- the session -------------------------------------------------------------------------------------------- */

static errint_t session_replay(struct session *session, struct efs_error *err)
{
    struct replay_arguments *a = session->a;
    bool live = replay_arguments_live(a);
    size_t runs = (size_t)a->batch.count * a->budgets.count * a->policies.count * (a->predictor_count + 1);
    tools_interrupt_catch();
    errint_t rc = efs_route_read(a->trace.word[0], &session->trace, err);
    if (rc == 0 && a->plan_from)
        rc = efs_route_read(a->plan_from, &session->history, err);
    if (rc < 0)
        return rc;
    session->all_tokens =
        (live ? 1 : runs) * (a->tokens && a->tokens < session->trace.tokens ? a->tokens : session->trace.tokens);
    session->report = (struct replay_report){.setup = &a->setup,
                                             .trace = session->trace.name,
                                             .history = a->plan_from,
                                             .runs = calloc(runs + 1, sizeof(*session->report.runs)),
                                             .budgets = (const char *const *)a->budgets.word,
                                             .budget_count = a->budgets.count};
    if (!session->report.runs)
        return efs_fail(err, -ENOMEM, "no memory");
    session->table = !a->json || strcmp(a->json, "-") != 0;
    tools_progress_init(&session->progress, !isatty(STDERR_FILENO));
    session->progress.unit = "tokens";
    rc = live ? play_one(session, err) : simulate_all(session, err);
    if (rc == 0 && a->json)
        rc = replay_report_json(&session->report, a->json, err);
    return rc < 0 ? rc : tools_interrupted() ? -ECANCELED : 0;
}

static struct {
    char title[24]; /* in place of argv[0] */
    int (*main)(int argc, char **argv);
} commands[] = {{"moe-replay predict", predict_main},
                {"moe-replay assign", replay_assign_main},
                {"moe-replay counts", replay_counts_main},
                {"moe-replay place", replay_place_main}};

int main(int argc, char **argv)
{
    static struct replay_arguments a; /* 11 KB */
    struct efs_error err = {""};
    tools_init();
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
    efs_route_free(&session->trace);
    efs_route_free(&session->history);
    free(session->report.runs);
    free(session);
    return rc < 0 ? tools_fail("moe-replay", rc, &err) : EXIT_SUCCESS;
}
