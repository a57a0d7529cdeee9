/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_many.h - products of rows, plain or split, with several tokens; included by a matvec_*.c after matvec_simd.h.
 * Private.
 *
 * The sums of EFS_MANY_ROWS rows and EFS_MANY_TOKENS tokens fit into the registers. Columns are processed in stretches,
 * so that the tokens' part of the input stays in the L1 cache while EFS_ROWS_AT_ONCE rows use it.
 */
#ifndef EFS_KERNELS_MATVEC_MANY_H
#define EFS_KERNELS_MATVEC_MANY_H

#include "matvec_simd.h"

#define EFS_STRETCH 1472u    /* columns: 23 KiB of input for 4 tokens; long enough for the hardware prefetcher */
#define EFS_ROWS_AT_ONCE 12u /* rows per stretch */

/* The sums stay in registers only if all loops over them are unrolled. */
#define EFS_UNROLL _Pragma("GCC unroll 8")

/* The operands of a stretch. */
struct efs_stretch {
    const uint8_t *w;                 /* BF16; split: rotated exponents */
    const uint8_t *sm[EFS_MANY_ROWS]; /* split */
    const efs_x *x;
    size_t row_bytes, x_stride, cols; /* row_bytes: of w, from row to row */
};

/* A part's BF16 numbers: of row r of rows, from column c on. Prefetches the same columns of the next rows, which the
 * hardware prefetcher does not predict. */
EFS_INLINE void many_words(const struct efs_stretch *s, size_t c, unsigned r, const unsigned rows, const bool halves,
                           const bool prefetch, efs_vector words[2])
{
    const uint8_t *at = s->w + r * s->row_bytes + (halves ? c : 2 * c);

    if (halves) {
        efs_vector bytes[2];
        efs_rotated_join(efs_load(at), efs_load(s->sm[r] + c), bytes);
        efs_unpack_lanes(bytes, words);
        if (prefetch)
            __builtin_prefetch(s->sm[r] + c + rows * s->row_bytes, 0, 2);
    } else {
        efs_plain_words(at, words);
        if (prefetch) {
            __builtin_prefetch(at + rows * s->row_bytes, 0, 2);
            __builtin_prefetch(at + rows * s->row_bytes + EFS_LANES, 0, 2);
        }
    }
}

/* One group of rows rows times tokens tokens. */
EFS_INLINE void many_group(const struct efs_stretch *s, size_t c, const unsigned rows, const unsigned tokens,
                           const bool halves, const bool prefetch, struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    EFS_UNROLL
    for (unsigned p = 0; p < EFS_PARTS; p++) {
        efs_vector words[EFS_MANY_ROWS][2];
        EFS_UNROLL
        for (unsigned r = 0; r < rows; r++)
            many_words(s, c + p * EFS_LANES, r, rows, halves, prefetch, words[r]);
        EFS_UNROLL
        for (unsigned k = 0; k < EFS_STEPS; k++) {
            efs_number numbers[EFS_MANY_ROWS];
            EFS_UNROLL
            for (unsigned r = 0; r < rows; r++)
                numbers[r] = efs_number_of(words[r], k);
            EFS_UNROLL
            for (unsigned t = 0; t < tokens; t++) {
                efs_xs x = efs_load_xs(efs_part_x(s->x + t * s->x_stride + c, p, k));
                EFS_IN_REGISTER(x);
                EFS_UNROLL
                for (unsigned r = 0; r < rows; r++) {
                    efs_floats *sum = &sums[r][t].of[efs_sum_of(p, k)];
                    *sum = efs_multiply_add(numbers[r], x, *sum);
                }
            }
        }
    }
}

/* The stretch's whole groups. */
EFS_INLINE void many_groups(const struct efs_stretch *s, const unsigned rows, const unsigned tokens, const bool halves,
                            const bool prefetch, struct efs_sums to[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    const size_t end = s->cols / EFS_GROUP * EFS_GROUP;
    struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS];

    EFS_UNROLL

    for (unsigned r = 0; r < rows; r++) {
        EFS_UNROLL
        for (unsigned t = 0; t < tokens; t++)
            sums[r][t] = to[r][t];
    }
    for (size_t c = 0; c < end; c += EFS_GROUP)
        many_group(s, c, rows, tokens, halves, prefetch, sums);
    EFS_UNROLL
    for (unsigned r = 0; r < rows; r++) {
        EFS_UNROLL
        for (unsigned t = 0; t < tokens; t++)
            to[r][t] = sums[r][t];
    }
}

/* One copy of the code for each number of rows and of tokens. Inlined into many_rows(): as a separate function it took
 * a sixth longer (measured on Zen 4, gcc 12). */
