/* SPDX-License-Identifier: Apache-2.0 */
/* test_predict_promoe.c - the predictor that is trained ahead: its network by hand, its training, what it keeps. */
#include "test.h"
#include "predict_cases.h"

enum { HEADER = EFS_PREDICT_HEADER_BYTES, CHECKSUM_AT = HEADER - 8, INPUTS = WIDTH + 1, WIDE = 4000 };

/* A saved predictor: the header, the networks, and whether they are trained. */
struct saved {
    uint8_t *bytes;
    size_t size;
    unsigned hidden;
    float *weights; /* [2][LAYERS] networks: A [hidden][INPUTS], B [EXPERTS][hidden + 1] */
};

static struct saved save(const struct efs_predictor *p)
{
    struct saved s = {.size = efs_predict_save(p, NULL, 0)};

    s.bytes = malloc(s.size);
    assert_non_null(s.bytes);
    efs_predict_save(p, s.bytes, s.size);
    s.weights = (float *)(void *)(s.bytes + HEADER);
    s.hidden = (unsigned)(((s.size - HEADER) / 4 - 1) / (2 * LAYERS) - EXPERTS) / (INPUTS + EXPERTS);
    return s;
}

static float *network(const struct saved *s, unsigned distance, unsigned layer)
{
    return s->weights + ((size_t)(distance - 1) * LAYERS + layer) * (s->hidden * INPUTS + EXPERTS * (s->hidden + 1));
}

static int load(struct efs_predictor *p, struct saved *s)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = HEADER; i < s->size; i++)
        hash = (hash ^ s->bytes[i]) * UINT64_C(0x100000001b3);
    memcpy(s->bytes + CHECKSUM_AT, &hash, sizeof(hash));
    return efs_predict_load(p, s->bytes, s->size);
}

static void observe(struct efs_predictor *p, unsigned layer, float x, float y)
{
    const uint16_t experts[] = {0, 1};
    const float state[] = {x, y};
    const struct efs_predict_observation seen = {.layer = layer, .experts = experts, .count = 2, .state = state};

    assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
}

/*
 * The network for layer 1 from layer 0 has z0 = relu(x' / 10), z1 = relu(0.5 - y' / 10), p0 = s(z0 - 1), p3 = s(2 z1 +
 * z0), and s(0) for the rest, with s(t) = 1 / (1 + exp(-t)). (3, 4) is scaled to (9.6, 12.8): z0 = 0.96, z1 = 0. (0,
 * -1) is scaled to (0, -16): z0 = 0, z1 = 2.1.
 */
TEST(network_by_hand)
{
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_PROMOE);
    struct saved s = save(p);
    float *a = network(&s, 1, 1), *b = a + (size_t)s.hidden * INPUTS;
    const uint32_t trained = 1;

    assert_int_equal(s.size, HEADER + 4 + 4 * 2 * LAYERS * (s.hidden * INPUTS + EXPERTS * (s.hidden + 1)));
    a[0] = 0.1F;
    a[INPUTS + 1] = -0.1F;
    a[INPUTS + 2] = 0.5F;
    b[0] = 1;
    b[s.hidden] = -1;
    b[3 * (s.hidden + 1)] = 1;
    b[3 * (s.hidden + 1) + 1] = 2;
    memcpy(s.bytes + s.size - 4, &trained, 4);
    assert_int_equal(load(p, &s), 0);
    assert_int_equal(efs_predict_begin(p, 1), 0);
    observe(p, 0, 3, 4);
    assert_probable(p, 1, 1, (double[EXPERTS]){0.490001, 0.5, 0.5, 0.723122, 0.5, 0.5});
    observe(p, 0, 0, -1);
    assert_probable(p, 1, 1, (double[EXPERTS]){0.268941, 0.5, 0.5, 0.985226, 0.5, 0.5});
    assert_probable(p, 1, 2, (double[EXPERTS]){0.5, 0.5, 0.5, 0.5, 0.5, 0.5}); /* a network of its own */
    observe(p, 2, 3, 4); /* the next layer belongs to the next token */
    assert_probable(p, 1, 1, (double[EXPERTS]){0});
    assert_int_equal(efs_predict_end(p, 1), 0);
    a[0] = NAN;
    assert_int_equal(load(p, &s), -EUCLEAN);
    free(s.bytes);
    efs_predictor_free(p);
}

