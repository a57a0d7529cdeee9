/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_deepspeed.c - predicts that a layer repeats its choice of the last iteration (DeepSpeed Inference).
 *
 * The probability is measured: the fraction of an iteration's experts that the next iteration chose again.
 */
#include "predict_internal.h"

struct deepspeed {
    uint64_t *kept, *chosen; /* [layers] */
};

static int deepspeed_open(struct efs_predictor *p)
{
    struct deepspeed *d = p->state = efs_predict_table(p, 1, sizeof(*d));

    if (d) {
        d->kept = efs_predict_learned(p, p->layers, sizeof(*d->kept));
        d->chosen = efs_predict_learned(p, p->layers, sizeof(*d->chosen));
    }
    return efs_predict_table_error(p);
}

static void deepspeed_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct deepspeed *d = p->state;
    int64_t now = p->sequences[s].now;
    unsigned layer = efs_predict_layer(p, now);
    struct efs_predict_row last = efs_predict_at(p, s, now - p->layers);

    if (!p->learn)
        return;
    d->chosen[layer] += last.count;
    for (unsigned i = 0; i < last.count; i++)
        for (unsigned j = 0; j < row->count; j++)
            d->kept[layer] += last.experts[i] == row->experts[j];
}

static unsigned deepspeed_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct deepspeed *d = p->state;
    unsigned layer = efs_predict_layer(p, target);
    struct efs_predict_row last = efs_predict_at(p, s, target - p->layers);
    float kept = ((float)d->kept[layer] + 1) / ((float)d->chosen[layer] + 2);

    for (unsigned i = 0; i < last.count; i++)
        probability[last.experts[i]] = kept;
    return last.count;
}

static bool deepspeed_valid(struct efs_predictor *p)
{
    const struct deepspeed *d = p->state;

    for (unsigned l = 0; l < p->layers; l++)
        if (d->kept[l] > d->chosen[l] || d->chosen[l] > UINT64_MAX / 2)
            return false;
    return true;
}

const struct efs_predict_ops efs_predict_deepspeed = {.name = "deepspeed",
                                                      .open = deepspeed_open,
                                                      .observe = deepspeed_observe,
                                                      .score = deepspeed_score,
                                                      .valid = deepspeed_valid};
