/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_counts.c - counts of the chosen experts: over all sequences (BrainStorm's counts of the model, popularity),
 * or of this sequence.
 */
#include "predict_internal.h"

#define PRIOR_PASSES 4.0F /* weight of the counts over all sequences, in iterations */

struct counts {
    uint32_t *chosen; /* [layers][experts] */
    uint32_t *passes; /* [layers] */
};

static int counts_open(struct efs_predictor *p)
{
    struct counts *c = p->state = efs_predict_table(p, 1, sizeof(*c));

    if (c) {
        c->chosen = efs_predict_learned(p, (size_t)p->layers * p->experts, sizeof(*c->chosen));
        c->passes = efs_predict_learned(p, p->layers, sizeof(*c->passes));
    }
    return efs_predict_table_error(p);
}

static void counts_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct counts *c = p->state;
    unsigned layer = efs_predict_layer(p, p->sequences[s].now);
    uint32_t *chosen = c->chosen + (size_t)layer * p->experts;

    if (!p->learn)
        return;
    if (c->passes[layer] == UINT32_MAX) { /* halving keeps the proportions */
        c->passes[layer] /= 2;
        for (unsigned e = 0; e < p->experts; e++)
            chosen[e] /= 2;
    }
    c->passes[layer]++;
    for (unsigned i = 0; i < row->count; i++)
        chosen[row->experts[i]]++;
}

static float counts_share(const struct efs_predictor *p, unsigned layer, unsigned expert)
{
    const struct counts *c = p->state;

    return c->passes[layer] ? (float)c->chosen[(size_t)layer * p->experts + expert] / (float)c->passes[layer] : 0;
}

static unsigned brainstorm_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    (void)s;
    for (unsigned e = 0; e < p->experts; e++)
        probability[e] = counts_share(p, efs_predict_layer(p, target), e);
    return 0;
}

static unsigned request_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct efs_predict_sequence *q = &p->sequences[s];
    unsigned layer = efs_predict_layer(p, target);
    const uint32_t *wanted = q->wanted + (size_t)layer * p->experts;
    /* The layer may already be observed in this iteration, which is not complete. */
    uint64_t passes =
        q->passes + (layer <= efs_predict_layer(p, q->now) && efs_predict_layer(p, q->now) != p->layers - 1);

    for (unsigned e = 0; e < p->experts; e++)
        probability[e] = ((float)wanted[e] + PRIOR_PASSES * counts_share(p, layer, e)) / ((float)passes + PRIOR_PASSES);
    return 0;
}

static bool counts_valid(struct efs_predictor *p)
{
    const struct counts *c = p->state;

    for (unsigned l = 0; l < p->layers; l++)
        for (unsigned e = 0; e < p->experts; e++)
            if (c->chosen[(size_t)l * p->experts + e] > c->passes[l])
                return false;
    return true;
}

const struct efs_predict_ops efs_predict_brainstorm = {.name = "brainstorm",
                                                       .open = counts_open,
                                                       .observe = counts_observe,
                                                       .score = brainstorm_score,
                                                       .valid = counts_valid};
const struct efs_predict_ops efs_predict_request = {
    .name = "request", .open = counts_open, .observe = counts_observe, .score = request_score, .valid = counts_valid};
