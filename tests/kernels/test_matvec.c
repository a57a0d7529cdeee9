/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_matvec.c - products of BF16 and F16 matrices: exactly the bits that matvec.h specifies, from every form of a
 * matrix, on every path, for every split of the rows. No tolerance: the order of additions is fixed, and a fused
 * multiply-add has one correct result. Only the BF16 dot product differs between paths; there forms and splits agree to
 * the bit, and the value is within the rounding error.
 */
#include "test.h"
#include "matvec_cases.h"

struct product_case {
    uint32_t rows, cols, tokens;
    size_t shard_elements;
    enum number_kind w, x;
};

static void check_same(const float *y, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(same_float(y[i], right[i]));
}

/* Compares every form on every path with the product as specified in matvec.h. */
static void check_format(const struct product_case *c, bool f16, unsigned splits, uint64_t *rng)
{
    size_t n = (size_t)c->rows * c->cols, products = (size_t)c->rows * c->tokens;
    uint16_t *numbers = malloc(2 * n);
    float *x = malloc((size_t)c->cols * c->tokens * sizeof(float)), *y = malloc(products * sizeof(float));
    float *right = malloc(products * sizeof(float));

    assert_true(numbers && x && y && right);
    for (size_t i = 0; i < n; i++)
        numbers[i] = f16 ? f16_of(c->w, rng) : bf16_of(c->w, rng);
    for (size_t i = 0; i < (size_t)c->cols * c->tokens; i++)
        x[i] = f32_of(c->x, rng);
    for (size_t t = 0; t < c->tokens; t++)
        for (size_t r = 0; r < c->rows; r++)
            right[t * c->rows + r] = product_by_the_text(f16, numbers + r * c->cols, x + t * c->cols, c->cols);
    void *input = input_new(f16 ? EFS_INPUT_F32_BY_F16 : EFS_INPUT_F32, x, c->cols, c->cols, c->tokens);
    for (int form = 0; form < FORMS; form++) {
        struct matrix *m = matrix_of((enum matrix_form)form, f16, numbers, c->rows, c->cols, c->shard_elements);
        for (size_t p = 0; p < PATH_COUNT; p++) {
            if (!efs_cpu_force(path_names[p]))
                continue;
            assert_int_equal(multiply_split(m, input, c->tokens, splits, y), 0);
            check_same(y, right, products);
        }
        matrix_free(m);
    }
    free(input);
    free(numbers);
    free(x);
    free(y);
    free(right);
}

static void check_case(const struct product_case *c, unsigned splits, uint64_t *rng)
{
    check_format(c, false, splits, rng);
    check_format(c, true, splits, rng);
}

/* Columns around vectors, groups and blocks; numbers of rows with which block and shard borders fall at all places. */
TEST(every_shape)
{
    static const uint32_t cols[] = {1,    2,    3,    7,    8,    15,   16,   17,   31,   32,   33,    63,    64,
                                    65,   127,  128,  129,  191,  192,  193,  320,  500,  511,  512,   513,   1000,
                                    2880, 4095, 4096, 4097, 6144, 8128, 8191, 8192, 8193, 8256, 10001, 16384, 20032};
    uint64_t rng = 31;

    for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]); i++) {
        uint32_t few = 20000 / cols[i] + 1 > 600 ? 600 : 20000 / cols[i] + 1;
        const uint32_t rows[] = {1, few, few + 3};
        for (size_t k = 0; k < 3; k++) {
            struct product_case one = {rows[k], cols[i], 1, EFS_BLOCK * (1 + k), NUMBERS_WEIGHTS, NUMBERS_WEIGHTS};
            check_case(&one, 1 + (unsigned)k, &rng);
            struct product_case some = one;
            some.tokens = 2 + (uint32_t)(i + k) % 6;
            check_case(&some, 1, &rng);
        }
    }
}

TEST(every_number_of_tokens)
{
    uint64_t rng = 32;

    for (uint32_t tokens = 1; tokens <= EFS_TOKENS_MAX; tokens += tokens < 18 ? 1 : 23) {
        struct product_case c = {13, 1000, tokens, EFS_BLOCK, NUMBERS_WEIGHTS, NUMBERS_WIDE};
        check_case(&c, 2, &rng);
        c.cols = 1024;
        check_case(&c, 1, &rng);
    }
}

