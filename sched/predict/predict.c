/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict.c - dispatches to the predictors by kind: construction, and the most probable experts of a layer.
 */
#include "predict_internal.h"

#include <errno.h>
#include <stdlib.h>

static const struct efs_predict_ops *const kinds[EFS_PREDICTORS] = {
    [EFS_PREDICT_DEEPSPEED] = &efs_predict_deepspeed,
    [EFS_PREDICT_BRAINSTORM] = &efs_predict_brainstorm,
    [EFS_PREDICT_REQUEST] = &efs_predict_request,
    [EFS_PREDICT_TRANSITION] = &efs_predict_transition,
    [EFS_PREDICT_EDGEMOE] = &efs_predict_edgemoe,
    [EFS_PREDICT_INFINITY] = &efs_predict_infinity,
    [EFS_PREDICT_FMOE] = &efs_predict_fmoe,
    [EFS_PREDICT_MIXED] = &efs_predict_mixed,
    [EFS_PREDICT_OFFLOADING] = &efs_predict_offloading,
    [EFS_PREDICT_HYBRIMOE] = &efs_predict_hybrimoe,
    [EFS_PREDICT_DALI] = &efs_predict_dali,
    [EFS_PREDICT_LINEAR] = &efs_predict_linear,
    [EFS_PREDICT_PROMOE] = &efs_predict_promoe,
};

const char *efs_predictor_name(enum efs_predictor_kind kind)
{
    return (unsigned)kind < EFS_PREDICTORS ? kinds[kind]->name : NULL;
}

enum efs_predictor_kind efs_predictor_by_name(const char *name)
{
    enum efs_predictor_kind kind = 0;

    while (kind < EFS_PREDICTORS && strcmp(kinds[kind]->name, name) != 0)
        kind++;
    return kind;
}

bool efs_predictor_needs_states(enum efs_predictor_kind kind)
{
    return (unsigned)kind < EFS_PREDICTORS && kinds[kind]->states;
}

