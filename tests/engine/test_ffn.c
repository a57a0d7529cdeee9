/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_client_ffn(): the sum of a layer's experts against a product in double made from the full files; the same to the
 * bit for every form, codec, number of threads, budget and order; what BF16 activations round; refusals; damage is an
 * error, never a number.
 */
#include <math.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "matvec.h"
#include "waiting.h"

#ifdef __SANITIZE_THREAD__ /* takes 20 times as long */
#define EXPERTS 3
#else
#define EXPERTS 6
#endif
#define INNER 320
#define HIDDEN 192
#define TOKENS 260 /* more than a product takes at once */
#define MIB (1ull << 20)

static struct fixture model;
static float x[TOKENS * HIDDEN];
static uint16_t x_bf16[TOKENS * HIDDEN];

/* Experts whose matrices have the shapes of a SwiGLU: gate and up [INNER][HIDDEN], down [HIDDEN][INNER]. */
static int setup(void **state)
{
    *state = &model;
    static char names[EXPERTS * 3][96];
    struct fixture_tensor tensors[EXPERTS * 3];
    static const char *const roles[] = {"gate_proj", "up_proj", "down_proj"};
    for (unsigned i = 0; i < EXPERTS * 3; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.0.mlp.experts.%u.%s.weight", i / 3, roles[i % 3]);
        bool down = i % 3 == 2;
        tensors[i] = (struct fixture_tensor){.name = names[i],
                                             .dtype = "BF16",
                                             .dims = 2,
                                             .shape = {down ? HIDDEN : INNER, down ? INNER : HIDDEN},
                                             .bytes = 2 * INNER * HIDDEN};
    }
    fixture_begin(&model);
    fixture_safetensors(&model, "model.safetensors", tensors, EXPERTS * 3, 7);
    uint64_t random = 1;
    for (unsigned i = 0; i < TOKENS * HIDDEN; i++) {
        float v = (float)(fixture_random(&random) % 2000) / 1000.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        bits &= 0xffff0000u; /* so that BF16 holds it exactly */
        memcpy(&x[i], &bits, 4);
        x_bf16[i] = (uint16_t)(bits >> 16);
    }
    return 0;
}

static void pack(enum efs_codec_choice codec)
{
    struct efs_pack_options options = {.codec = codec, .threads = 2, .shard_elements = 16384, .force = true};
    fixture_pack(&model, &options);
}

static struct efs *open_store(uint64_t budget)
{
    struct efs_options options = {.budget_bytes = budget, .workers = 2, .full_pool = true, .no_state = true};
    return fixture_open(&model, options);
}

/* Every expert gets every third token or so, one of them all. */
struct routing {
    struct efs_route_to to[EXPERTS];
    uint32_t token[EXPERTS][TOKENS];
    float weight[EXPERTS][TOKENS];
};

static void make_routing(struct routing *r, uint32_t tokens)
{
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t n = 0;
        for (uint32_t t = 0; t < tokens; t++)
            if (e == 0 || (t + e) % 3 == 0) {
                r->token[e][n] = t;
                r->weight[e][n++] = 0.1f + (float)((t * 7 + e) % 5) / 8.0f;
            }
        if (n == 0) {
            r->token[e][n] = 0;
            r->weight[e][n++] = 0.25f;
        }
        r->to[e] = (struct efs_route_to){.expert = e, .count = n, .token = r->token[e], .weight = r->weight[e]};
    }
}

static struct efs_mixture mixture_of(const struct routing *r, bool bf16, uint32_t tokens, enum efs_form form, float *y)
{
    return (struct efs_mixture){.experts = r->to,
                                .expert_count = EXPERTS,
                                .activation = bf16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F32,
                                .x = bf16 ? (const void *)x_bf16 : (const void *)x,
                                .tokens = tokens,
                                .hidden = HIDDEN,
                                .x_stride = HIDDEN,
                                .y_stride = HIDDEN + 3,
                                .y = y,
                                .form = form};
}

/* By a client, or by one of its own. */
static errint_t run_with(struct efs *fs, struct efs_client *client, uint32_t layer, unsigned threads,
                         enum efs_form form, bool bf16, uint32_t tokens, float *y, struct efs_error *err)
{
    struct routing *r = malloc(sizeof(*r));
    struct efs_team *team;
    make_routing(r, tokens);
    assert_int_equal(efs_team_new(threads, &team), 0);
    struct efs_mixture m = mixture_of(r, bf16, tokens, form, y);
    errint_t rc = client ? efs_client_ffn(client, team, "", layer, &m, err) : fixture_ffn(fs, team, &m, err);
    efs_team_free(team);
    free(r);
    return rc;
}

