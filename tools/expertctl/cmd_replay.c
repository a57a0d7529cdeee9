/* cmd_replay.c - expertctl replay TRACE --simulate: policies, plans and schedules on real routing, in the simulator. */
#include "expertctl.h"
#include "replay.h"

#include "interrupt.h"
#include "libexpertfs.h"
#include "progress.h"
#include "size.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 32
#define BATCH_MAX 64
#define MODEL_LAYERS_MAX 256 /* EFS_PLAN_MAX_LAYERS */
#define BUDGETS_DEFAULT "10%,25%,50%,75%"
#define POLICIES_DEFAULT "zipmoe,lru,lfu,fifo,marking"

enum {
    OPT_SIMULATE = 256,
    OPT_STORE,
    OPT_PROFILE,
    OPT_PLAN_FROM,
    OPT_PLAN,
    OPT_BUDGET,
    OPT_POLICY,
    OPT_UNIT,
    OPT_BATCH,
    OPT_TOKENS,
    OPT_SCHEDULE,
    OPT_WORKERS,
    OPT_LAYER_US,
    OPT_RUN_US,
    OPT_JSON,
    OPT_SEED,
    OPT_TUNE
};

struct arguments {
    const char *trace, *store, *profile, *plan_from, *json;
    char *budgets[LIST_MAX], *policies[LIST_MAX], *batches[LIST_MAX];
    uint32_t budget_count, policy_count, batch_count;
    bool simulate, quiet;
    enum replay_pools planned, single;
    uint64_t tokens;
    struct replay_setup setup;
    struct replay_policy policy[LIST_MAX];
    uint32_t batch[LIST_MAX];
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What to replay:", 1},
    {"simulate", OPT_SIMULATE, NULL, 0, "Replay in the simulator (needed: there is no other way yet)", 0},
    {"store", OPT_STORE, "STORE", 0,
     "The model: its layers, experts and sizes, and the profile that was measured of it (or is now, if there is none)",
     0},
    {"profile", OPT_PROFILE, "FILE", 0, "Costs and sizes from a saved profile; layers and experts as in the trace", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Only the first N tokens of the trace", 0},
    {"batch", OPT_BATCH, "N,...", 0, "Sequences at a time, 1 to 64 (default: 1)", 0},
    {NULL, 0, NULL, 0, "What to try:", 2},
    {"budget", OPT_BUDGET, "SIZE,...", 0,
     "Memory for experts: sizes, or percentages of the raw experts (default: " BUDGETS_DEFAULT ")", 0},
    {"policy", OPT_POLICY, "NAME,...", 0,
     "zipmoe, published (ZipMoE to the letter), lru, lfu, fifo, marking, oracle (knows the future); NAME:POOLS splits "
     "the budget in another way than --plan and --unit say (default: " POLICIES_DEFAULT ")",
     0},
    {"plan", OPT_PLAN, "POOLS", 0,
     "How zipmoe and published split the budget: io (default) for the least I/O time, makespan, layers (a plan for "
     "each layer), coded, even, full, raw",
     0},
    {"unit", OPT_UNIT, "POOLS", 0,
     "How the others do: coded (default), even (coded, each layer its part), full, raw (full, of files that are not "
     "coded), io, makespan, layers",
     0},
    {"plan-from", OPT_PLAN_FROM, "TRACE", 0, "Plan from this history (default: from a skew that is assumed)", 0},
    {"schedule", OPT_SCHEDULE, "KIND", 0, "Order of reads and decodes: best (default), request, paper", 0},
    {"workers", OPT_WORKERS, "N", 0, "Decode threads, 1 to 64 (default: those of the profile)", 0},
    {"layer-us", OPT_LAYER_US, "N", 0, "All else in a layer, before its experts are asked for (default: 0)", 0},
    {"run-us", OPT_RUN_US, "N", 0, "Run an expert for one token (default: 0)", 0},
    {"tune", OPT_TUNE, "NAME=NUMBER", 0,
     "Of zipmoe: delta, count_age, rate_weight, age_weight, smooth, half_life, change_bits, promote_margin; step (of "
     "the planner's grid, 0.05), counts (1: start with the history's), begin (1: tell it of each new sequence)",
     0},
    {"seed", OPT_SEED, "N", 0, "Of marking's choices (default: 1)", 0},
    {NULL, 0, NULL, 0, "Output:", 3},
    {"json", OPT_JSON, "FILE", 0, "Write the runs as JSON, too; - is standard output, without the table then", 0},
    {"quiet", 'q', NULL, 0, "No progress", 0},
    {0},
};

/* ---- options ------------------------------------------------------------------------------------------------ */

static const char *const schedule_names[EFS_SCHEDULE_KINDS] = {
    [EFS_SCHEDULE_REQUEST] = "request", [EFS_SCHEDULE_PAPER] = "paper", [EFS_SCHEDULE_BEST] = "best"};

const char *replay_schedule_name(enum efs_schedule_kind kind)
{
    return schedule_names[kind];
}

static enum efs_schedule_kind schedule_by_name(const char *name)
{
    for (unsigned k = 0; k < EFS_SCHEDULE_KINDS; k++)
        if (schedule_names[k] && strcmp(schedule_names[k], name) == 0)
            return (enum efs_schedule_kind)k;
    return EFS_SCHEDULE_KINDS;
}

static enum replay_pools pools_by_name(const char *name)
{
    unsigned p = 0;
    while (p < REPLAY_POOLS && strcmp(replay_pools_name((enum replay_pools)p), name) != 0)
        p++;
    return (enum replay_pools)p;
}

/* Cut value at its commas; value stays in use. */
static uint32_t cut_list(struct argp_state *state, const char *option, char *value, char **list)
{
    uint32_t count = 0;
    char *rest = value;
    for (char *part; (part = strsep(&rest, ","));) {
        if (!*part)
            argp_error(state, "--%s: an empty entry in the list", option);
        if (count == LIST_MAX)
            argp_error(state, "--%s: more than %d entries", option, LIST_MAX);
        else
            list[count++] = part;
    }
    return count;
}

static uint64_t number(struct argp_state *state, const char *option, const char *value, uint64_t least, uint64_t most)
{
    uint64_t n = 0;
    if (!tools_number_parse(value, least, most, &n))
        argp_error(state, "--%s %s: a number from %llu to %llu", option, value, (unsigned long long)least,
                   (unsigned long long)most);
    return n;
}

static void tune(struct argp_state *state, struct replay_setup *s, const char *value)
{
    double count_age = s->tuning.count_age, counts = s->seed_counts, begin = s->tell_sequence;
    const struct {
        const char *name;
        double *number;
    } known[] = {{"delta", &s->tuning.delta},
                 {"count_age", &count_age},
                 {"rate_weight", &s->tuning.rate_weight},
                 {"age_weight", &s->tuning.age_weight},
                 {"smooth", &s->tuning.smooth},
                 {"half_life", &s->tuning.half_life},
                 {"change_bits", &s->tuning.change_bits},
                 {"promote_margin", &s->tuning.promote_margin},
                 {"step", &s->step},
                 {"counts", &counts},
                 {"begin", &begin}};
    const char *equals = strchr(value, '=');
    size_t bytes = equals ? (size_t)(equals - value) : 0, i = 0;
    while (i < sizeof(known) / sizeof(known[0]) &&
           (strlen(known[i].name) != bytes || strncmp(known[i].name, value, bytes) != 0))
        i++;
    if (!equals || i == sizeof(known) / sizeof(known[0])) {
        argp_error(state, "--tune %s: NAME=NUMBER with a name that --help lists", value);
        return;
    }
    char *end;
    double given = strtod(equals + 1, &end);
    if (end == equals + 1 || *end || !(given >= 0 && given <= 1e9) ||
        (known[i].number == &s->step && !(given >= 0.01 && given <= 1)))
        argp_error(state, "--tune %s: a number from 0 to 1e9 (step: 0.01 to 1)", value);
    *known[i].number = given;
    s->tuning.count_age = (unsigned)count_age;
    s->seed_counts = counts > 0;
    s->tell_sequence = begin > 0;
}

static enum replay_pools pools_option(struct argp_state *state, const char *option, const char *value)
{
    enum replay_pools pools = pools_by_name(value);
    if (pools == REPLAY_POOLS)
        argp_error(state, "--%s %s: io, makespan, layers, coded, even, full or raw", option, value);
    return pools;
}

/* After all options: lists whose meaning hangs on the others. */
static void finish_options(struct argp_state *state, struct arguments *a)
{
    static char budgets[] = BUDGETS_DEFAULT, policies[] = POLICIES_DEFAULT, batches[] = "1";
    if (!a->simulate)
        argp_error(state, "--simulate is needed");
    if ((a->store != NULL) == (a->profile != NULL))
        argp_error(state, "one of --store and --profile is needed");
    if (a->budget_count == 0)
        a->budget_count = cut_list(state, "budget", budgets, a->budgets);
    if (a->policy_count == 0)
        a->policy_count = cut_list(state, "policy", policies, a->policies);
    if (a->batch_count == 0)
        a->batch_count = cut_list(state, "batch", batches, a->batches);
    for (uint32_t i = 0; i < a->batch_count; i++)
        a->batch[i] = (uint32_t)number(state, "batch", a->batches[i], 1, BATCH_MAX);
    for (uint32_t i = 0; i < a->policy_count; i++)
        if (!replay_policy_parse(a->policies[i], a->planned, a->single, &a->policy[i]))
            argp_error(state,
                       "--policy %s: zipmoe, published, lru, lfu, fifo, marking or oracle, and but for oracle :io, "
                       ":makespan, :layers, :coded, :even, :full or :raw behind it",
                       a->policies[i]);
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case OPT_SIMULATE:
        a->simulate = true;
        return 0;
    case OPT_STORE:
        a->store = value;
        return 0;
    case OPT_PROFILE:
        a->profile = value;
        return 0;
    case OPT_PLAN_FROM:
        a->plan_from = value;
        return 0;
    case OPT_PLAN:
        a->planned = pools_option(state, "plan", value);
        return 0;
    case OPT_UNIT:
        a->single = pools_option(state, "unit", value);
        return 0;
    case OPT_BUDGET:
        a->budget_count = cut_list(state, "budget", value, a->budgets);
        return 0;
    case OPT_POLICY:
        a->policy_count = cut_list(state, "policy", value, a->policies);
        return 0;
    case OPT_BATCH:
        a->batch_count = cut_list(state, "batch", value, a->batches);
        return 0;
    case OPT_TOKENS:
        a->tokens = number(state, "tokens", value, 1, UINT64_MAX);
        return 0;
    case OPT_SCHEDULE:
        a->setup.schedule = schedule_by_name(value);
        if (a->setup.schedule == EFS_SCHEDULE_KINDS)
            argp_error(state, "--schedule %s: best, request or paper", value);
        return 0;
    case OPT_WORKERS:
        a->setup.workers = (uint32_t)number(state, "workers", value, 1, EFS_TASK_MAX_WORKERS);
        return 0;
    case OPT_LAYER_US:
        a->setup.layer_ns = 1000 * number(state, "layer-us", value, 0, 100000000);
        return 0;
    case OPT_RUN_US:
        a->setup.run_token_ns = 1000 * number(state, "run-us", value, 0, 100000000);
        return 0;
    case OPT_TUNE:
        tune(state, &a->setup, value);
        return 0;
    case OPT_SEED:
        a->setup.seed = number(state, "seed", value, 0, UINT64_MAX);
        return 0;
    case OPT_JSON:
        a->json = value;
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "more than one TRACE");
        a->trace = value;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "TRACE is needed");
        return 0;
    case ARGP_KEY_SUCCESS:
        finish_options(state, a);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- what is replayed --------------------------------------------------------------------------------------- */

