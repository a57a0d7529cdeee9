/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_predict.c - invariants of all predictors, and the baselines by hand: last choice, counts, transitions, pairs.
 */
#include "test.h"
#include "predict_cases.h"

/* ---- all of them --------------------------------------------------------------------------------------------- */

TEST(names_round_trip)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++)
        assert_int_equal(efs_predictor_by_name(efs_predictor_name(kind)), kind);
    assert_int_equal(efs_predictor_by_name("oracle"), EFS_PREDICTORS);
    assert_null(efs_predictor_name(EFS_PREDICTORS));
}

TEST(refuses_bad_numbers)
{
    struct efs_predict_config bad[10];
    struct efs_predictor *p;

    for (unsigned i = 0; i < 10; i++)
        bad[i] = small;
    bad[0].layers = 0;
    bad[1].layers = EFS_PREDICT_MAX_LAYERS + 1;
    bad[2].experts = 0;
    bad[3].experts = EFS_PREDICT_MAX_EXPERTS + 1;
    bad[4].chosen = 0;
    bad[5].chosen = EXPERTS + 1;
    bad[6].distances = 0;
    bad[7].distances = LAYERS + 1;
    bad[8].sequences = 0;
    bad[9].kind = EFS_PREDICTORS;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(efs_predictor_new(&bad[i], &p), -EINVAL);
    efs_predictor_free(NULL);
}

TEST(refuses_invalid_observations)
{
    const uint16_t twice[] = {1, 1}, beyond[] = {0, EXPERTS}, good[] = {0, 1};
    const float bad_scores[] = {0.5F, NAN}, below[] = {0.5F, -1};
    const struct efs_predict_observation seen[] = {
        {LAYERS, good, NULL, 2, 0, NULL},  {0, twice, NULL, 2, 0, NULL}, {0, beyond, NULL, 2, 0, NULL},
        {0, good, bad_scores, 2, 0, NULL}, {0, good, below, 2, 0, NULL}, {0, good, NULL, EXPERTS + 1, 0, NULL}};
    struct efs_prediction guess[EXPERTS];

    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind);

        assert_int_equal(efs_predict(p, 7, 1, guess, EXPERTS, NULL), -ENOENT);
        assert_int_equal(efs_predict_end(p, 7), -ENOENT);
        assert_int_equal(efs_predict_begin(p, 7), 0);
        assert_int_equal(efs_predict_begin(p, 7), -EEXIST);
        assert_int_equal(efs_predict_begin(p, 8), 0);
        assert_int_equal(efs_predict_begin(p, 9), -ENOSPC);
        for (unsigned i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
            assert_int_equal(efs_predict_observe(p, 7, &seen[i]), -EINVAL);
        assert_int_equal(efs_predict(p, 7, 1, guess, EXPERTS, NULL), 0); /* nothing was observed */
        assert_int_equal(efs_predict(p, 7, 0, guess, EXPERTS, NULL), -EINVAL);
        assert_int_equal(efs_predict(p, 7, 3, guess, EXPERTS, NULL), -EINVAL);
        assert_int_equal(efs_predict_end(p, 7), 0);
        assert_int_equal(efs_predict_begin(p, 9), 0);
        efs_predictor_free(p);
    }
}

/* Checks that predictions are valid experts with probabilities, by falling probability, equal ones by expert number. */
static void check_guesses(const struct efs_prediction *guess, int count)
{
    for (int i = 0; i < count; i++) {
        assert_true(guess[i].layer < LAYERS && guess[i].expert < EXPERTS);
        assert_true(guess[i].probability > 0 && guess[i].probability <= 1);
        assert_true(i == 0 || guess[i].probability < guess[i - 1].probability ||
                    (guess[i].probability == guess[i - 1].probability && guess[i].expert > guess[i - 1].expert));
    }
}

/* Predictions are sorted and distinct and have valid probabilities, also after an omitted layer or a prompt. */
TEST(predictions_are_well_formed)
{
    const uint16_t prompt[] = {5, 4, 3, 2, 1, 0};
    const struct efs_predict_observation whole = {1, prompt, NULL, EXPERTS, 0, NULL},
                                         none = {2, NULL, NULL, 0, 0, NULL};
    struct efs_prediction guess[EXPERTS];
    unsigned picked;

    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind);

        assert_int_equal(efs_predict_begin(p, 1), 0);
        for (unsigned round = 0; round < 50; round++) {
            see_random(p, 1, &small, 3, round);
            if (round % 3 == 0)
                assert_int_equal(efs_predict_observe(p, 1, &whole), 0);
            if (round % 5 == 0)
                assert_int_equal(efs_predict_observe(p, 1, &none), 0);
            for (unsigned d = 1; d <= 2; d++) {
                int count = efs_predict(p, 1, d, guess, 4, &picked);

                assert_in_range(count, 0, 4);
                assert_true(picked <= (unsigned)count);
                check_guesses(guess, count);
            }
        }
        efs_predictor_free(p);
    }
}

