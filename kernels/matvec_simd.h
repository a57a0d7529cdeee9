/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_simd.h - products with vectors; included by a matvec_*.c after the efs_* operations that it uses and simd_*.h
 * does not define, with the order of sums (matvec_sum_order.h, or another one). Private.
 *
 * EFS_FLOATS floats make a vector, 2 * EFS_FLOATS words, EFS_LANES = 4 * EFS_FLOATS bytes. A group has EFS_PARTS parts
 * of EFS_LANES columns; a row's partial sums are EFS_SUM_VECTORS vectors.
 */
#ifndef EFS_KERNELS_MATVEC_SIMD_H
#define EFS_KERNELS_MATVEC_SIMD_H

#include "matvec_ops.h"

struct efs_sums {
    efs_floats of[EFS_SUM_VECTORS];
};

EFS_INLINE void efs_sums_load(struct efs_sums *sums, const float *from)
{
    for (unsigned v = 0; v < EFS_SUM_VECTORS; v++)
        sums->of[v] = efs_load_floats(from + v * EFS_FLOATS);
}

EFS_INLINE void efs_sums_store(const struct efs_sums *sums, float *to)
{
    for (unsigned v = 0; v < EFS_SUM_VECTORS; v++)
        efs_store_floats(to + v * EFS_FLOATS, sums->of[v]);
}

EFS_INLINE void efs_sums_clear(struct efs_sums *sums)
{
    for (unsigned v = 0; v < EFS_SUM_VECTORS; v++)
        sums->of[v] = efs_zero_floats();
}

/* Part p of a group: words are its BF16 numbers, first those of even eights, then those of odd ones. */
EFS_INLINE void efs_sums_add(struct efs_sums *sums, unsigned p, const efs_vector words[2], const efs_x *x)
{
    for (unsigned k = 0; k < EFS_STEPS; k++) {
        efs_floats *sum = &sums->of[efs_sum_of(p, k)];
        *sum = efs_multiply_add(efs_number_of(words, k), efs_load_xs(efs_part_x(x, p, k)), *sum);
    }
}

EFS_INLINE void efs_group_plain(struct efs_sums *sums, const uint8_t *w, const efs_x *x)
{
    for (unsigned p = 0; p < EFS_PARTS; p++) {
        efs_vector words[2];
        efs_plain_words(w + 2 * EFS_LANES * p, words);
        efs_sums_add(sums, p, words, x);
    }
}

/* A row's product: from its sums, and its last n < EFS_GROUP columns, which do not fill a group. */
EFS_INLINE float efs_row_total(struct efs_sums *sums, const uint8_t *w, size_t n, const efs_x *x)
{
#if EFS_SUMS_REST
    double total;

    for (unsigned p = 0; p < n / EFS_SUMS_STEP; p++) {
        efs_vector words[2];
        efs_plain_words(w + 2 * EFS_LANES * p, words);
        efs_sums_add(sums, p, words, x);
    }
    total = efs_sums_total(sums->of);
    for (size_t c = n / EFS_SUMS_STEP * EFS_SUMS_STEP; c < n; c++)
        total += (double)(efs_widened(w + 2 * c) * efs_x_at(x, (unsigned)c));
    return (float)total;
#else
    uint8_t whole[2 * EFS_GROUP] = {0};

    if (n > 0) { /* the absent columns are zeros */
        memcpy(whole, w, 2 * n);
        efs_group_plain(sums, whole, x);
    }
    return efs_sums_total(sums->of);
#endif
}

/* No prefetch: the hardware prefetcher follows a plain stream, and software prefetches slow it down (to 0.65 of the
 * speed, measured on Zen 4). */
static void simd_plain(const uint8_t *w, size_t count, struct efs_dot *dot)
{
    struct efs_sums sums;
    size_t col = dot->col;

    efs_sums_load(&sums, dot->sums);
    while (count > 0) {
        const efs_x *x = (const efs_x *)dot->x + col;
        size_t n = dot->cols - col < count ? dot->cols - col : count;
        count -= n;
        col += n;
        for (; n >= EFS_GROUP; n -= EFS_GROUP, w += 2 * EFS_GROUP, x += EFS_GROUP)
            efs_group_plain(&sums, w, x);
        if (col == dot->cols) {
            efs_dot_next(dot, efs_row_total(&sums, w, n, x));
            w += 2 * n;
            efs_sums_clear(&sums);
            col = 0;
        }
    }
    efs_sums_store(&sums, dot->sums);
    dot->col = (uint32_t)col;
}

#endif
