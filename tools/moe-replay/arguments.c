/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.c - the command line of moe-replay. */
#include "arguments.h"

#include "foresight.h"
#include "gpu_cache.h"
#include "mount.h"

#include "options.h"
#include "size.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 64
#define ALLOWANCE_DEFAULT (UINT64_C(192) << 20) /* a daemon leaves up to 64 MiB of a cgroup free */
#define DISTANCE_DEFAULT 4
#define SWAPS_DEFAULT 8 /* DALI, of models with many experts */
#define PIECE_DEFAULT (UINT64_C(512) << 10)
#define BUDGETS_DEFAULT "10%,25%,50%,75%"
#define POLICIES_DEFAULT "zipmoe,lru,lfu,fifo,marking"

enum {
    OPT_SIMULATE = 256,
    OPT_MOUNT,
    OPT_PEER,
    OPT_RAW,
    OPT_PROFILE,
    OPT_PLAN,
    OPT_BUDGET,
    OPT_POLICY,
    OPT_UNIT,
    OPT_PREDICT,
    OPT_PREFETCH,
    OPT_TURNS,
    OPT_SCHEDULE,
    OPT_WORKERS,
    OPT_COMPUTE,
    OPT_THREADS,
    OPT_ALLOWANCE,
    OPT_PREALLOC,
    OPT_WARM,
    OPT_EXPERTFS,
    OPT_RUN_US,
    OPT_OPEN_US,
    OPT_JSON,
    OPT_TUNE
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What to replay:", 1},
    {"simulate", OPT_SIMULATE, NULL, 0, "Replay in the simulator", 0},
    {"mount", OPT_MOUNT, "STORE|DIR", 0,
     "Replay through a mount: of STORE, by a daemon of its own for each run, or the one that is at DIR", 0},
    {"peer", OPT_PEER, "NAME,...", 0,
     "Replay on the raw checkpoint as others do: mmap (its files mapped), read-lru (experts read with O_DIRECT into an "
     "LRU)",
     0},
    {"raw", OPT_RAW, "DIR", 0, "The raw checkpoint that the store was made of (safetensors)", 0},
    {"store", REPLAY_OPT_STORE, "STORE", 0,
     "The model: its layers, experts and sizes, and the profile that was measured of it (or is now, if there is none)",
     0},
    {"profile", OPT_PROFILE, "FILE", 0, "Costs and sizes from a saved profile; layers and experts as in the trace", 0},
    {"tokens", REPLAY_OPT_TOKENS, "N", 0, "Only the first N tokens of the trace", 0},
    {"batch", REPLAY_OPT_BATCH, "N,...", 0, "Sequences at a time, 1 to 64 (default: 1)", 0},
    {NULL, 0, NULL, 0, "What to try:", 2},
    {"budget", OPT_BUDGET, "SIZE,...", 0,
     "Memory for experts: sizes, or percentages of the raw experts (default: " BUDGETS_DEFAULT ")", 0},
    {"policy", OPT_POLICY, "NAME,...", 0,
     "zipmoe, published (ZipMoE to the letter), lru, lfu, fifo, marking; NAME:POOLS splits the budget in another way "
     "than --plan and --unit say (default: " POLICIES_DEFAULT "). Of the simulator, on whole coded experts: oracle "
     "(knows the future), least-stale, layer-lfu, fmoe, moe-infinity, dali, dali-printed (to the letter)",
     0},
    {"plan", OPT_PLAN, "POOLS", 0,
     "How zipmoe and published split the budget: makespan (default, as mounts do) for the least time, io for the least "
     "time of reading, coded, even, full, raw",
     0},
    {"unit", OPT_UNIT, "POOLS", 0,
     "How the others do: coded (default), even (coded, each layer its part), full, raw (full, of files that are not "
     "coded), io, makespan",
     0},
    {"plan-from", REPLAY_OPT_PLAN_FROM, "TRACE", 0, "Plan from this history (default: from a skew that is assumed)", 0},
    {"predict", OPT_PREDICT, "NAME,...", 0,
     "Each policy also with guesses that are read ahead, by all (predictors of `moe-replay predict' and perfect, which "
     "knows what comes), or some of them; they learn as they go, and in the simulator from --plan-from's history "
     "first; "
     "a mount has mixed, fmoe and moe-infinity",
     0},
    {"prefetch", OPT_PREFETCH, "MODE", 0, "Guesses are read while that is faster (auto, the default), or always", 0},
    {"turns", OPT_TURNS, "N", 0,
     "Of a mount, with one predictor: N passes with guesses and N without by turns in a run, which begins with them or "
     "without, a run each; --json has the time of every pass. N:WITHOUT has "
     "that option prefetch in place of off there: auto:token=1 predicts and reads nothing",
     0},
    {"schedule", OPT_SCHEDULE, "KIND", 0,
     "Of the simulator, order of reads and decodes: request (default, as mounts do), paper", 0},
    {"workers", OPT_WORKERS, "N", 0, "Decode threads, 1 to 64 (default: those of the profile)", 0},
    {"compute", OPT_COMPUTE, "WHAT", 0,
     "Of all but the simulator, with the experts of a layer: none, touch (a load per 64 bytes, the default), ffn (run "
     "them in BF16), ffn-coded (--mount STORE: run them in this program by the library, from the coded form; others "
     "run them as with ffn)",
     0},
    {"threads", OPT_THREADS, "N", 0, "That compute, 1 to 64 (default: all cores)", 0},
    {"layer-us", REPLAY_OPT_LAYER_US, "N", 0, "All else in a layer, before its experts are asked for (default: 0)", 0},
    {"open-us", OPT_OPEN_US, "N", 0,
     "Of the simulator: hand out an expert that was not full (default: beside --mount what that takes there, else 0)",
     0},
    {"run-us", OPT_RUN_US, "N", 0, "Run an expert for one token (default: 0)", 0},
    {"tune", OPT_TUNE, "NAME=NUMBER", 0,
     "Of zipmoe: delta, count_age, rate_weight, age_weight, smooth, half_life, change_bits, promote_margin; step (of "
     "the planner's grid, 0.05), counts (1: start with the history's), begin (1: tell it of each new sequence). Of "
     "guesses: share (of the budget), token_mib (read for a token, at most), distance (layers ahead). Of dali: swaps",
     0},
    {"seed", REPLAY_OPT_SEED, "N", 0, "Of marking's choices (default: 1)", 0},
    {"allowance", OPT_ALLOWANCE, "SIZE", 0,
     "Of the memory cgroup around a run, above the budget: for the process that plays, and the kernel's tables "
     "(default: 192M)",
     0},
    {"prealloc", OPT_PREALLOC, NULL, 0, "A run takes all its memory before its first token, not while it plays", 0},
    {"warm", OPT_WARM, NULL, 0, "expertfs fills memory that is still empty while the disk rests (its option warm)", 0},
    {"expertfs", OPT_EXPERTFS, "PROGRAM", 0, "The daemon (default: beside moe-replay, or as PATH has it)", 0},
    {NULL, 0, NULL, 0, "Output:", 3},
    {"json", OPT_JSON, "FILE", 0, "Write the runs as JSON, too; - is standard output, without the table then", 0},
    {"quiet", REPLAY_OPT_QUIET, NULL, 0, "No progress", 0},
    {0},
};

