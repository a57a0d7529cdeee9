/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_predict_gate.c - predictors that use hidden states, by hand: early router evaluation, residuals of layers,
 * moving averages of scores, and a linear predictor that learns.
 */
#include "test.h"
#include "predict_cases.h"

static void tell(struct efs_predictor *p, unsigned layer, unsigned a, unsigned b, float x, float y)
{
    const uint16_t experts[] = {(uint16_t)a, (uint16_t)b};
    const float scores[] = {0.75F, 0.25F}, state[] = {x, y};
    struct efs_predict_observation seen = {
        .layer = layer, .experts = experts, .scores = scores, .count = 2, .state = state};

    assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
}

static struct efs_predictor *begin(enum efs_predictor_kind kind)
{
    struct efs_predictor *p = predictor_new(&small, kind);

    assert_int_equal(efs_predict_begin(p, 1), 0);
    return p;
}

static unsigned favourite(struct efs_predictor *p, unsigned distance)
{
    struct efs_prediction guess;

    assert_int_equal(efs_predict(p, 1, distance, &guess, 1, NULL), 1);
    return guess.expert;
}

TEST(no_gates_no_predictor)
{
    struct efs_predict_config without = small;
    struct efs_predictor *p;

    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        without.kind = kind;
        without.gates = NULL;
        without.state_width = WIDTH;
        assert_int_equal(efs_predictor_new(&without, &p), efs_predictor_needs_gates(kind) ? -ENODATA : 0);
        efs_predictor_free(p);
        without.gates = small.gates;
        without.state_width = 0;
        assert_int_equal(efs_predictor_new(&without, &p), efs_predictor_needs_states(kind) ? -ENODATA : 0);
        efs_predictor_free(p);
        without.state_width = EFS_PREDICT_MAX_WIDTH + 1;
        assert_int_equal(efs_predictor_new(&without, &p), -EINVAL);
    }
    assert_false(efs_predictor_needs_states(EFS_PREDICT_MIXED) || efs_predictor_needs_states(EFS_PREDICTORS));
    assert_true(efs_predictor_needs_states(EFS_PREDICT_LINEAR) && efs_predictor_needs_gates(EFS_PREDICT_LINEAR));
    assert_true(efs_predictor_needs_states(EFS_PREDICT_PROMOE) && !efs_predictor_needs_gates(EFS_PREDICT_PROMOE));
}

TEST(state_format)
{
    const float bad[][WIDTH] = {{NAN, 0}, {0, INFINITY}, {-1e7F, 0}};
    const uint16_t experts[] = {0, 1};

    for (enum efs_predictor_kind kind = EFS_PREDICT_OFFLOADING; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = begin(kind);
        float probability[EXPERTS];

        for (unsigned i = 0; i < 3; i++) {
            struct efs_predict_observation seen = {.experts = experts, .count = 2, .state = bad[i]};

            assert_int_equal(efs_predict_observe(p, 1, &seen), -EINVAL);
        }
        /* a layer without a state: the previous state predicts nothing */
        tell(p, 0, 1, 2, 4, 0);
        assert_int_equal(
            efs_predict_observe(p, 1, &(struct efs_predict_observation){.layer = 1, .experts = experts, .count = 2}),
            0);
        assert_int_equal(efs_predict_all(p, 1, 1, probability), 0);
        for (unsigned e = 0; e < EXPERTS; e++)
            assert_true(probability[e] == 0);
        efs_predictor_free(p);
    }
}

/* Applies the routers of later layers to this state: each layer has another favourite for the same direction. */
TEST(early_router_evaluation)
{
    static const enum efs_predictor_kind kinds[] = {EFS_PREDICT_OFFLOADING, EFS_PREDICT_HYBRIMOE, EFS_PREDICT_DALI,
                                                    EFS_PREDICT_LINEAR};

    for (unsigned k = 0; k < 4; k++) {
        struct efs_predictor *p = begin(kinds[k]);
        float probability[EXPERTS], sum = 0;

        efs_predict_learn(p, false);
        tell(p, 0, 2, 3, -2, 3.5F);
        assert_int_equal(favourite(p, 1), 1);
        assert_int_equal(favourite(p, 2), 0);
        assert_int_equal(efs_predict_all(p, 1, 1, probability), 0);
        for (unsigned e = 0; e < EXPERTS; e++)
            sum += probability[e];
        assert_true(fabsf(sum - CHOSEN) < 0.01F);
        tell(p, 2, 0, 1, 4, 0);
        assert_int_equal(efs_predict_all(p, 1, 1, probability), 0); /* no prediction for the next token */
        for (unsigned e = 0; e < EXPERTS; e++)
            assert_true(probability[e] == 0);
        efs_predictor_free(p);
    }
}

