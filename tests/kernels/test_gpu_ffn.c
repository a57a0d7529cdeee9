/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_ffn.c - experts run by the twin of the GPU kernels: equal to the CPU's products except for the order of
 * sums, on memory that ends at guard pages.
 */
#include "test.h"
#include "gpu_twin.h"
#include "matvec_cases.h"

#include "cuda/gpu_ffn.h"

#define EXPERTS 4
#define TOKENS_MOST 9
#define ROUTES_MOST (EXPERTS * TOKENS_MOST)

/* A layer with its routes and matrices. */
struct layer {
    struct efs_gpu_expert experts[EXPERTS];
    struct efs_gpu_mixture m;
    struct guarded matrix[EXPERTS][3], x, h, part, y;
    uint32_t token[ROUTES_MOST], token_begin[TOKENS_MOST + 1], token_route[ROUTES_MOST];
    float weight[ROUTES_MOST];
    uint32_t tokens, routes;
};

static struct guarded numbers_new(bool f16, size_t n, uint64_t *rng)
{
    struct guarded g = gpu_twin_new(NULL, 2 * n);

    for (size_t i = 0; i < n; i++) {
        uint16_t v = f16 ? f16_of(NUMBERS_WEIGHTS, rng) : bf16_of(NUMBERS_WEIGHTS, rng);
        memcpy(g.data + 2 * i, &v, 2);
    }
    return g;
}

/* Tokens choose experts at random; expert 1 has no token, token 4 no expert; all other tokens choose at least expert
 * 0. */
static void layer_new(struct layer *l, bool f16, uint32_t hidden, uint32_t inner, uint32_t tokens, uint64_t *rng)
{
    memset(l, 0, sizeof(*l));
    l->tokens = tokens;
    l->x = gpu_twin_new(NULL, 4 * (size_t)tokens * hidden);
    for (size_t i = 0; i < (size_t)tokens * hidden; i++) {
        float v = f32_of(NUMBERS_WEIGHTS, rng);
        memcpy(l->x.data + 4 * i, &v, 4);
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        for (unsigned k = 0; k < 3; k++)
            l->matrix[e][k] = numbers_new(f16, (size_t)hidden * inner, rng);
        l->experts[e] = (struct efs_gpu_expert){(const uint16_t *)(const void *)l->matrix[e][0].data,
                                                (const uint16_t *)(const void *)l->matrix[e][1].data,
                                                (const uint16_t *)(const void *)l->matrix[e][2].data, l->routes, 0};
        for (uint32_t t = 0; t < tokens; t++) {
            if (e == 1 || t == 4 || (e > 0 && random_below(rng, 2) == 0))
                continue;
            l->token[l->routes] = t;
            l->weight[l->routes++] = (float)(1 + random_below(rng, 100)) / 64;
        }
        l->experts[e].count = l->routes - l->experts[e].first;
    }
    for (uint32_t t = 0, at = 0; t < tokens; t++) {
        for (uint32_t r = 0; r < l->routes; r++)
            if (l->token[r] == t)
                l->token_route[at++] = r;
        l->token_begin[t + 1] = at;
    }
    l->h = gpu_twin_new(NULL, 4 * (size_t)l->routes * inner);
    l->part = gpu_twin_new(NULL, 4 * (size_t)l->routes * hidden);
    l->y = gpu_twin_new(NULL, 4 * (size_t)tokens * hidden);
    l->m = (struct efs_gpu_mixture){l->experts,
                                    hidden,
                                    inner,
                                    f16,
                                    (const float *)(const void *)l->x.data,
                                    l->token,
                                    l->weight,
                                    l->token_begin,
                                    l->token_route,
                                    (float *)(void *)l->h.data,
                                    (float *)(void *)l->part.data,
                                    (float *)(void *)l->y.data};
}

static void layer_free(struct layer *l)
{
    for (unsigned e = 0; e < EXPERTS; e++)
        for (unsigned k = 0; k < 3; k++)
            guarded_free(&l->matrix[e][k]);
    guarded_free(&l->x);
    guarded_free(&l->h);
    guarded_free(&l->part);
    guarded_free(&l->y);
}

/* Launches the kernels as the host does, with some blocks past the last row. */
static void layer_run(struct layer *l)
{
    struct efs_gpu_ffn state;

    memset(&state, 0xff, sizeof(state)); /* NaNs */
    gpu_twin_order = (gpu_twin_order + 89) % EFS_GPU_THREADS;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t b = 0; b < l->m.inner / EFS_GPU_ROWS + 2; b++)
            efs_gpu_ffn_up_block(&l->m, e, b, &state);
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t b = 0; b < l->m.hidden / EFS_GPU_ROWS + 2; b++)
            efs_gpu_ffn_down_block(&l->m, e, b, &state);
    for (uint32_t t = 0; t < l->tokens; t++)
        for (uint32_t b = 0; b < l->m.hidden / EFS_GPU_THREADS + 2; b++)
            efs_gpu_ffn_sum_block(&l->m, t, b);
}

