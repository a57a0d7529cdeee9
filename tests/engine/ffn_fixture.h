/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_fixture.h - shared by the tests of efs_client_ffn(): a checkpoint and the numbers of its tensors, mixtures of its
 * experts, and `model`, of BF16 with three matrices an expert, which each test packs and opens.
 */
#ifndef EFS_TEST_FFN_FIXTURE_H
#define EFS_TEST_FFN_FIXTURE_H

#include "test.h"
#include "fixture.h"
#include "expertfs-compute.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"

#include <math.h>

#define EXPERTS 3u
#define INNER 1088u /* so that an F32 bias is long enough to be coded */
#define HIDDEN 192u
#define TOKENS 260u /* more than the engine computes at once */
#define Y_STRIDE (HIDDEN + 3)
#define TENSORS_MAX 24
#define MIB (1ull << 20)

/* ---- a checkpoint and its numbers ---- */

struct tensor {
    char name[80];
    uint32_t rows, cols; /* of one expert; rows 0: a vector */
    uint32_t experts;    /* fused: number of experts; 0: tensor of a single expert */
    double *numbers;     /* [experts][rows][cols] */
    enum { BF16, F16, F32 } dtype;
};

struct checkpoint {
    struct tensor tensors[TENSORS_MAX];
    unsigned count;
    uint64_t random;
    struct fixture fixture;
};

static const char *const dtypes[] = {"BF16", "F16", "F32"};

static inline double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    double size = exponent ? ldexp(1024 + (half & 0x3ff), exponent - 25) : ldexp(half & 0x3ff, -24);
    return half >> 15 ? -size : size;
}

/* Numbers like trained weights: random signs and mantissas, few exponents. */
static inline double number(struct checkpoint *c, int dtype, uint8_t *to, int exponent)
{
    uint64_t r = fixture_random(&c->random);
    int e = exponent - __builtin_ctzll(r >> 40 | 64);
    if (dtype == F16) {
        uint16_t half = (uint16_t)((r & 0x83ff) | (uint64_t)(e + 15) << 10);
        memcpy(to, &half, 2);
        return f16_value(half);
    }
    uint32_t bits = (uint32_t)((r & 0x807f) << 16 | (uint64_t)(e + 127) << 23);
    float value;
    if (dtype == F32)
        bits |= r >> 20 & 0xffff;
    memcpy(&value, &bits, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    memcpy(to, dtype == F32 ? (void *)&bits : (void *)&half, dtype == F32 ? 4 : 2);
    return (double)value;
}

static inline size_t count_of(const struct tensor *t)
{
    return (size_t)(t->experts ? t->experts : 1) * (t->rows ? t->rows : 1) * t->cols;
}

static inline void add(struct checkpoint *c, int dtype, uint32_t experts, uint32_t rows, uint32_t cols,
                       const char *name)
{
    struct tensor *t = &c->tensors[c->count++];
    assert_true(c->count <= TENSORS_MAX);
    *t = (struct tensor){.rows = rows, .cols = cols, .experts = experts, .dtype = dtype};
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->numbers = calloc(count_of(t), sizeof(double));
    assert_non_null(t->numbers);
}

/* One tensor per expert, named before + number + after. */
static inline void add_each(struct checkpoint *c, int dtype, uint32_t rows, uint32_t cols, const char *before,
                            const char *after)
{
    char name[80];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof(name), "%s%u%s", before, e, after);
        add(c, dtype, 0, rows, cols, name);
    }
}

static inline size_t width_of(const struct tensor *t)
{
    return t->dtype == F32 ? 4 : 2;
}

static inline void write_source(struct checkpoint *c)
{
    struct fixture_tensor list[TENSORS_MAX];
    size_t bytes, data = 0;
    for (unsigned i = 0; i < c->count; i++) {
        const struct tensor *t = &c->tensors[i];
        struct fixture_tensor *to = &list[i];
        *to = (struct fixture_tensor){.name = t->name, .dtype = dtypes[t->dtype], .bytes = count_of(t) * width_of(t)};
        if (t->experts)
            to->shape[to->dims++] = t->experts;
        if (t->rows)
            to->shape[to->dims++] = t->rows;
        to->shape[to->dims++] = t->cols;
        data += to->bytes;
    }
    fixture_begin(&c->fixture);
    fixture_safetensors(&c->fixture, "model.safetensors", list, c->count, 1);
    uint8_t *file = fixture_weights(&c->fixture, &bytes), *at = file + bytes - data;
    for (unsigned i = 0; i < c->count; i++) {
        const struct tensor *t = &c->tensors[i];
        for (size_t k = 0; k < count_of(t); k++, at += width_of(t))
            t->numbers[k] = number(c, t->dtype, at, t->rows ? -3 : 1);
    }
    fixture_file(&c->fixture, "model.safetensors", file, bytes);
    free(file);
}

static inline void checkpoint_end(struct checkpoint *c)
{
    for (unsigned i = 0; i < c->count; i++)
        free(c->tensors[i].numbers);
    fixture_end(&c->fixture);
}

