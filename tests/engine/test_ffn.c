/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_client_ffn() for experts of every known kind, with tensors as in the kind's checkpoints. Results are compared
 * with sums in double computed from the checkpoint's numbers, and must be bit-identical for every form, codec, number
 * of threads and tokens, and budget, and for experts in the caller's memory. Also the rounding of BF16 activations,
 * refused arguments, and damage, which must be an error, never a wrong number.
 */
#include <math.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-compute.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "matvec.h"

#define EXPERTS 3u
#define INNER 1088u /* so that an F32 bias is long enough to be coded */
#define HIDDEN 192u
#define TOKENS 260u /* more than the engine computes at once */
#define Y_STRIDE (HIDDEN + 3)
#define TENSORS_MAX 24
#define MIB (1ull << 20)

#ifdef __SANITIZE_THREAD__ /* threads are the same for each kind, and each takes minutes */
#define ONE_KIND true
#else
#define ONE_KIND false
#endif

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

static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    double size = exponent ? ldexp(1024 + (half & 0x3ff), exponent - 25) : ldexp(half & 0x3ff, -24);
    return half >> 15 ? -size : size;
}

/* Numbers like trained weights: random signs and mantissas, few exponents. */
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

static size_t count_of(const struct tensor *t)
{
    return (size_t)(t->experts ? t->experts : 1) * (t->rows ? t->rows : 1) * t->cols;
}

static void add(struct checkpoint *c, int dtype, uint32_t experts, uint32_t rows, uint32_t cols, const char *name)
{
    struct tensor *t = &c->tensors[c->count++];
    assert_true(c->count <= TENSORS_MAX);
    *t = (struct tensor){.rows = rows, .cols = cols, .experts = experts, .dtype = dtype};
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->numbers = calloc(count_of(t), sizeof(double));
    assert_non_null(t->numbers);
}

/* One tensor per expert, named before + number + after. */
static void add_each(struct checkpoint *c, int dtype, uint32_t rows, uint32_t cols, const char *before,
                     const char *after)
{
    char name[80];
    for (uint32_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof(name), "%s%u%s", before, e, after);
        add(c, dtype, 0, rows, cols, name);
    }
}

static size_t width_of(const struct tensor *t)
{
    return t->dtype == F32 ? 4 : 2;
}

static void write_source(struct checkpoint *c)
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

static void checkpoint_end(struct checkpoint *c)
{
    for (unsigned i = 0; i < c->count; i++)
        free(c->tensors[i].numbers);
    fixture_end(&c->fixture);
}

/* The numbers of an expert in the tensor with `part` in its name. Tensors of single experts are in the order of
 * experts. */
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

/* ---- expected results ---- */

static double x[TOKENS][HIDDEN]; /* exact in BF16 and F16 */
static unsigned clamps[2];       /* number of clamped values, of gate and of up */

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

/* gpt-oss: the formula of its reference implementation. */
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

/* Expert 0 gets all tokens, the remaining experts about two of three. */
static bool chosen(uint32_t expert, uint32_t token, uint32_t tokens)
{
    return expert == 0 || (token + expert) % 3 != 1 || tokens == 1;
}

static float weight_of(uint32_t expert, uint32_t token)
{
    return 0.25f + (float)((token + expert) % 4) / 4;
}

static struct efs_route_to routes[EXPERTS]; /* of the last mixture_of() */

static struct efs_mixture mixture_of(enum efs_form form, enum efs_activation activation, uint32_t tokens, float *y)
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
static errint_t run(struct efs *fs, unsigned threads, enum efs_form form, enum efs_activation activation,
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

static void reference(const struct checkpoint *c, expert_formula *formula, uint32_t tokens, double *y)
{
    double h[INNER], out[HIDDEN];
    memset(y, 0, tokens * HIDDEN * sizeof(*y));
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t t = 0; t < tokens; t++)
            if (chosen(e, t, tokens)) {
                formula(c, e, x[t], h, out);
                for (uint32_t i = 0; i < HIDDEN; i++)
                    y[t * HIDDEN + i] += (double)weight_of(e, t) * out[i];
            }
}

