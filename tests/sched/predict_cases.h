/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_cases.h - shared by the tests of predictors: a small model, observations layer by layer.
 */
#ifndef EFS_TEST_SCHED_PREDICT_CASES_H
#define EFS_TEST_SCHED_PREDICT_CASES_H

#include "cases.h"
#include "predict.h"

enum { LAYERS = 3, EXPERTS = 6, CHOSEN = 2, WIDTH = 2 };

/* Routers with six directions 60 degrees apart: expert e of layer 0 prefers direction e; each further layer shifts the
 * experts by one direction. */
static const float small_gates[LAYERS][EXPERTS][WIDTH] = {
    {{4, 0}, {2, 3.5F}, {-2, 3.5F}, {-4, 0}, {-2, -3.5F}, {2, -3.5F}},
    {{2, 3.5F}, {-2, 3.5F}, {-4, 0}, {-2, -3.5F}, {2, -3.5F}, {4, 0}},
    {{-2, 3.5F}, {-4, 0}, {-2, -3.5F}, {2, -3.5F}, {4, 0}, {2, 3.5F}},
};

static const struct efs_predict_config small = {.layers = LAYERS,
                                                .experts = EXPERTS,
                                                .chosen = CHOSEN,
                                                .distances = 2,
                                                .sequences = 2,
                                                .state_width = WIDTH,
                                                .gates = &small_gates[0][0][0],
                                                .tuning = {.maps = 8, .requests = 3}};

static inline struct efs_predictor *predictor_new(const struct efs_predict_config *config, enum efs_predictor_kind kind)
{
    struct efs_predict_config of_kind = *config;
    struct efs_predictor *p;

    of_kind.kind = kind;
    assert_int_equal(efs_predictor_new(&of_kind, &p), 0);
    return p;
}

/* Observes a layer that chooses experts a with score `first` and b with 1 - first; first 0: no scores. */
static inline void see_scored(struct efs_predictor *p, uint64_t sequence, unsigned layer, unsigned a, unsigned b,
                              float first)
{
    const uint16_t experts[] = {(uint16_t)a, (uint16_t)b};
    const float scores[] = {first, 1 - first};
    const float *state = small_gates[layer % LAYERS][a % EXPERTS]; /* in the direction of a */
    struct efs_predict_observation seen = {
        .layer = layer, .experts = experts, .scores = first > 0 ? scores : NULL, .count = 2, .state = state};

    assert_int_equal(efs_predict_observe(p, sequence, &seen), 0);
}

static inline void see(struct efs_predictor *p, uint64_t sequence, unsigned layer, unsigned a, unsigned b)
{
    see_scored(p, sequence, layer, a, b, 0);
}

/* Observes an iteration: two experts of each layer. */
static inline void see_all(struct efs_predictor *p, uint64_t sequence, const uint8_t (*experts)[CHOSEN])
{
    for (unsigned l = 0; l < LAYERS; l++)
        see(p, sequence, l, experts[l][0], experts[l][1]);
}

/* Checks the probability of each expert. */
static inline void assert_probable(struct efs_predictor *p, uint64_t sequence, unsigned distance,
                                   const double wanted[EXPERTS])
{
    float probability[EXPERTS];

    assert_int_equal(efs_predict_all(p, sequence, distance, probability), 0);
    for (unsigned e = 0; e < EXPERTS; e++)
        if (fabs(probability[e] - wanted[e]) > 1e-5)
            fail_msg("expert %u: %g, not %g", e, (double)probability[e], wanted[e]);
}

/*
 * A script of observations and expected probabilities. Each step ends with a semicolon:
 *
 *     begin S, end S       of a sequence
 *     S: 01 23 45          an iteration: it chooses experts 0 and 1 of layer 0, 2 and 3 of layer 1, 4 and 5 of layer 2
 *     S.L: 01              the same for layer L only
 *     S+D = P...           the probabilities of the experts D layers ahead; experts that are not listed have 0
 *     still                the predictor learns nothing from here on
 */
struct predict_script {
    enum efs_predictor_kind kind;
    const char *what, *steps;
};

static inline void predict_step(struct efs_predictor *p, const char *step)
{
    unsigned sequence, layer, distance, pair[LAYERS];
    double wanted[EXPERTS] = {0};

    if (sscanf(step, "begin %u", &sequence) == 1)
        assert_int_equal(efs_predict_begin(p, sequence), 0);
    else if (sscanf(step, "end %u", &sequence) == 1)
        assert_int_equal(efs_predict_end(p, sequence), 0);
    else if (sscanf(step, "%u.%u: %u", &sequence, &layer, &pair[0]) == 3)
        see(p, sequence, layer, pair[0] / 10, pair[0] % 10);
    else if (sscanf(step, "%u: %u %u %u", &sequence, &pair[0], &pair[1], &pair[2]) == 4)
        for (unsigned l = 0; l < LAYERS; l++)
            see(p, sequence, l, pair[l] / 10, pair[l] % 10);
    else if (sscanf(step, "%u+%u = %lf %lf %lf %lf %lf %lf", &sequence, &distance, &wanted[0], &wanted[1], &wanted[2],
                    &wanted[3], &wanted[4], &wanted[5]) >= 2)
        assert_probable(p, sequence, distance, wanted);
    else if (strcmp(step, "still") == 0)
        efs_predict_learn(p, false);
    else
        fail_msg("what is \"%s\"?", step);
}

static inline void predict_run(const struct predict_script *scripts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct efs_predictor *p = predictor_new(&small, scripts[i].kind);
        char *steps = strdup(scripts[i].steps), *rest;

        print_message("%s\n", scripts[i].what);
        for (const char *step = strtok_r(steps, ";", &rest); step; step = strtok_r(NULL, ";", &rest))
            predict_step(p, step + strspn(step, " "));
        free(steps);
        efs_predictor_free(p);
    }
}

/* Observes random iterations with a pattern to learn: an expert is followed by its neighbour 7 times of 8. */
static inline void see_random(struct efs_predictor *p, uint64_t sequence, const struct efs_predict_config *config,
                              unsigned iterations, uint64_t seed)
{
    struct cases cases = {seed};
    unsigned first = cases_below(&cases, config->experts);

    for (unsigned i = 0; i < iterations * config->layers; i++) {
        unsigned step = cases_below(&cases, 8) ? 1 : cases_below(&cases, config->experts);

        first = (first + step) % config->experts;
        see_scored(p, sequence, i % config->layers, first, (first + 2) % config->experts,
                   0.5F + (float)cases_below(&cases, 8) / 17);
    }
}

#endif