TEST(predictions_cross_tokens)
{
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_REQUEST);
    struct efs_prediction guess;

    assert_int_equal(efs_predict_begin(p, 1), 0);
    see(p, 1, 0, 3, 4);
    see(p, 1, 1, 0, 1);
    assert_int_equal(efs_predict(p, 1, 2, &guess, 1, NULL), 1);
    assert_true(guess.layer == 0 && guess.expert == 3);
    see(p, 1, 2, 0, 1);
    assert_int_equal(efs_predict(p, 1, 2, &guess, 1, NULL), 1);
    assert_true(guess.layer == 1 && guess.expert == 0);
    efs_predictor_free(p);
}

TEST(same_calls_same_answers)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p[2];
        float probability[2][EXPERTS];

        for (unsigned i = 0; i < 2; i++) {
            p[i] = predictor_new(&small, kind);
            assert_int_equal(efs_predict_begin(p[i], i), 0);
            see_random(p[i], i, &small, 100, 5);
            assert_int_equal(efs_predict_all(p[i], i, 1, probability[i]), 0);
        }
        assert_memory_equal(probability[0], probability[1], sizeof(probability[0]));
        efs_predictor_free(p[0]);
        efs_predictor_free(p[1]);
    }
}

/* With learning off, observations of one sequence do not change the predictions of another. */
TEST(sequences_are_independent)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *alone = predictor_new(&small, kind), *beside = predictor_new(&small, kind);
        float probability[2][EXPERTS];

        efs_predict_learn(alone, false);
        efs_predict_learn(beside, false);
        assert_int_equal(efs_predict_begin(alone, 1), 0);
        assert_int_equal(efs_predict_begin(beside, 2), 0);
        assert_int_equal(efs_predict_begin(beside, 1), 0);
        for (unsigned round = 0; round < 10; round++) {
            see_random(alone, 1, &small, 2, round);
            see_random(beside, 1, &small, 2, round);
            see_random(beside, 2, &small, 1, round + 100);
        }
        assert_int_equal(efs_predict_all(alone, 1, 1, probability[0]), 0);
        assert_int_equal(efs_predict_all(beside, 1, 1, probability[1]), 0);
        assert_memory_equal(probability[0], probability[1], sizeof(probability[0]));
        efs_predictor_free(alone);
        efs_predictor_free(beside);
    }
}

TEST(memory_is_bounded)
{
    static const float no_gates[20 * 64 * WIDTH];
    struct efs_predict_config wide = {.layers = 20,
                                      .experts = 64,
                                      .chosen = 4,
                                      .distances = 4,
                                      .sequences = 1,
                                      .state_width = WIDTH,
                                      .gates = no_gates};
    static const uint64_t bounds[] = {1000, 100000, 1000000, 4000000, UINT64_C(1) << 30};

    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++)
        for (unsigned i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
            struct efs_predictor *p;
            uint64_t bytes;
            int rc;

            wide.kind = kind;
            wide.memory_bytes = bounds[i];
            rc = efs_predictor_new(&wide, &p);
            assert_true(rc == (i == 0 ? -E2BIG : 0) || (rc == -E2BIG && i < 3));
            if (rc < 0)
                continue;
            bytes = efs_predict_bytes(p);
            assert_true(bytes <= bounds[i]);
            assert_int_equal(efs_predict_begin(p, 1), 0);
            see_random(p, 1, &wide, 30, i);
            assert_int_equal(efs_predict_bytes(p), bytes);
            efs_predictor_free(p);
        }
}

/* ---- saved and loaded ------------------------------------------------------------------------------------------ */

static uint8_t *save(const struct efs_predictor *p, size_t *size)
{
    uint8_t *bytes;

    *size = efs_predict_save(p, NULL, 0);
    bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(efs_predict_save(p, bytes, *size), *size);
    return bytes;
}

