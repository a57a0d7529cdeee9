/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.c - the command line of moe-replay. */
#include "arguments.h"

#include "gpu_cache.h"
#include "route.h"
#include "size.h"

#include <string.h>

#define BATCH_MAX 64
#define US_MAX 100000000
#define SWAPS_DEFAULT 8 /* DALI's value for models with many experts */
#define NO_PEER (REPLAY_RUNNERS - REPLAY_MMAP)

#define WORD(KIND, name) #name ", "
#define POLICIES EFS_POLICIES(WORD) "published"
#define POOLS "io, makespan, coded, even, full, raw"
#define SIMULATED "oracle, least-stale, layer-lfu, fmoe, moe-infinity, dali, dali-printed, accelerate, zero-3"

#define AT(field) .at = offsetof(struct replay_arguments, field)

static void take_tune(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct replay_setup *s = &((struct replay_arguments *)into)->setup;
    double number = 0;
    bool share = strncmp(value, "share=", 6) == 0;
    if ((!share && strncmp(value, "swaps=", 6) != 0) ||
        !tools_decimal_parse(value + 6, 0, share ? 1 : EFS_GPU_SWAPS_MAX, &number))
        argp_error(state, "--%s %s: share=0 to share=1, or swaps=0 to swaps=%u", option->name, value,
                   EFS_GPU_SWAPS_MAX);
    if (share)
        s->governor.share = number;
    else
        s->swaps = (uint32_t)number;
}

static void take_budgets(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct tools_list *list = &((struct replay_arguments *)into)->budgets;
    uint64_t bytes;
    tools_option_words(state, option->name, value, list);
    for (uint32_t b = 0; b < list->count; b++)
        if (!replay_budget_parse(list->word[b], 1, &bytes))
            argp_error(state, "--%s %s: a size such as 8G, or a percentage up to 100%%", option->name, list->word[b]);
}

static const struct tools_option options[] = {
    {.kind = TOOLS_HEADING, .help = "The model, in the simulator:"},
    {"store", 0, "STORE", "Layers, experts and sizes of STORE, and its profile, which is measured where there is none",
     TOOLS_TEXT, AT(store)},
    {"profile", 0, "FILE", "Costs and sizes from a saved profile; layers and experts as in the trace", TOOLS_TEXT,
     AT(profile)},
    {.kind = TOOLS_HEADING, .help = "On real files, one run:"},
    {"mount", 0, "DIR|STORE", "Through the mount at DIR, as it is, or by the library on STORE", TOOLS_TEXT, AT(mount)},
    {"peer", 0, "NAME",
     "As others do: mmap (files mapped), read-lru, read-lfu (experts read with O_DIRECT into an LRU or LFU), "
     "accelerate, zero-3 (whole layers read)",
     TOOLS_WORD, AT(peer), .words = "mmap|read-lru|accelerate|zero-3|read-lfu"},
    {"raw", 0, "DIR", "The checkpoint that --peer reads", TOOLS_TEXT, AT(raw)},
    {"compute", 0, "WHAT",
     "With the experts of a layer: none, touch (a load per 64 bytes, the default), touch-coded (of the coded form), "
     "ffn (run them in BF16), ffn-coded (by the library, from the coded form)",
     TOOLS_WORD, AT(compute), .words = "none|touch|touch-coded|ffn|ffn-coded"},
    {.kind = TOOLS_HEADING, .help = "What to replay:"},
    {"tokens", 0, "N", "Only the first N tokens of the trace", TOOLS_NUMBER, AT(tokens), .least = 1},
    {"batch", 0, "N,...", "Sequences at a time, 1 to 64 (default: 1)", TOOLS_NUMBERS, AT(batch), .least = 1,
     .most = BATCH_MAX},
    {"budget", 0, "SIZE,...",
     "Memory for experts: sizes, or percentages of all experts in full (default: 10%,25%,50%,75%)", TOOLS_CALL,
     .parse = take_budgets},
    {"policy", 0, "NAME,...",
     POLICIES " (default: all but published), or NAME:POOLS with " POOLS "; of the simulator: " SIMULATED
              "; see moe-replay(1)",
     TOOLS_LIST, AT(policies)},
    {"plan-from", 0, "TRACE", "Plan from this history (default: from an assumed skew)", TOOLS_TEXT, AT(plan_from)},
    {"predict", 0, "NAME,...",
     "Each policy also with experts read ahead, as guessed by all, some predictors of `moe-replay predict', or perfect",
     TOOLS_LIST, AT(predict)},
    {"schedule", 0, "KIND", "Order of reads and decodes, simulated: request (default, as mounts do), paper", TOOLS_WORD,
     AT(schedule), .words = "request|paper"},
    {"layer-us", 0, "N", "Time of all else in a layer, before its experts are asked for (default: 0)", TOOLS_NUMBER,
     AT(layer_us), .most = US_MAX},
    {"run-us", 0, "N", "Time of an expert for one token, in the simulator (default: 0)", TOOLS_NUMBER, AT(run_us),
     .most = US_MAX},
    {"tune", 0, "NAME=NUMBER", "share: of the budget, for guesses; swaps: experts that dali exchanges at once (8)",
     TOOLS_CALL, .parse = take_tune},
    {.kind = TOOLS_HEADING, .help = "Output:"},
    {"json", 0, "FILE", "Write the runs as JSON, too; - is standard output, without the table then", TOOLS_TEXT,
     AT(json)},
    {0}};

