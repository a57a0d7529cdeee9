/* SPDX-License-Identifier: Apache-2.0 */
/* prediction_list.c - see prediction_list.h. */
#include "prediction_list.h"

#include "interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROBABILITY_MIN 0.02F /* drop predictions with a lower probability */

struct recorder {
    struct efs_predictor *predictor; /* NULL: perfect prediction, from the workload */
    const struct replay_workload *workload;
    struct replay_predictions *predicted; /* NULL: train only */
    struct efs_prediction *predictions;   /* [2 * chosen] */
    float *state;                         /* [width of the trace's states] */
    uint64_t *live;                       /* [batch]: active sequences */
    uint32_t live_count;
    unsigned distances;
    size_t kept, room;
};

static int add_prediction(struct recorder *s, unsigned expert, unsigned distance, float probability)
{
    if (s->kept == s->room) {
        size_t room = s->room ? 2 * s->room : 4096;
        struct replay_prediction *more = reallocarray(s->predicted->predictions, room, sizeof(*more));
        if (!more)
            return -ENOMEM;
        s->predicted->predictions = more;
        s->room = room;
    }
    s->predicted->predictions[s->kept++] = (struct replay_prediction){probability, (uint16_t)expert, (uint8_t)distance};
    return 0;
}

unsigned replay_chosen(const struct replay_workload *w, uint64_t at, unsigned layer, uint16_t *experts)
{
    const struct efs_route *route = w->route;
    const uint16_t *ids = route->ids + (at * route->layers + layer % route->layers) * route->chosen;
    unsigned count = 0;
    for (unsigned i = 0; i < route->chosen; i++) {
        uint16_t expert = (uint16_t)(ids[i] % w->experts);
        unsigned seen = 0;
        while (seen < count && experts[seen] != expert)
            seen++;
        if (seen == count)
            experts[count++] = expert;
    }
    return count;
}

/* ---- predictors ------------------------------------------------------------------------------------------------- */

static int observe(struct recorder *s, uint64_t at, unsigned layer)
{
    const struct efs_route *route = s->workload->route;
    uint16_t experts[EFS_PREDICT_MAX_CHOSEN];
    struct efs_predict_observation seen = {
        .layer = layer, .experts = experts, .count = replay_chosen(s->workload, at, layer, experts)};
    if (route->scores && seen.count == route->chosen)
        seen.scores = route->scores + (at * route->layers + layer % route->layers) * route->chosen;
    if (route->states && layer < route->layers) {
        const uint16_t *halves = route->states + (at * route->layers + layer) * route->width;
        for (uint32_t i = 0; i < route->width; i++)
            s->state[i] = efs_route_half(halves[i]);
        seen.state = s->state;
    }
    return efs_predict_observe(s->predictor, route->sequence[at], &seen);
}

bool replay_predictions_possible(const struct predict_choice *choice, const struct replay_workload *history,
                                 const struct replay_workload *w)
{
    const struct efs_route *route = w->route;
    if (!efs_predictor_needs_states(choice->config.kind))
        return true;
    if (!route->states || (efs_predictor_needs_gates(choice->config.kind) && !route->gates) ||
        w->layers != route->layers || w->experts != route->experts)
        return false;
    const struct efs_route *past = history ? history->route : NULL;
    return !past || !past->states ||
           (past->width == route->width && past->layers == route->layers && past->experts == route->experts &&
            past->chosen == route->chosen);
}

static int predict_token(struct recorder *s, uint64_t at)
{
    int rc = 0;
    for (unsigned d = 1; rc == 0 && d <= s->distances; d++) {
        int count = efs_predict(s->predictor, s->workload->route->sequence[at], d, s->predictions,
                                2 * s->workload->route->chosen, NULL);
        for (int i = 0; rc == 0 && i < count; i++)
            if (s->predictions[i].probability >= PROBABILITY_MIN)
                rc = add_prediction(s, s->predictions[i].expert, d, s->predictions[i].probability);
        rc = count < 0 ? count : rc;
    }
    return rc;
}

static int predict_perfectly(struct recorder *s, uint64_t at, unsigned layer)
{
    const struct replay_workload *w = s->workload;
    uint16_t experts[EFS_PREDICT_MAX_CHOSEN];
    int rc = 0;
    for (unsigned d = 1; rc == 0 && d <= s->distances; d++) {
        uint64_t token = at + (layer + d) / w->layers;
        if (token >= w->route->tokens || w->route->sequence[token] != w->route->sequence[at])
            break;
        unsigned count = replay_chosen(w, token, (layer + d) % w->layers, experts);
        for (unsigned i = 0; rc == 0 && i < count; i++)
            rc = add_prediction(s, experts[i], d, 1);
    }
    return rc;
}

