/* SPDX-License-Identifier: Apache-2.0 */
/* assign_command.c - moe-replay assign: the command line and the runs. */
#include "assign_command.h"

#include "process.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_MAX 64u

struct arguments {
    struct tools_arguments trace;
    const char *store, *cpu, *plan_from;
    unsigned gpu;
    uint64_t tokens;
    struct tools_numbers batch;
    struct replay_assign_setup setup;
};
#define AT(field) .at = offsetof(struct arguments, field)

static const struct tools_option options[] = {
    {.kind = TOOLS_HEADING, .help = "Costs:"},
    {"store", 0, "STORE", "Measure experts of STORE on this processor, from memory; with --cpu, write FILE", TOOLS_TEXT,
     AT(store)},
    {"cpu", 0, "FILE", "Times of the processor, as --store and --cpu wrote them", TOOLS_TEXT, AT(cpu)},
    {"cpu-speed", 0, "N", "As if the processor were N times as fast, 1 (default) to 1000", TOOLS_DECIMAL,
     AT(setup.cpu_speed), .least = 1, .most = 1000},
    {"gpu", 0, "NAME", "The graphics processor: rtx3090 (default), l40s, h100", TOOLS_WORD, AT(gpu),
     .words = "rtx3090|l40s|h100"},
    {.kind = TOOLS_HEADING, .help = "What to try:"},
    {"batch", 0, "N,...", "Sequences that go through the model together, 1 to 64 (default: 1,8,16,64)", TOOLS_NUMBERS,
     AT(batch), .least = 1, .most = BATCH_MAX},
    {"tokens", 0, "N", "Only the first N tokens of the trace", TOOLS_NUMBER, AT(tokens), .least = 1},
    {"cached", 0, "N", "Percent of each layer's experts that the graphics processor holds (default: 25)", TOOLS_DECIMAL,
     AT(setup.cached), .most = 100, .scale = 0.01},
    {"plan-from", 0, "TRACE", "Popular experts, and which follow which, from this history", TOOLS_TEXT, AT(plan_from)},
    {0}};

static void finish_options(const struct argp_state *state, void *into)
{
    struct arguments *a = into;
    if (!a->store && !a->cpu)
        argp_error(state, "--store STORE or --cpu FILE is needed: the times of the processor");
    a->setup.gpu = replay_gpus[a->gpu];
}

/* ---- the runs -------------------------------------------------------------------------------------------------- */

static errint_t make_workload(const struct efs_route *route, const char *path, uint32_t batch, uint64_t tokens,
                              struct replay_workload *w, struct efs_error *err)
{
    int rc = replay_workload_make(route, route->layers, route->experts, batch, tokens, w);
    return rc < 0 ? efs_fail(err, rc, "%s: batches of %u: %s", path, batch, strerror(-rc)) : 0;
}

static errint_t one_batch(struct arguments *a, const struct efs_route *trace, const struct efs_route *history,
                          uint32_t batch, struct tools_progress *progress, struct efs_error *err)
{
    struct replay_workload w = {0}, past = {0};
    struct replay_assign_rules rules;
    struct replay_assign_run runs[REPLAY_ASSIGN_SYSTEMS];
    errint_t rc = make_workload(trace, a->trace.word[0], batch, a->tokens, &w, err);
    if (rc == 0 && history->tokens)
        rc = make_workload(history, a->plan_from, batch, 0, &past, err);
    a->setup.history = history->tokens ? &past : NULL;
    for (unsigned run = 0; rc == 0 && run <= REPLAY_ASSIGN_SYSTEMS; run++) {
        rc = run == 0 ? replay_assign_rules(&a->setup, &w, &rules)
                      : replay_assign_simulate(&a->setup, &w, &replay_assign_systems[run - 1], &runs[run - 1]);
        if (rc == -ENOSPC)
            efs_fail(err, rc, "%s has no memory for --cached %.0f of %u layers", a->setup.gpu.name,
                     100 * a->setup.cached, w.layers);
        else if (rc < 0)
            efs_fail(err, rc, "%s: batches of %u: %s", a->trace.word[0], batch, strerror(-rc));
        else if (tools_progress_report(progress, run, REPLAY_ASSIGN_SYSTEMS, "assigning"))
            rc = -ECANCELED;
    }
    if (rc == 0)
        replay_assign_print(batch, &rules, runs);
    fflush(stdout);
    replay_workload_free(&w);
    replay_workload_free(&past);
    return rc;
}

static errint_t take_costs(struct arguments *a, struct efs_error *err)
{
    if (!a->store)
        return replay_cpu_read(a->cpu, &a->setup.cpu, err);
    errint_t rc = replay_cpu_measure(a->store, &a->setup.cpu, err);
    return rc == 0 && a->cpu ? replay_cpu_write(a->cpu, &a->setup.cpu, err) : rc;
}

static errint_t assign(struct arguments *a, struct efs_error *err)
{
    struct efs_route trace = {0}, history = {0};
    struct tools_progress progress;
    tools_interrupt_catch();
    errint_t rc = efs_route_read(a->trace.word[0], &trace, err);
    if (rc == 0 && trace.experts > EFS_ASSIGN_EXPERTS_MAX)
        rc = efs_fail(err, -E2BIG, "%s: %u experts of a layer are more than %u", a->trace.word[0], trace.experts,
                      EFS_ASSIGN_EXPERTS_MAX);
    if (rc == 0 && a->plan_from)
        rc = efs_route_read(a->plan_from, &history, err);
    if (rc == 0 && a->plan_from && (history.layers != trace.layers || history.experts != trace.experts))
        rc = efs_fail(err, -EINVAL, "%s: %u layers of %u experts, %s has %u of %u", a->plan_from, history.layers,
                      history.experts, a->trace.word[0], trace.layers, trace.experts);
    if (rc == 0)
        rc = take_costs(a, err);
    if (rc == 0)
        replay_assign_print_head(&a->setup, trace.name, a->plan_from);
    tools_progress_init(&progress, !isatty(STDERR_FILENO));
    progress.unit = "runs";
    for (uint32_t b = 0; rc == 0 && b < a->batch.count; b++)
        rc = one_batch(a, &trace, &history, (uint32_t)a->batch.number[b], &progress, err);
    if (rc == 0)
        replay_assign_print_deciding();
    efs_route_free(&trace);
    efs_route_free(&history);
    return rc;
}

int replay_assign_main(int argc, char **argv)
{
    static const struct tools_command command = {
        .options = options,
        .arguments = "TRACE",
        AT(trace),
        .help = "Deal the experts of a routing trace out to this processor and a graphics processor: by DALI's greedy "
                "rule, by those of its peers, by ours and by the optimum; print the time of a layer and of deciding.\v"
                "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted.",
        .finish = finish_options};
    struct arguments a = {.batch = {{1, 8, 16, 64}, 4}, .setup = {.cpu_speed = 1, .cached = 0.25}};
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, &a);
    errint_t rc = assign(&a, &err);
    if (rc < 0)
        return tools_fail("moe-replay", rc, &err);
    return EXIT_SUCCESS;
}
