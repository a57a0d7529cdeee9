/* SPDX-License-Identifier: Apache-2.0 */
/* counts.c - moe-replay counts: writes the files that a mount loads at start from routing traces: the counts, and
 * networks that predict from hidden states. */
#include "arguments.h"

#include "process.h"
#include "history.h"
#include "interrupt.h"
#include "options.h"
#include "predictions.h"
#include "replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    struct tools_arguments paths; /* STORE TRACE... */
    uint64_t memory_bytes;
};

/* The traces to train on: those with states of the store's model. */
struct training {
    struct efs_route *routes;
    uint32_t count;
    uint64_t tokens;
};

static errint_t add_trace(const char *path, const struct efs_route *route, const struct replay_setup *setup,
                          struct efs_history *all, struct efs_error *err)
{
    struct replay_workload workload = {0};
    struct replay_history learned = {0};
    errint_t rc = replay_workload_make(route, setup->layers, setup->experts, 1, 0, &workload);
    if (rc == 0)
        rc = replay_history_learn(setup, &workload, workload.chosen, &learned);
    if (rc == 0)
        rc = efs_history_add(all, &learned.seen);
    if (rc < 0)
        efs_fail(err, rc, "%s: cannot be counted: %s", path, strerror(-rc));
    replay_history_free(&learned);
    replay_workload_free(&workload);
    return rc;
}

/* Keeps a trace, which it takes over, if networks can be trained on it. */
static void keep_trace(const char *path, struct efs_route *route, const struct replay_setup *setup,
                       struct training *training)
{
    const struct efs_route *first = training->count ? training->routes : route;
    bool fits = route->layers == setup->layers && route->experts == setup->experts && route->width == first->width &&
                route->chosen == first->chosen && route->width <= EFS_ROUTING_STATE;
    if (route->states && fits) {
        training->tokens += route->tokens;
        training->routes[training->count++] = *route;
        return;
    }
    if (route->states)
        printf("%s: hidden states of another model or width: not used\n", path);
    efs_route_free(route);
}

static errint_t read_traces(const struct arguments *a, const struct replay_setup *setup, struct efs_history *all,
                            struct training *training, struct efs_error *err)
{
    errint_t rc = 0;
    training->routes = calloc(a->paths.count, sizeof(*training->routes));
    if (!training->routes)
        return efs_fail(err, -ENOMEM, "no memory for %u traces", a->paths.count);
    for (uint32_t i = 1; rc == 0 && i < a->paths.count; i++) {
        struct efs_route route = {0};
        rc = efs_route_read(a->paths.word[i], &route, err);
        if (rc == 0)
            rc = add_trace(a->paths.word[i], &route, setup, all, err);
        if (rc == 0)
            keep_trace(a->paths.word[i], &route, setup, training);
        else
            efs_route_free(&route);
    }
    return rc;
}

/* Networks without training, for as many layers ahead as fit into memory. Their memory_bytes is what they take. */
static errint_t make_networks(const struct arguments *a, const struct replay_setup *setup,
                              const struct training *training, struct efs_predict_config *config,
                              struct efs_predictor **networks)
{
    *config =
        (struct efs_predict_config){.kind = EFS_PREDICT_PROMOE,
                                    .layers = setup->layers,
                                    .experts = setup->experts,
                                    .chosen = training->routes[0].chosen,
                                    .distances = setup->layers < PREDICT_DISTANCES ? setup->layers : PREDICT_DISTANCES,
                                    .sequences = 1,
                                    .memory_bytes = a->memory_bytes,
                                    .state_width = training->routes[0].width};
    errint_t rc = efs_predictor_new(config, networks);
    while (rc == -E2BIG && --config->distances > 0)
        rc = efs_predictor_new(config, networks);
    if (rc < 0)
        return rc;
    config->memory_bytes = efs_predict_bytes(*networks);
    efs_predictor_free(*networks);
    return efs_predictor_new(config, networks);
}

static errint_t train_networks(const struct arguments *a, const struct replay_setup *setup,
                               const struct training *training, struct efs_predictor **networks, struct efs_error *err)
{
    struct efs_predict_config config;
    if (training->count == 0) {
        printf("networks: not trained: no trace has hidden states of this model\n");
        return 0;
    }
    errint_t rc = make_networks(a, setup, training, &config, networks);
    if (rc == -E2BIG)
        return efs_fail(err, rc, "networks for %u layers with states of %u numbers: --memory is too little",
                        setup->layers, training->routes[0].width);
    if (rc == 0)
        rc = predict_train(*networks, training->routes, training->count);
    if (rc == 0)
        printf("networks: trained on %llu tokens, for %u layers ahead, %.1f MiB\n",
               (unsigned long long)training->tokens, config.distances, (double)config.memory_bytes / 1048576);
    return rc < 0 && rc != -ECANCELED ? efs_fail(err, rc, "networks: %s", strerror(-rc)) : rc;
}

static errint_t count_traces(const struct arguments *a, struct efs_error *err)
{
    const char *path = a->paths.word[0];
    struct efs_store *store = NULL;
    struct efs_store_info info;
    struct efs_history all = {0};
    struct training training = {.count = 0};
    struct efs_predictor *networks = NULL;
    errint_t rc = efs_store_open(path, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    efs_store_close(store);
    const struct replay_setup setup = {.layers = (uint32_t)info.layers, .experts = (uint32_t)info.layer_experts};
    rc = efs_history_init(&all, setup.layers, setup.experts);
    if (rc < 0)
        efs_fail(err, rc, "%s: %u layers of %u experts: %s", path, setup.layers, setup.experts, strerror(-rc));
    if (rc == 0)
        rc = read_traces(a, &setup, &all, &training, err);
    if (rc == 0)
        rc = train_networks(a, &setup, &training, &networks, err);
    if (rc == 0)
        rc = efs_counts_save(info.content_hash, &all, err);
    if (rc == 0 && networks)
        rc = efs_networks_save(info.content_hash, networks, err);
    efs_predictor_free(networks);
    for (uint32_t i = 0; i < training.count; i++)
        efs_route_free(&training.routes[i]);
    free(training.routes);
    efs_history_free(&all);
    return rc;
}

int replay_counts_main(int argc, char **argv)
{
    static const struct tools_option options[] = {
        {"memory", 0, "SIZE", "The most that networks may take (default: 64M)", TOOLS_SIZE,
         .at = offsetof(struct arguments, memory_bytes), .least = 1, .most = UINT64_C(1) << 40},
        {0}};
    static const struct tools_command command = {
        .options = options,
        .arguments = "STORE TRACE...",
        .at = offsetof(struct arguments, paths),
        .help = "Count how often routing traces ask for each expert of STORE, and save that as what the next mount "
                "starts with (expertfs-counts(5)), in place of the counts of earlier mounts. From traces with hidden "
                "states, also train networks for the prefetch of a mount that is told such states.\v"
                "Exit status: 0 saved, 1 failed, 2 wrong usage, 130 interrupted."};
    struct arguments a = {0};
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, &a);
    tools_interrupt_catch();
    errint_t rc = count_traces(&a, &err);
    return rc < 0 ? tools_fail("moe-replay", rc, &err) : 0;
}
