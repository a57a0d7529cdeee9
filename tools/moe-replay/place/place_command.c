/* SPDX-License-Identifier: Apache-2.0 */
/* place_command.c - moe-replay place: the command line and the loop over all combinations. */
#include "place_command.h"

#include "process.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS_MAX 1e7 /* limit of a run's requests, which are all in memory */
#define OUTPUT 20u       /* tokens that a request generates, one per pass */

struct arguments {
    struct tools_arguments traces;
    uint32_t shape[3], prompt;
    struct tools_numbers servers, mbps, skew;
    struct tools_list rules;
    unsigned rows[REPLAY_PLACE_ROWS], row_count;
    struct replay_place_setup setup;
};
#define AT(field) .at = offsetof(struct arguments, field)

static void take_shape(const struct argp_state *state, const struct tools_option *option, char *text, void *into)
{
    uint32_t *shape = ((struct arguments *)into)->shape;
    int end = 0;
    if (sscanf(text, "%4ux%5ux%2u%n", &shape[0], &shape[1], &shape[2], &end) != 3 || text[end] != '\0' ||
        shape[0] < 1 || shape[0] > EFS_PLACE_LAYERS_MAX || shape[1] < 1 || shape[1] > EFS_PLACE_EXPERTS_MAX ||
        shape[2] < 1 || shape[2] > shape[1])
        argp_error(state, "--%s %s: LAYERSxEXPERTSxCHOSEN, such as 26x64x6", option->name, text);
}

static const struct tools_option options[] = {
    {.kind = TOOLS_HEADING, .help = "Servers:"},
    {"servers", 0, "N,...", "How many, 1 to 1024 (default: 4,16,64)", TOOLS_NUMBERS, AT(servers), .least = 1,
     .most = EFS_PLACE_SERVERS_MAX},
    {"memory", 0, "N", "Percent of all experts that a graphics processor holds (default: 30)", TOOLS_DECIMAL,
     AT(setup.memory), .least = 1, .most = 100, .scale = 0.01},
    {"mbps", 0, "N,...", "Link of a server, megabits a second (default: 500)", TOOLS_NUMBERS, AT(mbps), .least = 1,
     .most = 1000000},
    {.kind = TOOLS_HEADING, .help = "Model:"},
    {"shape", 0, "LxExK", "Map the traces onto L layers, E experts, K chosen", TOOLS_CALL, .parse = take_shape},
    {"expert", 0, "SIZE", "Weights of an expert (default: 16M)", TOOLS_SIZE, AT(setup.expert_bytes), .least = 1,
     .most = UINT64_C(1) << 40},
    {"hidden", 0, "N", "Hidden size, of two bytes each: sent for a token (default: 2048)", TOOLS_DECIMAL,
     AT(setup.machine.token_bytes), .least = 1, .most = 1000000, .scale = 2},
    {.kind = TOOLS_HEADING, .help = "Users:"},
    {"arrival", 0, "SECONDS", "Between two requests at a server, mean (default: 10)", TOOLS_DECIMAL,
     AT(setup.arrival_s), .least = 1, .most = 1000000},
    {"duration", 0, "SECONDS", "Of arrivals (default: 3600)", TOOLS_DECIMAL, AT(setup.duration_s), .least = 1,
     .most = 1000000},
    {"prompt", 0, "N", "Tokens of a request that go through at once (default: 64)", TOOLS_UNSIGNED, AT(prompt),
     .least = 1, .most = 1000000},
    {"skew", 0, "N,...", "Percent of a server's requests that are of its own task (default: 100)", TOOLS_NUMBERS,
     AT(skew), .most = 100},
    {"switch", 0, NULL, "At half time servers change their tasks", TOOLS_FLAG, AT(setup.switched)},
    {.kind = TOOLS_HEADING, .help = "What to try:"},
    {"rules", 0, "NAME,...",
     "uniform, redundance, smartmoe, eplb, greedy, prism, ours-calls, ours, offload, redirect, all-local "
     "(default: all)",
     TOOLS_LIST, AT(rules)},
    {"review", 0, "SECONDS", "Between reviews of the placement; 0: none (default: 300)", TOOLS_DECIMAL,
     AT(setup.review_s), .most = 1000000},
    {0}};