static errint_t run(struct efs *fs, unsigned threads, enum efs_form form, bool bf16, uint32_t tokens, float *y,
                    struct efs_error *err)
{
    return run_with(fs, NULL, 0, threads, form, bf16, tokens, y, err);
}

static double weight_at(const uint8_t *w, size_t i)
{
    uint32_t bits = (uint32_t)(w[2 * i] | w[2 * i + 1] << 8) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* To BF16, to the nearest, ties to even. */
static double as_bf16(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return f;
}

/* In double, from the expert's full file: the data of its three tensors stand at its end. bf16: with h rounded. */
static void reference(struct efs *fs, uint32_t tokens, bool bf16, double *y)
{
    struct routing *r = malloc(sizeof(*r));
    make_routing(r, tokens);
    memset(y, 0, tokens * HIDDEN * sizeof(*y));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        struct efs_expert_info info;
        struct efs_file_info file;
        struct efs_lease *lease;
        assert_int_equal(efs_expert_info(fs, efs_id(e), &info), 0);
        assert_int_equal(efs_file_info(fs, info.file, &file), 0);
        assert_int_equal(lease_wait(fs, info.file, &lease), 0);
        const uint8_t *end = (const uint8_t *)efs_lease_data(lease) + file.bytes;
        const size_t bytes = 2 * INNER * HIDDEN;
        const uint8_t *part[3] = {end - 3 * bytes, end - 2 * bytes, end - bytes}, *gate = NULL, *up = NULL,
                      *down = NULL;
        const char *header = (const char *)efs_lease_data(lease) + 8;
        const char *at[3] = {strstr(header, "gate_proj"), strstr(header, "up_proj"), strstr(header, "down_proj")};
        for (int i = 0; i < 3; i++) { /* the order of data is the order of names */
            int before = (at[(i + 1) % 3] < at[i]) + (at[(i + 2) % 3] < at[i]);
            *(i == 0 ? &gate : i == 1 ? &up : &down) = part[before];
        }
        for (uint32_t n = 0; n < r->to[e].count; n++) {
            uint32_t t = r->token[e][n];
            double h[INNER];
            for (size_t i = 0; i < INNER; i++) {
                double g = 0, u = 0;
                for (size_t c = 0; c < HIDDEN; c++) {
                    g += weight_at(gate, i * HIDDEN + c) * x[t * HIDDEN + c];
                    u += weight_at(up, i * HIDDEN + c) * x[t * HIDDEN + c];
                }
                h[i] = g / (1 + exp(-g)) * u;
                h[i] = bf16 ? as_bf16(h[i]) : h[i];
            }
            for (size_t i = 0; i < HIDDEN; i++) {
                double d = 0;
                for (size_t c = 0; c < INNER; c++)
                    d += weight_at(down, i * INNER + c) * h[c];
                y[t * HIDDEN + i] += r->weight[e][n] * d;
            }
        }
        efs_lease_release(lease);
    }
    free(r);
}

static void check_against_double(const float *y, const double *want, uint32_t tokens)
{
    double largest = 0, worst = 0;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t c = 0; c < HIDDEN; c++) {
            double w = want[t * HIDDEN + c], d = fabs(y[t * (HIDDEN + 3) + c] - w);
            largest = fabs(w) > largest ? fabs(w) : largest;
            worst = d > worst ? d : worst;
        }
    assert_true(largest > 0);
    assert_true(worst < 1e-5 * largest);
}

/* A sum that was rounded to F32 in other places, and now and then to the BF16 number beside, is far nearer to that of
 * the rounded h than to that of the h that was not. */
static void check_rounded(const float *y, const double *rounded, const double *exact, uint32_t tokens)
{
    double off = 0, rounding = 0;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t c = 0; c < HIDDEN; c++) {
            off += pow(y[t * (HIDDEN + 3) + c] - rounded[t * HIDDEN + c], 2);
            rounding += pow(exact[t * HIDDEN + c] - rounded[t * HIDDEN + c], 2);
        }
    assert_true(rounding > 0);
    assert_true(sqrt(off) < 0.1 * sqrt(rounding));
}