TEST(every_number)
{
    uint64_t rng = 33;

    for (int w = 0; w < NUMBERS_KINDS; w++) {
        for (int x = 0; x < NUMBERS_KINDS; x++) {
            for (uint32_t tokens = 1; tokens <= 4; tokens += 3) {
                struct product_case c = {70, 320, tokens, EFS_BLOCK, (enum number_kind)w, (enum number_kind)x};
                check_case(&c, 1, &rng);
                c.cols = 321;
                check_case(&c, 3, &rng);
            }
        }
    }
}

/* Exponents of every kind of the coder's tests: each number of levels, all symbols. */
TEST(every_code)
{
    const uint32_t rows = 40, cols = 448; /* two blocks and a part of a third */
    uint8_t *e = malloc((size_t)rows * cols), *sm = malloc((size_t)rows * cols);
    uint16_t *numbers = malloc((size_t)rows * cols * 2);
    float x[448], y[40], right[40];
    uint64_t rng = 34;

    assert_true(e && sm && numbers);
    for (size_t i = 0; i < cols; i++)
        x[i] = f32_of(NUMBERS_WEIGHTS, &rng);
    void *input = input_new(EFS_INPUT_F32, x, cols, cols, 1);
    for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
        symbols_fill((enum symbol_kind)kind, e, (size_t)rows * cols, &rng);
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            sm[i] = (uint8_t)random_u64(&rng);
        efs_merge(EFS_FORMAT_BF16, e, sm, (size_t)rows * cols, numbers);
        for (uint32_t r = 0; r < rows; r++)
            right[r] = product_by_the_text(false, numbers + (size_t)r * cols, x, cols);
        struct matrix *m = matrix_new(FORM_CASCADE, numbers, rows, cols, EFS_BLOCK * 2);
        for (size_t p = 0; p < PATH_COUNT; p++) {
            if (!efs_cpu_force(path_names[p]))
                continue;
            assert_int_equal(multiply_split(m, input, 1, 1, y), 0);
            check_same(y, right, rows);
        }
        matrix_free(m);
    }
    free(input);
    free(e);
    free(sm);
    free(numbers);
}

/* Splits as for 1 to 9 threads that share the rows. */
TEST(every_split)
{
    static const uint32_t shapes[][2] = {{97, 320}, {64, 2880}, {53, 1001}, {3, 8192}, {5, 20480}, {400, 3}};
    uint64_t rng = 35;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (uint32_t tokens = 1; tokens <= 3; tokens += 2) {
            for (unsigned splits = 1; splits <= 9; splits++) {
                struct product_case c = {shapes[i][0],  shapes[i][1],    tokens,
                                         EFS_BLOCK * 6, NUMBERS_WEIGHTS, NUMBERS_WEIGHTS};
                check_case(&c, splits, &rng);
            }
        }
    }
}

/* BF16 inputs give the same products as their F32 values; strides are honoured. */
TEST(inputs)
{
    enum { COLS = 203, TOKENS = 3, STRIDE = 211 };
    uint16_t narrow[TOKENS * STRIDE];
    float wide[TOKENS * COLS];
    uint64_t rng = 36;

    for (size_t i = 0; i < TOKENS * STRIDE; i++)
        narrow[i] = bf16_of(NUMBERS_BITS, &rng);
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t c = 0; c < COLS; c++)
            wide[t * COLS + c] = widened(narrow[t * STRIDE + c]);
    void *a = input_new(EFS_INPUT_BF16, narrow, STRIDE, COLS, TOKENS);
    void *b = input_new(EFS_INPUT_F32, wide, COLS, COLS, TOKENS);
    uint16_t numbers[5 * COLS];
    float ya[5 * TOKENS], yb[5 * TOKENS];
    for (size_t i = 0; i < 5 * COLS; i++)
        numbers[i] = bf16_of(NUMBERS_WEIGHTS, &rng);
    struct matrix *m = matrix_new(FORM_PLAIN, numbers, 5, COLS, EFS_BLOCK);
    assert_int_equal(multiply_split(m, a, TOKENS, 1, ya), 0);
    assert_int_equal(multiply_split(m, b, TOKENS, 1, yb), 0);
    check_same(ya, yb, 5 * TOKENS);
    matrix_free(m);
    free(a);
    free(b);
}

