/* SPDX-License-Identifier: Apache-2.0 */
/* assign_command.c - moe-replay assign: options, tables. */
#include "assign_command.h"
#include "assign_report.h"

#include "failure.h"
#include "gpu_cache.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "shared_options.h"
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERCENT_MAX 100
#define GPU_NS_MAX 1e12 /* of an expert, as --cpu has it: above, the number is a mistake */

enum {
    OPT_CPU = 256,
    OPT_SAVE_CPU,
    OPT_CPU_SPEED,
    OPT_CODED,
    OPT_THREADS,
    OPT_GPU,
    OPT_CACHED,
    OPT_PREFETCH,
    OPT_WINDOW,
    OPT_SWAPS
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What things take:", 1},
    {"store", REPLAY_OPT_STORE, "STORE", 0, "Measure experts of STORE on this processor, from memory, full and coded",
     0},
    {"cpu", OPT_CPU, "FILE", 0, "Take these times instead, as --save-cpu writes them", 0},
    {"save-cpu", OPT_SAVE_CPU, "FILE", 0, "Write the times that were measured", 0},
    {"cpu-speed", OPT_CPU_SPEED, "N", 0, "As if the processor were N times as fast, 1 (default) to 1000", 0},
    {"coded", OPT_CODED, NULL, 0, "The processor computes from the coded form", 0},
    {"threads", OPT_THREADS, "N", 0, "Threads that compute while measuring (default: all cores)", 0},
    {"gpu", OPT_GPU, "NAME|FILE", 0, "The graphics processor: rtx3090 (default), l40s, h100, or its numbers", 0},
    {"layer-us", REPLAY_OPT_LAYER_US, "N", 0, "Microseconds for all else in a layer (default 0)", 0},
    {NULL, 0, NULL, 0, "What to try:", 2},
    {"batch", REPLAY_OPT_BATCH, "N,...", 0, "Sequences that go through the model together, 1 to 64 (1,8,16,64)", 0},
    {"tokens", REPLAY_OPT_TOKENS, "N", 0, "Only the first N tokens of the trace", 0},
    {"cached", OPT_CACHED, "N", 0, "Percent of each layer's experts that the graphics processor holds (25)", 0},
    {"plan-from", REPLAY_OPT_PLAN_FROM, "TRACE", 0,
     "What is popular, and which experts follow which, from this history", 0},
    {"prefetch", OPT_PREFETCH, "N", 0, "Experts brought ahead for the next layer, at most (default 2)", 0},
    {"window", OPT_WINDOW, "N", 0, "Passes after which the cache exchanges experts (default 4)", 0},
    {"swaps", OPT_SWAPS, "N", 0, "Experts that it exchanges then, at most (default 2)", 0},
    {NULL, 0, NULL, 0, "Output:", 3},
    {"quiet", REPLAY_OPT_QUIET, NULL, 0, "No progress", 0},
    {0}};

struct arguments {
    struct replay_shared shared;
    const char *trace, *cpu, *save_cpu, *gpu;
    uint64_t threads;
    struct replay_assign_setup setup;
};