/* ---- mixtures ---- */

static double x[TOKENS][HIDDEN]; /* exact in BF16 and F16 */

/* Expert 0 gets all tokens, the remaining experts about two of three. */
static inline bool chosen(uint32_t expert, uint32_t token, uint32_t tokens)
{
    return expert == 0 || (token + expert) % 3 != 1 || tokens == 1;
}

static inline float weight_of(uint32_t expert, uint32_t token)
{
    return 0.25f + (float)((token + expert) % 4) / 4;
}

static struct efs_route_to routes[EXPERTS]; /* of the last mixture_of() */

static inline struct efs_mixture mixture_of(enum efs_form form, enum efs_activation activation, uint32_t tokens,
                                            float *y)
{
    static float in[TOKENS][HIDDEN], weight[EXPERTS][TOKENS];
    static uint16_t narrow[TOKENS][HIDDEN];
    static uint32_t token[EXPERTS][TOKENS];
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i < HIDDEN; i++) {
            uint32_t bits;
            in[t][i] = (float)x[t][i];
            memcpy(&bits, &in[t][i], 4);
            uint32_t half = bits << 1 == 0 ? 0 : (bits >> 13 & 0x3ff) | ((bits >> 23 & 0xff) - 112) << 10;
            narrow[t][i] = (uint16_t)(activation == EFS_ACTIVATION_BF16 ? bits >> 16 : (bits >> 16 & 0x8000) | half);
        }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t n = 0;
        for (uint32_t t = 0; t < tokens; t++)
            if (chosen(e, t, tokens)) {
                token[e][n] = t;
                weight[e][n++] = weight_of(e, t);
            }
        routes[e] = (struct efs_route_to){.expert = e, .count = n, .token = token[e], .weight = weight[e]};
    }
    return (struct efs_mixture){.experts = routes,
                                .expert_count = EXPERTS,
                                .activation = activation,
                                .x = activation == EFS_ACTIVATION_F32 ? (const void *)in : (const void *)narrow,
                                .tokens = tokens,
                                .hidden = HIDDEN,
                                .x_stride = HIDDEN,
                                .y = y,
                                .y_stride = Y_STRIDE,
                                .form = form};
}

/* y is zeroed first, so that writes outside the rows are detected. */
static inline errint_t run(struct efs *fs, unsigned threads, enum efs_form form, enum efs_activation activation,
                           uint32_t tokens, float y[TOKENS * Y_STRIDE], struct efs_error *err)
{
    struct efs_team *team;
    const struct efs_mixture m = mixture_of(form, activation, tokens, y);
    memset(y, 0, TOKENS * Y_STRIDE * sizeof(*y));
    assert_int_equal(efs_team_new(threads, &team), 0);
    errint_t rc = fixture_ffn(fs, team, &m, err);
    efs_team_free(team);
    return rc;
}

/* ---- stores ---- */

static inline void pack(const struct checkpoint *c, enum efs_codec_choice codec)
{
    fixture_pack(&c->fixture,
                 &(struct efs_pack_options){.codec = codec, .threads = 2, .shard_elements = 16384, .force = true});
}

static bool with_state; /* stores that are opened save their counts in EXPERTFS_STATE */

static inline struct efs *open_store(const struct checkpoint *c, uint64_t budget)
{
    return fixture_open(
        &c->fixture,
        (struct efs_options){.budget_bytes = budget, .workers = 2, .full_pool = true, .no_state = !with_state});
}

static struct checkpoint model; /* BF16, three matrices per expert */

static inline void add_swiglu(struct checkpoint *c, int dtype)
{
    add_each(c, dtype, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".gate_proj.weight");
    add_each(c, dtype, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".up_proj.weight");
    add_each(c, dtype, HIDDEN, INNER, "model.layers.0.mlp.experts.", ".down_proj.weight");
}

/* The store of a checkpoint, with a client and a team. */
struct served {
    struct efs *fs;
    struct efs_client *client;
    struct efs_team *team;
};

static inline struct served serve_of(const struct checkpoint *c, enum efs_codec_choice codec, unsigned threads)
{
    struct served s;
    pack(c, codec);
    s.fs = open_store(c, 128 * MIB);
    assert_int_equal(efs_client_new(s.fs, &s.client, NULL), 0);
    assert_int_equal(efs_team_new(threads, &s.team), 0);
    return s;
}

static inline struct served serve(enum efs_codec_choice codec, unsigned threads)
{
    return serve_of(&model, codec, threads);
}

static inline void serve_end(struct served *s)
{
    efs_team_free(s->team);
    efs_client_close(s->client);
    efs_close(s->fs);
}

static inline int setup(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[t][i] = (double)(fixture_random(&random) % 255) / 64 - 2;
    model.random = 7;
    add_swiglu(&model, BF16);
    write_source(&model);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    checkpoint_end(&model);
    return 0;
}

#endif