/* All experts, full, until the request is released. */
static struct efs_request *plain_experts(struct efs *fs, struct efs_plain_expert *plain)
{
    struct efs_need needs[EXPERTS];
    struct efs_request *request;
    struct efs_error err = {""};
    for (uint32_t e = 0; e < EXPERTS; e++)
        needs[e] = (struct efs_need){e, 1};
    assert_int_equal(
        efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = EFS_FORM_FULL}, &request, &err), 0);
    assert_int_equal(efs_request_wait(request), 0);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct efs_tensor *t;
        uint32_t count;
        assert_int_equal(efs_request_tensors(request, e, &t, &count), 0);
        plain[e].inner = INNER;
        for (uint32_t i = 0; i < count; i++)
            *(strstr(t[i].name, "gate") ? &plain[e].gate
              : strstr(t[i].name, "up") ? &plain[e].up
                                        : &plain[e].down) = t[i].data;
    }
    return request;
}

/* The same experts from memory of the caller's. */
static void run_plain(struct efs *fs, uint32_t tokens, bool bf16, float *y)
{
    struct efs_plain_expert plain[EXPERTS];
    struct efs_error err = {""};
    struct efs_request *request = plain_experts(fs, plain);
    struct routing *r = malloc(sizeof(*r));
    struct efs_team *team;
    make_routing(r, tokens);
    assert_int_equal(efs_team_new(2, &team), 0);
    struct efs_mixture m = mixture_of(r, bf16, tokens, EFS_FORM_FULL, y);
    if (efs_plain_ffn(team, &m, plain, &err) < 0)
        fail_msg("%s", err.text);
    plain[2].up = NULL;
    assert_int_equal(efs_plain_ffn(team, &m, plain, &err), -EINVAL);
    efs_team_free(team);
    free(r);
    efs_request_release(request);
}

