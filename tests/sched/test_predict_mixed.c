/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_predict_mixed.c - the learned mixture: it learns each kind of dependence between choices, its probabilities are
 * calibrated, and it adapts to a change.
 */
#include "test.h"
#include "predict_cases.h"

static const struct efs_predict_config model = {
    .layers = 4, .experts = 16, .chosen = 2, .distances = 2, .sequences = 1, .tuning = {.maps = 64}};

/* The dependence of a layer's experts: on the previous layer's, on the same layer's last ones, or on the request. */
enum way { BY_LAYER, BY_LAST, BY_REQUEST, WAYS };

static unsigned first_of(enum way way, struct cases *cases, const unsigned *chosen, unsigned layer, unsigned own)
{
    switch (way) {
    case BY_LAYER:
        return layer ? (chosen[layer - 1] * 5 + 3) % 8 : cases_below(cases, 8);
    case BY_LAST:
        return (chosen[layer] + 3) % 8;
    default:
        return own;
    }
}

/* Fraction of the experts one layer ahead that are among the first two predictions, in the last half of
 * `iterations`. */
static double recall(struct efs_predictor *p, enum way way, unsigned iterations, uint64_t seed)
{
    struct cases cases = {seed};
    unsigned chosen[4] = {0}, right = 0, asked = 0, own = 0;
    struct efs_prediction guess[2];

    for (unsigned i = 0; i < iterations; i++) {
        if (i % 20 == 0) { /* the next request */
            if (i)
                assert_int_equal(efs_predict_end(p, seed), 0);
            assert_int_equal(efs_predict_begin(p, seed), 0);
            own = cases_below(&cases, 8);
        }
        for (unsigned l = 0; l < 4; l++) {
            unsigned first = first_of(way, &cases, chosen, l, own);

            if (i % 20 && i > iterations / 2 && l) {
                int count = efs_predict(p, seed, 1, guess, 2, NULL);

                for (int g = 0; g < count; g++)
                    right += guess[g].expert == first || guess[g].expert == first + 8;
                asked += 2;
            }
            chosen[l] = first;
            see(p, seed, l, first, first + 8);
        }
    }
    assert_int_equal(efs_predict_end(p, seed), 0);
    return (double)right / asked;
}

TEST(learns_each_dependence)
{
    for (enum way way = 0; way < WAYS; way++) {
        struct efs_predictor *p = predictor_new(&model, EFS_PREDICT_MIXED);
        double part = recall(p, way, 400, way + 1);

        if (part < 0.95)
            fail_msg("way %u: %g", way, part);
        efs_predictor_free(p);
    }
}

TEST(follows_a_change)
{
    struct efs_predictor *p = predictor_new(&model, EFS_PREDICT_MIXED);

    assert_true(recall(p, BY_LAYER, 400, 1) > 0.95);
    assert_true(recall(p, BY_LAST, 800, 2) > 0.9);
    assert_true(recall(p, BY_LAYER, 800, 3) > 0.9);
    efs_predictor_free(p);
}

/* Of ten experts chosen at random, the predicted probabilities must be close to the true ones. */
TEST(probabilities_are_calibrated)
{
    struct efs_predictor *p = predictor_new(&model, EFS_PREDICT_MIXED);
    struct cases cases = {7};
    float probability[16];
    double said = 0, off = 0;
    unsigned asked = 0;

    assert_int_equal(efs_predict_begin(p, 1), 0);
    for (unsigned i = 0; i < 3000; i++)
        for (unsigned l = 0; l < 4; l++) {
            unsigned a = cases_below(&cases, 5), b = 5 + cases_below(&cases, 5);

            if (i > 2000) {
                assert_int_equal(efs_predict_all(p, 1, 1, probability), 0);
                for (unsigned e = 0; e < 16; e++) {
                    said += probability[e];
                    off += fabs(probability[e] - (e < 10 ? 0.2 : 0));
                }
                asked++;
            }
            see(p, 1, l, a, b);
        }
    assert_double_equal(said / asked, 2, 0.1); /* K */
    assert_true(off / asked / 16 < 0.06);
    efs_predictor_free(p);
}

TEST(learning_off)
{
    struct efs_predictor *p = predictor_new(&model, EFS_PREDICT_MIXED);
    size_t size = efs_predict_save(p, NULL, 0);
    uint8_t *before = malloc(size), *after = malloc(size);

    assert_true(before && after);
    recall(p, BY_LAYER, 40, 1);
    efs_predict_save(p, before, size);
    efs_predict_learn(p, false);
    recall(p, BY_LAYER, 40, 2);
    efs_predict_save(p, after, size);
    assert_memory_equal(before, after, size);
    free(before);
    free(after);
    efs_predictor_free(p);
}

/* Wide layers within 40,000 bytes: fewer links and maps, and the predictor still learns. */
TEST(learns_in_little_memory)
{
    struct efs_predict_config config = model;
    struct efs_predictor *p;

    config.memory_bytes = 40000;
    p = predictor_new(&config, EFS_PREDICT_MIXED);
    assert_true(efs_predict_bytes(p) <= 40000);
    assert_true(recall(p, BY_LAYER, 400, 1) > 0.95);
    efs_predictor_free(p);
}

TEST_MAIN(NULL, NULL)
