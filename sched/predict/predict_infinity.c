/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_infinity.c - MoE-Infinity: the expert activation matrix (EAM) of a sequence, and a collection of those of
 * earlier sequences.
 *
 * An EAM has a count for each expert of each layer: the iterations of the sequence that chose it. The most similar
 * matrix of the collection (by the mean over layers of the cosine of both rows) gives the probabilities of a layer's
 * experts. Cosines are updated with each layer: one sum over the chosen experts for each matrix, O(C K) per layer.
 *
 * The paper does not say which matrix of a full collection a new one replaces: here the most similar one, because the
 * new one represents it. Without a collection the sequence's own matrix is used.
 */
#include "predict_internal.h"

#include <errno.h>
#include <math.h>

#define REQUESTS_DEFAULT 512u

struct infinity {
    unsigned room;
    uint32_t *count;      /* [1] number of stored matrices */
    uint32_t *iterations; /* [room] of the sequence */
    uint16_t *matrix;     /* [room][layers][experts] */
    float *length;        /* [room][layers] norm of a row */
    float *product;       /* [sequences][room][layers] dot product of a row with the sequence's */
    float *square;        /* [sequences][layers] square of the sequence's row */
    unsigned *best;       /* [sequences] the most similar matrix */
};

static uint16_t *infinity_row(const struct efs_predictor *p, unsigned r, unsigned layer)
{
    const struct infinity *m = p->state;

    return m->matrix + ((size_t)r * p->layers + layer) * p->experts;
}

static float *infinity_products(const struct efs_predictor *p, unsigned s, unsigned r)
{
    const struct infinity *m = p->state;

    return m->product + ((size_t)s * m->room + r) * p->layers;
}

static int infinity_open(struct efs_predictor *p)
{
    struct infinity *m = p->state = efs_predict_table(p, 1, sizeof(*m));
    unsigned asked = p->config.tuning.requests ? p->config.tuning.requests : REQUESTS_DEFAULT;
    size_t sequences = p->config.sequences, units = (size_t)p->layers * p->experts;
    size_t each = 4 + units * 2 + (size_t)p->layers * 4 * (1 + sequences);

    if (!m)
        return efs_predict_table_error(p);
    m->square = efs_predict_table(p, sequences * p->layers, sizeof(*m->square));
    m->best = efs_predict_table(p, sequences, sizeof(*m->best));
    m->count = efs_predict_learned(p, 1, sizeof(*m->count));
    m->room = p->room_bytes / each < asked ? (unsigned)(p->room_bytes / each) : asked;
    m->iterations = efs_predict_learned(p, m->room, sizeof(*m->iterations));
    m->matrix = efs_predict_learned(p, m->room * units, sizeof(*m->matrix));
    m->length = efs_predict_table(p, (size_t)m->room * p->layers, sizeof(*m->length));
    m->product = efs_predict_table(p, sequences * m->room * p->layers, sizeof(*m->product));
    return m->room == 0 ? -E2BIG : efs_predict_table_error(p);
}

static void infinity_measure(struct efs_predictor *p, unsigned r)
{
    struct infinity *m = p->state;

    for (unsigned l = 0; l < p->layers; l++) {
        const uint16_t *row = infinity_row(p, r, l);
        float square = 0;

        for (unsigned e = 0; e < p->experts; e++)
            square += (float)row[e] * (float)row[e];
        m->length[(size_t)r * p->layers + l] = sqrtf(square);
    }
}

/* Mean over layers of the cosines of rows; a row of zeros contributes 0. */
static float infinity_likeness(const struct efs_predictor *p, unsigned s, unsigned r)
{
    const struct infinity *m = p->state;
    const float *product = infinity_products(p, s, r), *square = m->square + (size_t)s * p->layers;
    const float *length = m->length + (size_t)r * p->layers;
    float sum = 0;

    for (unsigned l = 0; l < p->layers; l++)
        if (product[l] > 0)
            sum += product[l] / (length[l] * sqrtf(square[l]));
    return sum / (float)p->layers;
}

static void infinity_choose(struct efs_predictor *p, unsigned s)
{
    struct infinity *m = p->state;
    float best = -1;

    for (unsigned r = 0; r < *m->count; r++) {
        float likeness = infinity_likeness(p, s, r);

        if (likeness > best) {
            best = likeness;
            m->best[s] = r;
        }
    }
}