/* Tokens in turn: state (4, 1) in layer 0 is followed by experts 2, 3 and 0, 1; state (-4, 1) by 4, 5 and 2, 3. */
static void read_sample(void *from, uint64_t token, unsigned layer, uint16_t *experts, float *state)
{
    uint16_t first = (uint16_t)((token % 2 ? 4 : 2) + (layer == 2 ? -2 : 0));

    (void)from;
    experts[0] = first;
    experts[1] = (uint16_t)(first + 1);
    state[0] = layer ? 1 : token % 2 ? -4 : 4;
    state[1] = 1;
}

static bool stop(void *from)
{
    (void)from;
    return true;
}

static const struct efs_predict_samples samples = {.tokens = 400, .read = read_sample};

static unsigned chosen_pair(struct efs_predictor *p, unsigned distance)
{
    struct efs_prediction guess[2];

    assert_int_equal(efs_predict(p, 1, distance, guess, 2, NULL), 2);
    assert_true(guess[1].probability > 0.8F);
    return guess[0].expert * guess[1].expert;
}

TEST(training_learns_choices)
{
    struct efs_predictor *p = predictor_new(&small, EFS_PREDICT_PROMOE);

    assert_int_equal(efs_predict_begin(p, 1), 0);
    observe(p, 0, 4, 1);
    assert_probable(p, 1, 1, (double[EXPERTS]){0}); /* not trained yet */
    assert_int_equal(efs_predict_train(p, &samples), 0);
    for (unsigned i = 0; i < 2; i++) {
        observe(p, 0, i ? -4 : 4, 1);
        assert_int_equal(chosen_pair(p, 1), i ? 4 * 5 : 2 * 3);
        assert_int_equal(chosen_pair(p, 2), i ? 2 * 3 : 0 * 1);
    }
    efs_predictor_free(p);
}

/* A state of 4,000 numbers, of which one counts. */
static void read_wide(void *from, uint64_t token, unsigned layer, uint16_t *experts, float *state)
{
    for (unsigned i = 0; i < WIDE; i++)
        state[i] = 0.1F;
    read_sample(from, token, layer, experts, state);
}

TEST(wide_states_are_learned)
{
    struct efs_predict_samples wide = samples;
    struct efs_predict_config config = small;
    uint16_t experts[CHOSEN];
    float wide_state[WIDE];

    wide.read = read_wide;
    config.state_width = WIDE;
    struct efs_predictor *p = predictor_new(&config, EFS_PREDICT_PROMOE);
    assert_int_equal(efs_predict_train(p, &wide), 0);
    assert_int_equal(efs_predict_begin(p, 1), 0);
    for (unsigned token = 0; token < 2; token++) {
        read_wide(NULL, token, 0, experts, wide_state);
        const struct efs_predict_observation seen = {.experts = experts, .count = CHOSEN, .state = wide_state};
        assert_int_equal(efs_predict_observe(p, 1, &seen), 0);
        assert_int_equal(chosen_pair(p, 1), token ? 4 * 5 : 2 * 3);
    }
    efs_predictor_free(p);
}

/* The same samples give the same networks; observations do not change them, a later training replaces them. */
TEST(training_is_reproducible)
{
    struct efs_predictor *p[2];
    struct saved s[2];

    for (unsigned i = 0; i < 2; i++) {
        p[i] = predictor_new(&small, EFS_PREDICT_PROMOE);
        assert_int_equal(efs_predict_train(p[i], &samples), 0);
    }
    assert_int_equal(efs_predict_begin(p[1], 1), 0);
    see_random(p[1], 1, &small, 100, 5);
    assert_int_equal(efs_predict_train(p[0], &samples), 0);
    for (unsigned i = 0; i < 2; i++)
        s[i] = save(p[i]);
    assert_memory_equal(s[0].bytes, s[1].bytes, s[0].size);
    for (unsigned i = 0; i < 2; i++) {
        free(s[i].bytes);
        efs_predictor_free(p[i]);
    }
}

TEST(training_refuses)
{
    struct efs_predict_samples none = samples, stopped = samples;

    none.tokens = 0;
    stopped.stop = stop;
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++) {
        struct efs_predictor *p = predictor_new(&small, kind);
        bool trains = kind == EFS_PREDICT_PROMOE;

        assert_int_equal(efs_predict_train(p, &none), trains ? -EINVAL : -EOPNOTSUPP);
        assert_int_equal(efs_predict_train(p, &stopped), trains ? -ECANCELED : -EOPNOTSUPP);
        assert_int_equal(efs_predict_begin(p, 1), 0);
        observe(p, 0, 4, 1);
        if (trains)
            assert_probable(p, 1, 1, (double[EXPERTS]){0});
        efs_predictor_free(p);
    }
}

TEST_MAIN(NULL, NULL)