/* The bound allows for F32 sums and, with BF16 or F16 activations, the rounding of h. */
static void check(const float *y, const double *want, uint32_t tokens, double bound)
{
    double largest = 0, worst = 0;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i < HIDDEN; i++) {
            largest = fmax(largest, fabs(want[t * HIDDEN + i]));
            worst = fmax(worst, fabs((double)y[t * Y_STRIDE + i] - want[t * HIDDEN + i]));
        }
    assert_true(largest > 0.01);
    if (!(worst <= bound * largest))
        fail_msg("off by %g of %g", worst, largest);
}

static void pack(const struct checkpoint *c, enum efs_codec_choice codec)
{
    fixture_pack(&c->fixture,
                 &(struct efs_pack_options){.codec = codec, .threads = 2, .shard_elements = 16384, .force = true});
}

static struct efs *open_store(const struct checkpoint *c, uint64_t budget)
{
    return fixture_open(
        &c->fixture, (struct efs_options){.budget_bytes = budget, .workers = 2, .full_pool = true, .no_state = true});
}

static void run_kind(const struct checkpoint *c, expert_formula *formula, enum efs_activation narrow)
{
    static const enum efs_codec_choice codecs[] = {EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4};
    static const enum efs_form forms[] = {EFS_FORM_CODED, EFS_FORM_FULL, EFS_FORM_ANY};
    static const uint32_t tokens[] = {1, 5, TOKENS};
    static float first[3][2][TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE]; /* [0]: F32; [1]: narrow */
    static double want[TOKENS * HIDDEN];
    struct efs_error err = {""};
    for (size_t codec = 0; codec < 3; codec++) {
        pack(c, codecs[codec]);
        struct efs *fs = open_store(c, 128 * MIB);
        for (size_t n = 0; n < 3; n++) {
            if (codec == 0)
                reference(c, formula, tokens[n], want);
            for (unsigned way = 0; way < 12; way++) {
                const enum efs_activation activation = way % 2 ? narrow : EFS_ACTIVATION_F32;
                if (run(fs, 1 + way % 4, forms[way / 2 % 3], activation, tokens[n], y, &err) < 0)
                    fail_msg("%s", err.text);
                if (codec == 0 && way < 2) {
                    memcpy(first[n][way], y, sizeof(y));
                    check(y, want, tokens[n], activation == EFS_ACTIVATION_F32 ? 1e-5 : 0x1p-7);
                }
                assert_memory_equal(y, first[n][way % 2], sizeof(y));
            }
        }
        assert_int_equal(run(fs, 1, EFS_FORM_CODED,
                             narrow == EFS_ACTIVATION_F16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F16, 1, y, &err),
                         -EOPNOTSUPP);
        efs_close(fs);
        fs = open_store(c, 40 * MIB); /* little memory */
        assert_int_equal(run(fs, 2, EFS_FORM_CODED, narrow, TOKENS, y, &err), 0);
        assert_memory_equal(y, first[2][1], sizeof(y));
        efs_close(fs);
    }
}

/* ---- kinds ---- */

static struct checkpoint model; /* BF16, three matrices per expert */

static void add_swiglu(struct checkpoint *c, int dtype)
{
    add_each(c, dtype, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".gate_proj.weight");
    add_each(c, dtype, INNER, HIDDEN, "model.layers.0.mlp.experts.", ".up_proj.weight");
    add_each(c, dtype, HIDDEN, INNER, "model.layers.0.mlp.experts.", ".down_proj.weight");
}

TEST(test_swiglu)
{
    run_kind(&model, swiglu, EFS_ACTIVATION_BF16);
}

TEST(test_f16)
{
    if (ONE_KIND)
        skip();
    struct checkpoint c = {.random = 3};
    add_swiglu(&c, F16);
    write_source(&c);
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
    write_source(&c);
    run_kind(&c, clamped, narrow);
    assert_true(clamps[0] > 0 && clamps[1] > 0);
    checkpoint_end(&c);
}

