/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_predict_papers.c - MoE-Infinity and fMoE by hand: each of their formulas on cases with known results.
 */
#include "test.h"
#include "predict_cases.h"

static const uint8_t iteration_a[LAYERS][CHOSEN] = {{0, 1}, {0, 1}, {0, 1}};
static const uint8_t iteration_b[LAYERS][CHOSEN] = {{2, 3}, {2, 3}, {2, 3}};

/* A complete request of `iterations` equal iterations. */
static void request(struct efs_predictor *p, unsigned iterations, const uint8_t (*experts)[CHOSEN])
{
    assert_int_equal(efs_predict_begin(p, 99), 0);
    for (unsigned i = 0; i < iterations; i++)
        see_all(p, 99, experts);
    assert_int_equal(efs_predict_end(p, 99), 0);
}

/* ---- MoE-Infinity -------------------------------------------------------------------------------------------- */

static const struct predict_script infinity[] = {
    /* Cosine of (0, 2) with {3, 3} of the first matrix: 3 / (sqrt 18 sqrt 2) = .5, and the same with the second: the
     * first one is used. Then row 0 is 1, 0, 2, 0, 1: first 3 / (sqrt 18 sqrt 6), second 6 / (sqrt 8 sqrt 6) */
    {EFS_PREDICT_INFINITY, "the matrix most alike",
     "begin 9; 9: 01 01 01; 9: 01 01 01; 9: 01 01 01; end 9; begin 9; 9: 24 01 45; 9: 24 01 45; end 9; begin 1;"
     "1.0: 02; 1+2 = 1 1; 1.1: 01; 1.2: 40; 1.0: 24; 1+2 = 0 0 0 0 1 1;"},
    /* no match: the first one is used */
    {EFS_PREDICT_INFINITY, "part of the iterations",
     "begin 9; 9: 01 01 01; 9: 01 01 01; 9: 01 01 01; 9: 23 23 23; end 9; begin 1; 1.0: 45; 1+1 = .75 .75 .25 .25;"},
    {EFS_PREDICT_INFINITY, "by itself at first", "begin 1; 1: 01 01 01; 1.0: 01; 1+1 = .5 .5;"},
    /* the store has space for three */
    {EFS_PREDICT_INFINITY, "a fourth takes the place of the one most like it",
     "begin 9; 9: 01 01 01; end 9; begin 9; 9: 23 23 23; end 9; begin 9; 9: 45 45 45; end 9; begin 9; 9: 23 23 05;"
     "end 9; begin 1; 1.0: 23; 1+2 = 1 0 0 0 0 1; end 1; begin 1; 1.0: 01; 1+2 = 1 1;"},
    {EFS_PREDICT_INFINITY, "a matrix that comes meanwhile is compared with all that was chosen",
     "begin 9; 9: 01 01 01; end 9; begin 1; 1.0: 23; 1+1 = 1 1; begin 9; 9: 23 23 23; end 9; 1+1 = 0 0 1 1;"},
};

TEST(infinity_by_hand)
{
    predict_run(infinity, sizeof(infinity) / sizeof(infinity[0]));
}

/* ---- fMoE ---------------------------------------------------------------------------------------------------- */

/* Probability of an expert with this score: that one of K = 2 draws selects it. Scores are stored in 255ths. */
static double taken(double score)
{
    double kept = round(score * 255) / 255;

    return 1 - pow(1 - kept, 2);
}

TEST(fmoe_matches_the_trajectory)
{
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_FMOE);
    unsigned picked;
    struct efs_prediction guess[EXPERTS];

    assert_int_equal(efs_predict_begin(p, 1), 0);
    for (unsigned l = 0; l < LAYERS; l++)
        see_scored(p, 1, l, 0, 1, 0.8F);
    for (unsigned l = 0; l < LAYERS; l++)
        see_scored(p, 1, l, l ? 4 : 0, l ? 5 : 1, 0.6F);
    assert_int_equal(efs_predict_end(p, 1), 0);
    assert_int_equal(efs_predict_begin(p, 1), 0);
    /* In layer 0 both maps have experts 0 and 1: (.8, .2) and (.6, .4). (.55, .45) is nearer to the second */
    see_scored(p, 1, 0, 0, 1, 0.55F);
    assert_int_equal(efs_predict(p, 1, 1, guess, EXPERTS, &picked), 4); /* the first map's experts follow */
    assert_int_equal(picked, 2);
    assert_int_equal(guess[0].expert, 4);
    assert_int_equal(guess[1].expert, 5);
    assert_double_equal(guess[0].probability, taken(0.6), 1e-5);
    assert_double_equal(guess[1].probability, taken(0.4), 1e-5);
    assert_int_equal(guess[2].expert, 0);
    assert_true(guess[2].probability < guess[1].probability);
    assert_int_equal(efs_predict_end(p, 1), 0);
    /* (.9, .1) is nearer to the first */
    assert_int_equal(efs_predict_begin(p, 1), 0);
    see_scored(p, 1, 0, 0, 1, 0.9F);
    assert_int_equal(efs_predict(p, 1, 1, guess, 1, NULL), 1);
    assert_int_equal(guess[0].expert, 0);
    efs_predictor_free(p);
}