/* ---- options ------------------------------------------------------------------------------------------------ */

static void parse_tune(struct argp_state *state, struct replay_setup *s, const char *value)
{
    double count_age = s->tuning.count_age, counts = s->seed_counts, begin = s->tell_sequence;
    double token_mib = (double)s->governor.iteration_bytes / 1048576, distance = s->distances;
    double piece_kib = (double)s->piece_bytes / 1024, swaps = s->swaps;
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
                 {"begin", &begin},
                 {"share", &s->governor.share},
                 {"token_mib", &token_mib},
                 {"piece_kib", &piece_kib},
                 {"least", &s->governor.least},
                 {"swaps", &swaps},
                 {"distance", &distance}};
    const char *equals = strchr(value, '=');
    size_t bytes = equals ? (size_t)(equals - value) : 0, i = 0;
    while (i < sizeof(known) / sizeof(known[0]) &&
           (strlen(known[i].name) != bytes || strncmp(known[i].name, value, bytes) != 0))
        i++;
    if (!equals || i == sizeof(known) / sizeof(known[0])) {
        argp_error(state, "--tune %s: NAME=NUMBER with a name that --help lists", value);
        return;
    }
    double given = 0;
    if (!tools_decimal_parse(equals + 1, 0, 1e9, &given) ||
        (known[i].number == &s->step && !(given >= 0.01 && given <= 1)) ||
        (known[i].number == &s->governor.share && given > 1) || (known[i].number == &piece_kib && given < 4) ||
        (known[i].number == &swaps && given > EFS_GPU_SWAPS_MAX) ||
        (known[i].number == &distance && !(given >= 1 && given <= EFS_PREDICT_MAX_DISTANCE)))
        argp_error(
            state,
            "--tune %s: a number from 0 to 1000000000 (step: 0.01 to 1; share: to 1; distance: 1 to %u; swaps: to %u)",
            value, EFS_PREDICT_MAX_DISTANCE, EFS_GPU_SWAPS_MAX);
    *known[i].number = given;
    s->tuning.count_age = (unsigned)count_age;
    s->seed_counts = counts > 0;
    s->tell_sequence = begin > 0;
    s->governor.iteration_bytes = (uint64_t)(token_mib * 1048576);
    s->distances = (unsigned)distance;
    s->swaps = (uint32_t)swaps;
    s->piece_bytes = (uint64_t)(piece_kib * 1024);
}