/* As converters of gpt-oss write it: separate gate and up, biases of F32. */
TEST(test_gpt_oss)
{
    if (ONE_KIND)
        skip();
    gpt_oss(BF16, F32, EFS_ACTIVATION_BF16);
    gpt_oss(F16, BF16, EFS_ACTIVATION_F16);
}

TEST(test_switch)
{
    if (ONE_KIND)
        skip();
    struct checkpoint c = {.random = 5};
    add_each(&c, BF16, INNER, HIDDEN, "encoder.block.1.layer.1.mlp.experts.expert_", ".wi.weight");
    add_each(&c, BF16, HIDDEN, INNER, "encoder.block.1.layer.1.mlp.experts.expert_", ".wo.weight");
    write_source(&c);
    run_kind(&c, relu, EFS_ACTIVATION_BF16);
    checkpoint_end(&c);
}

/* Tensors that match no known kind: the message names the tensor, or the number of tensors. */
TEST(test_unknown_kinds)
{
    static const char *const others[] = {".wi.weight", ".shared.weight", ".up_proj.bias"};
    static float y[TOKENS * Y_STRIDE];
    for (size_t i = 0; i < 3; i++) {
        struct checkpoint c = {.random = 6};
        struct efs_error err = {""};
        add_swiglu(&c, BF16);
        add_each(&c, BF16, i == 2 ? 0 : INNER, HIDDEN, "model.layers.0.mlp.experts.", others[i]);
        write_source(&c);
        pack(&c, EFS_CHOOSE_AUTO);
        struct efs *fs = open_store(&c, 128 * MIB);
        assert_int_equal(run(fs, 1, EFS_FORM_CODED, EFS_ACTIVATION_F32, 1, y, &err),
                         i == 2 ? -EINVAL : -EOPNOTSUPP); /* a bias of another size */
        assert_non_null(strstr(err.text, i == 0 ? "4 tensors" : others[i]));
        efs_close(fs);
        checkpoint_end(&c);
    }
}

/* ---- the same sums by other calls ---- */

/* All experts in full form, valid until the request is released. */
static struct efs_client_request *plain_experts(struct efs *fs, struct efs_plain_expert *plain)
{
    struct efs_need needs[EXPERTS];
    struct efs_client_request *request;
    struct efs_error err = {""};
    for (uint32_t e = 0; e < EXPERTS; e++)
        needs[e] = (struct efs_need){e, 1};
    assert_int_equal(
        efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = EFS_FORM_FULL}, &request, &err), 0);
    assert_int_equal(efs_client_wait(request), 0);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct efs_tensor *t;
        uint32_t count;
        assert_int_equal(efs_client_tensors(request, e, &t, &count), 0);
        plain[e].inner = INNER;
        for (uint32_t i = 0; i < count; i++)
            *(strstr(t[i].name, "gate") ? &plain[e].gate
              : strstr(t[i].name, "up") ? &plain[e].up
                                        : &plain[e].down) = t[i].data;
    }
    return request;
}