static void infinity_begin(struct efs_predictor *p, unsigned s)
{
    struct infinity *m = p->state;

    memset(infinity_products(p, s, 0), 0, (size_t)m->room * p->layers * sizeof(*m->product));
    memset(m->square + (size_t)s * p->layers, 0, p->layers * sizeof(*m->square));
    m->best[s] = 0;
}

static void infinity_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct infinity *m = p->state;
    unsigned layer = efs_predict_layer(p, p->sequences[s].now);
    const uint32_t *wanted = p->sequences[s].wanted + (size_t)layer * p->experts;

    for (unsigned i = 0; i < row->count; i++) /* (w + 1)^2 - w^2 */
        m->square[(size_t)s * p->layers + layer] += 2 * (float)wanted[row->experts[i]] + 1;
    for (unsigned r = 0; r < *m->count; r++) {
        const uint16_t *counts = infinity_row(p, r, layer);
        float *product = infinity_products(p, s, r) + layer;

        for (unsigned i = 0; i < row->count; i++)
            *product += counts[row->experts[i]];
    }
    infinity_choose(p, s);
}

/* Recomputes the products of a sequence with matrix r, which was replaced. */
static void infinity_recount(struct efs_predictor *p, unsigned s, unsigned r)
{
    for (unsigned l = 0; l < p->layers; l++) {
        const uint16_t *row = infinity_row(p, r, l);
        const uint32_t *wanted = p->sequences[s].wanted + (size_t)l * p->experts;
        float *product = infinity_products(p, s, r) + l;

        *product = 0;
        for (unsigned e = 0; e < p->experts; e++)
            *product += (float)row[e] * (float)wanted[e];
    }
}

static void infinity_end(struct efs_predictor *p, unsigned s)
{
    struct infinity *m = p->state;
    const struct efs_predict_sequence *q = &p->sequences[s];
    unsigned r = *m->count < m->room ? *m->count : m->best[s];
    uint64_t most = q->passes < UINT16_MAX ? q->passes : UINT16_MAX;

    if (!p->learn || q->passes == 0)
        return;
    for (unsigned l = 0; l < p->layers; l++)
        for (unsigned e = 0; e < p->experts; e++) {
            uint64_t count = q->wanted[(size_t)l * p->experts + e];

            count = count * most / q->passes; /* scaled down above UINT16_MAX iterations */
            infinity_row(p, r, l)[e] = (uint16_t)(count < most ? count : most);
        }
    m->iterations[r] = (uint32_t)most;
    *m->count += r == *m->count;
    infinity_measure(p, r);
    for (unsigned other = 0; other < p->config.sequences; other++)
        if (p->sequences[other].used && other != s) {
            infinity_recount(p, other, r);
            infinity_choose(p, other);
        }
}

static unsigned infinity_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct infinity *m = p->state;
    const struct efs_predict_sequence *q = &p->sequences[s];
    unsigned layer = efs_predict_layer(p, target);

    if (*m->count > 0) {
        const uint16_t *row = infinity_row(p, m->best[s], layer);

        for (unsigned e = 0; e < p->experts; e++)
            probability[e] = (float)row[e] / (float)m->iterations[m->best[s]];
        return 0;
    }
    for (unsigned e = 0; e < p->experts; e++)
        probability[e] = (float)q->wanted[(size_t)layer * p->experts + e] / ((float)q->passes + 1);
    return 0;
}

static bool infinity_valid(struct efs_predictor *p)
{
    const struct infinity *m = p->state;
    size_t units = (size_t)p->layers * p->experts;

    if (*m->count > m->room)
        return false;
    for (unsigned r = 0; r < *m->count; r++) {
        if (m->iterations[r] < 1 || m->iterations[r] > UINT16_MAX)
            return false;
        for (size_t i = 0; i < units; i++)
            if (m->matrix[r * units + i] > m->iterations[r])
                return false;
        infinity_measure(p, r);
    }
    return true;
}

const struct efs_predict_ops efs_predict_infinity = {.name = "moe-infinity",
                                                     .open = infinity_open,
                                                     .begin = infinity_begin,
                                                     .observe = infinity_observe,
                                                     .end = infinity_end,
                                                     .score = infinity_score,
                                                     .valid = infinity_valid};
