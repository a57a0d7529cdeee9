/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_matvec_f16.c - products of F16 matrices: what matvec.h says, to the bit, from every form, on every path, for
 * every split of the rows and every number of tokens; inputs that are F16 or rounded to it; inputs of the other kind
 * are refused.
 */
#include "test.h"
#include "matvec_cases.h"

static float by_the_text(const uint16_t *row, const float *x, uint32_t cols)
{
    float sums[32] = {0};

    for (uint32_t c = 0; c < (cols + 63) / 64 * 64; c++)
        sums[c % 32] = c < cols ? fmaf(widened_f16(row[c]), x[c], sums[c % 32]) : fmaf(0, 0, sums[c % 32]);
    for (unsigned half = 16; half > 0; half /= 2)
        for (unsigned s = 0; s < half; s++)
            sums[s] += sums[s + half];
    return sums[0];
}

static void check_f16(uint32_t rows, uint32_t cols, uint32_t tokens, enum number_kind kind, unsigned splits,
                      uint64_t *rng)
{
    size_t n = (size_t)rows * cols, products = (size_t)rows * tokens;
    uint16_t *numbers = malloc(2 * n);
    float *x = malloc(4 * (size_t)cols * tokens), *y = malloc(4 * products), *right = malloc(4 * products);

    assert_true(numbers && x && y && right);
    for (size_t i = 0; i < n; i++)
        numbers[i] = f16_of(kind, rng);
    for (size_t i = 0; i < (size_t)cols * tokens; i++)
        x[i] = f32_of(kind, rng);
    for (size_t i = 0; i < products; i++)
        right[i] = by_the_text(numbers + i % rows * cols, x + i / rows * cols, cols);
    void *input = input_new(EFS_INPUT_F32_BY_F16, x, cols, cols, tokens);
    for (int form = 0; form < FORMS; form++) {
        struct matrix *m = matrix_of((enum matrix_form)form, true, numbers, rows, cols, EFS_BLOCK * 2);
        for (size_t p = 0; p < PATH_COUNT; p++) {
            if (!efs_cpu_force(path_names[p]))
                continue;
            assert_int_equal(multiply_split(m, input, tokens, splits, y), 0);
            for (size_t i = 0; i < products; i++)
                assert_true(same_float(y[i], right[i]));
        }
        matrix_free(m);
    }
    free(input);
    free(numbers);
    free(x);
    free(y);
    free(right);
}

TEST(every_shape)
{
    static const uint32_t cols[] = {1,   2,   7,   31,  32,  33,   63,   64,   65,   95,   127,   128,
                                    129, 191, 320, 511, 512, 1000, 2880, 4097, 8191, 8192, 10001, 16384};
    uint64_t rng = 51;

    for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]); i++) {
        uint32_t rows = 30000 / cols[i] + 1 > 300 ? 300 : 30000 / cols[i] + 1;
        for (uint32_t tokens = 1; tokens <= 6; tokens++)
            check_f16(rows, cols[i], tokens, NUMBERS_WEIGHTS, tokens, &rng);
    }
    check_f16(13, 960, EFS_TOKENS_MAX, NUMBERS_WEIGHTS, 2, &rng);
}

TEST(every_number)
{
    uint64_t rng = 52;

    for (int kind = 0; kind < NUMBERS_KINDS; kind++)
        for (uint32_t tokens = 1; tokens <= 4; tokens += 3) {
            check_f16(70, 320, tokens, (enum number_kind)kind, 1, &rng);
            check_f16(41, 1001, tokens, (enum number_kind)kind, 3, &rng);
        }
}

/* All F16 numbers as inputs; F32 numbers are rounded to the nearest of them, ties to even. */
TEST(inputs)
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
        if ((i & 0x7fff) >= 0x7bff) /* the largest, infinity, NaN */
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

TEST_MAIN(NULL, NULL)
