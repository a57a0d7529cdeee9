/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_scalar.c - products in plain C: the reference, and the path of processors without vectors.
 */
#include "matvec_ops.h"

#include <string.h>

/*
 * a * b + sum, rounded once, where a has the 8 significant bits of BF16 or the 11 of F16. The product is exact as a
 * double. Their sum is made odd when it is not exact, and then rounds to the same float as the exact one would (Boldo
 * and Melquiond 2008).
 */
static float multiply_add(float a, float b, float sum)
{
    double product = (double)a * (double)b, addend = (double)sum;
    double total = product + addend;
    double part = total - product;
    double lost = (product - (total - part)) + (addend - part);
    uint64_t bits;

    memcpy(&bits, &total, sizeof(bits));
    if (lost != 0 && lost == lost && (bits & 1) == 0) { /* lost is a NaN when the total is infinite */
        bits += (lost > 0) == (total > 0) ? 1 : UINT64_MAX;
        memcpy(&total, &bits, sizeof(total));
    }
    return (float)total;
}

/* n columns, at most a group; absent ones are zeros. */
static void add_group(float *sums, const uint8_t *w, size_t n, const float *x, bool f16)
{
    for (unsigned c = 0; c < EFS_GROUP; c++) {
        unsigned at = f16 ? c : efs_float_place(c);
        float number = c >= n ? 0 : f16 ? efs_f16_widened(w + 2 * c) : efs_widened(w + 2 * c);
        sums[at % EFS_SUMS] = multiply_add(number, x[at], sums[at % EFS_SUMS]);
    }
}

static float scalar_total(const float *sums)
{
    float all[EFS_SUMS];

    memcpy(all, sums, sizeof(all));
    for (unsigned half = EFS_SUMS / 2; half > 0; half /= 2)
        for (unsigned i = 0; i < half; i++)
            all[i] += all[i + half];
    return all[0];
}

static void add_rows(const uint8_t *w, size_t count, struct efs_dot *dot, bool f16)
{
    while (count > 0) {
        size_t left = dot->cols - dot->col < count ? dot->cols - dot->col : count;
        size_t n = left < EFS_GROUP ? left : EFS_GROUP;
        add_group(dot->sums, w, n, (const float *)dot->x + dot->col, f16);
        w += 2 * n;
        count -= n;
        dot->col += (uint32_t)n;
        if (dot->col == dot->cols) {
            efs_dot_next(dot, scalar_total(dot->sums));
            memset(dot->sums, 0, sizeof(dot->sums));
            dot->col = 0;
        }
    }
}

static void multiply_rows(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out,
                          bool f16)
{
    for (unsigned t = 0; t < input->tokens; t++) {
        struct efs_dot dot = {.x = efs_input_token(input, t), .cols = input->cols, .out = *out};
        dot.out.y += t * out->stride;
        add_rows(w, rows * input->cols, &dot, f16);
    }
}

static void scalar_plain(const uint8_t *w, size_t count, struct efs_dot *dot)
{
    add_rows(w, count, dot, false);
}

static void scalar_many(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out)
{
    multiply_rows(w, rows, input, out, false);
}

static void scalar_f16_plain(const uint8_t *w, size_t count, struct efs_dot *dot)
{
    add_rows(w, count, dot, true);
}

static void scalar_f16_many(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out)
{
    multiply_rows(w, rows, input, out, true);
}

static const struct efs_matvec_ops scalar_f16 = {.plain = scalar_f16_plain, .many = scalar_f16_many};

/* Coded blocks are decoded by the walk, see matvec_walk.c. */
const struct efs_matvec_ops efs_matvec_scalar = {.plain = scalar_plain, .many = scalar_many, .f16 = &scalar_f16};