/* All F16 numbers as inputs; F32 numbers are rounded to the nearest F16, ties to even. */
TEST(f16_inputs)
{
    const uint16_t one = 0x3c00;
    const struct efs_matrix unit = {.rows = 1, .cols = 1, .f16 = true, .plain = &one};
    uint8_t scratch[131072] __attribute__((aligned(64)));
    float y;

    assert_true(efs_matvec_scratch_bytes(1, 1) <= sizeof(scratch));
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t number = (uint16_t)i, next = (uint16_t)(i + 1);
        const float value = widened_f16(number), middle = (float)(((double)value + (double)widened_f16(next)) / 2);
        void *input = input_new(EFS_INPUT_F16, &number, 1, 1, 1);
        assert_int_equal(efs_matvec(&unit, input, 0, 1, &y, 1, scratch), 0);
        assert_true(same_float(y, value) || (y == 0 && value == 0));
        free(input);
        if ((i & 0x7fff) >= 0x7bff) /* the largest number, infinity, NaN */
            continue;
        for (int side = -1; side <= 1; side++) {
            const float x = side == 0 ? middle : nextafterf(middle, side < 0 ? value : widened_f16(next));
            const float right = side < 0 || (side == 0 && i % 2 == 0) ? value : widened_f16(next);
            input = input_new(EFS_INPUT_F32_TO_F16, &x, 1, 1, 1);
            assert_int_equal(efs_matvec(&unit, input, 0, 1, &y, 1, scratch), 0);
            assert_true(y == right);
            free(input);
        }
    }
    static const float edges[][2] = {
        {65504, 65504},         {65519.996f, 65504},      {65520, INFINITY}, {-65520, -INFINITY},
        {1e30f, INFINITY},      {INFINITY, INFINITY},     {NAN, NAN},        {0x1p-25f, 0},
        {0x1.8p-25f, 0x1p-24f}, {-0x1.8p-25f, -0x1p-24f}, {1e-40f, 0}};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        void *input = input_new(EFS_INPUT_F32_TO_F16, &edges[i][0], 1, 1, 1);
        assert_int_equal(efs_matvec(&unit, input, 0, 1, &y, 1, scratch), 0);
        assert_true(same_float(y, edges[i][1]));
        free(input);
    }
}

/* Inputs of the wrong type for the matrix are refused. */
TEST(refused)
{
    const uint16_t one = 0x3c00;
    const float x = 1;
    uint8_t scratch[131072] __attribute__((aligned(64)));
    float y;

    for (int f16 = 0; f16 < 2; f16++)
        for (int type = EFS_INPUT_F32; type <= EFS_INPUT_F32_TO_F16; type++) {
            const struct efs_matrix w = {.rows = 1, .cols = 1, .f16 = f16, .plain = &one};
            void *input = input_new((enum efs_input_type)type, &x, 1, 1, 1);
            int r = efs_matvec(&w, input, 0, 1, &y, 1, scratch);
            assert_int_equal(r, f16 == (type >= EFS_INPUT_F32_BY_F16) ? 0 : -EINVAL);
            free(input);
        }
}

/* The product in F64, and the sum of the magnitudes of its terms, which bounds the error of a sum in F32. */
static double exact(const uint16_t *row, const float *x, uint32_t cols, double *size)
{
    double sum = 0;

    *size = 0;
    for (uint32_t c = 0; c < cols; c++) {
        sum += (double)widened(row[c]) * (double)x[c];
        *size += fabs((double)widened(row[c]) * (double)x[c]);
    }
    return sum;
}

