/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to call efs_client_ffn(): experts in the caller's memory, the experts of each token as a router gives them, the
 * rounding of BF16 activations, refused arguments.
 */
#include "ffn_fixture.h"

#include "matvec.h"

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
    struct served s = serve(EFS_CHOOSE_CASCADE, 2);
    struct efs_client_request *request = plain_experts(s.fs, plain);
    for (enum efs_activation a = EFS_ACTIVATION_F32; a <= EFS_ACTIVATION_BF16; a++) {
        assert_int_equal(run(s.fs, 1, EFS_FORM_FULL, a, TOKENS, want, &err), 0);
        const struct efs_mixture m = mixture_of(EFS_FORM_FULL, a, TOKENS, y);
        memset(y, 0, sizeof(y));
        if (efs_plain_ffn(s.team, &m, plain, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(y, want, sizeof(y));
    }
    const struct efs_mixture m = mixture_of(EFS_FORM_FULL, EFS_ACTIVATION_F32, TOKENS, y);
    plain[2].up = NULL;
    assert_int_equal(efs_plain_ffn(s.team, &m, plain, &err), -EINVAL);
    efs_client_release(request);
    serve_end(&s);
}

/* A client of the store: bit-identical; a missing layer is -ENOENT. */
TEST(test_client)
{
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct served s = serve(EFS_CHOOSE_CASCADE, 2);
    assert_int_equal(run(s.fs, 2, EFS_FORM_CODED, EFS_ACTIVATION_F32, TOKENS, want, &err), 0);
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        const struct efs_mixture m = mixture_of(form, EFS_ACTIVATION_F32, TOKENS, y);
        memset(y, 0, sizeof(y));
        assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
        assert_memory_equal(y, want, sizeof(y));
        assert_int_equal(efs_client_ffn(s.client, s.team, "", 9, &m, &err), -ENOENT);
    }
    const struct efs_mixture m = mixture_of((enum efs_form)7, EFS_ACTIVATION_F32, TOKENS, y);
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
    serve_end(&s);
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
    memcpy(in, mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_BF16, FEW_TOKENS, y).x, sizeof(in));
    in[2 * HIDDEN + 7] = 0x7fc0; /* NaN */
    in[4 * HIDDEN] = 0x7f80;     /* infinity */
    for (uint32_t t = 0; t < FEW_TOKENS; t++) {
        token[t] = t;
        weight[t] = 1;
    }
    struct served s = serve(EFS_CHOOSE_CASCADE, 3);
    struct efs_client_request *request = plain_experts(s.fs, plain);
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
            if (fixture_ffn(s.fs, s.team, &m, &err) < 0)
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
    efs_client_release(request);
    serve_end(&s);
}

static void refused(const struct served *s, struct efs_mixture m, const char *words)
{
    struct efs_error err = {""};
    assert_int_equal(fixture_ffn(s->fs, s->team, &m, &err), -EINVAL);
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
    struct served s = serve(EFS_CHOOSE_CASCADE, 2);
    choose(&c);
    struct efs_mixture m = mixture_by_experts(&c, EFS_FORM_CODED, want);
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
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
        assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
        assert_memory_equal(y, want, sizeof(y));
        m.y = NULL;
        m.y_bf16 = rounded;
        memset(rounded, 0x55, sizeof(rounded));
        assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
        for (uint32_t i = 0; i < TOKENS * Y_STRIDE; i++)
            assert_int_equal(rounded[i], i % Y_STRIDE < HIDDEN ? nearest_bf16(want[i]) : 0x5555);
    }
    serve_end(&s);
}

TEST(test_routing_refused)
{
    static struct choice c;
    static float y[TOKENS * Y_STRIDE];
    static const int64_t wrong[] = {-1, EXPERTS, INT64_MIN, INT64_MAX, 1ll << 32};
    struct efs_error err = {""};
    struct served s = serve(EFS_CHOOSE_CASCADE, 2);
    choose(&c);
    struct efs_router_output r = {EXPERTS, CHOICES, EFS_DTYPE_I64, EFS_DTYPE_F32, c.wide, c.weight};
    struct efs_mixture m = mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_F32, TOKENS, y);
    m.routing = &r;
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL); /* and experts */
    m.experts = NULL;
    m.expert_count = 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        choose(&c);
        c.wide[2 * TOKENS - 1] = wrong[i];
        assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
        assert_non_null(strstr(err.text, "of 3"));
    }
    choose(&c);
    c.wide[7] = c.wide[6];
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "token 3"));
    choose(&c);
    r.index_type = EFS_DTYPE_F32;
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
    r.index_type = EFS_DTYPE_I64;
    r.per_token = EXPERTS + 1;
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
    r.per_token = CHOICES;
    m.y = NULL;
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINVAL);
    m.y = y;
    m.hidden_act = "gelu";
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "gelu"));
    m.hidden_act = "relu"; /* for experts of two matrices */
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EOPNOTSUPP);
    m.hidden_act = "swish";
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
    serve_end(&s);
}

TEST(test_refused)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    const uint32_t beyond[] = {1};
    struct served s = serve(EFS_CHOOSE_AUTO, 2);
    const struct efs_mixture good = mixture_of(EFS_FORM_CODED, EFS_ACTIVATION_F32, 1, y);
    assert_int_equal(fixture_ffn(s.fs, s.team, &good, &err), 0);
    struct efs_mixture m = good;
    m.hidden = HIDDEN / 2; /* not the experts' shape */
    refused(&s, m, "shapes");
    m = good;
    m.expert_count = 0;
    refused(&s, m, "");
    m = good;
    m.x_stride = HIDDEN - 1;
    refused(&s, m, "");
    routes[1].token = beyond;
    refused(&s, good, "");
    routes[1].token = routes[0].token;
    routes[1].expert = EXPERTS;
    assert_int_equal(fixture_ffn(s.fs, s.team, &good, &err), -ENOENT);
    routes[1].expert = 1;
    assert_int_equal(fixture_ffn(s.fs, s.team, &good, &err), 0);
    serve_end(&s);
    assert_int_equal(efs_team_new(100000, &s.team), -EINVAL);
}

TEST_MAIN(setup, teardown)
