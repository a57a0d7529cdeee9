/* SPDX-License-Identifier: Apache-2.0 */
/* place_command.c - moe-replay place: options, and all that is to be tried. */
#include "place_command.h"

#include "failure.h"
#include "interrupt.h"
#include "options.h"
#include "shared_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MOST (UINT64_C(1) << 40)
#define REQUESTS_MAX 1e7 /* of a run, which are all in memory */

enum {
    OPT_SERVERS = 256,
    OPT_RULES,
    OPT_GPUS,
    OPT_MEMORY,
    OPT_EXPERT,
    OPT_HIDDEN,
    OPT_SHAPE,
    OPT_MBPS,
    OPT_LATENCY_US,
    OPT_LOAD,
    OPT_EXPERT_US,
    OPT_TOKEN_US,
    OPT_ARRIVAL,
    OPT_DURATION,
    OPT_PROMPT,
    OPT_OUTPUT,
    OPT_SKEW,
    OPT_REVIEW,
    OPT_SWITCH
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Servers:", 1},
    {"servers", OPT_SERVERS, "N,...", 0, "How many, 1 to 1024 (default 4,16,64)", 0},
    {"gpus", OPT_GPUS, "N,...", 0, "Graphics processors of one server after the other (default 1,1,2)", 0},
    {"memory", OPT_MEMORY, "N", 0, "Percent of all experts that a graphics processor holds (default 30)", 0},
    {"mbps", OPT_MBPS, "N,...", 0, "Link of a server, megabits a second (default 500)", 0},
    {"latency-us", OPT_LATENCY_US, "N", 0, "Of a message, one way (default 500)", 0},
    {"load", OPT_LOAD, "SIZE", 0, "Loaded into a graphics processor each second (default 1G)", 0},
    {NULL, 0, NULL, 0, "Model:", 2},
    {"shape", OPT_SHAPE, "LxExK", 0, "Map the traces onto L layers, E experts, K chosen", 0},
    {"expert", OPT_EXPERT, "SIZE", 0, "Weights of an expert (default 16M)", 0},
    {"hidden", OPT_HIDDEN, "N", 0, "Hidden size: twice as many bytes are sent of a token (default 2048)", 0},
    {"layer-us", REPLAY_OPT_LAYER_US, "N", 0, "All of a layer but its experts (default 300)", 0},
    {"expert-us", OPT_EXPERT_US, "N", 0, "Run an expert (default 100)", 0},
    {"token-us", OPT_TOKEN_US, "N", 0, "Each of its tokens, and each of a layer's (default 5)", 0},
    {NULL, 0, NULL, 0, "Users:", 3},
    {"arrival", OPT_ARRIVAL, "SECONDS", 0, "Between two requests at a server, mean (default 10)", 0},
    {"duration", OPT_DURATION, "SECONDS", 0, "Of arrivals (default 3600)", 0},
    {"prompt", OPT_PROMPT, "N", 0, "Tokens of a request that go through at once (default 64)", 0},
    {"output", OPT_OUTPUT, "N", 0, "Tokens that go through one by one (default 20)", 0},
    {"skew", OPT_SKEW, "N,...", 0, "Percent of a server's requests that are of its own task (default 100)", 0},
    {"switch", OPT_SWITCH, NULL, 0, "At half time servers change their tasks", 0},
    {NULL, 0, NULL, 0, "What to try:", 4},
    {"rules", OPT_RULES, "NAME,...", 0,
     "uniform, redundance, smartmoe, eplb, greedy, prism, ours-calls, ours, offload, redirect, all-local (default: "
     "all)",
     0},
    {"review", OPT_REVIEW, "SECONDS", 0, "Between reviews of the placement; 0: none (default 300)", 0},
    {"seed", REPLAY_OPT_SEED, "N", 0, "Of all that is random (default 1)", 0},
    {NULL, 0, NULL, 0, "Output:", 5},
    {"quiet", REPLAY_OPT_QUIET, NULL, 0, "No progress", 0},
    {0}};

struct list {
    double value[REPLAY_PLACE_LIST];
    uint32_t count;
};

struct arguments {
    struct replay_shared shared;
    char *paths[REPLAY_TASKS_MAX];
    uint32_t path_count, shape[3];
    struct list servers, mbps, skew;
    unsigned rows[REPLAY_PLACE_ROWS], row_count;
    uint32_t prompt, output;
    struct replay_place_setup setup;
};

static void parse_list(const struct argp_state *state, const char *option, const char *text, uint64_t least,
                       uint64_t most, struct list *list)
{
    uint64_t number[REPLAY_PLACE_LIST];
    list->count = tools_option_numbers(state, option, text, least, most, number, REPLAY_PLACE_LIST);
    for (uint32_t i = 0; i < list->count; i++)
        list->value[i] = (double)number[i];
}