TEST(state_round_trip)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind), *other = predictor_new(&small, kind);
        float probability[2][EXPERTS];
        uint8_t *bytes;
        size_t size;

        assert_int_equal(efs_predict_begin(p, 1), 0);
        see_random(p, 1, &small, 60, 9);
        bytes = save(p, &size);
        assert_int_equal(efs_predict_load(p, bytes, size), -EBUSY);
        assert_int_equal(efs_predict_end(p, 1), 0);
        free(bytes);
        bytes = save(p, &size);
        assert_int_equal(efs_predict_load(other, bytes, size), 0);
        for (unsigned i = 0; i < 2; i++) {
            struct efs_predictor *one = i ? other : p;

            assert_int_equal(efs_predict_begin(one, 3), 0);
            see_random(one, 3, &small, 4, 10);
            assert_int_equal(efs_predict_all(one, 3, 2, probability[i]), 0);
        }
        assert_memory_equal(probability[0], probability[1], sizeof(probability[0]));
        free(bytes);
        efs_predictor_free(p);
        efs_predictor_free(other);
    }
}

/* Counts are halved before they overflow, also those of an expert that every token chooses. */
TEST(counts_do_not_overflow)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind);
        uint8_t *bytes;
        size_t size;

        assert_int_equal(efs_predict_begin(p, 1), 0);
        for (unsigned i = 0; i < LAYERS * (UINT16_MAX + 2u); i++)
            see(p, 1, i % LAYERS, 1, 2);
        assert_int_equal(efs_predict_end(p, 1), 0);
        bytes = save(p, &size);
        assert_int_equal(efs_predict_load(p, bytes, size), 0);
        free(bytes);
        efs_predictor_free(p);
    }
}

static void put_checksum(uint8_t *bytes, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = EFS_PREDICT_HEADER_BYTES; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    memcpy(bytes + EFS_PREDICT_HEADER_BYTES - 8, &hash, 8);
}

/* A predictor may refuse damaged bytes or load them, but must not access memory outside its tables: sanitizers
 * check. */
static void use(struct efs_predictor *p)
{
    struct efs_prediction guess[EXPERTS];

    assert_int_equal(efs_predict_begin(p, 1), 0);
    see_random(p, 1, &small, 6, 2);
    int count = efs_predict(p, 1, 2, guess, EXPERTS, NULL);
    assert_in_range(count, 0, EXPERTS);
    check_guesses(guess, count);
    assert_int_equal(efs_predict_end(p, 1), 0);
}

TEST(damaged_bytes_are_refused)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind), *empty = predictor_new(&small, kind);
        uint8_t *bytes, *nothing, *after;
        size_t size, size_after;
        struct cases cases = {kind};

        nothing = save(empty, &size);
        free(nothing);
        nothing = save(empty, &size);
        use(p);
        bytes = save(p, &size);
        for (unsigned i = 0; i < 300; i++) {
            size_t at = i < 60 ? i : (size_t)cases_below(&cases, (unsigned)size);
            uint8_t was = bytes[at];
            int rc;

            bytes[at] ^= (uint8_t)(1u << i % 8);
            assert_int_equal(efs_predict_load(p, bytes, size),
                             at < 8 || at >= EFS_PREDICT_HEADER_BYTES - 8 ? -EUCLEAN : -EINVAL);
            after = save(p, &size_after);
            assert_memory_equal(after, nothing, size);
            free(after);
            put_checksum(bytes, size); /* damage with a valid checksum */
            rc = efs_predict_load(p, bytes, size);
            assert_true(rc == 0 || rc == -EUCLEAN || rc == -EINVAL);
            use(p);
            bytes[at] = was;
            put_checksum(bytes, size);
            assert_int_equal(efs_predict_load(p, bytes, at), -EUCLEAN); /* truncated */
        }
        assert_int_equal(efs_predict_load(p, bytes, size), 0);
        free(bytes);
        free(nothing);
        efs_predictor_free(p);
        efs_predictor_free(empty);
    }
}

TEST(state_of_another_shape_is_refused)
{
    struct efs_predict_config other = small;
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_REQUEST), *q;
    uint8_t *bytes;
    size_t size;

    bytes = save(p, &size);
    q = predictor_new(&small, EFS_PREDICT_BRAINSTORM);
    assert_int_equal(efs_predict_load(q, bytes, size), -EINVAL);
    efs_predictor_free(q);
    other.layers++;
    q = predictor_new(&other, EFS_PREDICT_REQUEST);
    assert_int_equal(efs_predict_load(q, bytes, size), -EINVAL);
    efs_predictor_free(q);
    other = small;
    other.tuning.maps++;
    q = predictor_new(&other, EFS_PREDICT_REQUEST);
    assert_int_equal(efs_predict_load(q, bytes, size), -EINVAL);
    efs_predictor_free(q);
    other = small;
    other.memory_bytes = 1 << 20;
    q = predictor_new(&other, EFS_PREDICT_REQUEST);
    assert_int_equal(efs_predict_load(q, bytes, size), -EINVAL);
    efs_predictor_free(q);
    free(bytes);
    efs_predictor_free(p);
}