/* Compares every form on every path, tokens alone and together, split and whole: equal bits on one path. */
static void check_dot(uint32_t rows, uint32_t cols, uint32_t tokens, enum number_kind kind, uint64_t *rng)
{
    size_t products = (size_t)rows * tokens;
    uint16_t *numbers = malloc(2 * (size_t)rows * cols);
    float *x = malloc(4 * (size_t)cols * tokens), *y = malloc(4 * products), *first = malloc(4 * products);

    assert_true(numbers && x && y && first);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        numbers[i] = bf16_of(kind, rng);
    for (size_t i = 0; i < (size_t)cols * tokens; i++)
        x[i] = widened(bf16_of(kind, rng)); /* BF16 values, so that no input is rounded */
    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        void *all = input_new(EFS_INPUT_F32_DOT, x, cols, cols, tokens);
        for (int form = 0; form < FORMS; form++) {
            struct matrix *m = matrix_new((enum matrix_form)form, numbers, rows, cols, EFS_BLOCK);
            assert_int_equal(multiply_split(m, all, tokens, 1 + (unsigned)form, y), 0);
            if (form == 0)
                memcpy(first, y, 4 * products);
            check_same(y, first, products);
            for (uint32_t t = 0; t < tokens; t++) {
                void *one = input_new(EFS_INPUT_F32_DOT, x + (size_t)t * cols, cols, cols, 1);
                assert_int_equal(multiply_split(m, one, 1, 2, y), 0);
                check_same(y, first + (size_t)t * rows, rows);
                free(one);
            }
            matrix_free(m);
        }
        free(all);
        for (size_t i = 0; i < products; i++) {
            double size, right = exact(numbers + i % rows * cols, x + i / rows * cols, cols, &size);
            if (right != right || isinf(right))
                assert_true(right != right ? first[i] != first[i] : (double)first[i] == right);
            else /* one rounding for each term; each may also lose a value too small for F32 */
                assert_true(fabs((double)first[i] - right) <= (size * 0x1p-24 + 0x1p-126) * (cols + 8));
        }
    }
    free(numbers);
    free(x);
    free(y);
    free(first);
}

TEST(dot_products)
{
    static const uint32_t cols[] = {1, 2, 31, 32, 33, 64, 65, 127, 320, 1000, 2880, 8192, 8256};
    uint64_t rng = 38;

    for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]); i++) {
        for (uint32_t tokens = 1; tokens <= 7; tokens += 3) {
            uint32_t rows = 20000 / cols[i] + 1 > 50 ? 50 : 20000 / cols[i] + 1;
            check_dot(rows, cols[i], tokens, NUMBERS_WEIGHTS, &rng);
            check_dot(rows, cols[i], tokens, NUMBERS_TINY, &rng);
        }
    }
    check_dot(70, 320, 4, NUMBERS_ZEROS, &rng);
    check_dot(70, 320, 4, NUMBERS_WIDE, &rng);
}

/* ---- ggml's order of sums: ggml_vec_dot_bf16() reimplemented ---- */

static float dot_avx2(const uint16_t *row, const float *x, uint32_t cols)
{
    float sums[32] = {0};
    uint32_t c = 0;

    for (; c + 32 <= cols; c += 32)
        for (unsigned i = 0; i < 32; i++)
            sums[i] = fmaf(widened(row[c + i]), x[c + i], sums[i]);
    for (unsigned half = 16; half > 0; half /= 2)
        for (unsigned i = 0; i < half; i++)
            sums[i] += sums[i + half];
    double total = 0.0 + (double)sums[0];
    for (; c < cols; c++)
        total += (double)(widened(row[c]) * x[c]);
    return (float)total;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bf16"))) static float dot_avx512bf16(const uint16_t *row, const float *x,
                                                                          uint32_t cols)
{
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    float parts[2][16];
    uint16_t half[64];
    uint32_t c = 0;

    for (; c + 64 <= cols; c += 64) {
        for (unsigned i = 0; i < 64; i++) {
            uint32_t bits;
            memcpy(&bits, &x[c + i], 4);
            half[i] = (uint16_t)(bits >> 16);
        }
        for (unsigned i = 0; i < 2; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_loadu_si512(row + c + 32 * i),
                                       (__m512bh)_mm512_loadu_si512(half + 32 * i));
    }
    double total = 0;
    for (unsigned i = 0; i < 2; i++) {
        _mm512_storeu_ps(parts[i], sums[i]);
        for (unsigned step = 8; step > 0; step /= 2)
            for (unsigned k = 0; k < step; k++)
                parts[i][k] += parts[i][k + step];
        total += (double)parts[i][0];
    }
    for (; c < cols; c++)
        total += (double)(widened(row[c]) * x[c]);
    return (float)total;
}
#endif

