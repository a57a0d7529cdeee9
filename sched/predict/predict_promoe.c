/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_promoe.c - ProMoE: a small network per layer and stride, trained ahead of time (efs_predict_train).
 *
 * For layer l and a stride of d layers the network maps x, the input of the router of layer l - d, to the probability
 * that an expert of layer l is chosen:
 *
 *     z = relu(A x' + a),  p = 1 / (1 + exp(-(B z + b))),  x' = 16 x / |x|
 *
 * Training minimises the cross entropy of all experts by stochastic gradient descent, one token at a time, with a step
 * that falls linearly to 0. The published text describes networks that are trained offline on the states some layers
 * before; their size, loss and optimiser are chosen here. Observations never change them.
 */
#include "predict_internal.h"
#include "random.h"

#include <errno.h>
#include <math.h>

#define HIDDEN 64u
#define EPOCHS 12u
#define STEP 0.02F   /* of the first update */
#define LENGTH 16.0F /* of x', at any width: so the effect of a step does not depend on the width */

struct promoe {
    float *states; /* [sequences][width], scaled: the last known state */
    int64_t *seen; /* [sequences]: its position + 1; 0: none */
    float *input;  /* [HIDDEN + 1] z; the last element is 1 */
    float *slope;  /* [HIDDEN]: derivative of the loss by z */
    float *sample; /* [layers][width + 1]: scaled states of a token, each followed by 1 */
    /* [distances][layers], of each network A with a ([HIDDEN][width + 1]), then B with b ([experts][HIDDEN + 1]) */
    float *weights;
    uint32_t *trained; /* [1]: 1 after a complete training */
};

static unsigned state_width(const struct efs_predictor *p)
{
    return p->config.state_width;
}

static size_t network_weights(const struct efs_predictor *p)
{
    return (size_t)HIDDEN * (state_width(p) + 1) + (size_t)p->experts * (HIDDEN + 1);
}

static float *network(const struct efs_predictor *p, unsigned distance, unsigned layer)
{
    const struct promoe *m = p->state;

    return m->weights + ((size_t)(distance - 1) * p->layers + layer) * network_weights(p);
}

static int promoe_open(struct efs_predictor *p)
{
    struct promoe *m = p->state = efs_predict_table(p, 1, sizeof(*m));
    size_t width = state_width(p);

    if (!m)
        return efs_predict_table_error(p);
    m->states = efs_predict_table(p, p->config.sequences * (width + 1), sizeof(*m->states));
    m->seen = efs_predict_table(p, p->config.sequences, sizeof(*m->seen));
    m->input = efs_predict_table(p, HIDDEN + 1, sizeof(*m->input));
    m->slope = efs_predict_table(p, HIDDEN, sizeof(*m->slope));
    m->sample = efs_predict_table(p, p->layers * (width + 1), sizeof(*m->sample));
    m->weights = efs_predict_learned(p, (size_t)p->distances * p->layers * network_weights(p), sizeof(*m->weights));
    m->trained = efs_predict_learned(p, 1, sizeof(*m->trained));
    return efs_predict_table_error(p);
}

static bool promoe_valid(struct efs_predictor *p)
{
    const struct promoe *m = p->state;

    for (size_t i = 0; i < (size_t)p->distances * p->layers * network_weights(p); i++)
        if (!(fabsf(m->weights[i]) <= 1e6F))
            return false;
    return true;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* Scales a state to LENGTH, and appends the constant input 1. */
static void scale_state(const struct efs_predictor *p, const float *state, float *scaled)
{
    float square = efs_predict_dot(state, state, state_width(p)), scale;

    scale = square > 0 ? LENGTH / sqrtf(square) : 0;
    for (unsigned i = 0; i < state_width(p); i++)
        scaled[i] = scale * state[i];
    scaled[state_width(p)] = 1;
}

static void promoe_begin(struct efs_predictor *p, unsigned s)
{
    const struct promoe *m = p->state;

    m->seen[s] = 0;
}

static void promoe_state(struct efs_predictor *p, unsigned s, const float *state)
{
    const struct promoe *m = p->state;

    scale_state(p, state, m->states + (size_t)s * (state_width(p) + 1));
    m->seen[s] = p->sequences[s].now + 1;
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

/* Evaluates a network; leaves z in input. */
static void evaluate(const struct efs_predictor *p, const float *weights, const float *x, float *probability)
{
    const struct promoe *m = p->state;
    unsigned inputs = state_width(p) + 1;

    for (unsigned h = 0; h < HIDDEN; h++, weights += inputs)
        m->input[h] = fmaxf(0, efs_predict_dot(weights, x, inputs));
    m->input[HIDDEN] = 1;
    for (unsigned e = 0; e < p->experts; e++, weights += HIDDEN + 1)
        probability[e] = 1 / (1 + expf(-efs_predict_dot(weights, m->input, HIDDEN + 1)));
}

static unsigned promoe_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct promoe *m = p->state;
    int64_t now = p->sequences[s].now;

    /* The next token has another state. */
    if (*m->trained > 0 && m->seen[s] == now + 1 && now / p->layers == target / p->layers)
        evaluate(p, network(p, (unsigned)(target - now), efs_predict_layer(p, target)),
                 m->states + (size_t)s * (state_width(p) + 1), probability);
    return 0;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void add_scaled(float *to, const float *from, float by, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        to[i] += by * from[i];
}

/* One step of gradient descent. p->probability is scratch. */
static void descend(const struct efs_predictor *p, float *weights, const float *x, const uint16_t *chosen, float step)
{
    const struct promoe *m = p->state;
    unsigned inputs = state_width(p) + 1;
    float *row = weights + (size_t)HIDDEN * inputs, *error = p->probability;

    evaluate(p, weights, x, error);
    for (unsigned i = 0; i < p->chosen; i++)
        error[chosen[i]] -= 1;
    memset(m->slope, 0, HIDDEN * sizeof(*m->slope));
    for (unsigned e = 0; e < p->experts; e++, row += HIDDEN + 1) {
        add_scaled(m->slope, row, error[e], HIDDEN);
        add_scaled(row, m->input, -step * error[e], HIDDEN + 1);
    }
    for (unsigned h = 0; h < HIDDEN; h++)
        if (m->input[h] > 0)
            add_scaled(weights + (size_t)h * inputs, x, -step * m->slope[h], inputs);
}

/* Starting weights: uniform in A, so that z has a variance of about 2, and 0 elsewhere. */
static void start_weights(const struct efs_predictor *p, uint64_t *seed)
{
    unsigned inputs = state_width(p) + 1;
    float most = sqrtf(6) / LENGTH;

    for (unsigned d = 1; d <= p->distances; d++)
        for (unsigned l = 0; l < p->layers; l++) {
            float *weights = network(p, d, l);

            memset(weights, 0, network_weights(p) * sizeof(*weights));
            for (size_t i = 0; i < (size_t)HIDDEN * inputs; i++)
                weights[i] = i % inputs == inputs - 1 ? 0 : most * ((float)(efs_random(seed) >> 40) / 0x1p23F - 1);
        }
}

static void train_token(const struct efs_predictor *p, const struct efs_predict_samples *samples, uint64_t token,
                        float step)
{
    const struct promoe *m = p->state;
    unsigned inputs = state_width(p) + 1;
    uint16_t chosen[EFS_PREDICT_MAX_CHOSEN];

    for (unsigned l = 0; l < p->layers; l++) {
        float *state = m->sample + (size_t)l * inputs;

        samples->read(samples->from, token, l, chosen, state);
        scale_state(p, state, state);
        for (unsigned d = 1; d <= p->distances && d <= l; d++)
            descend(p, network(p, d, l), m->sample + (size_t)(l - d) * inputs, chosen, step);
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Each epoch visits all tokens once, in the order of a random stride that has no common divisor with their number. */
static int promoe_train(struct efs_predictor *p, const struct efs_predict_samples *samples)
{
    const struct promoe *m = p->state;
    uint64_t seed = 1, all = EPOCHS * samples->tokens, done = 0;

    *m->trained = 0;
    start_weights(p, &seed);
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++) {
        uint64_t stride, token;

        do
            stride = 1 + efs_random(&seed) % samples->tokens;
        while (common_divisor(stride, samples->tokens) != 1);
        token = stride % samples->tokens;
        for (uint64_t i = 0; i < samples->tokens; i++, token = (token + stride) % samples->tokens) {
            train_token(p, samples, token, STEP * (1 - (float)done++ / (float)all));
            if (i % 256 == 0 && samples->stop && samples->stop(samples->from))
                return -ECANCELED;
        }
    }
    *m->trained = 1;
    return 0;
}

const struct efs_predict_ops efs_predict_promoe = {.name = "promoe",
                                                   .states = true,
                                                   .open = promoe_open,
                                                   .begin = promoe_begin,
                                                   .state = promoe_state,
                                                   .score = promoe_score,
                                                   .train = promoe_train,
                                                   .valid = promoe_valid};
