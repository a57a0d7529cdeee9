/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_reuse.c - rates, ages and the detection of new requests, in integers.
 */
#include "policy_reuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rank.h"
#include "tables.h"

#define USE 64u             /* increment of a rate per use */
#define RATE_WEIGHT 0.8     /* exponent of the rate; this and the next fitted on the history trace */
#define AGE_WEIGHT 0.4      /* exponent of the passes since the last use */
#define SMOOTH 4            /* weight of the long-run rate at the start of a request, in passes */
#define HALF_LIFE 256       /* of the rate within a request, in passes */
#define CHANGE_BITS 2.9     /* bits by which two consecutive passes must be less likely to indicate a new request */
#define FADE_STEP 0.75      /* rates fade in steps: each recomputes the logarithms of the layer */
#define FADE_PASSES 106u    /* between steps: 0.75^(256/106) = 1/2, so HALF_LIFE */
#define LONG_RUN 40u        /* weight of the uniform rate at the start of the long-run rate, in passes */
#define LONG_RUN_MAX 65536u /* passes of a layer after which its long-run counts are halved */
#define STEADY_PASSES 8u    /* passes after a change during which no other is detected */

struct efs_value {
    struct efs_tables tables;
    unsigned layers, experts;
    double chosen;
    bool steady;
    uint32_t *rate;    /* [layer][expert] uses in this request times USE, faded */
    uint32_t *prior;   /* [layer][expert] contribution of the long-run rate */
    int32_t *log_rate; /* [layer][expert] RATE_WEIGHT * log2(rate + prior), in EFS_VALUE_UNIT */
    uint32_t *last;    /* [layer][expert] number of the layer's visit that used it last */
    uint32_t *total;   /* [layer][expert] long-run uses */
    struct layer {
        uint32_t visits, total_visits, since_fade;
        double passes; /* of this request, faded */
        int32_t log_passes;
        bool stale; /* log_rate and log_passes must be recomputed */
    } * layer;
    int32_t age_cost[EFS_VALUE_AGES + 1];
    int32_t log_table[257];
    /* Detection of new requests: bits of likelihood per pass. */
    int64_t bits;
    uint32_t bits_of, requests, steady_passes;
    double slow, last_loss;
};

/* log2(x) in EFS_VALUE_UNIT, for x >= 1, with an error of about one unit: table over the top 8 bits of the fraction,
 * linear interpolation between. */
static int32_t value_log2(const struct efs_value *value, uint32_t x)
{
    unsigned top = 31 - (unsigned)__builtin_clz(x);
    uint32_t fraction = x << (31 - top) << 1; /* below the leading one, as 0.32 fixed point */
    unsigned index = fraction >> 24;
    int32_t low = value->log_table[index], high = value->log_table[index + 1];

    return (int32_t)(top * EFS_VALUE_UNIT) + low + (int32_t)((int64_t)(high - low) * (fraction >> 8 & 0xffff) >> 16);
}

static int32_t value_age_weight(const struct efs_value *value, uint32_t x)
{
    return (int32_t)((int64_t)value_log2(value, x ? x : 1) * (int64_t)(4096 * RATE_WEIGHT + 0.5) >> 12);
}

struct efs_value *efs_value_new(unsigned layers, unsigned experts, double chosen, bool steady)
{
    size_t cells = (size_t)layers * experts;
    struct efs_value *value;

    if (!layers || !experts || layers > EFS_RANK_MAX_LAYERS || experts > EFS_RANK_MAX_EXPERTS)
        return NULL;
    value = calloc(1, sizeof(*value));
    if (!value)
        return NULL;
    value->layers = layers;
    value->experts = experts;
    value->chosen = fmin(fmax(chosen, 1), experts);
    value->steady = steady;
    value->steady_passes = STEADY_PASSES;
    for (unsigned i = 0; i <= 256; i++)
        value->log_table[i] = (int32_t)lrint(log2(1 + i / 256.0) * EFS_VALUE_UNIT);
    for (unsigned age = 1; age <= EFS_VALUE_AGES; age++)
        value->age_cost[age] = (int32_t)lrint(AGE_WEIGHT * log2(age) * EFS_VALUE_UNIT);
    EFS_TABLE(&value->tables, value->rate, cells);
    EFS_TABLE(&value->tables, value->prior, cells);
    EFS_TABLE(&value->tables, value->log_rate, cells);
    EFS_TABLE(&value->tables, value->last, cells);
    EFS_TABLE(&value->tables, value->total, cells);
    EFS_TABLE(&value->tables, value->layer, layers);
    if (value->tables.failed) {
        efs_value_free(value);
        return NULL;
    }
    for (unsigned l = 0; l < layers; l++) {
        value->layer[l].visits = EFS_VALUE_AGES; /* so that an unused expert has age EFS_VALUE_AGES */
        value->layer[l].stale = true;
    }
    return value;
}

void efs_value_free(struct efs_value *value)
{
    if (!value)
        return;
    efs_tables_free(&value->tables);
    free(value);
}

static void value_set_log(struct efs_value *value, size_t at)
{
    value->log_rate[at] = value_age_weight(value, value->rate[at] + value->prior[at]);
}