/* On each path, from every form, for one token and for several: the same bits as ggml's variant for the path. */
TEST(dot_is_as_ggml)
{
    static const uint32_t cols[] = {1, 31, 32, 33, 63, 64, 65, 95, 96, 127, 128, 320, 1000, 1440, 1472, 1536, 2880};
    enum { ROWS = 21, COLS = 2880, TOKENS = 5 };
    static uint16_t numbers[ROWS * COLS];
    static float x[TOKENS * COLS], y[TOKENS * ROWS];
    uint64_t rng = 39;

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]) || efs_matvec_order() == NULL)
            continue;
        float (*reference)(const uint16_t *, const float *, uint32_t) = dot_avx2;
#if defined(__x86_64__)
        if (strcmp(efs_matvec_order(), "avx512bf16") == 0)
            reference = dot_avx512bf16;
#endif
        for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]) * 2; i++) {
            const uint32_t n = cols[i / 2], tokens = i % 2 ? TOKENS : 1;
            for (size_t k = 0; k < ROWS * (size_t)n; k++)
                numbers[k] = bf16_of(i % 3 ? NUMBERS_WEIGHTS : NUMBERS_WIDE, &rng);
            for (size_t k = 0; k < tokens * (size_t)n; k++)
                x[k] = widened(bf16_of(NUMBERS_WEIGHTS, &rng));
            void *input = input_new(EFS_INPUT_F32_DOT, x, n, n, tokens);
            for (int form = 0; form < FORMS; form++) {
                struct matrix *m = matrix_new((enum matrix_form)form, numbers, ROWS, n, EFS_BLOCK);
                assert_int_equal(multiply_split(m, input, tokens, 2, y), 0);
                for (size_t k = 0; k < tokens * ROWS; k++)
                    assert_true(same_float(y[k], reference(numbers + k % ROWS * n, x + k / ROWS * n, n)));
                matrix_free(m);
            }
            free(input);
        }
    }
    assert_true(efs_cpu_force("auto"));
}

/* NaN and infinities propagate through the dot product; inputs are rounded to the nearest BF16, ties to even. */
TEST(dot_special)
{
    enum { COLS = 128 };
    uint16_t row[COLS];
    float x[COLS], y, ties[2] = {1 + 0x1p-8f, 1 + 0x3p-8f};
    const uint16_t one = 0x3f80;
    const struct efs_matrix w = {.rows = 1, .cols = COLS, .plain = row}, unit = {.rows = 1, .cols = 1, .plain = &one};
    uint8_t scratch[65536] __attribute__((aligned(64)));

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        for (unsigned at = 0; at < COLS; at++) {
            for (unsigned what = 0; what < 3; what++) {
                for (unsigned c = 0; c < COLS; c++) {
                    row[c] = one;
                    x[c] = 1;
                }
                row[at] = what == 0 ? 0x7fc0 : what == 1 ? 0xff80 : one;
                x[at] = what == 2 ? NAN : 1;
                void *input = input_new(EFS_INPUT_F32_DOT, x, COLS, COLS, 1);
                assert_int_equal(efs_matvec(&w, input, 0, 1, &y, 1, scratch), 0);
                assert_true(what == 1 ? isinf(y) && y < 0 : y != y);
                free(input);
            }
        }
        for (unsigned i = 0; i < 2; i++) {
            void *input = input_new(EFS_INPUT_F32_DOT, &ties[i], 1, 1, 1);
            assert_int_equal(efs_matvec(&unit, input, 0, 1, &y, 1, scratch), 0);
            assert_true(y == (i == 0 ? 1.0f : 1 + 0x1p-6f));
            free(input);
        }
    }
}