static void finish_options(const struct argp_state *state, void *into)
{
    struct arguments *a = into;
    if (a->traces.count > REPLAY_TASKS_MAX)
        argp_error(state, "more than %u traces", REPLAY_TASKS_MAX);
    for (unsigned row = 0; a->rules.count == 0 && row < REPLAY_PLACE_ROWS; row++)
        a->rows[a->row_count++] = row;
    for (uint32_t w = 0; w < a->rules.count; w++) {
        unsigned row = 0;
        while (row < REPLAY_PLACE_ROWS && strcmp(replay_place_name(row), a->rules.word[w]) != 0)
            row++;
        bool again = false;
        for (unsigned i = 0; i < a->row_count; i++)
            again |= a->rows[i] == row;
        if (row == REPLAY_PLACE_ROWS || again)
            argp_error(state, "--rules %s: unknown, or named twice", a->rules.word[w]);
        a->rows[a->row_count++] = row;
    }
}

/* ---- the runs -------------------------------------------------------------------------------------------------- */

static errint_t try_point(const struct arguments *a, struct replay_place_report *r,
                          const struct replay_place_point *point, struct tools_progress *progress,
                          struct efs_error *err)
{
    double remote_s, requests = point->servers * r->setup->duration_s / r->setup->arrival_s;
    if (requests > REQUESTS_MAX)
        return efs_fail(err, -E2BIG,
                        "%u servers get some %.0f requests, more than %.0f: a shorter --duration or a "
                        "longer --arrival is needed",
                        point->servers, requests, REQUESTS_MAX);
    r->count = 0;
    errint_t rc = replay_place_measure(r->setup, r->tasks, point, &remote_s, err);
    for (unsigned i = 0; rc == 0 && i < a->row_count; i++) {
        rc = replay_place_run(r->setup, r->tasks, point, a->rows[i], remote_s, &r->runs[r->count++], err);
        if (rc == 0 && tools_progress_report(progress, r->count, a->row_count, "serving"))
            rc = -ECANCELED;
    }
    if (rc == 0)
        replay_place_print_table(r);
    fflush(stdout);
    for (size_t i = 0; i < r->count; i++)
        efs_servers_free(&r->runs[i].result);
    return rc;
}

static errint_t place(const struct arguments *a, struct efs_error *err)
{
    struct replay_tasks tasks = {0};
    struct replay_place_report report = {.setup = &a->setup, .tasks = &tasks};
    struct tools_progress progress;
    tools_interrupt_catch();
    tools_progress_init(&progress, !isatty(STDERR_FILENO));
    progress.unit = "runs";
    errint_t rc = replay_tasks_read(a->traces.word, a->traces.count, a->shape, a->prompt, OUTPUT, &tasks, err);
    if (rc == 0)
        replay_place_print_head(&report);
    for (uint32_t m = 0; m < a->mbps.count; m++)
        for (uint32_t k = 0; k < a->skew.count; k++)
            for (uint32_t n = 0; rc == 0 && n < a->servers.count; n++) {
                const struct replay_place_point point = {.servers = (uint32_t)a->servers.number[n],
                                                         .mbps = (double)a->mbps.number[m],
                                                         .skew = (double)a->skew.number[k] / 100};
                rc = try_point(a, &report, &point, &progress, err);
            }
    replay_tasks_free(&tasks);
    return rc;
}

int replay_place_main(int argc, char **argv)
{
    static const struct tools_command command = {
        .options = options,
        .arguments = "TRACE...",
        AT(traces),
        .help = "Place experts on servers, each trace being the task of some servers' users, by Prism's rule, by those "
                "of its peers and by ours; serve an hour of requests in a simulator, and print their latency.\v"
                "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted.",
        .finish = finish_options};
    struct arguments a = {.servers = {{4, 16, 64}, 3},
                          .mbps = {{500}, 1},
                          .skew = {{100}, 1},
                          .prompt = 64,
                          .setup = {.memory = 0.3,
                                    .expert_bytes = 16 << 20,
                                    .arrival_s = 10,
                                    .duration_s = 3600,
                                    .review_s = 300,
                                    .machine = {.layer_s = 300e-6,
                                                .layer_token_s = 5e-6,
                                                .expert_s = 100e-6,
                                                .expert_token_s = 5e-6,
                                                .latency_s = 500e-6,
                                                .token_bytes = 4096}}};
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, &a);
    errint_t rc = place(&a, &err);
    if (rc < 0)
        return tools_fail("moe-replay", rc, &err);
    return EXIT_SUCCESS;
}