/* Recomputes all values that depend on the long-run rates and on the fading of this layer. */
static void value_refresh_layer(struct efs_value *value, unsigned l)
{
    struct layer *layer = &value->layer[l];
    size_t base = (size_t)l * value->experts;
    double uniform = value->chosen / value->experts;
    double scale = SMOOTH * (double)USE / (layer->total_visits + LONG_RUN);

    if (!layer->stale)
        return;
    for (unsigned e = 0; e < value->experts; e++) {
        value->prior[base + e] = (uint32_t)lrint(scale * (value->total[base + e] + uniform * LONG_RUN));
        value_set_log(value, base + e);
    }
    layer->log_passes = value_age_weight(value, (uint32_t)lrint(USE * (layer->passes + SMOOTH)));
    layer->stale = false;
}

static void value_fade_layer(struct efs_value *value, unsigned l)
{
    struct layer *layer = &value->layer[l];
    size_t base = (size_t)l * value->experts;

    if (layer->total_visits >= LONG_RUN_MAX) {
        layer->total_visits /= 2;
        for (unsigned e = 0; e < value->experts; e++)
            value->total[base + e] /= 2;
    }
    for (unsigned e = 0; e < value->experts; e++)
        value->rate[base + e] = (uint32_t)(value->rate[base + e] * FADE_STEP);
    layer->passes *= FADE_STEP;
    layer->since_fade = 0;
    layer->stale = true;
}

/* A new request starts: resets its rates to the long-run ones. */
static void value_begin(struct efs_value *value)
{
    memset(value->rate, 0, (size_t)value->layers * value->experts * sizeof(*value->rate));
    for (unsigned l = 0; l < value->layers; l++) {
        value->layer[l].passes = 0;
        value->layer[l].since_fade = 0;
        value->layer[l].stale = true;
    }
    value->steady_passes = STEADY_PASSES;
    value->last_loss = 0;
}

/*
 * Called at the end of a pass over all layers. True if its experts were much less likely than those of the passes
 * before. Adds up two passes, because a single unusual token does not indicate a new request.
 */
static bool value_find_change(struct efs_value *value)
{
    double mean = (double)value->bits / value->bits_of / EFS_VALUE_UNIT / RATE_WEIGHT;
    double loss = value->slow - mean;
    bool first = value->slow == 0;

    value->bits = 0;
    value->bits_of = value->requests = 0;
    if (value->steady_passes) {
        value->steady_passes--;
        if (first || mean > value->slow)
            value->slow = mean;
        return false;
    }
    if (loss + value->last_loss > CHANGE_BITS && loss > CHANGE_BITS / 5) {
        value_begin(value);
        return true;
    }
    value->last_loss = fmax(loss, 0);
    value->slow += (mean - value->slow) / 16;
    return false;
}

bool efs_value_request(struct efs_value *value, unsigned l, const uint32_t *expert, unsigned count)
{
    struct layer *layer = &value->layer[l];
    size_t base = (size_t)l * value->experts;
    bool changed = false;

    value_refresh_layer(value, l);
    for (unsigned i = 0; i < count; i++)
        value->bits += value->log_rate[base + expert[i]] - layer->log_passes;
    value->bits_of += count;
    if (++value->requests >= value->layers && !value->steady && value->bits_of)
        changed = value_find_change(value);
    if (layer->visits == UINT32_MAX) { /* after 2^32 passes all ages restart */
        layer->visits = EFS_VALUE_AGES;
        memset(value->last + base, 0, value->experts * sizeof(*value->last));
    }
    layer->visits++;
    layer->total_visits++;
    layer->passes++;
    if (++layer->since_fade >= FADE_PASSES)
        value_fade_layer(value, l);
    for (unsigned i = 0; i < count; i++) {
        size_t at = base + expert[i];

        value->last[at] = layer->visits;
        value->total[at]++;
        value->rate[at] += USE;
        if (!layer->stale)
            value_set_log(value, at);
    }
    if (!layer->stale)
        layer->log_passes = value_age_weight(value, (uint32_t)lrint(USE * (layer->passes + SMOOTH)));
    return changed;
}

void efs_value_seed(struct efs_value *value, unsigned l, const uint32_t *counts, uint64_t passes)
{
    size_t base = (size_t)l * value->experts;
    /* Scales a long history down and keeps its proportions. */
    uint64_t cut = passes / LONG_RUN_MAX + 1;

    for (unsigned e = 0; e < value->experts; e++)
        value->total[base + e] = (uint32_t)(counts[e] / cut);
    value->layer[l].total_visits = (uint32_t)(passes / cut);
    value->layer[l].stale = true;
}

struct efs_value_view efs_value_look(struct efs_value *value, unsigned l)
{
    size_t base = (size_t)l * value->experts;

    value_refresh_layer(value, l);
    return (struct efs_value_view){.log_rate = value->log_rate + base,
                                   .age_cost = value->age_cost,
                                   .last = value->last + base,
                                   .visits = value->layer[l].visits,
                                   .log_passes = value->layer[l].log_passes};
}

double efs_value_reuse(int32_t score)
{
    return exp2(-(double)score / EFS_VALUE_UNIT) * 0.44932896411722156; /* e^-0.8, fitted on the history trace */
}