struct broken {
    const uint8_t *bytes;
    uint64_t good; /* reads that succeed before one fails */
};

static int read_some(void *from, uint64_t at, void *bytes, size_t size)
{
    struct broken *b = from;

    if (b->good == 0)
        return -EIO;
    b->good--;
    memcpy(bytes, b->bytes + at, size);
    return 0;
}

TEST(unreadable_state_is_not_loaded)
{
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_MIXED);
    uint8_t *nothing, *bytes, *after;
    size_t size;
    uint64_t reads = 0;
    int rc = -EIO;

    nothing = save(p, &size);
    use(p);
    bytes = save(p, &size);
    for (; rc == -EIO; reads++) {
        struct broken b = {bytes, reads};

        rc = efs_predict_load_from(p, read_some, &b, size);
        after = save(p, &size);
        assert_memory_equal(after, rc == 0 ? bytes : nothing, size);
        free(after);
    }
    assert_int_equal(rc, 0);
    assert_true(reads > 4);
    free(nothing);
    free(bytes);
    efs_predictor_free(p);
}

/* ---- the baselines --------------------------------------------------------------------------------------------- */

static const struct predict_script baselines[] = {
    /* deepspeed: (0 + 1) / (0 + 2); 1 of 2: (1 + 1) / (2 + 2); 3 of 4 */
    {EFS_PREDICT_DEEPSPEED, "deepspeed takes the last iteration",
     "begin 1; 1: 01 23 45; 1.0: 02; 1+1 = 0 0 .5 .5; 1.1: 24; 1.2: 01; 1+2 = 0 0 .5 0 .5; 1.0: 34; 1.1: 24; 1.2: 01;"
     "1+2 = 0 0 .6666667 0 .6666667;"},
    {EFS_PREDICT_BRAINSTORM, "brainstorm counts all sequences",
     "begin 1; begin 2; 1.1: 01; 2.1: 12; 1.1: 15; 2.1: 35; 1.0: 01; 1+1 = .25 .75 .25 .25 0 .5; still; 1.1: 01; 1.0: "
     "01;"
     "1+1 = .25 .75 .25 .25 0 .5;"},
    /* prior: experts 0 and 1, each time; then 2 of 2 iterations of this request against a prior of 4 */
    {EFS_PREDICT_REQUEST, "request counts its own over a prior",
     "begin 1; 1: 01 01 01; end 1; still; begin 1; 1.0: 23; 1+1 = 1 1; end 1; begin 1; 1: 23 23 23; 1: 23 23 23; 1.0: "
     "23;"
     "1+1 = .6666667 .6666667 .3333333 .3333333;"},
    /* Layer 1 after 0: expert 2 in 2 of 2 cases, 3 and 5 once each; after 1: 2 and 3, always. Layer 2, two ahead: after
     * 0: 4, 5, 0 and 1 half of the times; after 1: 4 and 5. 4 and 1 were never seen. Across tokens: in layer 0 of the
     * next token, 0 and 2 came after (2, 3), 0 and 1 after (2, 5) */
    {EFS_PREDICT_TRANSITION, "transition follows experts",
     "begin 1; 1: 01 23 45; 1: 02 25 01; 1.0: 01; 1+1 = 0 0 1 .75 0 .25; 1+2 = .25 .25 0 0 .75 .75; 1.1: 41; 1+1 = 0;"
     "1.1: 23; 1+2 = 1 .25 .75;"},
    /* Of the pairs (1, 2), (1, 4), (3, 2), (3, 4) only the first was seen, once, before 4 and 5; (0, 2): before the
     * last layers of both iterations; no pair: counts of layer 2, 0 and 1 three times of 8, 4 and 5 once */
    {EFS_PREDICT_EDGEMOE, "edgemoe goes by pairs",
     "begin 1; 1: 01 23 45; 1: 02 23 01; 1.0: 13; 1.1: 24; 1+1 = 0 0 0 0 1 1; 1.2: 01; 1.0: 05; 1.1: 20;"
     "1+1 = .5 .5 0 0 .5 .5; 1.2: 01; 1.0: 54; 1.1: 54; 1+1 = .75 .75 0 0 .25 .25;"},
};

TEST(baselines_by_hand)
{
    predict_run(baselines, sizeof(baselines) / sizeof(baselines[0]));
}

TEST_MAIN(NULL, NULL)
