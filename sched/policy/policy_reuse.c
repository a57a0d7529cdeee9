/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_reuse.c - rates, ages and the detection of new sequences, in integers.
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
#define SMOOTH 4            /* weight of the long-run rate at the start of a sequence, in passes */
#define HALF_LIFE 256       /* of the rate within a sequence, in passes */
#define CHANGE_BITS 2.9     /* loss of two consecutive passes, in bits per expert, that indicates a new sequence */
#define FADE_STEP 0.75      /* rates fade in steps: each recomputes the logarithms of the layer */
#define FADE_PASSES 106u    /* between steps: 0.75^(256/106) = 1/2, so HALF_LIFE */
#define LONG_RUN 40u        /* weight of the uniform rate at the start of the long-run rate, in passes */
#define LONG_RUN_MAX 65536u /* passes of a layer after which its long-run counts are halved */
#define STEADY_PASSES 8u    /* passes after a change during which no other is detected */

struct efs_reuse {
    struct efs_tables tables;
    unsigned layers, experts;
    double chosen;
    bool steady;
    uint32_t *rate;    /* [layer][expert] uses in this sequence times USE, faded */
    uint32_t *prior;   /* [layer][expert] contribution of the long-run rate */
    int32_t *log_rate; /* [layer][expert] RATE_WEIGHT * log2(rate + prior), in EFS_REUSE_UNIT */
    uint32_t *last;    /* [layer][expert] number of the layer's visit that used it last */
    uint32_t *total;   /* [layer][expert] long-run uses */
    struct layer {
        uint32_t visits, total_visits, since_fade;
        double passes; /* of this sequence, faded */
        int32_t log_passes;
        bool stale; /* log_rate and log_passes must be recomputed */
    } * layer;
    int32_t age_cost[EFS_REUSE_AGES + 1];
    int32_t log_table[257];
    /* Detection of new sequences, by the log-likelihood of the requested experts: */
    int64_t bits;               /* sum over the experts of this pass, in EFS_REUSE_UNIT times RATE_WEIGHT */
    uint32_t bits_of, requests; /* number of these experts; of the layers that requested them */
    uint32_t steady_passes;     /* passes left until a change can be detected */
    double slow, last_loss;     /* bits per expert: moving average; what the last pass was below it */
};

/* log2(x) in EFS_REUSE_UNIT, for x >= 1, with an error of about one unit: table over the top 8 bits of the fraction,
 * linear interpolation between. */
static int32_t reuse_log2(const struct efs_reuse *reuse, uint32_t x)
{
    unsigned top = 31 - (unsigned)__builtin_clz(x);
    uint32_t fraction = x << (31 - top) << 1; /* below the leading one, as 0.32 fixed point */
    unsigned index = fraction >> 24;
    int32_t low = reuse->log_table[index], high = reuse->log_table[index + 1];

    return (int32_t)(top * EFS_REUSE_UNIT) + low + (int32_t)((int64_t)(high - low) * (fraction >> 8 & 0xffff) >> 16);
}

/* RATE_WEIGHT * log2(x) in EFS_REUSE_UNIT; 0 for x = 0. */
static int32_t reuse_weighted_log2(const struct efs_reuse *reuse, uint32_t x)
{
    return (int32_t)((int64_t)reuse_log2(reuse, x ? x : 1) * (int64_t)(4096 * RATE_WEIGHT + 0.5) >> 12);
}

struct efs_reuse *efs_reuse_new(unsigned layers, unsigned experts, double chosen, bool steady)
{
    size_t cells = (size_t)layers * experts;
    struct efs_reuse *reuse;

    if (!layers || !experts || layers > EFS_RANK_MAX_LAYERS || experts > EFS_RANK_MAX_EXPERTS)
        return NULL;
    reuse = calloc(1, sizeof(*reuse));
    if (!reuse)
        return NULL;
    reuse->layers = layers;
    reuse->experts = experts;
    reuse->chosen = fmin(fmax(chosen, 1), experts);
    reuse->steady = steady;
    reuse->steady_passes = STEADY_PASSES;
    for (unsigned i = 0; i <= 256; i++)
        reuse->log_table[i] = (int32_t)lrint(log2(1 + i / 256.0) * EFS_REUSE_UNIT);
    for (unsigned age = 1; age <= EFS_REUSE_AGES; age++)
        reuse->age_cost[age] = (int32_t)lrint(AGE_WEIGHT * log2(age) * EFS_REUSE_UNIT);
    EFS_TABLE(&reuse->tables, reuse->rate, cells);
    EFS_TABLE(&reuse->tables, reuse->prior, cells);
    EFS_TABLE(&reuse->tables, reuse->log_rate, cells);
    EFS_TABLE(&reuse->tables, reuse->last, cells);
    EFS_TABLE(&reuse->tables, reuse->total, cells);
    EFS_TABLE(&reuse->tables, reuse->layer, layers);
    if (reuse->tables.failed) {
        efs_reuse_free(reuse);
        return NULL;
    }
    for (unsigned l = 0; l < layers; l++) {
        reuse->layer[l].visits = EFS_REUSE_AGES; /* so that an unused expert has age EFS_REUSE_AGES */
        reuse->layer[l].stale = true;
    }
    return reuse;
}

void efs_reuse_free(struct efs_reuse *reuse)
{
    if (!reuse)
        return;
    efs_tables_free(&reuse->tables);
    free(reuse);
}

static void reuse_set_log(struct efs_reuse *reuse, size_t at)
{
    reuse->log_rate[at] = reuse_weighted_log2(reuse, reuse->rate[at] + reuse->prior[at]);
}