/* The same experts in the caller's memory. */
TEST(test_callers_memory)
{
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    struct efs_plain_expert plain[EXPERTS];
    struct efs_error err = {""};
    struct efs_team *team;
    pack(&model, EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(&model, 128 * MIB);
    struct efs_client_request *request = plain_experts(fs, plain);
    assert_int_equal(efs_team_new(2, &team), 0);
    for (enum efs_activation a = EFS_ACTIVATION_F32; a <= EFS_ACTIVATION_BF16; a++) {
        assert_int_equal(run(fs, 1, EFS_FORM_FULL, a, TOKENS, want, &err), 0);
        const struct efs_mixture m = mixture_of(EFS_FORM_FULL, a, TOKENS, y);
        memset(y, 0, sizeof(y));
        if (efs_plain_ffn(team, &m, plain, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(y, want, sizeof(y));
    }
    const struct efs_mixture m = mixture_of(EFS_FORM_FULL, EFS_ACTIVATION_F32, TOKENS, y);
    plain[2].up = NULL;
    assert_int_equal(efs_plain_ffn(team, &m, plain, &err), -EINVAL);
    efs_team_free(team);
    efs_client_release(request);
    efs_close(fs);
}

/* A client of the store: bit-identical; a missing layer is -ENOENT. */
TEST(test_client)
{
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs_client *client;
    struct efs_team *team;
    struct efs *fs = open_store(&model, 128 * MIB);
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    assert_int_equal(efs_team_new(2, &team), 0);
    assert_int_equal(run(fs, 2, EFS_FORM_CODED, EFS_ACTIVATION_F32, TOKENS, want, &err), 0);
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        const struct efs_mixture m = mixture_of(form, EFS_ACTIVATION_F32, TOKENS, y);
        memset(y, 0, sizeof(y));
        assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), 0);
        assert_memory_equal(y, want, sizeof(y));
        assert_int_equal(efs_client_ffn(client, team, "", 9, &m, &err), -ENOENT);
    }
    const struct efs_mixture m = mixture_of((enum efs_form)7, EFS_ACTIVATION_F32, TOKENS, y);
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
    efs_team_free(team);
    efs_client_close(client);
    efs_close(fs);
}

/* Rounds to BF16: to nearest, ties to even. */
static double as_bf16(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return f;
}

/* The output of one token, by the kernels, but with h rounded to BF16 here. */
static void by_kernels(const struct efs_plain_expert *p, const uint16_t *token, float *y)
{
    struct efs_matrix gate = {.rows = INNER, .cols = HIDDEN, .plain = p->gate}, up = gate,
                      down = {.rows = HIDDEN, .cols = INNER, .plain = p->down};
    void *input = aligned_alloc(EFS_MATVEC_ALIGN, efs_input_bytes(INNER, 1));
    void *scratch = aligned_alloc(EFS_MATVEC_ALIGN, (efs_matvec_scratch_bytes(INNER, 1) + 63) / 64 * 64);
    float h[INNER];
    uint16_t bf16[INNER];
    up.plain = p->up;
    assert_int_equal(efs_input_prepare(EFS_INPUT_BF16_DOT, token, HIDDEN, HIDDEN, 1, input), 0);
    assert_int_equal(efs_matvec_swiglu(&gate, &up, input, 0, INNER, h, INNER, scratch), 0);
    for (unsigned i = 0; i < INNER; i++) {
        float v = isnan(h[i]) ? h[i] : (float)as_bf16(h[i]);
        uint32_t bits;
        memcpy(&bits, &v, 4);
        bf16[i] = (uint16_t)(bits >> 16 | (isnan(v) ? 0x40 : 0));
    }
    assert_int_equal(efs_input_prepare(EFS_INPUT_BF16_DOT, bf16, INNER, INNER, 1, input), 0);
    assert_int_equal(efs_matvec(&down, input, 0, HIDDEN, y, HIDDEN, scratch), 0);
    free(input);
    free(scratch);
}

#define FEW_TOKENS 70u
/* On every code path h is rounded to the nearest BF16 number, ties to even, for each token separately; a NaN stays a
 * NaN. */
