/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_client_ffn() for experts of every kind that is known, each as its checkpoint has it: against sums in double made
 * from the checkpoint's own numbers; the same to the bit for every form, codec, number of threads and of tokens.
 */
#include <math.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-compute.h"
#include "expertfs-pack.h"
#include "kernels.h"

#define EXPERTS 3u
#define INNER 1088u /* so that a bias of F32 is long enough to be coded */
#define HIDDEN 192u
#define TOKENS 260u /* more than a product takes at once */
#define TENSORS_MAX 24
#define BYTES_MAX (8u << 20)

/* ---- a checkpoint, and its numbers ---- */

struct tensor {
    char name[80];
    uint32_t rows, cols; /* of an expert; rows 0: a vector */
    uint32_t experts;    /* fused: how many it holds; 0: one expert's */
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

static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    double size = exponent ? ldexp(1024 + (half & 0x3ff), exponent - 25) : ldexp(half & 0x3ff, -24);
    return half >> 15 ? -size : size;
}

/* Numbers as weights have them: signs and mantissas at random, few exponents. */
static double number(struct checkpoint *c, int dtype, uint8_t *to, int exponent)
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

static void add(struct checkpoint *c, int dtype, uint32_t experts, uint32_t rows, uint32_t cols, const char *name)
{
    struct tensor *t = &c->tensors[c->count++];
    assert_true(c->count <= TENSORS_MAX);
    *t = (struct tensor){.rows = rows, .cols = cols, .experts = experts, .dtype = dtype};
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->numbers = calloc((size_t)(experts ? experts : 1) * (rows ? rows : 1) * cols, sizeof(double));
    assert_non_null(t->numbers);
}

/* One for each expert; the name has %u for its number. */
static void add_each(struct checkpoint *c, int dtype, uint32_t rows, uint32_t cols, const char *before,
                     const char *after)
{
    char name[80];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof(name), "%s%u%s", before, e, after);
        add(c, dtype, 0, rows, cols, name);
    }
}

static void write_source(struct checkpoint *c)
{
    static uint8_t file[BYTES_MAX];
    char *header = (char *)file + 8, shape[64];
    size_t at = 0, length = (size_t)sprintf(header, "{");
    for (unsigned i = 0; i < c->count; i++) {
        struct tensor *t = &c->tensors[i];
        size_t n = (size_t)(t->experts ? t->experts : 1) * (t->rows ? t->rows : 1) * t->cols;
        size_t bytes = n * (t->dtype == F32 ? 4 : 2);
        size_t s = 0;
        if (t->experts)
            s += (size_t)snprintf(shape + s, sizeof(shape) - s, "%u,", t->experts);
        if (t->rows)
            s += (size_t)snprintf(shape + s, sizeof(shape) - s, "%u,", t->rows);
        snprintf(shape + s, sizeof(shape) - s, "%u", t->cols);
        length +=
            (size_t)sprintf(header + length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                            i ? "," : "", t->name, dtypes[t->dtype], shape, at, at + bytes);
        at += bytes;
    }
    length += (size_t)sprintf(header + length, "}");
    while (length % 8)
        header[length++] = ' ';
    uint64_t size = length;
    memcpy(file, &size, 8);
    uint8_t *data = file + 8 + length;
    assert_true(8 + length + at <= sizeof(file));
    for (unsigned i = 0; i < c->count; i++) {
        struct tensor *t = &c->tensors[i];
        size_t n = (size_t)(t->experts ? t->experts : 1) * (t->rows ? t->rows : 1) * t->cols;
        for (size_t k = 0; k < n; k++, data += t->dtype == F32 ? 4 : 2)
            t->numbers[k] = number(c, t->dtype, data, t->rows ? -3 : 1);
    }
    fixture_begin(&c->fixture);
    fixture_file(&c->fixture, "model.safetensors", file, 8 + length + at);
}

static void checkpoint_end(struct checkpoint *c)
{
    for (unsigned i = 0; i < c->count; i++)
        free(c->tensors[i].numbers);
    fixture_end(&c->fixture);
}

