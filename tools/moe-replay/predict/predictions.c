/* SPDX-License-Identifier: Apache-2.0 */
/* predictions.c - runs a trace through a predictor and scores each prediction before the predictor observes the layer.
 */
#include "predictions.h"

#include "tables.h"

#include "expertfs-clock-private.h"
#include "process.h"
#include "interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* CPU time of this thread, unaffected by other load. */
static uint64_t cpu_ns(void)
{
    return efs_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

struct player {
    struct efs_tables tables;
    struct efs_predictor *predictor;
    const struct efs_route *route;
    struct predict_result *result;      /* NULL: train only */
    float *probability;                 /* [experts] */
    struct efs_prediction *predictions; /* [2 * chosen] */
    uint16_t *order;                    /* [experts]: the chosen experts, then the rest by descending score */
    float *scores;                      /* [experts], in that order */
    float *state;                       /* [width] */
    uint32_t width; /* of the states in the evaluated trace; 0: none, those of histories are unused */
    void *learned;  /* state after the history, loaded at the start of each request; NULL: not loaded */
    size_t learned_bytes;
    uint64_t every;
};

static const uint16_t *chosen_by(const struct efs_route *route, uint64_t token, unsigned layer)
{
    return route->ids + (token * route->layers + layer) * route->chosen;
}

static bool is_chosen(const struct efs_route *route, const uint16_t *chosen, unsigned expert)
{
    for (unsigned i = 0; i < route->chosen; i++)
        if (chosen[i] == expert)
            return true;
    return false;
}

static void judge_probabilities(struct player *player, const uint16_t *chosen, uint64_t sequence)
{
    struct predict_result *r = player->result;
    efs_predict_all(player->predictor, sequence, 1, player->probability);
    for (unsigned e = 0; e < player->route->experts; e++) {
        double p = player->probability[e];
        bool right = is_chosen(player->route, chosen, e);
        r->squares += (p - right) * (p - right);
        r->judged++;
    }
}

/* Predicts a layer `distance` layers ahead and scores the prediction against the trace. start: the prediction is made
 * at the end of the previous token, for one of the first layers of this one. */
static void judge(struct player *player, uint64_t token, unsigned layer, unsigned distance, bool start)
{
    const struct efs_route *route = player->route;
    struct predict_result *r = player->result;
    struct predict_at *at = start ? &r->start : &r->at[distance - 1];
    uint64_t sequence = route->sequence[token], began = cpu_ns();
    const uint16_t *chosen = chosen_by(route, token, layer);
    unsigned within = 0, right = 0, picked;
    int count = efs_predict(player->predictor, sequence, distance, player->predictions, 2 * route->chosen, &picked);
    r->predict_ns += cpu_ns() - began;
    r->predicted++;
    at->slots += route->chosen;
    for (unsigned i = 0; i < (unsigned)count; i++) {
        bool hit = is_chosen(route, chosen, player->predictions[i].expert);
        within += hit;
        at->within_k += hit && i < route->chosen;
        right += hit && i < picked;
    }
    at->within_2k += within;
    if (start || distance != 1)
        return;
    r->layers++;
    r->whole += within == route->chosen;
    r->picked += picked;
    r->picked_right += right;
    judge_probabilities(player, chosen, sequence);
}

/* Fills order and scores of a layer: the chosen experts, then the rest by descending score. */
static void order_scores(struct player *player, const uint16_t *chosen, const float *scores)
{
    const struct efs_route *route = player->route;
    unsigned count = 0;
    for (; count < route->chosen; count++)
        player->order[count] = chosen[count];
    for (unsigned e = 0; e < route->experts; e++) {
        unsigned at = count;
        if (is_chosen(route, chosen, e))
            continue;
        for (; at > route->chosen && scores[player->order[at - 1]] < scores[e]; at--)
            player->order[at] = player->order[at - 1];
        player->order[at] = (uint16_t)e;
        count++;
    }
    for (unsigned i = 0; i < count; i++)
        player->scores[i] = scores[player->order[i]];
}

static void read_state(struct player *player, const uint16_t *halves)
{
    for (unsigned i = 0; i < player->width; i++)
        player->state[i] = efs_route_half(halves[i]);
}

static int play_layer(struct player *player, uint64_t token, unsigned layer)
{
    const struct efs_route *route = player->route;
    uint64_t at = token * route->layers + layer;
    struct efs_predict_observation seen = {.layer = layer,
                                           .experts = chosen_by(route, token, layer),
                                           .scores = route->scores ? route->scores + at * route->chosen : NULL,
                                           .count = route->chosen};
    if (route->all_scores) {
        order_scores(player, seen.experts, route->all_scores + at * route->experts);
        seen.experts = player->order;
        seen.scores = player->scores;
        seen.scored = route->experts;
    }
    if (route->states && player->width) {
        read_state(player, route->states + at * route->width);
        seen.state = player->state;
    }
    uint64_t began = cpu_ns();
    int rc = efs_predict_observe(player->predictor, route->sequence[token], &seen);
    if (player->result) {
        player->result->observe_ns += cpu_ns() - began;
        player->result->observed++;
    }
    return rc;
}

static int begin_sequence(struct player *player, uint64_t token)
{
    const struct efs_route *route = player->route;
    int rc = token > 0 ? efs_predict_end(player->predictor, route->sequence[token - 1]) : 0;
    if (rc == 0 && player->learned)
        rc = efs_predict_load(player->predictor, player->learned, player->learned_bytes);
    return rc == 0 ? efs_predict_begin(player->predictor, route->sequence[token]) : rc;
}

static int play_token(struct player *player, uint64_t token)
{
    const struct efs_route *route = player->route;
    bool first = token == 0 || route->sequence[token] != route->sequence[token - 1];
    bool measured = player->result && token % player->every == 0;
    int rc = first ? begin_sequence(player, token) : 0;
    for (unsigned d = 1; measured && !first && d <= PREDICT_DISTANCES && d <= route->layers; d++)
        judge(player, token, d - 1, d, true);
    for (unsigned l = 0; rc == 0 && l < route->layers; l++) {
        rc = play_layer(player, token, l);
        for (unsigned d = 1; rc == 0 && measured && d <= PREDICT_DISTANCES && l + d < route->layers; d++)
            judge(player, token, l + d, d, false);
    }
    return rc;
}

static int play_route(struct player *player, const struct efs_route *route, uint64_t tokens)
{
    int rc = 0;
    player->route = route;
    for (uint64_t t = 0; rc == 0 && t < tokens; t++)
        rc = tools_interrupted() ? -ECANCELED : play_token(player, t);
    if (rc == 0)
        rc = efs_predict_end(player->predictor, route->sequence[tokens - 1]);
    return rc;
}

static int save_learned(struct player *player)
{
    player->learned_bytes = efs_predict_save(player->predictor, NULL, 0);
    player->learned = efs_table(&player->tables, player->learned_bytes, 1);
    if (!player->learned)
        return -ENOMEM;
    efs_predict_save(player->predictor, player->learned, player->learned_bytes);
    return 0;
}

int predict_evaluate(const struct predict_arguments *a, const struct predict_choice *choice,
                     const struct efs_route *histories, const struct efs_route *trace, struct predict_result *result)
{
    struct efs_predict_config config = choice->config;
    struct player player = {.every = a->every};
    uint64_t tokens = a->tokens && a->tokens < trace->tokens ? a->tokens : trace->tokens;
    *result = (struct predict_result){0};
    config.layers = trace->layers;
    config.experts = trace->experts;
    config.chosen = trace->chosen;
    config.distances = trace->layers < PREDICT_DISTANCES ? trace->layers : PREDICT_DISTANCES;
    config.sequences = 1;
    config.memory_bytes = a->memory_bytes;
    config.state_width = player.width = trace->states ? trace->width : 0;
    config.gates = trace->states ? trace->gates : NULL;
    if (trace->all_scores && config.kind == EFS_PREDICT_FMOE)
        config.tuning.width = trace->experts; /* as published: maps of the scores of all experts */
    int rc = efs_predictor_new(&config, &player.predictor);
    EFS_TABLE(&player.tables, player.probability, trace->experts);
    EFS_TABLE(&player.tables, player.predictions, (size_t)2 * trace->chosen);
    EFS_TABLE(&player.tables, player.order, trace->experts);
    EFS_TABLE(&player.tables, player.scores, trace->experts);
    EFS_TABLE(&player.tables, player.state, player.width + 1);
    if (rc == 0)
        rc = efs_tables_error(&player.tables);
    if (rc == 0)
        rc = predict_train(player.predictor, histories, a->histories);
    for (uint32_t h = 0; rc == 0 && h < a->histories; h++)
        rc = play_route(&player, &histories[h], histories[h].tokens);
    if (rc == 0 && a->learn == PREDICT_LEARN_REQUEST)
        rc = save_learned(&player);
    if (rc == 0) {
        efs_predict_learn(player.predictor, a->learn != PREDICT_LEARN_NO);
        player.result = result;
        rc = play_route(&player, trace, tokens);
        result->bytes = efs_predict_bytes(player.predictor);
    }
    efs_tables_free(&player.tables);
    efs_predictor_free(player.predictor);
    return rc;
}

static errint_t read_histories(const struct predict_arguments *a, const struct efs_route *trace,
                               struct efs_route *histories, struct efs_error *err)
{
    for (uint32_t h = 0; h < a->histories; h++) {
        errint_t rc = efs_route_read(a->history[h], &histories[h], err);
        if (rc < 0)
            return rc;
        if (histories[h].layers != trace->layers || histories[h].experts != trace->experts ||
            histories[h].chosen != trace->chosen)
            return efs_fail(err, -EINVAL, "%s: a model of another shape than that of %s", a->history[h],
                            a->trace.word[0]);
        if (histories[h].states && trace->states && histories[h].width != trace->width)
            return efs_fail(err, -EINVAL, "%s: hidden states of another width than those of %s", a->history[h],
                            a->trace.word[0]);
    }
    return 0;
}

static errint_t predict(const struct predict_arguments *a, struct efs_route *histories, struct efs_route *trace,
                        struct efs_error *err)
{
    errint_t rc = efs_route_read(a->trace.word[0], trace, err);
    if (rc == 0)
        rc = read_histories(a, trace, histories, err);
    if (rc < 0)
        return rc;
    predict_report_head(a, histories, trace);
    for (uint32_t i = 0; rc == 0 && i < a->count; i++) {
        struct predict_result result;
        const enum efs_predictor_kind kind = a->choices[i].config.kind;
        bool no_states = efs_predictor_needs_states(kind) && !trace->states;
        bool no_gates = efs_predictor_needs_gates(kind) && !trace->gates;
        if ((no_states || no_gates) && !a->choices[i].named)
            continue;
        if (no_states || no_gates)
            return efs_fail(err, -ENODATA, "%s: %s has no %s; see expertfs-route(5)", a->choices[i].name,
                            a->trace.word[0], no_states ? "hidden states" : "weights of the routers");
        rc = predict_evaluate(a, &a->choices[i], histories, trace, &result);
        if (rc == 0)
            predict_report_row(&a->choices[i], &result);
        else if (rc == -ENODATA && !a->choices[i].named)
            rc = 0;
        else if (rc == -ENODATA)
            efs_fail(err, rc, "%s: no --history with hidden states to train on", a->choices[i].name);
        else if (rc == -E2BIG)
            efs_fail(err, rc, "%s: --memory is too little for it", a->choices[i].name);
        else if (rc != -ECANCELED)
            efs_fail(err, rc, "%s: %s", a->choices[i].name, strerror(-rc));
    }
    return rc;
}

int predict_main(int argc, char **argv)
{
    struct predict_arguments a;
    struct efs_route histories[PREDICT_HISTORIES_MAX] = {{0}}, trace = {0};
    struct efs_error err = {""};
    predict_arguments_parse(argc, argv, &a);
    tools_interrupt_catch();
    errint_t rc = predict(&a, histories, &trace, &err);
    for (uint32_t h = 0; h < a.histories; h++)
        efs_route_free(&histories[h]);
    efs_route_free(&trace);
    if (rc < 0)
        return tools_fail("moe-replay predict", rc, &err);
    return EXIT_SUCCESS;
}