TEST(test_bf16)
{
    static const char *const paths[] = {"scalar", "avx2", "avx512", "neon"};
    static uint16_t in[FEW_TOKENS * HIDDEN];
    static float y[FEW_TOKENS * HIDDEN], want[HIDDEN];
    uint32_t token[FEW_TOKENS];
    float weight[FEW_TOKENS];
    struct efs_plain_expert plain[EXPERTS];
    struct efs_error err = {""};
    struct efs_team *team;
    memcpy(in, mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_BF16, FEW_TOKENS, y).x, sizeof(in));
    in[2 * HIDDEN + 7] = 0x7fc0; /* NaN */
    in[4 * HIDDEN] = 0x7f80;     /* infinity */
    for (uint32_t t = 0; t < FEW_TOKENS; t++) {
        token[t] = t;
        weight[t] = 1;
    }
    pack(&model, EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(&model, 128 * MIB);
    struct efs_client_request *request = plain_experts(fs, plain);
    assert_int_equal(efs_team_new(3, &team), 0);
    for (size_t path = 0; path < sizeof(paths) / sizeof(paths[0]); path++) {
        if (!efs_cpu_force(paths[path]))
            continue;
        assert_true(strcmp(paths[path], "avx2") != 0 || strcmp(efs_matvec_order(), "avx2") == 0);
        assert_true(strcmp(paths[path], "scalar") != 0 || efs_matvec_order() == NULL);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const struct efs_route_to to = {.expert = e, .count = FEW_TOKENS, .token = token, .weight = weight};
            const struct efs_mixture m = {.experts = &to,
                                          .expert_count = 1,
                                          .activation = EFS_ACTIVATION_BF16,
                                          .x = in,
                                          .tokens = FEW_TOKENS,
                                          .hidden = HIDDEN,
                                          .x_stride = HIDDEN,
                                          .y = y,
                                          .y_stride = HIDDEN,
                                          .form = e % 2 ? EFS_FORM_FULL : EFS_FORM_CODED};
            if (fixture_ffn(fs, team, &m, &err) < 0)
                fail_msg("%s", err.text);
            for (uint32_t t = 0; t < FEW_TOKENS; t++) {
                by_kernels(&plain[e], in + t * HIDDEN, want);
                assert_true(isnan(want[0]) == (t == 2 || t == 4));
                for (uint32_t c = 0; c < HIDDEN; c++)
                    assert_true(y[t * HIDDEN + c] == want[c] || (isnan(y[t * HIDDEN + c]) && isnan(want[c])));
            }
        }
    }
    assert_true(efs_cpu_force("auto"));
    efs_team_free(team);
    efs_client_release(request);
    efs_close(fs);
}

/* ---- reports and refusals ---- */

/* Products report their time to the planner, for EFS_FORM_ANY as well; here the expert is computed in coded form. */
TEST(test_time_reported)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    char *text;
    size_t bytes;
    pack(&model, EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(&model, 128 * MIB);
    assert_int_equal(run(fs, 1, EFS_FORM_ANY, EFS_ACTIVATION_F32, 1, y, &err), 0);
    assert_int_equal(efs_describe(fs, "plan", &text, &bytes), 0);
    const char *coded = strstr(text, "product_coded_ns: ");
    assert_non_null(coded);
    assert_true(strtoull(coded + strlen("product_coded_ns: "), NULL, 10) > 0);
    assert_non_null(strstr(text, "product_full_ns: 0\n"));
    free(text);
    efs_close(fs);
}

static void refused(struct efs *fs, struct efs_team *team, struct efs_mixture m, const char *words)
{
    struct efs_error err = {""};
    assert_int_equal(fixture_ffn(fs, team, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, words));
}

/* ---- the experts of each token, as a router gives them ---- */

#define CHOICES 2u

struct choice {
    int64_t wide[TOKENS * CHOICES];
    int32_t narrow[TOKENS * CHOICES];
    float weight[TOKENS * CHOICES];
    uint16_t weight_bf16[TOKENS * CHOICES];
};

/* Token t chooses two of the three experts, the better first. Weights are exact in BF16. */
static void choose(struct choice *c)
{
    for (uint32_t at = 0; at < TOKENS * CHOICES; at++) {
        uint32_t t = at / CHOICES, k = at % CHOICES, bits;
        c->wide[at] = c->narrow[at] = (int32_t)((t * 2 + k * (1 + t % 2)) % EXPERTS);
        c->weight[at] = 0.25f + (float)((t + k) % 4) / 4;
        memcpy(&bits, &c->weight[at], 4);
        c->weight_bf16[at] = (uint16_t)(bits >> 16);
    }
}