bool replay_budget_parse(const char *text, double raw_bytes, uint64_t *bytes)
{
    char number[32];
    size_t length = strlen(text);
    double percent;
    if (text[0] == '\0' || text[length - 1] != '%')
        return efs_parse_size(text, bytes) == 0 && *bytes > 0 && (double)*bytes <= 1e17;
    if (length > sizeof(number))
        return false;
    memcpy(number, text, length - 1);
    number[length - 1] = '\0';
    if (!tools_decimal_parse(number, 0, 100, &percent) || percent == 0)
        return false;
    *bytes = (uint64_t)(raw_bytes * percent / 100);
    return true;
}

static enum replay_pools pools_option(struct argp_state *state, const char *option, const char *value)
{
    enum replay_pools pools = replay_pools_by_name(value);
    if (pools == REPLAY_POOLS)
        argp_error(state, "--%s %s: io, makespan, coded, even, full or raw", option, value);
    return pools;
}

static enum replay_runner peer_by_name(struct argp_state *state, const char *name)
{
    for (unsigned r = REPLAY_MMAP; r < REPLAY_RUNNERS; r++)
        if (strcmp(replay_runner_name((enum replay_runner)r), name) == 0)
            return (enum replay_runner)r;
    argp_error(state, "--peer %s: mmap or read-lru", name);
    return REPLAY_MMAP;
}

static void add_predictor(struct argp_state *state, struct replay_arguments *a, const char *name, bool named)
{
    struct predict_choice *choice = &a->predictors[a->predictor_count];
    if (a->predictor_count == REPLAY_LIST_MAX) {
        argp_error(state, "--predict: more than %d entries", REPLAY_LIST_MAX);
        return;
    }
    if (!replay_foresight_parse(name, choice))
        argp_error(state, "--predict %s: there is no such predictor", name);
    choice->named = named;
    a->predictor_count++;
}

static void parse_predictors(struct argp_state *state, struct replay_arguments *a)
{
    char *names[REPLAY_LIST_MAX];
    uint32_t count = tools_option_words(state, "predict", a->predict, names, REPLAY_LIST_MAX);
    for (uint32_t i = 0; i < count; i++) {
        bool all = strcmp(names[i], "all") == 0;
        for (enum efs_predictor_kind kind = 0; all && kind < EFS_PREDICTORS; kind++)
            add_predictor(state, a, efs_predictor_name(kind), false);
        add_predictor(state, a, all ? REPLAY_PERFECT : names[i], !all);
    }
}

