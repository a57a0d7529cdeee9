/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_edgemoe.c - statistics conditional on the choices of the two layers before, as in EdgeMoE.
 *
 * EdgeMoE has one expert per layer; with several, each pair of an expert of layer l - 1 and one of layer l has a row of
 * counts of the choices of layer l + d, and the rows of a token's pairs are added up. Wide layers have too many pairs,
 * so rows are in a hash table of fixed size, without chaining: a pair replaces the row of another pair when that row
 * has had as many misses as uses. If no pair is known, the prediction uses the counts over all sequences.
 */
#include "predict_internal.h"

#define ROWS_MAX (1u << 20)

struct edgemoe {
    size_t rows;        /* a power of 2 */
    uint64_t *pair;     /* [rows] 0: free */
    uint16_t *seen;     /* [rows] never 65535 */
    uint16_t *together; /* [rows][experts] */
    uint32_t *chosen;   /* [layers][experts] */
};

static int edgemoe_open(struct efs_predictor *p)
{
    struct edgemoe *m = p->state = efs_predict_table(p, 1, sizeof(*m));
    size_t row_bytes = sizeof(*m->pair) + sizeof(*m->seen) + p->experts * sizeof(*m->together);
    size_t pairs = (size_t)p->distances * p->layers * p->experts * p->experts;

    if (!m)
        return efs_predict_table_error(p);
    m->chosen = efs_predict_learned(p, (size_t)p->layers * p->experts, sizeof(*m->chosen));
    m->rows = 1;
    while (m->rows < 2 * pairs && m->rows < ROWS_MAX && 2 * m->rows * row_bytes <= p->room_bytes)
        m->rows *= 2;
    m->pair = efs_predict_learned(p, m->rows, sizeof(*m->pair));
    m->seen = efs_predict_learned(p, m->rows, sizeof(*m->seen));
    m->together = efs_predict_learned(p, m->rows * p->experts, sizeof(*m->together));
    return efs_predict_table_error(p);
}

/* Returns the key of a pair, never 0, and its row. */
static uint64_t edgemoe_pair(const struct efs_predictor *p, unsigned distance, int64_t target, unsigned before,
                             unsigned last, size_t *row)
{
    const struct edgemoe *m = p->state;
    uint64_t pair = ((uint64_t)distance * p->layers + efs_predict_layer(p, target)) * p->experts;
    uint64_t hash;

    pair = (pair + before) * p->experts + last;
    hash = pair * UINT64_C(0x9E3779B97F4A7C15);
    *row = (size_t)(hash >> 32) & (m->rows - 1);
    return pair; /* not 0, because distance is at least 1 */
}

/* Claims the row for a pair. False: it still belongs to another pair. */
static bool edgemoe_take(struct efs_predictor *p, uint64_t pair, size_t row)
{
    struct edgemoe *m = p->state;
    uint16_t *together = m->together + row * p->experts;

    if (m->pair[row] != pair) {
        if (m->seen[row] > 0) {
            m->seen[row]--;
            for (unsigned e = 0; e < p->experts; e++) /* keep counts at most seen */
                together[e] = together[e] < m->seen[row] ? together[e] : m->seen[row];
            return false;
        }
        m->pair[row] = pair;
        memset(together, 0, p->experts * sizeof(*together));
    }
    return true;
}

static void edgemoe_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct edgemoe *m = p->state;
    int64_t now = p->sequences[s].now;
    uint32_t *chosen = m->chosen + (size_t)efs_predict_layer(p, now) * p->experts;
    size_t at;

    if (!p->learn)
        return;
    for (unsigned i = 0; i < row->count; i++)
        chosen[row->experts[i]] += chosen[row->experts[i]] < UINT32_MAX;
    for (unsigned d = 1; d <= p->distances; d++) {
        struct efs_predict_row last = efs_predict_at(p, s, now - d), before = efs_predict_at(p, s, now - d - 1);

        for (unsigned i = 0; i < before.count; i++)
            for (unsigned j = 0; j < last.count; j++) {
                uint64_t pair = edgemoe_pair(p, d, now, before.experts[i], last.experts[j], &at);

                if (edgemoe_take(p, pair, at))
                    efs_predict_count(p, m->seen, m->together, at, row);
            }
    }
}

static void edgemoe_by_counts(const struct efs_predictor *p, int64_t target, float *probability)
{
    const struct edgemoe *m = p->state;
    const uint32_t *chosen = m->chosen + (size_t)efs_predict_layer(p, target) * p->experts;
    float sum = 0;

    for (unsigned e = 0; e < p->experts; e++)
        sum += (float)chosen[e];
    for (unsigned e = 0; sum > 0 && e < p->experts; e++) {
        float probable = (float)p->chosen * (float)chosen[e] / sum;

        probability[e] = probable < 1 ? probable : 1;
    }
}

static unsigned edgemoe_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct edgemoe *m = p->state;
    int64_t now = p->sequences[s].now;
    struct efs_predict_row last = efs_predict_at(p, s, now), before = efs_predict_at(p, s, now - 1);
    float seen = 0;
    size_t at;

    for (unsigned i = 0; i < before.count; i++)
        for (unsigned j = 0; j < last.count; j++) {
            uint64_t pair = edgemoe_pair(p, (unsigned)(target - now), target, before.experts[i], last.experts[j], &at);

            if (m->pair[at] != pair)
                continue;
            seen += m->seen[at];
            for (unsigned e = 0; e < p->experts; e++)
                probability[e] += m->together[at * p->experts + e];
        }
    if (seen <= 0)
        edgemoe_by_counts(p, target, probability);
    for (unsigned e = 0; seen > 0 && e < p->experts; e++)
        probability[e] /= seen;
    return 0;
}

static bool edgemoe_valid(struct efs_predictor *p)
{
    const struct edgemoe *m = p->state;

    return efs_predict_counts_valid(p, m->seen, m->together, m->rows);
}

const struct efs_predict_ops efs_predict_edgemoe = {.name = "edgemoe",
                                                    .open = edgemoe_open,
                                                    .observe = edgemoe_observe,
                                                    .score = edgemoe_score,
                                                    .valid = edgemoe_valid};