bool efs_predictor_needs_gates(enum efs_predictor_kind kind)
{
    return (unsigned)kind < EFS_PREDICTORS && kinds[kind]->gates;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static bool config_valid(const struct efs_predict_config *c)
{
    return (unsigned)c->kind < EFS_PREDICTORS && c->layers >= 1 && c->layers <= EFS_PREDICT_MAX_LAYERS &&
           c->experts >= 1 && c->experts <= EFS_PREDICT_MAX_EXPERTS && c->chosen >= 1 && c->chosen <= c->experts &&
           c->chosen <= EFS_PREDICT_MAX_CHOSEN && c->distances >= 1 && c->distances <= c->layers &&
           c->distances <= EFS_PREDICT_MAX_DISTANCE && c->tuning.width <= c->experts &&
           (!c->tuning.width || c->tuning.width >= c->chosen) && (unsigned)c->tuning.match <= EFS_MATCH_SEMANTIC &&
           c->sequences >= 1 && c->sequences <= EFS_PREDICT_MAX_SEQUENCES && c->state_width <= EFS_PREDICT_MAX_WIDTH;
}

static int predictor_tables(struct efs_predictor *p)
{
    size_t slots = (size_t)2 * p->layers * p->width, units = (size_t)p->layers * p->experts;
    unsigned count = p->config.sequences;
    uint16_t *ids;
    float *scores;
    uint16_t *counts;
    uint32_t *wanted;

    p->sequences = efs_predict_table(p, count, sizeof(*p->sequences));
    ids = efs_predict_table(p, count * slots, sizeof(*ids));
    scores = efs_predict_table(p, count * slots, sizeof(*scores));
    counts = efs_predict_table(p, (size_t)count * 4 * p->layers, sizeof(*counts));
    wanted = efs_predict_table(p, count * units, sizeof(*wanted));
    p->probability = efs_predict_table(p, p->experts, sizeof(*p->probability));
    p->best = efs_predict_table(p, p->experts, sizeof(*p->best));
    p->mark = efs_predict_table(p, p->experts, sizeof(*p->mark));
    if (efs_predict_table_error(p) < 0)
        return efs_predict_table_error(p);
    for (unsigned s = 0; s < count; s++) {
        p->sequences[s].ids = ids + s * slots;
        p->sequences[s].scores = scores + s * slots;
        p->sequences[s].counts = counts + (size_t)s * 4 * p->layers;
        p->sequences[s].wanted = wanted + s * units;
    }
    return p->ops->open(p);
}

int efs_predictor_new(const struct efs_predict_config *config, struct efs_predictor **out)
{
    struct efs_predictor *p;
    int rc;

    *out = NULL;
    if (!config_valid(config))
        return -EINVAL;
    if ((kinds[config->kind]->states && config->state_width == 0) || (kinds[config->kind]->gates && !config->gates))
        return -ENODATA;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->ops = kinds[config->kind];
    p->config = *config;
    p->layers = config->layers;
    p->experts = config->experts;
    p->chosen = config->chosen;
    p->distances = config->distances;
    p->width = config->tuning.width ? config->tuning.width : config->chosen;
    p->learn = true;
    p->bytes = sizeof(*p);
    p->room_bytes = config->memory_bytes ? config->memory_bytes : EFS_PREDICT_MEMORY;
    p->room_bytes -= p->room_bytes < sizeof(*p) ? p->room_bytes : sizeof(*p);
    rc = predictor_tables(p);
    if (rc) {
        efs_predictor_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void efs_predictor_free(struct efs_predictor *p)
{
    if (!p)
        return;
    efs_tables_free(&p->tables);
    free(p);
}

uint64_t efs_predict_bytes(const struct efs_predictor *p)
{
    return p->bytes;
}

void efs_predict_learn(struct efs_predictor *p, bool on)
{
    p->learn = on;
}

int efs_predict_train(struct efs_predictor *p, const struct efs_predict_samples *samples)
{
    if (!p->ops->train)
        return -EOPNOTSUPP;
    return samples->tokens > 0 ? p->ops->train(p, samples) : -EINVAL;
}

/* ---- predictions ------------------------------------------------------------------------------------------------- */

static int predict_score(struct efs_predictor *p, uint64_t id, unsigned distance, float *probability, unsigned *s,
                         unsigned *picked)
{
    *s = efs_predict_find(p, id);
    if (*s == p->config.sequences)
        return -ENOENT;
    if (distance < 1 || distance > p->distances)
        return -EINVAL;
    memset(probability, 0, p->experts * sizeof(*probability));
    *picked = 0;
    if (p->sequences[*s].now >= 0)
        *picked = p->ops->score(p, *s, p->sequences[*s].now + distance, probability);
    if (*picked == 0)
        *picked = p->chosen;
    return 0;
}

int efs_predict_all(struct efs_predictor *p, uint64_t id, unsigned distance, float *probability)
{
    unsigned s, picked;

    return predict_score(p, id, distance, probability, &s, &picked);
}

/* Inserts an expert into the sorted list of the best, which has `count` entries, at most room. Returns the new
 * count. */
static unsigned best_insert(const struct efs_predictor *p, unsigned expert, uint16_t *best, unsigned count,
                            unsigned room)
{
    float worth = p->probability[expert];
    unsigned at = count;

    while (at > 0 && p->probability[best[at - 1]] < worth)
        at--;
    if (at == room)
        return count;
    if (count < room)
        count++;
    memmove(best + at + 1, best + at, (count - at - 1) * sizeof(*best));
    best[at] = (uint16_t)expert;
    return count;
}

int efs_predict(struct efs_predictor *p, uint64_t id, unsigned distance, struct efs_prediction *guesses, unsigned room,
                unsigned *picked)
{
    unsigned s, count = 0, pick, layer;
    int rc = predict_score(p, id, distance, p->probability, &s, &pick);

    if (rc < 0)
        return rc;
    room = room < p->experts ? room : p->experts;
    for (unsigned e = 0; room > 0 && e < p->experts; e++)
        if (p->probability[e] > 0)
            count = best_insert(p, e, p->best, count, room);
    if (picked)
        *picked = pick < count ? pick : count;
    layer = efs_predict_layer(p, p->sequences[s].now + distance);
    for (unsigned i = 0; i < count; i++)
        guesses[i] = (struct efs_prediction){(uint16_t)layer, p->best[i], p->probability[p->best[i]]};
    return (int)count;
}