/* Of a mount, which has some predictors only and no more for guesses than a part. */
static void check_guesses(struct argp_state *state, const struct replay_arguments *a)
{
    for (uint32_t i = 0; i < a->predictor_count && !a->simulate; i++)
        if (a->predictors[i].named && !replay_mount_predicts(a->predictors[i].name))
            argp_error(state, "--predict %s: a mount has mixed, fmoe and moe-infinity; --simulate has it",
                       a->predictors[i].name);
    if (a->setup.governor.share > REPLAY_MOUNT_SHARE_MOST)
        argp_error(state, "--tune share=%g: a mount takes %g at most", a->setup.governor.share,
                   REPLAY_MOUNT_SHARE_MOST);
}

/* After all options: lists whose meaning hangs on the others. */
static void finish_options(struct argp_state *state, struct replay_arguments *a)
{
    static char budgets[] = BUDGETS_DEFAULT, policies[] = POLICIES_DEFAULT;
    if (!a->simulate && !a->mount && a->peer_count == 0)
        argp_error(state, "--simulate, --mount or --peer is needed");
    if (a->profile && (a->shared.store || a->mount || a->peer_count > 0))
        argp_error(state, "--profile goes with --simulate alone");
    if (!a->profile && !a->shared.store && !a->mount)
        argp_error(state, "one of --store and --profile is needed");
    if (a->peer_count > 0 && !a->raw)
        argp_error(state, "--peer needs --raw: the raw checkpoint");
    for (uint32_t i = 0; i < a->peer_count; i++)
        a->peer[i] = peer_by_name(state, a->peers[i]);
    if (a->budget_count == 0)
        a->budget_count = tools_option_words(state, "budget", budgets, a->budgets, REPLAY_LIST_MAX);
    if (a->policy_count == 0)
        a->policy_count = tools_option_words(state, "policy", policies, a->policies, REPLAY_LIST_MAX);
    if (a->predict)
        parse_predictors(state, a);
    if (a->mount)
        check_guesses(state, a);
    if (a->turns && (!a->mount || a->simulate || a->predictor_count != 1))
        argp_error(state, "--turns goes with --mount and one predictor of --predict, without --simulate");
    for (uint32_t i = 0; i < a->policy_count; i++)
        if (!replay_policy_parse(a->policies[i], a->planned, a->single, &a->policy[i]))
            argp_error(state,
                       "--policy %s: zipmoe, published, lru, lfu, fifo or marking, with :io, :makespan, :coded, :even, "
                       ":full or :raw behind it or not; or one of the simulator's that --help lists",
                       a->policies[i]);
}