/* The profile of --profile or --store; the latter is measured if it never was. */
static errint_t take_profile(const struct arguments *a, struct efs_profile *profile, struct efs_error *err)
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
        fprintf(stderr, "expertctl: %s was not measured here yet: measuring\n", a->store);
        rc = efs_profile_measure(store, 0, 3, profile, err);
        if (rc == 0 && efs_profile_save(profile, &unsaved) < 0)
            fprintf(stderr, "expertctl: the profile is not saved: %s\n", unsaved.text);
    }
    efs_store_close(store);
    return rc;
}

static errint_t budget_bytes(const struct replay_setup *s, const char *text, uint64_t *bytes, struct efs_error *err)
{
    double raw = (double)s->bytes[EFS_POOL_F] * s->layers * s->experts, percent;
    char *end;
    size_t length = strlen(text);
    if (text[length - 1] != '%') {
        if (tools_size_parse(text, bytes) && *bytes > 0 && (double)*bytes <= 1e17)
            return 0;
    } else if (text[0] >= '0' && text[0] <= '9') {
        percent = strtod(text, &end);
        if (end == text + length - 1 && percent > 0 && percent <= 100) {
            *bytes = (uint64_t)(raw * percent / 100);
            return 0;
        }
    }
    return efs_fail(err, -EINVAL, "--budget %s: a size such as 8G, or a percentage up to 100%%", text);
}