/* The same mixture with the tokens of each expert; memory of the last call. */
static struct efs_mixture mixture_by_experts(const struct choice *c, enum efs_form form, float *y)
{
    static uint32_t token[EXPERTS][TOKENS];
    static float weight[EXPERTS][TOKENS];
    struct efs_mixture m = mixture_of(form, EFS_ACTIVATION_BF16, TOKENS, y);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        routes[e] = (struct efs_route_to){.expert = e, .token = token[e], .weight = weight[e]};
        for (uint32_t at = 0; at < TOKENS * CHOICES; at++)
            if (c->wide[at] == e) {
                token[e][routes[e].count] = at / CHOICES;
                weight[e][routes[e].count++] = c->weight[at];
            }
    }
    return m;
}

static uint16_t nearest_bf16(float f)
{
    uint32_t bits;
    f = (float)as_bf16((double)f);
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

TEST(test_routing)
{
    static struct choice c;
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    static uint16_t rounded[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs_client *client;
    struct efs_team *team;
    pack(&model, EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(&model, 128 * MIB);
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    assert_int_equal(efs_team_new(2, &team), 0);
    choose(&c);
    struct efs_mixture m = mixture_by_experts(&c, EFS_FORM_CODED, want);
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), 0);
    m.experts = NULL;
    m.expert_count = 0;
    m.hidden_act = "silu";
    for (unsigned way = 0; way < 4; way++) {
        const struct efs_router_output r = {.experts = EXPERTS,
                                            .per_token = CHOICES,
                                            .index_type = way % 2 ? EFS_DTYPE_I32 : EFS_DTYPE_I64,
                                            .weight_type = way / 2 ? EFS_DTYPE_BF16 : EFS_DTYPE_F32,
                                            .indices = way % 2 ? (void *)c.narrow : c.wide,
                                            .weights = way / 2 ? (void *)c.weight_bf16 : c.weight};
        m.routing = &r;
        m.y = y;
        m.y_bf16 = NULL;
        memset(y, 0, sizeof(y));
        assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), 0);
        assert_memory_equal(y, want, sizeof(y));
        m.y = NULL;
        m.y_bf16 = rounded;
        memset(rounded, 0x55, sizeof(rounded));
        assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), 0);
        for (uint32_t i = 0; i < TOKENS * Y_STRIDE; i++)
            assert_int_equal(rounded[i], i % Y_STRIDE < HIDDEN ? nearest_bf16(want[i]) : 0x5555);
    }
    efs_team_free(team);
    efs_client_close(client);
    efs_close(fs);
}

TEST(test_routing_refused)
{
    static struct choice c;
    static float y[TOKENS * Y_STRIDE];
    static const int64_t wrong[] = {-1, EXPERTS, INT64_MIN, INT64_MAX, 1ll << 32};
    struct efs_error err = {""};
    struct efs_client *client;
    struct efs_team *team;
    pack(&model, EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(&model, 128 * MIB);
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    assert_int_equal(efs_team_new(2, &team), 0);
    choose(&c);
    struct efs_router_output r = {EXPERTS, CHOICES, EFS_DTYPE_I64, EFS_DTYPE_F32, c.wide, c.weight};
    struct efs_mixture m = mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_F32, TOKENS, y);
    m.routing = &r;
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL); /* and experts */
    m.experts = NULL;
    m.expert_count = 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        choose(&c);
        c.wide[2 * TOKENS - 1] = wrong[i];
        assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
        assert_non_null(strstr(err.text, "of 3"));
    }
    choose(&c);
    c.wide[7] = c.wide[6];
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "token 3"));
    choose(&c);
    r.index_type = EFS_DTYPE_F32;
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
    r.index_type = EFS_DTYPE_I64;
    r.per_token = EXPERTS + 1;
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
    r.per_token = CHOICES;
    m.y = NULL;
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EINVAL);
    m.y = y;
    m.hidden_act = "gelu";
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "gelu"));
    m.hidden_act = "relu"; /* for experts of two matrices */
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), -EOPNOTSUPP);
    m.hidden_act = "swish";
    assert_int_equal(efs_client_ffn(client, team, "", 0, &m, &err), 0);
    efs_team_free(team);
    efs_client_close(client);
    efs_close(fs);
}