bool replay_arguments_live(const struct replay_arguments *a)
{
    return a->mount || a->peer != NO_PEER;
}

/* Refuses options of the simulator, and lists: a process replays one run on real files. */
static void check_live(const struct argp_state *state, const struct replay_arguments *a)
{
    if (a->mount && a->peer != NO_PEER)
        argp_error(state, "--mount and --peer are runs of their own");
    if (a->store || a->profile)
        argp_error(state, "--store and --profile are of the simulator");
    if (a->plan_from)
        argp_error(state, "--plan-from is of the simulator: a mount starts with what `moe-replay counts' wrote");
    if (a->peer != NO_PEER && !a->raw)
        argp_error(state, "--peer needs --raw: the checkpoint");
    if (a->budgets.count > 1 || a->policies.count > 1 || a->predictor_count > 1 || a->batch.count > 1)
        argp_error(state, "--mount and --peer play one run: one --budget, --policy, --predict and --batch");
    if (a->predictor_count && strcmp(a->predictors[0].name, "mixed") != 0)
        argp_error(state, "--predict %s: the simulator alone has it, --mount predicts with mixed",
                   a->predictors[0].name);
}

/* A wrong trace is reported first. */
static void fail_choice(const struct argp_state *state, const char *path)
{
    struct efs_route trace = {0};
    struct efs_error err = {""};
    if (efs_route_read(path, &trace, &err) < 0)
        argp_error(state, "%s", err.text);
    argp_error(state, "one of --store, --profile, --mount and --peer is needed");
}

static void finish_options(const struct argp_state *state, void *into)
{
    static char budgets[][8] = {"10%", "25%", "50%", "75%"}, any[] = REPLAY_BUDGET_AUTO;
#define WORD_OF(KIND, name) #name,
    static char policies[EFS_POLICY_KINDS][16] = {EFS_POLICIES(WORD_OF)};
    struct replay_arguments *a = into;
    bool live = replay_arguments_live(a);
    a->predictor_count = predict_choices_parse(state, "predict", &a->predict, true, a->predictors);
    if (live)
        check_live(state, a);
    else if (a->profile ? a->store != NULL : a->store == NULL)
        fail_choice(state, a->trace.word[0]);
    for (uint32_t b = 0; a->budgets.count == 0 && b < (live ? 1 : 4); b++)
        a->budgets.word[b] = live ? any : budgets[b];
    a->budgets.count = a->budgets.count ? a->budgets.count : live ? 1 : 4;
    for (uint32_t i = 0; a->policies.count == 0 && i < (live ? 1 : EFS_POLICY_KINDS); i++)
        a->policies.word[i] = policies[i];
    a->policies.count = a->policies.count ? a->policies.count : live ? 1 : EFS_POLICY_KINDS;
    for (uint32_t i = 0; i < a->policies.count; i++)
        if (!replay_policy_parse(a->policies.word[i], &a->policy[i]))
            argp_error(state,
                       "--policy %s: must be one of " POLICIES ", also with :POOLS, which are " POOLS "; or " SIMULATED,
                       a->policies.word[i]);
    a->setup.schedule = a->schedule;
    a->setup.layer_ns = 1000 * a->layer_us;
    a->setup.run_token_ns = 1000 * a->run_us;
    a->setup.run_coded = a->compute == REPLAY_COMPUTE_FFN_CODED;
}

void replay_arguments_parse(int argc, char **argv, struct replay_arguments *a)
{
    static const struct tools_command command = {
        .options = options,
        .arguments = "--store=STORE|--profile=FILE TRACE\n--mount=DIR|STORE TRACE\n--peer=NAME --raw=DIR TRACE",
        AT(trace),
        .help = "Replay a routing trace (.route) through cache policies, in a simulator with the costs that "
                "`expertctl profile' measured (--store or --profile); or once on real files: through a mount or by "
                "the library (--mount), or as programs without expertfs read the checkpoint (--peer). A trace of "
                "another shape is mapped onto the model. Ctrl-C prints what is known so far.\v"
                "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted.\n"
                "Commands: moe-replay predict|assign|place|counts --help",
        .finish = finish_options};
    *a = (struct replay_arguments){
        .peer = NO_PEER, .compute = REPLAY_COMPUTE_TOUCH, .batch = {{1}, 1}, .setup = {.swaps = SWAPS_DEFAULT}};
    tools_parse(&command, argc, argv, a);
}