/* ---- the runs ----------------------------------------------------------------------------------------------- */

struct session {
    struct arguments *a;
    struct efs_route trace, history;
    bool has_history, table;
    struct replay_report report;
    struct tools_progress progress;
    uint64_t done_tokens, all_tokens;
};

static bool show_progress(void *arg, uint64_t tokens)
{
    struct session *session = arg;
    return tools_progress_tell(&session->progress, session->done_tokens + tokens, session->all_tokens, "replaying");
}

static errint_t workload(const struct session *session, const struct efs_route *route, const char *path, uint32_t batch,
                         uint64_t tokens, struct replay_workload *w, struct efs_error *err)
{
    const struct replay_setup *s = &session->a->setup;
    int rc = replay_workload_make(route, s->layers, s->experts, batch, tokens, w);
    if (rc == -E2BIG)
        return efs_fail(err, rc, "%s: batches of %u with %u experts a token ask for more than %u experts at once", path,
                        batch, route->chosen, REPLAY_REQUEST_MAX);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

static errint_t one_run(struct session *session, const struct replay_workload *w, const struct replay_history *history,
                        uint32_t budget, const struct replay_policy *policy, struct efs_error *err)
{
    struct replay_run_record *record = &session->report.runs[session->report.count];
    const struct replay_setup *s = &session->a->setup;
    *record = (struct replay_run_record){.policy = *policy, .batch = w->batch, .budget = budget};
    errint_t rc = budget_bytes(s, session->a->budgets[budget], &record->budget_bytes, err);
    if (rc < 0)
        return rc;
    rc = replay_plan_make(s, policy, history, record->budget_bytes, &record->plan);
    if (rc < 0)
        return efs_fail(err, rc, "planning %s for %s failed: %s", session->a->budgets[budget], policy->name,
                        strerror(-rc));
    rc = replay_run(s, w, policy, history, &record->plan, show_progress, session, &record->result);
    replay_plan_free(&record->plan);
    if (rc < 0)
        return efs_fail(err, rc, "replaying with %s failed: %s", policy->name, strerror(-rc));
    session->report.count++;
    session->done_tokens += record->result.tokens;
    return 0;
}

static void print_plan(const struct replay_run_record *run)
{
    static const char letters[EFS_POOLS] = {'F', 'C', 'S', 'E'};
    char size[16];
    if (run->plan.makespan_ns <= 0)
        return;
    printf("%18s", "plan:");
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (run->plan.capacity[p])
            printf(" %c %s", letters[p], tools_size_print(run->plan.capacity[p], size, sizeof(size)));
    printf("; %.3f ms I/O, %.3f ms in all expected of a pass\n", run->plan.io_ns / 1e6, run->plan.makespan_ns / 1e6);
}

/* All budgets and policies for one batch size. */
static errint_t one_batch(struct session *session, uint32_t batch, struct efs_error *err)
{
    struct arguments *a = session->a;
    struct replay_workload w = {0}, past = {0};
    struct replay_history history = {0};
    errint_t rc = workload(session, &session->trace, a->trace, batch, a->tokens, &w, err);
    if (rc == 0 && session->has_history)
        rc = workload(session, &session->history, a->plan_from, batch, 0, &past, err);
    if (rc == 0) {
        rc = replay_history_learn(&a->setup, session->has_history ? &past : NULL, w.chosen, &history);
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", session->has_history ? a->plan_from : a->trace, strerror(-rc));
    }
    for (uint32_t b = 0; rc == 0 && !tools_interrupted() && b < a->budget_count; b++)
        for (uint32_t p = 0; rc == 0 && !tools_interrupted() && p < a->policy_count; p++) {
            rc = one_run(session, &w, &history, b, &a->policy[p], err);
            tools_progress_clear(&session->progress);
            if (rc < 0 || !session->table)
                continue;
            if (p == 0)
                replay_report_head(&session->report);
            replay_report_row(&session->report);
            print_plan(&session->report.runs[session->report.count - 1]);
            fflush(stdout);
        }
    replay_history_free(&history);
    replay_workload_free(&past);
    replay_workload_free(&w);
    return rc;
}

static void print_head(const struct session *session)
{
    const struct arguments *a = session->a;
    const struct replay_setup *s = &a->setup;
    const struct efs_profile *p = &s->profile;
    const struct efs_route *t = &session->trace;
    uint64_t tokens = a->tokens && a->tokens < t->tokens ? a->tokens : t->tokens;
    printf("%s: %s, %u layers of %u experts, %u a token; %llu of %llu tokens, cold start\n", a->trace, t->name,
           t->layers, t->experts, t->chosen, (unsigned long long)tokens, (unsigned long long)t->tokens);
    if (s->layers != t->layers || s->experts != t->experts)
        printf("mapped onto %u layers of %u experts: layers and experts modulo\n", s->layers, s->experts);
    printf("profile %016llx: disk %.2f GB/s and %.0f us, decode %.2f GB/s on each of %u workers; expert F %.2f C %.2f "
           "S %.2f E %.2f MiB\n",
           (unsigned long long)p->content_hash, p->disk_bytes_per_second / 1e9, p->read_latency_ns / 1e3,
           p->decode_bytes_per_second / 1e9, s->workers, (double)s->bytes[EFS_POOL_F] / 1048576,
           (double)s->bytes[EFS_POOL_C] / 1048576, (double)s->bytes[EFS_POOL_S] / 1048576,
           (double)s->bytes[EFS_POOL_E] / 1048576);
    if (session->has_history)
        printf("plan from %s: %llu tokens; schedule %s\n", a->plan_from, (unsigned long long)session->history.tokens,
               replay_schedule_name(s->schedule));
    else
        printf("plan from an assumed skew (--plan-from gives a history); schedule %s\n",
               replay_schedule_name(s->schedule));
}

/* Read everything and check what could not be checked before. */
static errint_t prepare(struct session *session, struct efs_error *err)
{
    struct arguments *a = session->a;
    struct replay_setup *s = &a->setup;
    uint64_t bytes;
    errint_t rc = efs_route_read(a->trace, &session->trace, err);
    if (rc == 0 && a->plan_from) {
        rc = efs_route_read(a->plan_from, &session->history, err);
        session->has_history = rc == 0;
    }
    if (rc == 0)
        rc = take_profile(a, &s->profile, err);
    if (rc < 0)
        return rc;
    s->layers = a->profile ? session->trace.layers : (uint32_t)s->profile.layers;
    s->experts = a->profile ? session->trace.experts : (uint32_t)s->profile.experts;
    if (s->layers > MODEL_LAYERS_MAX || s->experts > EFS_PLAN_MAX_EXPERTS)
        return efs_fail(err, -E2BIG, "%s: %u layers of %u experts are more than the planner takes",
                        a->store ? a->store : a->trace, s->layers, s->experts);
    replay_setup_fill(s);
    for (uint32_t b = 0; rc == 0 && b < a->budget_count; b++)
        rc = budget_bytes(s, a->budgets[b], &bytes, err);
    uint64_t tokens = a->tokens && a->tokens < session->trace.tokens ? a->tokens : session->trace.tokens;
    session->all_tokens = tokens * a->batch_count * a->budget_count * a->policy_count;
    session->report = (struct replay_report){.setup = s,
                                             .trace = session->trace.name,
                                             .history = a->plan_from,
                                             .budgets = (const char *const *)a->budgets,
                                             .budget_count = a->budget_count};
    session->report.runs =
        calloc((size_t)a->batch_count * a->budget_count * a->policy_count, sizeof(*session->report.runs));
    return rc == 0 && !session->report.runs ? efs_fail(err, -ENOMEM, "no memory") : rc;
}

static errint_t replay(struct session *session, struct efs_error *err)
{
    struct arguments *a = session->a;
    errint_t rc = prepare(session, err);
    if (rc < 0)
        return rc;
    session->table = !a->json || strcmp(a->json, "-") != 0;
    if (session->table)
        print_head(session);
    tools_interrupt_catch();
    tools_progress_init(&session->progress, a->quiet);
    session->progress.unit = "tokens";
    for (uint32_t i = 0; rc == 0 && !tools_interrupted() && i < a->batch_count; i++)
        rc = one_batch(session, a->batch[i], err);
    tools_progress_clear(&session->progress);
    if (rc < 0)
        return rc;
    if (session->table)
        replay_report_summary(&session->report);
    if (a->json)
        rc = replay_report_json(&session->report, a->json, err);
    return rc < 0 ? rc : tools_interrupted() ? -ECANCELED : 0;
}

static int run(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse_option,
        "TRACE",
        "Replay a routing trace (.route) through cache policies and schedules, and tell what each would read and how "
        "long a token would take with the costs that `expertctl profile' measured. A trace whose shape differs from "
        "the store's is mapped onto it. Ctrl-C prints what is known so far.",
        NULL,
        NULL,
        NULL};
    struct arguments a = {.planned = REPLAY_IO,
                          .single = REPLAY_CODED,
                          .setup = {.schedule = EFS_SCHEDULE_BEST, .seed = 1, .step = 0.05, .seed_counts = true}};
    struct session session = {.a = &a};
    struct efs_error err = {""};
    a.setup.tuning.count_age = 64;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = replay(&session, &err);
    efs_route_free(&session.trace);
    efs_route_free(&session.history);
    free(session.report.runs);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_replay = {"replay", "play routing traces through policies and schedules", run};