static void parse_turns(struct argp_state *state, struct replay_arguments *a, char *value)
{
    char *colon = strchr(value, ':');
    if (colon) {
        *colon = '\0';
        a->without = colon + 1;
    }
    a->turns = (uint32_t)tools_option_number(state, "turns", value, 1, 1000000);
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct replay_arguments *a = state->input;
    uint64_t budget_bytes;
    switch (key) {
    case OPT_SIMULATE:
        a->simulate = true;
        return 0;
    case OPT_MOUNT:
        a->mount = value;
        return 0;
    case OPT_PEER:
        a->peer_count = tools_option_words(state, "peer", value, a->peers, REPLAY_LIST_MAX);
        return 0;
    case OPT_RAW:
        a->raw = value;
        return 0;
    case OPT_PROFILE:
        a->profile = value;
        return 0;
    case OPT_PLAN:
        a->planned = pools_option(state, "plan", value);
        return 0;
    case OPT_UNIT:
        a->single = pools_option(state, "unit", value);
        return 0;
    case OPT_BUDGET:
        a->budget_count = tools_option_words(state, "budget", value, a->budgets, REPLAY_LIST_MAX);
        for (uint32_t b = 0; b < a->budget_count; b++)
            if (!replay_budget_parse(a->budgets[b], 1, &budget_bytes))
                argp_error(state, "--budget %s: a size such as 8G, or a percentage up to 100%%", a->budgets[b]);
        return 0;
    case OPT_POLICY:
        a->policy_count = tools_option_words(state, "policy", value, a->policies, REPLAY_LIST_MAX);
        return 0;
    case OPT_PREDICT:
        a->predict = value;
        return 0;
    case OPT_PREFETCH:
        if (strcmp(value, "auto") != 0 && strcmp(value, "always") != 0)
            argp_error(state, "--prefetch %s: auto or always", value);
        a->setup.governor.mode = value[1] == 'l' ? EFS_GOVERNOR_ALWAYS : EFS_GOVERNOR_AUTO;
        return 0;
    case OPT_TURNS:
        parse_turns(state, a, value);
        return 0;
    case OPT_SCHEDULE:
        a->setup.schedule = replay_schedule_by_name(value);
        if (a->setup.schedule == EFS_SCHEDULE_KINDS)
            argp_error(state, "--schedule %s: request or paper", value);
        return 0;
    case OPT_WORKERS:
        a->setup.workers = a->workers = (uint32_t)tools_option_number(state, "workers", value, 1, EFS_TASK_MAX_WORKERS);
        return 0;
    case OPT_COMPUTE:
        a->compute = replay_compute_by_name(value);
        if (a->compute == REPLAY_COMPUTE_KINDS)
            argp_error(state, "--compute %s: none, touch, ffn or ffn-coded", value);
        return 0;
    case OPT_THREADS:
        a->threads = (uint32_t)tools_option_number(state, "threads", value, 1, THREADS_MAX);
        return 0;
    case OPT_ALLOWANCE:
        a->allowance_bytes = tools_option_size(state, "allowance", value, 0, UINT64_C(1) << 40);
        return 0;
    case OPT_OPEN_US:
        a->setup.open_ns = 1000 * tools_option_number(state, "open-us", value, 0, 100000000);
        a->open_given = true;
        return 0;
    case OPT_PREALLOC:
        a->prealloc = true;
        return 0;
    case OPT_WARM:
        a->warm = true;
        return 0;
    case OPT_EXPERTFS:
        a->program = value;
        return 0;
    case OPT_RUN_US:
        a->setup.run_token_ns = 1000 * tools_option_number(state, "run-us", value, 0, 100000000);
        return 0;
    case OPT_TUNE:
        parse_tune(state, &a->setup, value);
        return 0;
    case OPT_JSON:
        a->json = value;
        return 0;
    case ARGP_KEY_SUCCESS:
        finish_options(state, a);
        return 0;
    default:
        return replay_shared_parse(state, key, value, &a->shared) == 0
                   ? 0
                   : tools_option_argument(state, key, value, "TRACE", &a->trace);
    }
}

void replay_arguments_parse(int argc, char **argv, struct replay_arguments *a)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = "TRACE",
        .doc = "Replay a routing trace (.route) through cache policies and schedules: in a simulator with the costs "
               "that `expertctl profile' measured, through a mount, or on the raw checkpoint as others would; and tell "
               "what each reads and how long a token takes. A trace whose shape differs from the store's is mapped "
               "onto it. Ctrl-C prints what is known so far.\v"
               "Exit status: 0 all ran, 1 failed or runs differ in what they saw, 2 wrong usage, 130 interrupted."};
    *a = (struct replay_arguments){.planned = REPLAY_MAKESPAN,
                                   .single = REPLAY_CODED,
                                   .without = "off",
                                   .compute = REPLAY_COMPUTE_TOUCH,
                                   .allowance_bytes = ALLOWANCE_DEFAULT,
                                   .shared = {.seed = 1, .batch = {1}, .batch_count = 1},
                                   .setup = {.schedule = EFS_SCHEDULE_REQUEST,
                                             .step = 0.05,
                                             .seed_counts = true,
                                             .swaps = SWAPS_DEFAULT,
                                             .piece_bytes = PIECE_DEFAULT,
                                             .distances = DISTANCE_DEFAULT}};
    a->setup.tuning.count_age = 64;
    argp_parse(&argp, argc, argv, 0, NULL, a);
    a->setup.seed = a->shared.seed;
    a->setup.layer_ns = a->shared.layer_ns;
}