/* Logits 16, 16, 4, -16, -16, 4 and two chosen: 1 / (1 + exp(c - logit)) with c between 4 and 16. */
TEST(probabilities_are_of_being_chosen)
{
    struct efs_predictor *p = begin(EFS_PREDICT_OFFLOADING);
    float probability[EXPERTS];

    tell(p, 0, 0, 1, 4, 2 / 3.5F * 4);
    assert_int_equal(efs_predict_all(p, 1, 1, probability), 0);
    assert_true(probability[0] > 0.99F && probability[5] > 0.99F);
    assert_true(probability[1] < 0.02F && probability[2] < 0.02F && probability[3] < 0.02F && probability[4] < 0.02F);
    efs_predictor_free(p);
}

TEST(hybrimoe_falls_back_to_scores)
{
    struct efs_predictor *p = begin(EFS_PREDICT_HYBRIMOE);

    tell(p, 0, 1, 4, 4, 0);
    tell(p, 1, 0, 1, 4, 0);
    tell(p, 2, 0, 1, 4, 0);
    /* S = 0.5 * 0.75 and 0.5 * 0.25; two are chosen */
    assert_probable(p, 1, 1, (double[EXPERTS]){0, 0.75, 0, 0, 0.25, 0});
    tell(p, 0, 1, 3, 4, 0);
    tell(p, 1, 0, 1, 4, 0);
    tell(p, 2, 0, 1, 4, 0);
    assert_probable(p, 1, 1, (double[EXPERTS]){0, 1, 0, 0.25, 0.125, 0});
    efs_predictor_free(p);
}

TEST(dali_adds_layer_residuals)
{
    struct efs_predictor *p = begin(EFS_PREDICT_DALI), *stale = begin(EFS_PREDICT_OFFLOADING);

    for (unsigned i = 0; i < 2; i++) { /* layer 0 adds (0, 4) and (0, 2), layer 1 (-8, 0) and (-8, 0) */
        tell(p, 0, 0, 1, 1, 0);
        tell(p, 1, 0, 1, 1, i ? 2 : 4);
        tell(p, 2, 0, 1, -7, i ? 2 : 4);
    }
    tell(p, 0, 0, 1, 4, 0);
    tell(stale, 0, 0, 1, 4, 0);
    assert_int_equal(favourite(stale, 1), 5);
    assert_int_equal(favourite(p, 1), 0); /* state (4, 3): 18.5 for (2, 3.5), 16 for (4, 0) */
    assert_int_equal(favourite(stale, 2), 4);
    assert_int_equal(favourite(p, 2), 0); /* state (-4, 3): 18.5 for (-2, 3.5), 16 for (-4, 0) */
    efs_predictor_free(p);
    efs_predictor_free(stale);
}

/* The predictor learns choices that the router itself would not make, separately for each distance and state. */
TEST(linear_learns_choices)
{
    struct efs_predictor *p = begin(EFS_PREDICT_LINEAR);
    struct efs_prediction guess[2];

    for (unsigned i = 0; i < 600; i++) {
        bool turned = i & 1;

        tell(p, 0, 0, 1, turned ? -4 : 4, 0);
        tell(p, 1, turned ? 0 : 2, turned ? 1 : 3, 1, 1);
        tell(p, 2, turned ? 4 : 0, turned ? 5 : 1, 1, 1);
    }
    for (unsigned i = 0; i < 2; i++) {
        tell(p, 0, 0, 1, i ? -4 : 4, 0);
        assert_int_equal(efs_predict(p, 1, 1, guess, 2, NULL), 2);
        assert_int_equal(guess[0].expert + guess[1].expert, i ? 0 + 1 : 2 + 3);
        assert_true(guess[1].probability > 0.6F);
        assert_int_equal(efs_predict(p, 1, 2, guess, 2, NULL), 2);
        assert_int_equal(guess[0].expert + guess[1].expert, i ? 4 + 5 : 0 + 1);
    }
    efs_predictor_free(p);
}

TEST_MAIN(NULL, NULL)
