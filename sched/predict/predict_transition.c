/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_transition.c - how often expert e of layer l + d was chosen when expert i of layer l was: a table for each
 * distance. With several experts i, their mean.
 */
#include "predict_internal.h"

struct transition {
    uint16_t *together; /* [distances][layers of the target][experts i][experts e] */
    uint16_t *seen;     /* [distances][layers of the target][experts i]: never 65535 */
};

static int transition_open(struct efs_predictor *p)
{
    struct transition *t = p->state = efs_predict_table(p, 1, sizeof(*t));
    size_t rows = (size_t)p->distances * p->layers * p->experts;

    if (t) {
        t->together = efs_predict_learned(p, rows * p->experts, sizeof(*t->together));
        t->seen = efs_predict_learned(p, rows, sizeof(*t->seen));
    }
    return efs_predict_table_error(p);
}

static size_t transition_row(const struct efs_predictor *p, unsigned distance, int64_t target, unsigned expert)
{
    return ((size_t)(distance - 1) * p->layers + efs_predict_layer(p, target)) * p->experts + expert;
}

static void transition_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct transition *t = p->state;
    int64_t now = p->sequences[s].now;

    for (unsigned d = 1; p->learn && d <= p->distances; d++) {
        struct efs_predict_row from = efs_predict_at(p, s, now - d);

        for (unsigned i = 0; i < from.count; i++)
            efs_predict_count(p, t->seen, t->together, transition_row(p, d, now, from.experts[i]), row);
    }
}

static unsigned transition_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct transition *t = p->state;
    int64_t now = p->sequences[s].now;
    struct efs_predict_row from = efs_predict_at(p, s, now);

    for (unsigned i = 0; i < from.count; i++) {
        size_t at = transition_row(p, (unsigned)(target - now), target, from.experts[i]);
        const uint16_t *together = t->together + at * p->experts;
        float each = t->seen[at] ? 1.0F / ((float)t->seen[at] * (float)from.count) : 0;

        for (unsigned e = 0; e < p->experts; e++)
            probability[e] += each * together[e];
    }
    return 0;
}

static bool transition_valid(struct efs_predictor *p)
{
    const struct transition *t = p->state;

    return efs_predict_counts_valid(p, t->seen, t->together, (size_t)p->distances * p->layers * p->experts);
}

const struct efs_predict_ops efs_predict_transition = {.name = "transition",
                                                       .open = transition_open,
                                                       .observe = transition_observe,
                                                       .score = transition_score,
                                                       .valid = transition_valid};