/* The numbers of an expert in the tensor whose name holds `part`; tensors of their own come in the order of experts. */
static const double *numbers_of(const struct checkpoint *c, const char *part, uint32_t expert)
{
    uint32_t skip = expert;
    for (unsigned i = 0; i < c->count; i++) {
        const struct tensor *t = &c->tensors[i];
        const char *at = strstr(t->name, part);
        if (!at || (strstr(at, ".bias") && !strstr(part, ".bias")))
            continue;
        if (t->experts)
            return t->numbers + (size_t)expert * (t->rows ? t->rows : 1) * t->cols;
        if (skip-- == 0)
            return t->numbers;
    }
    fail_msg("no %s", part);
    return NULL;
}

/* ---- what the experts should give ---- */

static double x[TOKENS][HIDDEN]; /* numbers that BF16 and F16 hold */
static unsigned clamps[2];       /* how often a limit was met, by gate and by up */

typedef void expert_formula(const struct checkpoint *c, uint32_t expert, const double *in, double *h, double *out);

static double row_product(const double *w, const double *in, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += w[i] * in[i];
    return sum;
}

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

static void swiglu(const struct checkpoint *c, uint32_t expert, const double *in, double *h, double *out)
{
    const double *gate = numbers_of(c, "gate_proj", expert), *up = numbers_of(c, "up_proj", expert);
    const double *down = numbers_of(c, "down_proj", expert);
    for (uint32_t i = 0; i < INNER; i++) {
        double g = row_product(gate + i * HIDDEN, in, HIDDEN);
        h[i] = g * sigmoid(g) * row_product(up + i * HIDDEN, in, HIDDEN);
    }
    for (uint32_t i = 0; i < HIDDEN; i++)
        out[i] = row_product(down + i * INNER, h, INNER);
}

/* gpt-oss: its formula as its authors give it. */
static void clamped(const struct checkpoint *c, uint32_t expert, const double *in, double *h, double *out)
{
    const double *gate = numbers_of(c, "ffn_gate_exps", expert), *up = numbers_of(c, "ffn_up_exps", expert);
    const double *down = numbers_of(c, "ffn_down_exps", expert),
                 *down_bias = numbers_of(c, "ffn_down_exps.bias", expert);
    const double *gate_bias = numbers_of(c, "ffn_gate_exps.bias", expert);
    const double *up_bias = numbers_of(c, "ffn_up_exps.bias", expert);
    for (uint32_t i = 0; i < INNER; i++) {
        double g = row_product(gate + i * HIDDEN, in, HIDDEN) + gate_bias[i];
        double u = row_product(up + i * HIDDEN, in, HIDDEN) + up_bias[i];
        clamps[0] += g > 7;
        clamps[1] += fabs(u) > 7;
        g = fmin(g, 7);
        u = fmax(fmin(u, 7), -7);
        h[i] = g * sigmoid(1.702 * g) * (u + 1);
    }
    for (uint32_t i = 0; i < HIDDEN; i++)
        out[i] = row_product(down + i * INNER, h, INNER) + down_bias[i];
}

/* Switch: two matrices. */
static void relu(const struct checkpoint *c, uint32_t expert, const double *in, double *h, double *out)
{
    const double *wi = numbers_of(c, ".wi.", expert), *wo = numbers_of(c, ".wo.", expert);
    for (uint32_t i = 0; i < INNER; i++)
        h[i] = fmax(row_product(wi + i * HIDDEN, in, HIDDEN), 0);
    for (uint32_t i = 0; i < HIDDEN; i++)
        out[i] = row_product(wo + i * INNER, h, INNER);
}