static void *product_memory(size_t bytes)
{
    void *memory = aligned_alloc(EFS_MATVEC_ALIGN, (bytes + EFS_MATVEC_ALIGN) / EFS_MATVEC_ALIGN * EFS_MATVEC_ALIGN);

    assert_non_null(memory);
    return memory;
}

/* Computes one route on the CPU and adds it to y. */
static void route_by_cpu(const struct layer *l, const struct efs_gpu_expert *e, uint32_t route, float *y)
{
    const uint32_t hidden = l->m.hidden, inner = l->m.inner, most = hidden > inner ? hidden : inner;
    const enum efs_input_type type = l->m.f16 ? EFS_INPUT_F32_BY_F16 : EFS_INPUT_F32;
    struct efs_matrix gate = {.rows = inner, .cols = hidden, .f16 = l->m.f16, .plain = e->gate}, up = gate;
    struct efs_matrix down = {.rows = hidden, .cols = inner, .f16 = l->m.f16, .plain = e->down};
    void *input = product_memory(efs_input_bytes(most, 1)),
         *scratch = product_memory(efs_matvec_scratch_bytes(most, 1));
    float *h = product_memory(4 * (size_t)inner), *out = product_memory(4 * (size_t)hidden);

    up.plain = e->up;
    assert_int_equal(efs_input_prepare(type, l->m.x + (size_t)l->token[route] * hidden, hidden, hidden, 1, input), 0);
    assert_int_equal(efs_matvec_swiglu(&gate, &up, input, 0, inner, h, inner, scratch), 0);
    assert_int_equal(efs_input_prepare(type, h, inner, inner, 1, input), 0);
    assert_int_equal(efs_matvec(&down, input, 0, hidden, out, hidden, scratch), 0);
    for (uint32_t i = 0; i < hidden; i++)
        y[i] += l->weight[route] * out[i];
    free(input);
    free(scratch);
    free(h);
    free(out);
}

/* Both sum in F32, in different order: the difference is far below the precision of the BF16 matrices. */
static void check_layer(const struct layer *l)
{
    float *y = product_memory(4 * (size_t)l->m.hidden);

    for (uint32_t t = 0; t < l->tokens; t++) {
        float most = 0;
        memset(y, 0, 4 * (size_t)l->m.hidden);
        for (unsigned e = 0; e < EXPERTS; e++)
            for (uint32_t r = l->experts[e].first; r < l->experts[e].first + l->experts[e].count; r++)
                if (l->token[r] == t)
                    route_by_cpu(l, &l->experts[e], r, y);
        for (uint32_t i = 0; i < l->m.hidden; i++)
            most = fmaxf(most, fabsf(y[i]));
        assert_true((most > 0) == (t != 4));
        for (uint32_t i = 0; i < l->m.hidden; i++)
            assert_true(fabsf(l->m.y[(size_t)t * l->m.hidden + i] - y[i]) <= 1e-5f * most);
    }
    free(y);
}

TEST(every_shape)
{
    static const uint32_t sizes[][2] = {{8, 8},     {40, 16}, {256, 3},  {264, 130}, {13, 8},
                                        {515, 131}, {1, 1},   {24, 600}, {7, 33},    {512, 64}};
    static const uint32_t tokens[] = {1, 4, 5, TOKENS_MOST};
    uint64_t rng = 71;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t k = 0; k < sizeof(tokens) / sizeof(tokens[0]); k++) {
            for (int f16 = 0; f16 < 2; f16++) {
                struct layer l;
                layer_new(&l, f16 != 0, sizes[i][0], sizes[i][1], tokens[k], &rng);
                layer_run(&l);
                check_layer(&l);
                layer_free(&l);
            }
        }
    }
}

/* The GPU widens every 16-bit number to the same value as the CPU. */
TEST(every_number)
{
    static uint16_t numbers[2 * 65536];

    for (int f16 = 0; f16 < 2; f16++) {
        for (uint32_t i = 0; i < 65536; i++)
            numbers[i] = (uint16_t)i;
        efs_widen(f16 != 0, numbers, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            float expected;
            memcpy(&expected, (const uint8_t *)numbers + 4 * i, 4);
            assert_true(same_float(efs_gpu_widen(f16 != 0, i), expected));
        }
    }
}

TEST_MAIN(NULL, NULL)