/* Without embeddings the predictions for the first layers are those that followed the most similar iteration. */
TEST(fmoe_copies_similar_iteration)
{
    struct efs_predict_config config = small;
    struct efs_prediction guess[2];

    for (enum efs_predict_match match = EFS_MATCH_BOTH; match <= EFS_MATCH_SEMANTIC; match++) {
        struct efs_predictor *p;

        config.tuning.match = match;
        p = predictor_new(&config, EFS_PREDICT_FMOE);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        see_all(p, 1, iteration_a);
        see_all(p, 1, iteration_b);
        assert_int_equal(efs_predict_end(p, 1), 0);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        see_all(p, 1, iteration_a);
        if (match == EFS_MATCH_TRAJECTORY) {
            assert_int_equal(efs_predict(p, 1, 1, guess, 2, NULL), 0);
        } else {
            assert_int_equal(efs_predict(p, 1, 1, guess, 2, NULL), 2);
            assert_true(guess[0].expert == 2 && guess[1].expert == 3);
        }
        /* The iteration continues like a, but the map of the previous iteration predicts b. */
        see(p, 1, 0, 0, 1);
        assert_int_equal(efs_predict(p, 1, 1, guess, 2, NULL), 2);
        assert_int_equal(guess[0].expert, match == EFS_MATCH_SEMANTIC ? 2 : 0);
        efs_predictor_free(p);
    }
}

/* With the gate's whole distribution, the less similar the map, the more experts are fetched. */
TEST(fmoe_fetches_until_delta)
{
    static const uint16_t all[] = {0, 1, 2, 3, 4, 5};
    static const float flat[] = {0.3F, 0.2F, 0.2F, 0.1F, 0.1F, 0.1F}, steep[] = {1, 0, 0, 0, 0, 0};
    struct efs_predict_config config = small;
    struct efs_predict_observation seen = {.experts = all, .scores = flat, .count = CHOSEN, .scored = EXPERTS};
    struct efs_prediction guess[EXPERTS];

    config.tuning.width = EXPERTS;
    for (unsigned off = 0; off < 2; off++) {
        struct efs_predictor *p;
        unsigned picked;

        config.tuning.no_delta = off;
        p = predictor_new(&config, EFS_PREDICT_FMOE);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        for (seen.layer = 0; seen.layer < LAYERS; seen.layer++)
            assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
        seen.layer = 0; /* identical: score 1, delta 0, K experts */
        assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
        assert_int_equal(efs_predict(p, 1, 1, guess, EXPERTS, &picked), EXPERTS);
        assert_int_equal(picked, CHOSEN);
        seen.layer = 1; /* cosine (.09 + .04 + .04 + .03 + .3) / (sqrt .2 sqrt 1.2) */
        seen.scores = steep;
        assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
        assert_int_equal(efs_predict(p, 1, 1, guess, EXPERTS, &picked), EXPERTS);
        assert_int_equal(picked, CHOSEN); /* score .98, delta .02 */
        assert_int_equal(efs_predict_end(p, 1), 0);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        seen.layer = 0;
        seen.experts = (const uint16_t[]){5, 4, 3, 2, 1, 0};
        assert_int_equal(efs_predict_observe(p, 1, &seen), 0); /* cosine .1 / sqrt .2 = .22, delta .78 */
        assert_int_equal(efs_predict(p, 1, 1, guess, EXPERTS, &picked), EXPERTS);
        assert_int_equal(picked, off ? CHOSEN : 4); /* .3 + .2 + .2 + .1 */
        seen.experts = all;
        seen.scores = flat;
        efs_predictor_free(p);
    }
}