/* ---- a workload ------------------------------------------------------------------------------------------------- */

/* Ends the sequences that are not in the pass and begins those that are new in it. */
static int follow_sequences(struct recorder *s, const uint64_t *at, uint32_t width)
{
    const uint32_t *sequence = s->workload->route->sequence;
    int rc = 0;
    for (uint32_t i = s->live_count; rc == 0 && i-- > 0;) {
        uint32_t t = 0;
        while (t < width && sequence[at[t]] != s->live[i])
            t++;
        if (t < width)
            continue;
        rc = efs_predict_end(s->predictor, s->live[i]);
        s->live[i] = s->live[--s->live_count];
    }
    for (uint32_t t = 0; rc == 0 && t < width; t++) {
        uint32_t i = 0;
        while (i < s->live_count && s->live[i] != sequence[at[t]])
            i++;
        if (i < s->live_count)
            continue;
        rc = efs_predict_begin(s->predictor, sequence[at[t]]);
        s->live[s->live_count++] = sequence[at[t]];
    }
    return rc;
}

/* Plays a pass. In each layer the predictor observes all tokens before the first prediction. */
static int play_pass(struct recorder *s, const uint64_t *at, uint32_t width, uint64_t token)
{
    const struct replay_workload *w = s->workload;
    int rc = s->predictor ? follow_sequences(s, at, width) : 0;
    for (uint32_t l = 0; rc == 0 && l < w->layers; l++) {
        for (uint32_t t = 0; rc == 0 && s->predictor && t < width; t++)
            rc = observe(s, at[t], l);
        for (uint32_t t = 0; rc == 0 && s->predicted && t < width; t++) {
            s->predicted->first[token * w->layers + l * width + t] = s->kept;
            rc = s->predictor ? predict_token(s, at[t]) : predict_perfectly(s, at[t], l);
        }
    }
    return rc;
}

static int play(struct recorder *s, const struct replay_workload *w, struct replay_predictions *predicted)
{
    uint64_t token = 0;
    int rc = 0;
    s->workload = w;
    s->predicted = predicted;
    for (uint64_t pass = 0; rc == 0 && pass < w->passes; token += w->width[pass++])
        rc = tools_interrupted() ? -ECANCELED : play_pass(s, w->at + token, w->width[pass], token);
    if (s->predictor && rc == 0)
        rc = follow_sequences(s, NULL, 0);
    return rc;
}

static size_t widest_state(const struct replay_workload *history, const struct replay_workload *w)
{
    size_t past = history ? history->route->width : 0;
    return w->route->width > past ? w->route->width : past;
}

int replay_predictions_make(const struct predict_choice *choice, const struct replay_workload *history,
                            const struct replay_workload *w, unsigned distances, struct replay_predictions *f)
{
    struct efs_predict_config config = choice->config;
    struct recorder s = {.distances = distances < w->layers ? distances : w->layers};
    bool knows = config.kind == EFS_PREDICTORS;
    int rc = 0;
    *f = (struct replay_predictions){0};
    memcpy(f->name, choice->name, sizeof(f->name));
    config.layers = w->layers;
    config.experts = w->experts;
    config.chosen = w->route->chosen < w->experts ? w->route->chosen : w->experts;
    config.distances = s.distances;
    config.sequences = w->batch;
    if (efs_predictor_needs_states(config.kind)) {
        config.state_width = w->route->width;
        config.gates = w->route->gates;
    }
    f->first = calloc(w->tokens * w->layers + 1, sizeof(*f->first));
    s.live = calloc(w->batch, sizeof(*s.live));
    s.predictions = calloc((size_t)2 * w->route->chosen, sizeof(*s.predictions));
    s.state = calloc(widest_state(history, w) + 1, sizeof(*s.state));
    if (!f->first || !s.live || !s.predictions || !s.state)
        rc = -ENOMEM;
    if (rc == 0 && !knows)
        rc = efs_predictor_new(&config, &s.predictor);
    if (rc == 0 && !knows)
        rc = predict_train(s.predictor, history ? history->route : NULL, history != NULL);
    if (rc == 0 && history && !knows)
        rc = play(&s, history, NULL);
    if (rc == 0)
        rc = play(&s, w, f);
    if (rc == 0) {
        f->first[w->tokens * w->layers] = s.kept;
        f->bytes = knows ? 0 : efs_predict_bytes(s.predictor);
    } else {
        replay_predictions_free(f);
    }
    efs_predictor_free(s.predictor);
    free(s.state);
    free(s.predictions);
    free(s.live);
    return rc;
}

void replay_predictions_free(struct replay_predictions *f)
{
    free(f->first);
    free(f->predictions);
    *f = (struct replay_predictions){0};
}