static void parse_rows(const struct argp_state *state, struct arguments *a, char *text)
{
    char *words[REPLAY_PLACE_ROWS];
    uint32_t count = tools_option_words(state, "rules", text, words, REPLAY_PLACE_ROWS);
    a->row_count = 0;
    for (uint32_t w = 0; w < count; w++) {
        unsigned row = 0;
        while (row < REPLAY_PLACE_ROWS && strcmp(replay_place_name(row), words[w]) != 0)
            row++;
        bool again = false;
        for (unsigned i = 0; i < a->row_count; i++)
            again |= a->rows[i] == row;
        if (row == REPLAY_PLACE_ROWS || again)
            argp_error(state, "--rules %s: there is no such rule, or it was named before", words[w]);
        a->rows[a->row_count++] = row;
    }
}

static void parse_shape(const struct argp_state *state, struct arguments *a, const char *text)
{
    int end = 0;
    if (sscanf(text, "%4ux%5ux%2u%n", &a->shape[0], &a->shape[1], &a->shape[2], &end) != 3 || text[end] != '\0' ||
        a->shape[0] < 1 || a->shape[0] > EFS_PLACE_LAYERS_MAX || a->shape[1] < 1 ||
        a->shape[1] > EFS_PLACE_EXPERTS_MAX || a->shape[2] < 1 || a->shape[2] > a->shape[1])
        argp_error(state, "--shape %s: LAYERSxEXPERTSxCHOSEN, such as 26x64x6", text);
}

static double parse_number(const struct argp_state *state, const char *option, const char *text, uint64_t least)
{
    return (double)tools_option_number(state, option, text, least, 1000000);
}

static bool parse_machine(int key, const char *value, const struct argp_state *state, struct arguments *a)
{
    struct replay_place_setup *s = &a->setup;
    struct list gpus;
    switch (key) {
    case OPT_GPUS:
        parse_list(state, "gpus", value, 1, EFS_PLACE_GPUS_MAX, &gpus);
        s->gpu_kinds = gpus.count;
        for (uint32_t i = 0; i < gpus.count; i++)
            s->gpus[i] = (uint32_t)gpus.value[i];
        return true;
    case OPT_MEMORY:
        s->memory = (double)tools_option_number(state, "memory", value, 1, 100) / 100;
        return true;
    case OPT_EXPERT:
        s->expert_bytes = tools_option_size(state, "expert", value, 1, SIZE_MOST);
        return true;
    case OPT_LOAD:
        s->load_bytes_per_second = (double)tools_option_size(state, "load", value, 1, SIZE_MOST);
        return true;
    case OPT_HIDDEN:
        s->machine.token_bytes = 2 * parse_number(state, "hidden", value, 1);
        return true;
    case OPT_LATENCY_US:
        s->machine.latency_s = parse_number(state, "latency-us", value, 0) / 1e6;
        return true;
    case OPT_EXPERT_US:
        s->machine.expert_s = parse_number(state, "expert-us", value, 0) / 1e6;
        return true;
    case OPT_TOKEN_US:
        s->machine.expert_token_s = s->machine.layer_token_s = parse_number(state, "token-us", value, 0) / 1e6;
        return true;
    default:
        return false;
    }
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct replay_place_setup *s = &a->setup;
    if (parse_machine(key, value, state, a))
        return 0;
    switch (key) {
    case OPT_SERVERS:
        parse_list(state, "servers", value, 1, EFS_PLACE_SERVERS_MAX, &a->servers);
        return 0;
    case OPT_MBPS:
        parse_list(state, "mbps", value, 1, 1000000, &a->mbps);
        return 0;
    case OPT_SKEW:
        parse_list(state, "skew", value, 0, 100, &a->skew);
        return 0;
    case OPT_RULES:
        parse_rows(state, a, value);
        return 0;
    case OPT_SHAPE:
        parse_shape(state, a, value);
        return 0;
    case OPT_ARRIVAL:
        s->arrival_s = parse_number(state, "arrival", value, 1);
        return 0;
    case OPT_DURATION:
        s->duration_s = parse_number(state, "duration", value, 1);
        return 0;
    case OPT_PROMPT:
        a->prompt = (uint32_t)parse_number(state, "prompt", value, 1);
        return 0;
    case OPT_OUTPUT:
        a->output = (uint32_t)parse_number(state, "output", value, 0);
        return 0;
    case OPT_REVIEW:
        s->review_s = parse_number(state, "review", value, 0);
        return 0;
    case OPT_SWITCH:
        s->switched = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->path_count == REPLAY_TASKS_MAX)
            argp_error(state, "more than %u traces", REPLAY_TASKS_MAX);
        a->paths[a->path_count++] = value;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "TRACE is needed");
        return 0;
    default:
        return replay_shared_parse(state, key, value, &a->shared);
    }
}

