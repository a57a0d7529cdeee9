/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_gate.c - predictions from hidden states: the router of a later layer, evaluated early.
 *
 * h^l is the input of the router of layer l, G^l its weights. For layer l + d of the same iteration:
 *
 *     mixtral-offloading  G^{l+d} h^l (Eliseev and Mazur, speculative loading)
 *     hybrimoe            the same up to three layers ahead; otherwise the score S = a TopP(s) + (1 - a) S of each
 *                         expert, where TopP keeps the gate's best 2 K scores (HybriMoE, sections 4.3 and 4.4). The
 *                         paper does not specify a: it is 0.5
 *     dali                G^{l+d} (h^l + res^l + ... + res^{l+d-1}), res^l the mean of h^{l+1} - h^l (DALI, residual
 *                         prefetch). Learned from all observations, not only from a calibration set
 *     linear              (G^{l+d} + D) h^l + b: not from a paper; D and b are learned online, by normalised steps on
 *                         the likelihood of the choices, starting from 0, so that it starts as the first one
 *
 * Except for S, states of one iteration do not predict the next: another token has another state.
 *
 * Routers return logits; the probability that an expert is among K chosen is estimated as 1 / (1 + exp(c - logit)),
 * with the c for which the probabilities sum to K.
 */
#include "predict_internal.h"

#include <math.h>

#define HYBRIMOE_AHEAD 3u
#define HYBRIMOE_SHARE 0.5F
#define LINEAR_STEP 2.0F /* of the first update, in logits for an error of 1 */
#define LINEAR_STEP_LEAST 0.1F
#define LINEAR_HALF 4000.0F /* updates after which the step is half of the first */
#define NEWTON_STEPS 20u

struct gate {
    float *states;       /* [sequences][layers][width] */
    int64_t *seen;       /* [sequences][layers]: position of the state + 1; 0: none */
    float *logits;       /* [experts] */
    float *inclusion;    /* [experts] */
    float *moved;        /* [width] */
    float *residual;     /* dali: [layers][width], sums of h^{l+1} - h^l */
    uint32_t *residuals; /* dali: [layers] number of terms */
    float *recent;       /* hybrimoe: [layers][experts], S */
    float *learned;      /* linear: [distances][layers][experts][width + 1] */
    uint32_t *updates;   /* linear: [distances][layers] */
};

