/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_client_ffn() for experts of every known kind, with tensors as in the kind's checkpoints. Results are compared
 * with sums in double computed from the checkpoint's numbers, and must be bit-identical for every form, codec, number
 * of threads and tokens, and budget. Damage must be an error, never a wrong number.
 */
#include "ffn_fixture.h"

#ifdef __SANITIZE_THREAD__ /* threads are the same for each kind, and each takes minutes */
#define ONE_KIND true
#else
#define ONE_KIND false
#endif

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

static unsigned clamps[2]; /* number of clamped values, of gate and of up */

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
            for (unsigned way = 0; way < (codec == 0 ? 12 : 6); way++) { /* threads do not depend on the codec */
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

TEST_MAIN(setup, teardown)