/* Every expert gets two of three tokens or so. y: [tokens][HIDDEN], worst: of what is added up, for the bound. */
static errint_t run(struct checkpoint *c, struct efs *fs, unsigned threads, enum efs_form form,
                    enum efs_activation activation, uint32_t tokens, float *y, struct efs_error *err)
{
    static float in[TOKENS][HIDDEN], weight[EXPERTS][TOKENS];
    static uint16_t narrow[TOKENS][HIDDEN];
    static uint32_t token[EXPERTS][TOKENS];
    struct efs_route_to to[EXPERTS];
    struct efs_team *team;
    (void)c;
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
            if ((t + e) % 3 != 1 || tokens == 1) {
                token[e][n] = t;
                weight[e][n++] = 0.25f + (float)((t + e) % 4) / 4;
            }
        to[e] = (struct efs_route_to){.expert = e, .count = n, .token = token[e], .weight = weight[e]};
    }
    assert_int_equal(efs_team_new(threads, &team), 0);
    struct efs_mixture m = {.experts = to,
                            .expert_count = EXPERTS,
                            .activation = activation,
                            .x = activation == EFS_ACTIVATION_F32 ? (const void *)in : (const void *)narrow,
                            .tokens = tokens,
                            .hidden = HIDDEN,
                            .x_stride = HIDDEN,
                            .y = y,
                            .y_stride = HIDDEN,
                            .form = form};
    errint_t rc = fixture_ffn(fs, team, &m, err);
    efs_team_free(team);
    return rc;
}

static void reference(const struct checkpoint *c, expert_formula *formula, uint32_t tokens, double *y)
{
    double h[2 * INNER], out[HIDDEN];
    memset(y, 0, tokens * HIDDEN * sizeof(*y));
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t t = 0; t < tokens; t++)
            if ((t + e) % 3 != 1 || tokens == 1) {
                formula(c, e, x[t], h, out);
                for (uint32_t i = 0; i < HIDDEN; i++)
                    y[t * HIDDEN + i] += (0.25 + (t + e) % 4 / 4.0) * out[i];
            }
}

/* Within what F32 sums lose (and a rounding of h, if it is rounded). */
static void check(const float *y, const double *want, uint32_t tokens, double bound)
{
    double largest = 0, worst = 0;
    for (uint32_t i = 0; i < tokens * HIDDEN; i++) {
        largest = fmax(largest, fabs(want[i]));
        worst = fmax(worst, fabs((double)y[i] - want[i]));
    }
    assert_true(largest > 0.01);
    if (!(worst <= bound * largest))
        fail_msg("off by %g of %g", worst, largest);
}