static unsigned gate_width(const struct efs_predictor *p)
{
    return p->config.state_width;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static int gate_open(struct efs_predictor *p)
{
    struct gate *g = p->state = efs_predict_table(p, 1, sizeof(*g));
    size_t rows = (size_t)p->config.sequences * p->layers;

    if (!g)
        return efs_predict_table_error(p);
    g->states = efs_predict_table(p, rows * gate_width(p), sizeof(*g->states));
    g->seen = efs_predict_table(p, rows, sizeof(*g->seen));
    g->logits = efs_predict_table(p, p->experts, sizeof(*g->logits));
    g->inclusion = efs_predict_table(p, p->experts, sizeof(*g->inclusion));
    g->moved = efs_predict_table(p, gate_width(p), sizeof(*g->moved));
    return efs_predict_table_error(p);
}

static int gate_open_dali(struct efs_predictor *p)
{
    int rc = gate_open(p);
    struct gate *g = p->state;

    if (rc < 0)
        return rc;
    g->residual = efs_predict_learned(p, (size_t)p->layers * gate_width(p), sizeof(*g->residual));
    g->residuals = efs_predict_learned(p, p->layers, sizeof(*g->residuals));
    return efs_predict_table_error(p);
}

static int gate_open_hybrimoe(struct efs_predictor *p)
{
    int rc = gate_open(p);
    struct gate *g = p->state;

    if (rc < 0)
        return rc;
    g->recent = efs_predict_learned(p, (size_t)p->layers * p->experts, sizeof(*g->recent));
    return efs_predict_table_error(p);
}

static int gate_open_linear(struct efs_predictor *p)
{
    int rc = gate_open(p);
    struct gate *g = p->state;
    size_t rows = (size_t)p->distances * p->layers;

    if (rc < 0)
        return rc;
    g->learned = efs_predict_learned(p, rows * p->experts * (gate_width(p) + 1), sizeof(*g->learned));
    g->updates = efs_predict_learned(p, rows, sizeof(*g->updates));
    return efs_predict_table_error(p);
}

static bool gate_valid_dali(struct efs_predictor *p)
{
    const struct gate *g = p->state;

    /* Each is a sum of differences of states, which are at most 1e6 in magnitude. */
    for (unsigned l = 0; l < p->layers; l++)
        for (unsigned i = 0; i < gate_width(p); i++)
            if (!(fabsf(g->residual[(size_t)l * gate_width(p) + i]) <= 2.1e6F * (float)g->residuals[l]))
                return false;
    return true;
}

static bool gate_valid_hybrimoe(struct efs_predictor *p)
{
    const struct gate *g = p->state;

    for (size_t i = 0; i < (size_t)p->layers * p->experts; i++)
        if (!(g->recent[i] >= 0 && g->recent[i] <= 1e6F))
            return false;
    return true;
}

static bool gate_valid_linear(struct efs_predictor *p)
{
    const struct gate *g = p->state;

    for (size_t i = 0; i < (size_t)p->distances * p->layers * p->experts * (gate_width(p) + 1); i++)
        if (!isfinite(g->learned[i]))
            return false;
    return true;
}

/* ---- hidden states ----------------------------------------------------------------------------------------------- */

static void gate_begin(struct efs_predictor *p, unsigned s)
{
    struct gate *g = p->state;

    memset(g->seen + (size_t)s * p->layers, 0, p->layers * sizeof(*g->seen));
}

/* The router's input at a position; NULL: unknown. */
static const float *gate_state(const struct efs_predictor *p, unsigned s, int64_t position)
{
    const struct gate *g = p->state;
    size_t row;

    if (position < 0)
        return NULL;
    row = (size_t)s * p->layers + efs_predict_layer(p, position);
    return g->seen[row] == position + 1 ? g->states + row * gate_width(p) : NULL;
}

static void gate_keep(struct efs_predictor *p, unsigned s, const float *state)
{
    struct gate *g = p->state;
    int64_t now = p->sequences[s].now;
    size_t row = (size_t)s * p->layers + efs_predict_layer(p, now);

    memcpy(g->states + row * gate_width(p), state, gate_width(p) * sizeof(*state));
    g->seen[row] = now + 1;
}

static bool gate_same_iteration(const struct efs_predictor *p, int64_t a, int64_t b)
{
    return a / p->layers == b / p->layers;
}

/* ---- routers ----------------------------------------------------------------------------------------------------- */

float efs_predict_dot(const float *a, const float *b, unsigned count)
{
    float sum[8] = {0};
    unsigned i = 0;

    for (; i + 8 <= count; i += 8)
        for (unsigned k = 0; k < 8; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < count; i++)
        sum[0] += a[i] * b[i];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

static void gate_read(const struct efs_predictor *p, unsigned layer, const float *state, float *logits)
{
    const float *weights = p->config.gates + (size_t)layer * p->experts * gate_width(p);

    for (unsigned e = 0; e < p->experts; e++)
        logits[e] = efs_predict_dot(weights + (size_t)e * gate_width(p), state, gate_width(p));
}

/* Inclusion probabilities, which sum to K: Newton iterations for their common c, within bounds. */
static void gate_inclusion(const struct efs_predictor *p, const float *logits, float *probability)
{
    float low = INFINITY, high = -INFINITY, c;

    for (unsigned e = 0; e < p->experts; e++) {
        low = fminf(low, logits[e]);
        high = fmaxf(high, logits[e]);
    }
    if (p->chosen == p->experts) {
        for (unsigned e = 0; e < p->experts; e++)
            probability[e] = 1;
        return;
    }
    /* If all probabilities are K / E, the odds are K / (E - K): so c is between the extreme logits plus this offset. */
    c = logf((float)(p->experts - p->chosen) / (float)p->chosen);
    low += c;
    high += c;
    c = (low + high) / 2;
    for (unsigned i = 0; i < NEWTON_STEPS; i++) {
        float sum = 0, slope = 0, next;

        for (unsigned e = 0; e < p->experts; e++) {
            probability[e] = 1 / (1 + expf(c - logits[e]));
            sum += probability[e];
            slope += probability[e] * (1 - probability[e]);
        }
        if (fabsf(sum - (float)p->chosen) < 1e-3F * (float)p->chosen)
            return;
        *(sum > (float)p->chosen ? &low : &high) = c;
        next = c + (sum - (float)p->chosen) / fmaxf(slope, 1e-6F);
        c = next > low && next < high ? next : (low + high) / 2;
    }
}

/* The state for the prediction of a position in this iteration, or NULL. */
static const float *gate_source(const struct efs_predictor *p, unsigned s, int64_t target)
{
    int64_t now = p->sequences[s].now;

    return gate_same_iteration(p, now, target) ? gate_state(p, s, now) : NULL;
}

static unsigned gate_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    struct gate *g = p->state;
    const float *state = gate_source(p, s, target);

    if (state) {
        gate_read(p, efs_predict_layer(p, target), state, g->logits);
        gate_inclusion(p, g->logits, probability);
    }
    return 0;
}

/* ---- hybrimoe ---------------------------------------------------------------------------------------------------- */

static void gate_observe_hybrimoe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct gate *g = p->state;
    float *recent = g->recent + (size_t)efs_predict_layer(p, p->sequences[s].now) * p->experts;
    unsigned kept = row->scored < 2 * p->chosen ? row->scored : 2 * p->chosen;

    if (!p->learn || row->count == 0)
        return;
    for (unsigned e = 0; e < p->experts; e++)
        recent[e] *= 1 - HYBRIMOE_SHARE;
    for (unsigned i = 0; i < (row->scores ? kept : row->count); i++)
        recent[row->experts[i]] += HYBRIMOE_SHARE * (row->scores ? row->scores[i] : 1 / (float)row->count);
}