EFS_INLINE void many_stretch(const struct efs_stretch *s, unsigned rows, unsigned tokens, const bool halves,
                             const bool prefetch, struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
#define MANY_GROUPS(r, t)                                                                                              \
    if (rows == (r) && tokens == (t))                                                                                  \
    many_groups(s, r, t, halves, prefetch, sums)
#if EFS_MANY_TOKENS > 3
#define MANY_TOKENS(r)                                                                                                 \
    MANY_GROUPS(r, 1);                                                                                                 \
    MANY_GROUPS(r, 2);                                                                                                 \
    MANY_GROUPS(r, 3);                                                                                                 \
    MANY_GROUPS(r, 4)
#else
#define MANY_TOKENS(r)                                                                                                 \
    MANY_GROUPS(r, 1);                                                                                                 \
    MANY_GROUPS(r, 2);                                                                                                 \
    MANY_GROUPS(r, 3)
#endif
    MANY_TOKENS(1);
#if EFS_MANY_ROWS > 1
    MANY_TOKENS(2);
    MANY_TOKENS(3);
#endif
#undef MANY_TOKENS
#undef MANY_GROUPS
}

/*
 * Multiplies at most EFS_ROWS_AT_ONCE rows by at most EFS_MANY_TOKENS tokens. halves: w has rotated exponents, and sm
 * points to the SM of each row. prefetch: prefetch the next rows. Only for the first tokens: then these rows are
 * cached, and a prefetch takes as long as a load.
 */
EFS_INLINE void many_rows(const uint8_t *w, const uint8_t *const *sm, unsigned rows, const struct efs_input *input,
                          unsigned token, unsigned tokens, const struct efs_output *out, const bool halves,
                          const bool prefetch)
{
    struct efs_sums sums[EFS_ROWS_AT_ONCE / EFS_MANY_ROWS][EFS_MANY_ROWS][EFS_MANY_TOKENS];
    const size_t cols = input->cols, size = halves ? 1 : 2;

    for (unsigned r = 0; r < rows; r++)
        for (unsigned t = 0; t < tokens; t++)
            efs_sums_clear(&sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t]);
    for (size_t c = 0; c < cols; c += EFS_STRETCH) {
        for (unsigned r = 0; r < rows; r += EFS_MANY_ROWS) {
            const unsigned n = rows - r < EFS_MANY_ROWS ? rows - r : EFS_MANY_ROWS;
            struct efs_stretch stretch = {
                .w = w + size * (r * cols + c),
                .x = (const efs_x *)efs_input_token(input, token) + c,
                .row_bytes = size * cols,
                .x_stride = input->stride / sizeof(efs_x),
                .cols = cols - c < EFS_STRETCH ? cols - c : EFS_STRETCH,
            };
            for (unsigned i = 0; i < n && halves; i++)
                stretch.sm[i] = sm[r + i] + c;
            many_stretch(&stretch, n, tokens, halves, prefetch, sums[r / EFS_MANY_ROWS]);
        }
    }
    const size_t rest = cols % EFS_GROUP, whole = cols - rest;
    for (unsigned r = 0; r < rows; r++)
        for (unsigned t = 0; t < tokens; t++) {
            const efs_x *x = (const efs_x *)efs_input_token(input, token + t) + whole;
            struct efs_sums *row = &sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t];
            efs_put_product(out, r, token + t, efs_row_total(row, w + size * (r * cols + whole), rest, x));
        }
}

/* Multiplies rows, plain or in halves, by all tokens. Three tokens at a time need the fewest loads for the registers
 * that there are. */
EFS_INLINE void many_all(const uint8_t *w, const uint8_t *const *sm, size_t rows, const struct efs_input *input,
                         const struct efs_output *out, const bool halves)
{
    const size_t row_bytes = halves ? input->cols : 2 * (size_t)input->cols;
    struct efs_output to = *out;

    while (rows > 0) {
        unsigned n = rows < EFS_ROWS_AT_ONCE ? (unsigned)rows : EFS_ROWS_AT_ONCE;
        for (unsigned t = 0, tokens; t < input->tokens; t += tokens) {
            const unsigned left = input->tokens - t;
            tokens = left <= EFS_MANY_TOKENS ? left : 3;
            if (t == 0)
                many_rows(w, sm, n, input, t, tokens, &to, halves, true);
            else
                many_rows(w, sm, n, input, t, tokens, &to, halves, false);
        }
        w += n * row_bytes;
        sm = halves ? sm + n : NULL;
        to.y += n;
        rows -= n;
    }
}

static void simd_many(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out)
{
    many_all(w, NULL, rows, input, out, false);
}

#endif