static void finish_options(const struct argp_state *state, struct arguments *a)
{
    if (!a->trace) /* told by the key that misses it */
        return;
    if (!a->shared.store == !a->cpu)
        argp_error(state, "--store STORE or --cpu FILE says what the processor takes: one of them is needed");
    if (a->save_cpu && !a->shared.store)
        argp_error(state, "--save-cpu needs --store");
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct replay_assign_setup *s = &a->setup;
    switch (key) {
    case OPT_CPU:
        a->cpu = value;
        return 0;
    case OPT_SAVE_CPU:
        a->save_cpu = value;
        return 0;
    case OPT_CPU_SPEED:
        s->cpu_speed = (double)tools_option_number(state, "cpu-speed", value, 1, 1000);
        return 0;
    case OPT_CODED:
        s->coded = true;
        return 0;
    case OPT_THREADS:
        a->threads = tools_option_number(state, "threads", value, 1, 64);
        return 0;
    case OPT_GPU:
        a->gpu = value;
        return 0;
    case OPT_CACHED:
        s->cached = (double)tools_option_number(state, "cached", value, 0, PERCENT_MAX) / PERCENT_MAX;
        return 0;
    case OPT_PREFETCH:
        s->prefetch = (uint32_t)tools_option_number(state, "prefetch", value, 0, EFS_ASSIGN_EXPERTS_MAX);
        return 0;
    case OPT_WINDOW:
        s->window = (uint32_t)tools_option_number(state, "window", value, 1, 1000000);
        return 0;
    case OPT_SWAPS:
        s->swaps = (uint32_t)tools_option_number(state, "swaps", value, 0, EFS_GPU_SWAPS_MAX);
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

/* ---- the runs -------------------------------------------------------------------------------------------------- */

static errint_t make_workload(const struct efs_route *route, const char *path, uint32_t batch, uint64_t tokens,
                              struct replay_workload *w, struct efs_error *err)
{
    int rc = replay_workload_make(route, route->layers, route->experts, batch, tokens, w);
    return rc < 0 ? efs_fail(err, rc, "%s: batches of %u: %s", path, batch, strerror(-rc)) : 0;
}

static errint_t one_batch(struct arguments *a, const struct efs_route *trace, const struct efs_route *history,
                          struct replay_assign_report *report, struct tools_progress *progress, struct efs_error *err)
{
    struct replay_workload w = {0}, past = {0};
    struct replay_assign_batch *b = &report->batch[report->batches];
    uint32_t batch = a->shared.batch[report->batches];
    errint_t rc = make_workload(trace, a->trace, batch, a->shared.tokens, &w, err);
    if (rc == 0 && history->tokens)
        rc = make_workload(history, a->shared.plan_from, batch, 0, &past, err);
    a->setup.history = history->tokens ? &past : NULL;
    b->batch = batch;
    for (unsigned run = 0; rc == 0 && run <= replay_assign_system_count; run++) {
        rc = run == 0 ? replay_assign_rules(&a->setup, &w, &b->rules)
                      : replay_assign_play(&a->setup, &w, &replay_assign_systems[run - 1], &b->run[run - 1]);
        if (rc == -ENOSPC)
            efs_fail(err, rc, "%s has no memory for --cached %.0f of %u layers", a->setup.gpu.name,
                     a->setup.cached * PERCENT_MAX, w.layers);
        else if (rc < 0)
            efs_fail(err, rc, "%s: batches of %u: %s", a->trace, batch, strerror(-rc));
        else if (tools_progress_tell(progress, run, replay_assign_system_count, "assigning"))
            rc = -ECANCELED;
    }
    tools_progress_clear(progress);
    if (rc == 0) {
        report->batches++;
        replay_assign_print(report);
        fflush(stdout);
    }
    replay_workload_free(&w);
    replay_workload_free(&past);
    return rc;
}

/* What is computed from the numbers of two files. */
static errint_t check_gpu(const struct replay_assign_setup *s, struct efs_error *err)
{
    double compute_ns = replay_gpu_compute_ns(&s->gpu, s->cpu.expert_bytes, REPLAY_BATCH_MAX);
    bool brought = replay_gpu_transfer_ns(&s->gpu, s->cpu.expert_bytes) <= GPU_NS_MAX;
    return compute_ns <= GPU_NS_MAX && brought
               ? 0
               : efs_fail(err, -EINVAL, "%s: to %s an expert of %llu bytes takes more than %.0f s: %s", s->gpu.name,
                          brought ? "run" : "bring", (unsigned long long)s->cpu.expert_bytes, GPU_NS_MAX / 1e9,
                          brought ? "look at bytes_per_second, flops, launch_us" : "look at link_bytes_per_second");
}

static errint_t take_costs(struct arguments *a, struct efs_error *err)
{
    errint_t rc = replay_gpu_read(a->gpu, &a->setup.gpu, err);
    if (rc == 0)
        rc = a->cpu ? replay_cpu_read(a->cpu, &a->setup.cpu, err)
                    : replay_cpu_measure(a->shared.store, (unsigned)a->threads, &a->setup.cpu, err);
    if (rc == 0 && a->save_cpu)
        rc = replay_cpu_write(a->save_cpu, &a->setup.cpu, err);
    return rc == 0 ? check_gpu(&a->setup, err) : rc;
}

static errint_t assign(struct arguments *a, struct efs_error *err)
{
    struct efs_route trace = {0}, history = {0};
    struct tools_progress progress;
    struct replay_assign_report *report = calloc(1, sizeof(*report));
    tools_interrupt_catch();
    errint_t rc = report ? efs_route_read(a->trace, &trace, err) : efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0 && trace.experts > EFS_ASSIGN_EXPERTS_MAX)
        rc = efs_fail(err, -E2BIG, "%s: %u experts of a layer are more than %u", a->trace, trace.experts,
                      EFS_ASSIGN_EXPERTS_MAX);
    if (rc == 0 && a->shared.plan_from)
        rc = efs_route_read(a->shared.plan_from, &history, err);
    if (rc == 0 && a->shared.plan_from && (history.layers != trace.layers || history.experts != trace.experts))
        rc = efs_fail(err, -EINVAL, "%s: %u layers of %u experts, %s has %u of %u", a->shared.plan_from, history.layers,
                      history.experts, a->trace, trace.layers, trace.experts);
    if (rc == 0)
        rc = take_costs(a, err);
    if (rc == 0) {
        *report =
            (struct replay_assign_report){.setup = &a->setup, .trace = trace.name, .plan_from = a->shared.plan_from};
        replay_assign_print_head(report);
        tools_progress_init(&progress, a->shared.quiet);
        progress.unit = "runs";
    }
    while (rc == 0 && report->batches < a->shared.batch_count)
        rc = one_batch(a, &trace, &history, report, &progress, err);
    if (rc == 0)
        replay_assign_print_deciding();
    efs_route_free(&trace);
    efs_route_free(&history);
    free(report);
    return rc;
}

int replay_assign_main(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "TRACE",
                                     .doc = "Deal the experts of a routing trace out to this processor and a graphics "
                                            "processor: by DALI's greedy rule, by those of its peers, by ours and by "
                                            "the optimum; and tell what a layer takes, and how long deciding took.\v"
                                            "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted."};
    struct arguments a = {.shared = {.batch = {1, 8, 16, 64}, .batch_count = 4},
                          .gpu = "rtx3090",
                          .setup = {.cpu_speed = 1, .cached = 0.25, .prefetch = 2, .window = 4, .swaps = 2}};
    struct efs_error err = {""};
    static char name[] = "moe-replay assign";
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    a.setup.layer_ns = a.shared.layer_ns;
    errint_t rc = assign(&a, &err);
    if (rc < 0)
        return tools_fail("moe-replay", rc, &err);
    return EXIT_SUCCESS;
}