/* A store of two maps; with d = 2 of 3 layers ahead, RDY = 2/3 semantic + 1/3 trajectory. */
TEST(fmoe_evicts_most_redundant)
{
    static const uint8_t like_b[LAYERS][CHOSEN] = {{2, 3}, {2, 3}, {4, 5}};
    struct efs_predict_config config = small;
    struct efs_predictor *p;
    struct efs_prediction guess[2];

    config.tuning.maps = 2;
    p = predictor_new(&config, EFS_PREDICT_FMOE);
    for (unsigned i = 0; i < 3; i++)
        request(p, 1, i == 0 ? iteration_a : i == 1 ? iteration_b : like_b);
    assert_int_equal(efs_predict_begin(p, 1), 0);
    see(p, 1, 0, 2, 3);
    see(p, 1, 1, 2, 3);
    assert_int_equal(efs_predict(p, 1, 1, guess, 2, NULL), 2);
    assert_int_equal(guess[0].expert, 4); /* b was replaced */
    assert_int_equal(efs_predict_end(p, 1), 0);
    assert_int_equal(efs_predict_begin(p, 1), 0);
    see(p, 1, 0, 0, 1);
    assert_int_equal(efs_predict(p, 1, 2, guess, 2, NULL), 2);
    assert_int_equal(guess[0].expert, 0); /* a was not */
    efs_predictor_free(p);
}

/* When a map is replaced in the middle of an iteration of another sequence, its products cover the whole iteration:
 * they equal those of a store that had this map from the start. */
TEST(fmoe_products_are_updated)
{
    struct efs_predict_config config = {
        .layers = 5, .experts = 12, .chosen = 2, .distances = 2, .sequences = 2, .tuning = {.maps = 6}};
    struct cases cases = {3};

    for (unsigned round = 0; round < 40; round++) {
        struct efs_predictor *p = predictor_new(&config, EFS_PREDICT_FMOE),
                             *q = predictor_new(&config, EFS_PREDICT_FMOE);
        unsigned before = cases_below(&cases, 5), layers = 1 + cases_below(&cases, 4);
        size_t size = efs_predict_save(p, NULL, 0);
        void *bytes = malloc(size);
        float mine[12], other[12];

        assert_non_null(bytes);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        see_random(p, 1, &config, 20, round);
        assert_int_equal(efs_predict_begin(p, 2), 0);
        for (unsigned l = 0; l < layers; l++) { /* of sequence 2, with iterations of sequence 1 in between */
            see_scored(p, 2, l, l, l + 3, 0.7F);
            if (l == before)
                see_random(p, 1, &config, 2, round + 1000);
        }
        assert_int_equal(efs_predict_all(p, 2, 1, mine), 0);
        assert_int_equal(efs_predict_end(p, 1), 0);
        efs_predict_save(p, bytes, size);
        assert_int_equal(efs_predict_load(q, bytes, size), 0);
        assert_int_equal(efs_predict_begin(q, 2), 0);
        for (unsigned l = 0; l < layers; l++)
            see_scored(q, 2, l, l, l + 3, 0.7F);
        assert_int_equal(efs_predict_all(q, 2, 1, other), 0);
        for (unsigned e = 0; e < 12; e++)
            if (layers > before + 1) /* otherwise the best maps were chosen before the replacement */
                assert_true(mine[e] == other[e]);
        free(bytes);
        efs_predictor_free(p);
        efs_predictor_free(q);
    }
}

TEST(fmoe_holds_50000_maps)
{
    struct efs_predict_config config = {.layers = 24,
                                        .experts = 32,
                                        .chosen = 4,
                                        .distances = 4,
                                        .sequences = 1,
                                        .memory_bytes = 200000000,
                                        .tuning = {.maps = 50000}};
    struct efs_predictor *p;

    p = predictor_new(&config, EFS_PREDICT_FMOE);
    assert_true(efs_predict_bytes(p) > 50000u * 24 * 4 * 3 && efs_predict_bytes(p) < 20000000);
    efs_predictor_free(p);
    config.tuning.width = 32; /* the gate's whole distribution */
    p = predictor_new(&config, EFS_PREDICT_FMOE);
    assert_true(efs_predict_bytes(p) > 50000u * 24 * 32 * 3);
    efs_predictor_free(p);
}

TEST_MAIN(NULL, NULL)