static double silu(double v)
{
    return v / (1 + exp(-v));
}

/* silu(gate x) * up x: equal bits on every path and from every form; silu itself within 1e-6 of its value. */
TEST(swiglu)
{
    enum { ROWS = 41, COLS = 640, TOKENS = 3 };
    static uint16_t gate[ROWS * COLS], up[ROWS * COLS];
    static float x[TOKENS * COLS], g[TOKENS * ROWS], u[TOKENS * ROWS], h[TOKENS * ROWS], first[TOKENS * ROWS];
    uint64_t rng = 37;

    for (size_t i = 0; i < ROWS * COLS; i++) {
        gate[i] = bf16_of(NUMBERS_WEIGHTS, &rng);
        up[i] = bf16_of(NUMBERS_WEIGHTS, &rng);
    }
    for (size_t i = 0; i < TOKENS * COLS; i++)
        x[i] = f32_of(NUMBERS_WEIGHTS, &rng) * (float)(1 << random_below(&rng, 8));
    for (uint32_t tokens = 1; tokens <= TOKENS; tokens += TOKENS - 1) {
        void *input = input_new(EFS_INPUT_F32, x, COLS, COLS, tokens);
        size_t bytes = efs_matvec_scratch_bytes(COLS, tokens);
        void *scratch = aligned_alloc(EFS_MATVEC_ALIGN, bytes);
        assert_non_null(scratch);
        for (int form = 0; form < FORMS; form++) {
            struct matrix *a = matrix_new((enum matrix_form)form, gate, ROWS, COLS, EFS_BLOCK);
            struct matrix *b = matrix_new((enum matrix_form)form, up, ROWS, COLS, EFS_BLOCK);
            for (size_t p = 0; p < PATH_COUNT; p++) {
                if (!efs_cpu_force(path_names[p]))
                    continue;
                assert_int_equal(efs_matvec(&a->w, input, 0, ROWS, g, ROWS, scratch), 0);
                assert_int_equal(efs_matvec(&b->w, input, 0, ROWS, u, ROWS, scratch), 0);
                for (uint32_t r = 0; r < ROWS; r += 9)
                    assert_int_equal(
                        efs_matvec_swiglu(&a->w, &b->w, input, r, r + 9 < ROWS ? r + 9 : ROWS, h, ROWS, scratch), 0);
                if (form == 0 && p == 0)
                    memcpy(first, h, sizeof(first));
                check_same(h, first, tokens * ROWS);
                for (size_t i = 0; i < tokens * ROWS; i++) {
                    double right = silu(g[i]) * (double)u[i];
                    assert_true(fabs((double)h[i] - right) <= 1e-6 * fabs(right) + 1e-36);
                }
            }
            matrix_free(a);
            matrix_free(b);
        }
        free(input);
        free(scratch);
    }
}

/* silu over its whole range, with matrices of one element and up = 1. */
TEST(silu_everywhere)
{
    static const float at[] = {-INFINITY, -1e15f, -1000, -89, -88.5f, -88,   -87, -20, -1,    -1e-3f,   -1e-30f, -0.0f,
                               0,         1e-30f, 0.5f,  1,   20,     87.5f, 88,  89,  1e15f, INFINITY, NAN};
    const uint16_t one = 0x3f80;
    const struct efs_matrix w = {.rows = 1, .cols = 1, .plain = &one};
    uint8_t scratch[131072] __attribute__((aligned(64)));

    assert_true(efs_matvec_scratch_bytes(1, 1) <= sizeof(scratch));
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        void *input = input_new(EFS_INPUT_F32, &at[i], 1, 1, 1);
        float h = 7;
        double right = silu((double)at[i]) * (double)at[i];
        assert_int_equal(efs_matvec_swiglu(&w, &w, input, 0, 1, &h, 1, scratch), 0);
        if (right != right)
            assert_true(h != h);
        else
            assert_true((double)h == right || fabs((double)h - right) <= 1e-6 * fabs(right) + 1e-30);
        free(input);
    }
}

TEST_MAIN(NULL, NULL)