static unsigned gate_score_hybrimoe(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct gate *g = p->state;
    const float *recent = g->recent + (size_t)efs_predict_layer(p, target) * p->experts;

    if (target - p->sequences[s].now <= HYBRIMOE_AHEAD && gate_source(p, s, target))
        return gate_score(p, s, target, probability);
    for (unsigned e = 0; e < p->experts; e++)
        probability[e] = fminf(1, (float)p->chosen * recent[e]); /* scores of a layer sum to 1 */
    return 0;
}

/* ---- dali -------------------------------------------------------------------------------------------------------- */

static void gate_keep_dali(struct efs_predictor *p, unsigned s, const float *state)
{
    struct gate *g = p->state;
    int64_t now = p->sequences[s].now;
    unsigned layer = efs_predict_layer(p, now);
    const float *before = layer > 0 ? gate_state(p, s, now - 1) : NULL;

    if (p->learn && before && g->residuals[layer - 1] < UINT32_MAX) {
        float *sum = g->residual + (size_t)(layer - 1) * gate_width(p);

        for (unsigned i = 0; i < gate_width(p); i++)
            sum[i] += state[i] - before[i];
        g->residuals[layer - 1]++;
    }
    gate_keep(p, s, state);
}

static unsigned gate_score_dali(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    struct gate *g = p->state;
    const float *state = gate_source(p, s, target);
    unsigned to = efs_predict_layer(p, target);

    if (!state)
        return 0;
    memcpy(g->moved, state, gate_width(p) * sizeof(*state));
    for (unsigned l = efs_predict_layer(p, p->sequences[s].now); l < to; l++) {
        const float *sum = g->residual + (size_t)l * gate_width(p);
        float part = g->residuals[l] ? 1 / (float)g->residuals[l] : 0;

        for (unsigned i = 0; i < gate_width(p); i++)
            g->moved[i] += part * sum[i];
    }
    gate_read(p, to, g->moved, g->logits);
    gate_inclusion(p, g->logits, probability);
    return 0;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

static float *gate_learned(const struct efs_predictor *p, unsigned distance, unsigned layer)
{
    const struct gate *g = p->state;

    return g->learned + ((size_t)(distance - 1) * p->layers + layer) * p->experts * (gate_width(p) + 1);
}

static void gate_infer(const struct efs_predictor *p, unsigned distance, unsigned layer, const float *state,
                       float *probability)
{
    const struct gate *g = p->state;
    const float *row = gate_learned(p, distance, layer);

    gate_read(p, layer, state, g->logits);
    for (unsigned e = 0; e < p->experts; e++, row += gate_width(p) + 1)
        g->logits[e] += efs_predict_dot(row, state, gate_width(p)) + row[gate_width(p)];
    gate_inclusion(p, g->logits, probability);
}

/* One step, normalised by the size of the state, so that a logit changes in proportion to its error. */
static void gate_update(struct efs_predictor *p, unsigned distance, unsigned layer, const float *state,
                        const struct efs_predict_row *row)
{
    struct gate *g = p->state;
    float *learned = gate_learned(p, distance, layer), size = 1 + efs_predict_dot(state, state, gate_width(p));
    uint32_t *updates = g->updates + (size_t)(distance - 1) * p->layers + layer;
    float step = fmaxf(LINEAR_STEP_LEAST, LINEAR_STEP * LINEAR_HALF / (LINEAR_HALF + (float)*updates)) / size;

    gate_infer(p, distance, layer, state, g->inclusion);
    for (unsigned i = 0; i < row->count; i++)
        g->inclusion[row->experts[i]] -= 1;
    for (unsigned e = 0; e < p->experts; e++, learned += gate_width(p) + 1) {
        float by = -step * g->inclusion[e];

        for (unsigned i = 0; i < gate_width(p); i++)
            learned[i] += by * state[i];
        learned[gate_width(p)] += by;
    }
    *updates += *updates < UINT32_MAX;
}

static void gate_observe_linear(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    int64_t now = p->sequences[s].now;

    /* Skips prompts: their experts are those of many tokens, with different states. */
    for (unsigned d = 1; p->learn && row->count == p->chosen && d <= p->distances; d++) {
        const float *state = gate_state(p, s, now - d);

        if (state && gate_same_iteration(p, now - d, now))
            gate_update(p, d, efs_predict_layer(p, now), state, row);
    }
}

static unsigned gate_score_linear(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const float *state = gate_source(p, s, target);

    if (state)
        gate_infer(p, (unsigned)(target - p->sequences[s].now), efs_predict_layer(p, target), state, probability);
    return 0;
}

const struct efs_predict_ops efs_predict_offloading = {.name = "mixtral-offloading",
                                                       .states = true,
                                                       .gates = true,
                                                       .open = gate_open,
                                                       .begin = gate_begin,
                                                       .state = gate_keep,
                                                       .score = gate_score};

const struct efs_predict_ops efs_predict_hybrimoe = {.name = "hybrimoe",
                                                     .states = true,
                                                     .gates = true,
                                                     .open = gate_open_hybrimoe,
                                                     .begin = gate_begin,
                                                     .state = gate_keep,
                                                     .observe = gate_observe_hybrimoe,
                                                     .score = gate_score_hybrimoe,
                                                     .valid = gate_valid_hybrimoe};

const struct efs_predict_ops efs_predict_dali = {.name = "dali",
                                                 .states = true,
                                                 .gates = true,
                                                 .open = gate_open_dali,
                                                 .begin = gate_begin,
                                                 .state = gate_keep_dali,
                                                 .score = gate_score_dali,
                                                 .valid = gate_valid_dali};

const struct efs_predict_ops efs_predict_linear = {.name = "linear",
                                                   .states = true,
                                                   .gates = true,
                                                   .open = gate_open_linear,
                                                   .begin = gate_begin,
                                                   .state = gate_keep,
                                                   .observe = gate_observe_linear,
                                                   .score = gate_score_linear,
                                                   .valid = gate_valid_linear};