static void with_codec(enum efs_codec_choice codec)
{
    static float first[2][TOKENS * (HIDDEN + 3)], y[TOKENS * (HIDDEN + 3)]; /* first: F32, BF16 */
    static double want[2][TOKENS * HIDDEN];
    const uint32_t tokens[] = {1, 5, TOKENS};
    struct efs_error err = {""};
    pack(codec);
    struct efs *fs = open_store(128 * MIB);
    for (size_t n = 0; n < 3; n++) {
        memset(first, 0, sizeof(first));
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (run(fs, 1, EFS_FORM_FULL, bf16, tokens[n], first[bf16], &err) < 0)
                fail_msg("%s", err.text);
            reference(fs, tokens[n], bf16, want[bf16]);
        }
        check_against_double(first[0], want[0], tokens[n]);
        check_rounded(first[1], want[1], want[0], tokens[n]);
        for (unsigned way = 0; way < 12; way++) {
            static const enum efs_form forms[] = {EFS_FORM_CODED, EFS_FORM_FULL, EFS_FORM_ANY};
            memset(y, 0, sizeof(y));
            if (run(fs, 1 + way % 4, forms[way % 3], way % 2, tokens[n], y, &err) < 0)
                fail_msg("%s", err.text);
            assert_memory_equal(y, first[way % 2], sizeof(y));
        }
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        memset(y, 0, sizeof(y));
        run_plain(fs, TOKENS, bf16, y);
        assert_memory_equal(y, first[bf16], sizeof(y));
    }
    efs_close(fs);
    fs = open_store(40 * MIB); /* hardly any memory */
    for (unsigned way = 0; way < 4; way++) {
        memset(y, 0, sizeof(y));
        if (run(fs, 2, EFS_FORM_CODED, way % 2, TOKENS, y, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(y, first[way % 2], sizeof(y));
    }
    efs_close(fs);
}

TEST(test_cascade)
{
    with_codec(EFS_CHOOSE_CASCADE);
}

TEST(test_zstd)
{
    with_codec(EFS_CHOOSE_ZSTD);
}

TEST(test_lz4)
{
    with_codec(EFS_CHOOSE_LZ4);
}

/* What a token's h is, in BF16: rounded here, from what the kernels say before. */
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

/* h is rounded to the nearest BF16 number on every code path, ties to even, for each token alone; a NaN stays one. */
TEST(test_bf16)
{
    static const char *const paths[] = {"scalar", "avx2", "avx512", "neon"};
    static uint16_t in[TOKENS * HIDDEN];
    static float y[TOKENS * HIDDEN], want[HIDDEN];
    uint32_t token[TOKENS];
    float weight[TOKENS];
    struct efs_plain_expert plain[EXPERTS];
    struct efs_error err = {""};
    struct efs_team *team;
    memcpy(in, x_bf16, sizeof(in));
    in[2 * HIDDEN + 7] = 0x7fc0; /* NaN */
    in[4 * HIDDEN] = 0x7f80;     /* infinity */
    for (uint32_t t = 0; t < TOKENS; t++) {
        token[t] = t;
        weight[t] = 1;
    }
    pack(EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(128 * MIB);
    struct efs_request *request = plain_experts(fs, plain);
    assert_int_equal(efs_team_new(3, &team), 0);
    for (size_t path = 0; path < sizeof(paths) / sizeof(paths[0]); path++) {
        if (!efs_cpu_force(paths[path]))
            continue;
        assert_true(strcmp(paths[path], "avx2") != 0 || strcmp(efs_matvec_order(), "avx2") == 0);
        assert_true(strcmp(paths[path], "scalar") != 0 || efs_matvec_order() == NULL);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const struct efs_route_to to = {.expert = e, .count = TOKENS, .token = token, .weight = weight};
            const struct efs_mixture m = {.experts = &to,
                                          .expert_count = 1,
                                          .activation = EFS_ACTIVATION_BF16,
                                          .x = in,
                                          .tokens = TOKENS,
                                          .hidden = HIDDEN,
                                          .x_stride = HIDDEN,
                                          .y = y,
                                          .y_stride = HIDDEN,
                                          .form = e % 2 ? EFS_FORM_FULL : EFS_FORM_CODED};
            if (fixture_ffn(fs, team, &m, &err) < 0)
                fail_msg("%s", err.text);
            for (uint32_t t = 0; t < TOKENS; t++) {
                by_kernels(&plain[e], in + t * HIDDEN, want);
                assert_true(isnan(want[0]) == (t == 2 || t == 4));
                for (uint32_t c = 0; c < HIDDEN; c++)
                    assert_true(y[t * HIDDEN + c] == want[c] || (isnan(y[t * HIDDEN + c]) && isnan(want[c])));
            }
        }
    }
    assert_true(efs_cpu_force("auto"));
    efs_team_free(team);
    efs_request_release(request);
    efs_close(fs);
}

/* Whatever comes, products tell plans what they took: of an expert that was run as it is coded, here. */
TEST(test_told)
{
    static float y[TOKENS * (HIDDEN + 3)];
    struct efs_error err = {""};
    char *text;
    size_t bytes;
    pack(EFS_CHOOSE_CASCADE);
    struct efs *fs = open_store(128 * MIB);
    if (run(fs, 1, EFS_FORM_ANY, false, 1, y, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(efs_describe(fs, "plan", &text, &bytes), 0);
    const char *coded = strstr(text, "product_coded_ns: ");
    assert_non_null(coded);
    assert_true(strtoull(coded + strlen("product_coded_ns: "), NULL, 10) > 0);
    assert_non_null(strstr(text, "product_full_ns: 0\n"));
    free(text);
    efs_close(fs);
}

TEST(test_refused)
{
    pack(EFS_CHOOSE_AUTO);
    struct efs *fs = open_store(64 * MIB);
    struct efs_team *team;
    struct efs_error err = {""};
    float y[HIDDEN], weight = 1;
    uint32_t token = 0, beyond = 1;
    assert_int_equal(efs_team_new(2, &team), 0);
    struct efs_route_to to = {0, 1, &token, &weight};
    struct efs_mixture good = {.experts = &to,
                               .expert_count = 1,
                               .x = x,
                               .tokens = 1,
                               .hidden = HIDDEN,
                               .x_stride = HIDDEN,
                               .y_stride = HIDDEN,
                               .y = y,
                               .form = EFS_FORM_CODED},
                       m;
    assert_int_equal(fixture_ffn(fs, team, &good, &err), 0);
    m = good;
    m.hidden = HIDDEN / 2;
    assert_int_equal(fixture_ffn(fs, team, &m, &err), -EINVAL); /* of another shape */
    assert_non_null(strstr(err.text, "shapes"));
    m = good;
    m.expert_count = 0;
    assert_int_equal(fixture_ffn(fs, team, &m, &err), -EINVAL);
    m = good;
    m.x_stride = HIDDEN - 1;
    assert_int_equal(fixture_ffn(fs, team, &m, &err), -EINVAL);
    to.token = &beyond;
    assert_int_equal(fixture_ffn(fs, team, &good, &err), -EINVAL);
    to = (struct efs_route_to){EXPERTS, 1, &token, &weight};
    assert_int_equal(fixture_ffn(fs, team, &good, &err), -ENOENT);
    to.expert = 1;
    assert_int_equal(fixture_ffn(fs, team, &good, &err), 0);
    efs_team_free(team);
    efs_close(fs);
    assert_int_equal(efs_team_new(100000, &team), -EINVAL);
}

TEST(test_damage)
{
    static float y[TOKENS * (HIDDEN + 3)];
    struct efs_error err = {""};
    pack(EFS_CHOOSE_CASCADE);
    size_t bytes;
    unsigned char *whole = fixture_read(model.store, &bytes);
    unsigned errors = 0;
    for (uint64_t at = 4096; at + 4096 < bytes; at += 16384 * 3) {
        fixture_damage(model.store, at);
        struct efs_options options = {.budget_bytes = 64 * MIB, .workers = 2, .no_state = true};
        struct efs *fs;
        if (efs_open(model.store, &options, &fs, &err) == 0) {
            errint_t rc = run(fs, 2, EFS_FORM_CODED, false, 3, y, &err);
            assert_true(rc == 0 || rc == -EUCLEAN);
            errors += rc == -EUCLEAN;
            efs_close(fs);
        }
        fixture_damage(model.store, at); /* twice is not at all */
    }
    assert_true(errors > 0);
    free(whole);
}

/* Each shard has a codec of its own: zeros behind weights, so that the first shard of a tensor is of the cascade and a
 * later one of zstd. */
TEST(codecs_mixed_in_a_tensor)
{
    static float full[TOKENS * (HIDDEN + 3)], coded[TOKENS * (HIDDEN + 3)];
    char path[400];
    size_t bytes;
    struct efs_error err = {""};
    struct efs_store_info info;
    snprintf(path, sizeof(path), "%s/model.safetensors", model.source);
    unsigned char *weights = fixture_read(path, &bytes), *zeros = malloc(bytes);
    assert_non_null(zeros);
    memcpy(zeros, weights, bytes);
    for (size_t t = 0; t < EXPERTS * 3; t++) /* the last shards of each tensor; they lie at the file's end */
        memset(zeros + bytes - (t + 1) * 2 * INNER * HIDDEN + 32768, 0, 2 * INNER * HIDDEN - 32768);
    fixture_file(&model, "model.safetensors", zeros, bytes);
    pack(EFS_CHOOSE_AUTO);
    struct efs *fs = open_store(64 * MIB);
    efs_store_info(efs_get_store(fs), &info);
    assert_true(info.codec_shards[1] >= EXPERTS * 3 && info.codec_shards[2] >= EXPERTS * 3);
    for (unsigned threads = 1; threads <= 2; threads++) {
        assert_int_equal(run(fs, threads, EFS_FORM_CODED, false, TOKENS, coded, &err), 0);
        assert_int_equal(run(fs, threads, EFS_FORM_FULL, false, TOKENS, full, &err), 0);
        assert_memory_equal(coded, full, sizeof(full));
    }
    efs_close(fs);
    fixture_file(&model, "model.safetensors", weights, bytes);
    free(weights);
    free(zeros);
}

/* A client of the store: the same to the bit; what is not there is said. */
TEST(test_client)
{
    struct efs_error err = {""};
    struct efs_client *client;
    const size_t bytes = TOKENS * (HIDDEN + 3) * sizeof(float);
    float *want = calloc(1, bytes), *got = calloc(1, bytes);
    struct efs *fs = open_store(128 << 20);
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    assert_int_equal(run(fs, 2, EFS_FORM_CODED, false, TOKENS, want, &err), 0);
    for (unsigned form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        memset(got, 0, bytes);
        assert_int_equal(run_with(NULL, client, 0, 2, (enum efs_form)form, false, TOKENS, got, &err), 0);
        assert_memory_equal(got, want, bytes);
    }
    assert_int_equal(run_with(NULL, client, 9, 2, EFS_FORM_CODED, false, TOKENS, got, &err), -ENOENT);
    assert_int_equal(run_with(NULL, client, 0, 2, (enum efs_form)7, false, TOKENS, got, &err), -EINVAL);
    efs_client_close(client);
    efs_close(fs);
    free(want);
    free(got);
}

TEST_MAIN(setup, fixture_teardown)