/* Recomputes all values that depend on the long-run rates and on the fading of this layer. */
static void reuse_refresh_layer(struct efs_reuse *reuse, unsigned l)
{
    struct layer *layer = &reuse->layer[l];
    size_t base = (size_t)l * reuse->experts;
    double uniform = reuse->chosen / reuse->experts;
    double scale = SMOOTH * (double)USE / (layer->total_visits + LONG_RUN);

    if (!layer->stale)
        return;
    for (unsigned e = 0; e < reuse->experts; e++) {
        reuse->prior[base + e] = (uint32_t)lrint(scale * (reuse->total[base + e] + uniform * LONG_RUN));
        reuse_set_log(reuse, base + e);
    }
    layer->log_passes = reuse_weighted_log2(reuse, (uint32_t)lrint(USE * (layer->passes + SMOOTH)));
    layer->stale = false;
}

static void reuse_decay_layer(struct efs_reuse *reuse, unsigned l)
{
    struct layer *layer = &reuse->layer[l];
    size_t base = (size_t)l * reuse->experts;

    if (layer->total_visits >= LONG_RUN_MAX) {
        layer->total_visits /= 2;
        for (unsigned e = 0; e < reuse->experts; e++)
            reuse->total[base + e] /= 2;
    }
    for (unsigned e = 0; e < reuse->experts; e++)
        reuse->rate[base + e] = (uint32_t)(reuse->rate[base + e] * FADE_STEP);
    layer->passes *= FADE_STEP;
    layer->since_fade = 0;
    layer->stale = true;
}

/* A new sequence starts: resets its rates to the long-run ones. */
static void reuse_begin(struct efs_reuse *reuse)
{
    memset(reuse->rate, 0, (size_t)reuse->layers * reuse->experts * sizeof(*reuse->rate));
    for (unsigned l = 0; l < reuse->layers; l++) {
        reuse->layer[l].passes = 0;
        reuse->layer[l].since_fade = 0;
        reuse->layer[l].stale = true;
    }
    reuse->steady_passes = STEADY_PASSES;
    reuse->last_loss = 0;
}

/*
 * Called at the end of a pass over all layers. True if its experts were much less likely than those of the passes
 * before. Adds up two passes, because a single unusual token does not indicate a new sequence.
 */
static bool reuse_find_change(struct efs_reuse *reuse)
{
    double mean = (double)reuse->bits / reuse->bits_of / EFS_REUSE_UNIT / RATE_WEIGHT;
    double loss = reuse->slow - mean;
    bool first = reuse->slow == 0;

    reuse->bits = 0;
    reuse->bits_of = reuse->requests = 0;
    if (reuse->steady_passes) {
        reuse->steady_passes--;
        if (first || mean > reuse->slow)
            reuse->slow = mean;
        return false;
    }
    if (loss + reuse->last_loss > CHANGE_BITS && loss > CHANGE_BITS / 5) {
        reuse_begin(reuse);
        return true;
    }
    reuse->last_loss = fmax(loss, 0);
    reuse->slow += (mean - reuse->slow) / 16;
    return false;
}

bool efs_reuse_request(struct efs_reuse *reuse, unsigned l, const uint32_t *expert, unsigned count)
{
    struct layer *layer = &reuse->layer[l];
    size_t base = (size_t)l * reuse->experts;
    bool changed = false;

    reuse_refresh_layer(reuse, l);
    for (unsigned i = 0; i < count; i++)
        reuse->bits += reuse->log_rate[base + expert[i]] - layer->log_passes;
    reuse->bits_of += count;
    if (++reuse->requests >= reuse->layers && !reuse->steady && reuse->bits_of)
        changed = reuse_find_change(reuse);
    if (layer->visits == UINT32_MAX) { /* after 2^32 passes all ages restart */
        layer->visits = EFS_REUSE_AGES;
        memset(reuse->last + base, 0, reuse->experts * sizeof(*reuse->last));
    }
    layer->visits++;
    layer->total_visits++;
    layer->passes++;
    if (++layer->since_fade >= FADE_PASSES)
        reuse_decay_layer(reuse, l);
    for (unsigned i = 0; i < count; i++) {
        size_t at = base + expert[i];

        reuse->last[at] = layer->visits;
        reuse->total[at]++;
        reuse->rate[at] += USE;
        if (!layer->stale)
            reuse_set_log(reuse, at);
    }
    if (!layer->stale)
        layer->log_passes = reuse_weighted_log2(reuse, (uint32_t)lrint(USE * (layer->passes + SMOOTH)));
    return changed;
}

void efs_reuse_seed(struct efs_reuse *reuse, unsigned l, const uint32_t *counts, uint64_t passes)
{
    size_t base = (size_t)l * reuse->experts;
    /* Scales a long history down and keeps its proportions. */
    uint64_t cut = passes / LONG_RUN_MAX + 1;

    for (unsigned e = 0; e < reuse->experts; e++)
        reuse->total[base + e] = (uint32_t)(counts[e] / cut);
    reuse->layer[l].total_visits = (uint32_t)(passes / cut);
    reuse->layer[l].stale = true;
}

struct efs_reuse_view efs_reuse_view_layer(struct efs_reuse *reuse, unsigned l)
{
    size_t base = (size_t)l * reuse->experts;

    reuse_refresh_layer(reuse, l);
    return (struct efs_reuse_view){.log_rate = reuse->log_rate + base,
                                   .age_cost = reuse->age_cost,
                                   .last = reuse->last + base,
                                   .visits = reuse->layer[l].visits,
                                   .log_passes = reuse->layer[l].log_passes};
}

double efs_reuse_passes(int32_t score)
{
    return exp2(-(double)score / EFS_REUSE_UNIT) * 0.44932896411722156; /* e^-0.8, fitted on the history trace */
}