/* ---- the runs -------------------------------------------------------------------------------------------------- */

struct trial {
    const struct arguments *a;
    struct replay_place_report report;
    struct tools_progress progress;
    size_t all;
};

static errint_t try_point(struct trial *t, const struct replay_place_point *point, struct efs_error *err)
{
    struct replay_place_report *r = &t->report;
    size_t first = r->count;
    double remote_s, requests = point->servers * r->setup->duration_s / r->setup->arrival_s;
    if (requests > REQUESTS_MAX)
        return efs_fail(err, -E2BIG,
                        "%u servers get some %.0f requests, more than %.0f: a shorter --duration or a "
                        "longer --arrival is needed",
                        point->servers, requests, REQUESTS_MAX);
    errint_t rc = replay_place_measure(r->setup, r->tasks, point, &remote_s, err);
    for (unsigned i = 0; rc == 0 && i < t->a->row_count; i++) {
        rc = replay_place_run(r->setup, r->tasks, point, t->a->rows[i], remote_s, &r->runs[r->count++], err);
        if (rc == 0 && tools_progress_tell(&t->progress, r->count, t->all, "serving"))
            rc = -ECANCELED;
    }
    tools_progress_clear(&t->progress);
    if (rc == 0) {
        replay_place_print_table(r, first);
        if (r->setup->switched)
            replay_place_print_time(r, first);
        fflush(stdout);
    }
    return rc;
}

static errint_t try_all(struct trial *t, struct efs_error *err)
{
    const struct arguments *a = t->a;
    errint_t rc = 0;
    tools_progress_init(&t->progress, a->shared.quiet);
    t->progress.unit = "runs";
    replay_place_print_head(&t->report);
    for (uint32_t m = 0; m < a->mbps.count; m++)
        for (uint32_t k = 0; k < a->skew.count; k++)
            for (uint32_t n = 0; rc == 0 && n < a->servers.count; n++) {
                const struct replay_place_point point = {
                    .servers = (uint32_t)a->servers.value[n], .mbps = a->mbps.value[m], .skew = a->skew.value[k] / 100};
                rc = try_point(t, &point, err);
            }
    return rc;
}

static errint_t place(const struct arguments *a, struct efs_error *err)
{
    struct replay_tasks tasks = {0};
    struct trial t = {.a = a, .report = {.setup = &a->setup, .tasks = &tasks}};
    tools_interrupt_catch();
    errint_t rc = replay_tasks_read(a->paths, a->path_count, a->shape, a->prompt, a->output, &tasks, err);
    t.all = (size_t)a->servers.count * a->mbps.count * a->skew.count * a->row_count;
    t.report.runs = calloc(t.all, sizeof(*t.report.runs));
    if (rc == 0 && !t.report.runs)
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = try_all(&t, err);
    for (size_t i = 0; i < t.report.count; i++)
        efs_servers_free(&t.report.runs[i].result);
    free(t.report.runs);
    replay_tasks_free(&tasks);
    return rc;
}

int replay_place_main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = "TRACE...",
        .doc = "Place experts on servers, each trace being the task of some servers' users, by Prism's rule, by those "
               "of its peers and by ours; serve an hour of requests in a simulator, and tell how long they took.\v"
               "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted."};
    static char name[] = "moe-replay place";
    struct arguments a = {.shared = {.seed = 1, .layer_ns = 300000},
                          .servers = {{4, 16, 64}, 3},
                          .mbps = {{500}, 1},
                          .skew = {{100}, 1},
                          .prompt = 64,
                          .output = 20,
                          .setup = {.gpus = {1, 1, 2},
                                    .gpu_kinds = 3,
                                    .memory = 0.3,
                                    .expert_bytes = 16 << 20,
                                    .load_bytes_per_second = 1 << 30,
                                    .arrival_s = 10,
                                    .duration_s = 3600,
                                    .review_s = 300,
                                    .machine = {.layer_token_s = 5e-6,
                                                .expert_s = 100e-6,
                                                .expert_token_s = 5e-6,
                                                .latency_s = 500e-6,
                                                .token_bytes = 4096,
                                                .bucket_s = 60}}};
    struct efs_error err = {""};
    for (unsigned row = 0; row < REPLAY_PLACE_ROWS; row++)
        a.rows[a.row_count++] = row;
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    a.setup.seed = a.shared.seed;
    a.setup.machine.layer_s = (double)a.shared.layer_ns / 1e9;
    errint_t rc = place(&a, &err);
    if (rc < 0)
        return tools_fail("moe-replay", rc, &err);
    return EXIT_SUCCESS;
}