TEST(test_refused)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs_team *team;
    const uint32_t beyond[] = {1};
    pack(&model, EFS_CHOOSE_AUTO);
    struct efs *fs = open_store(&model, 64 * MIB);
    assert_int_equal(efs_team_new(2, &team), 0);
    const struct efs_mixture good = mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_F32, 1, y);
    assert_int_equal(fixture_ffn(fs, team, &good, &err), 0);
    struct efs_mixture m = good;
    m.hidden = HIDDEN / 2; /* not the experts' shape */
    refused(fs, team, m, "shapes");
    m = good;
    m.expert_count = 0;
    refused(fs, team, m, "");
    m = good;
    m.x_stride = HIDDEN - 1;
    refused(fs, team, m, "");
    routes[1].token = beyond;
    refused(fs, team, good, "");
    routes[1].token = routes[0].token;
    routes[1].expert = EXPERTS;
    assert_int_equal(fixture_ffn(fs, team, &good, &err), -ENOENT);
    routes[1].expert = 1;
    assert_int_equal(fixture_ffn(fs, team, &good, &err), 0);
    efs_team_free(team);
    efs_close(fs);
    assert_int_equal(efs_team_new(100000, &team), -EINVAL);
}

TEST(test_damage)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs *fs;
    const struct efs_options options = {.budget_bytes = 64 * MIB, .workers = 2, .no_state = true};
    pack(&model, EFS_CHOOSE_CASCADE);
    const char *store = model.fixture.store;
    size_t bytes;
    free(fixture_read(store, &bytes));
    unsigned errors = 0;
    for (uint64_t at = 4096; at + 4096 < bytes; at += 16384 * 5) {
        fixture_damage(store, at);
        if (efs_open(store, &options, &fs, &err) == 0) {
            errint_t rc = run(fs, 2, EFS_FORM_CODED, EFS_ACTIVATION_F32, 3, y, &err);
            assert_true(rc == 0 || rc == -EUCLEAN);
            errors += rc == -EUCLEAN;
            efs_close(fs);
        }
        fixture_damage(store, at); /* a second flip restores the byte */
    }
    assert_true(errors > 0);
}

/* Each shard has its own codec: weights followed by zeros make the first shard of a tensor a cascade chunk and a later
 * one a zstd chunk. */
TEST(codecs_mixed_in_a_tensor)
{
    static float full[TOKENS * Y_STRIDE], coded[TOKENS * Y_STRIDE];
    size_t bytes;
    struct efs_error err = {""};
    struct efs_store_info info;
    unsigned char *weights = fixture_weights(&model.fixture, &bytes);
    for (size_t t = 0; t < EXPERTS * 3; t++) /* all but the first shard; tensors end the file */
        memset(weights + bytes - (t + 1) * 2 * INNER * HIDDEN + 32768, 0, 2 * INNER * HIDDEN - 32768);
    fixture_file(&model.fixture, "model.safetensors", weights, bytes);
    free(weights);
    pack(&model, EFS_CHOOSE_AUTO);
    struct efs *fs = open_store(&model, 64 * MIB);
    efs_store_info(efs_get_store(fs), &info);
    assert_true(info.codec_shards[1] >= EXPERTS * 3 && info.codec_shards[2] >= EXPERTS * 3);
    for (unsigned threads = 1; threads <= 2; threads++) {
        assert_int_equal(run(fs, threads, EFS_FORM_CODED, EFS_ACTIVATION_F32, TOKENS, coded, &err), 0);
        assert_int_equal(run(fs, threads, EFS_FORM_FULL, EFS_ACTIVATION_F32, TOKENS, full, &err), 0);
        assert_memory_equal(coded, full, sizeof(full));
    }
    efs_close(fs);
}

static int setup(void **state)
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

static int teardown(void **state)
{
    (void)state;
    checkpoint_end(&model);
    return 0;
}

TEST_MAIN(setup, teardown)