static void run_kind(struct checkpoint *c, expert_formula *formula, enum efs_activation narrow)
{
    static const enum efs_codec_choice codecs[] = {EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD};
    static const enum efs_form forms[] = {EFS_FORM_CODED, EFS_FORM_FULL, EFS_FORM_ANY};
    static const uint32_t tokens[] = {1, 5, TOKENS};
    static float first[2][TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    static double want[TOKENS * HIDDEN];
    struct efs_error err = {""};
    write_source(c);
    for (size_t codec = 0; codec < 2; codec++) {
        struct efs_pack_options options = {
            .codec = codecs[codec], .threads = 2, .shard_elements = 16384, .force = true};
        fixture_pack(&c->fixture, &options);
        struct efs_options open = {.budget_bytes = 128u << 20, .workers = 2, .full_pool = true, .no_state = true};
        struct efs *fs = fixture_open(&c->fixture, open);
        for (size_t n = 0; n < 3; n++) {
            reference(c, formula, tokens[n], want);
            for (unsigned way = 0; way < 12; way++) {
                const enum efs_activation activation = way % 2 ? narrow : EFS_ACTIVATION_F32;
                if (run(c, fs, 1 + way % 4, forms[way / 2 % 3], activation, tokens[n], y, &err) < 0)
                    fail_msg("%s", err.text);
                if (way < 2) {
                    memcpy(first[way], y, sizeof(y));
                    check(y, want, tokens[n], activation == EFS_ACTIVATION_F32 ? 1e-5 : 0x1p-7);
                }
                assert_memory_equal(y, first[way % 2], tokens[n] * HIDDEN * sizeof(float));
            }
        }
        assert_int_equal(run(c, fs, 1, EFS_FORM_CODED,
                             narrow == EFS_ACTIVATION_F16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F16, 1, y, &err),
                         -EOPNOTSUPP);
        efs_close(fs);
    }
}

TEST(test_f16)
{
    struct checkpoint c = {.random = 3};
    add_each(&c, F16, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".gate_proj.weight");
    add_each(&c, F16, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".up_proj.weight");
    add_each(&c, F16, HIDDEN, INNER, "model.layers.0.mlp.experts.", ".down_proj.weight");
    run_kind(&c, swiglu, EFS_ACTIVATION_F16);
    checkpoint_end(&c);
}

static void gpt_oss(int dtype, int bias, enum efs_activation narrow)
{
    struct checkpoint c = {.random = 4};
    memset(clamps, 0, sizeof(clamps));
    add(&c, dtype, EXPERTS, INNER, HIDDEN, "blk.0.ffn_gate_exps.weight");
    add(&c, dtype, EXPERTS, INNER, HIDDEN, "blk.0.ffn_up_exps.weight");
    add(&c, dtype, EXPERTS, HIDDEN, INNER, "blk.0.ffn_down_exps.weight");
    add(&c, bias, EXPERTS, 0, INNER, "blk.0.ffn_gate_exps.bias");
    add(&c, bias, EXPERTS, 0, INNER, "blk.0.ffn_up_exps.bias");
    add(&c, bias, EXPERTS, 0, HIDDEN, "blk.0.ffn_down_exps.bias");
    run_kind(&c, clamped, narrow);
    assert_true(clamps[0] > 0 && clamps[1] > 0);
    checkpoint_end(&c);
}

/* As converters of gpt-oss write it: gate and up apart, biases of F32. */
TEST(test_gpt_oss)
{
    gpt_oss(BF16, F32, EFS_ACTIVATION_BF16);
    gpt_oss(F16, BF16, EFS_ACTIVATION_F16);
}

TEST(test_switch)
{
    struct checkpoint c = {.random = 5};
    add_each(&c, BF16, INNER, HIDDEN, "encoder.block.1.layer.1.mlp.experts.expert_", ".wi.weight");
    add_each(&c, BF16, HIDDEN, INNER, "encoder.block.1.layer.1.mlp.experts.expert_", ".wo.weight");
    run_kind(&c, relu, EFS_ACTIVATION_BF16);
    checkpoint_end(&c);
}

/* Tensors that make no known kind: which one, is said. */
TEST(test_refused)
{
    static const char *const others[] = {".wi.weight", ".shared.weight", ".up_proj.bias"};
    static float y[HIDDEN];
    for (size_t i = 0; i < 3; i++) {
        struct checkpoint c = {.random = 6};
        struct efs_error err = {""};
        add_each(&c, BF16, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".gate_proj.weight");
        add_each(&c, BF16, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".up_proj.weight");
        add_each(&c, BF16, HIDDEN, INNER, "model.layers.0.mlp.experts.", ".down_proj.weight");
        add_each(&c, BF16, i == 2 ? 0 : INNER, HIDDEN, "model.layers.0.mlp.experts.", others[i]);
        write_source(&c);
        struct efs_pack_options options = {.threads = 2, .force = true};
        fixture_pack(&c.fixture, &options);
        struct efs *fs = fixture_open(&c.fixture, (struct efs_options){.budget_bytes = 128u << 20, .no_state = true});
        assert_int_equal(run(&c, fs, 1, EFS_FORM_CODED, EFS_ACTIVATION_F32, 1, y, &err),
                         i == 2 ? -EINVAL : -EOPNOTSUPP); /* a bias of another size */
        assert_non_null(strstr(err.text, i == 0 ? "4 tensors" : others[i]));
        efs_close(fs);
        checkpoint_end(&c);
    }
}

static int setup(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[t][i] = (double)(fixture_random(&random) % 255) / 64 - 2;
    return 0;
}

TEST_MAIN(setup, NULL)
