/*
 * matvec_many.h - products of rows with several tokens; included by a matvec_*.c after matvec_simd.h. Private.
 *
 * EFS_MANY_ROWS rows and EFS_MANY_TOKENS tokens are what the registers hold the sums of. Columns are taken in
 * stretches, so that these tokens' part of the input stays in the first level of the cache while some rows meet it.
 */
#ifndef EFS_KERNELS_MATVEC_MANY_H
#define EFS_KERNELS_MATVEC_MANY_H

#include "matvec_simd.h"

#define EFS_STRETCH 1024u    /* columns: 16 KiB of input for 4 tokens */
#define EFS_ROWS_AT_ONCE 12u /* rows that meet a stretch */

/* What a stretch of some rows and tokens needs. */
struct efs_stretch {
    const uint8_t *w;
    const efs_x *x;
    size_t row_bytes, x_stride, cols;
};

/* One group of rows rows times tokens tokens. The rows that come next are asked for: no processor foresees them. */
EFS_INLINE void many_group(const struct efs_stretch *s, size_t c, const unsigned rows, const unsigned tokens,
                           struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    for (unsigned p = 0; p < EFS_PARTS; p++) {
        efs_vector words[EFS_MANY_ROWS][2];
        for (unsigned r = 0; r < rows; r++) {
            const uint8_t *at = s->w + r * s->row_bytes + 2 * (c + p * EFS_LANES);
            efs_plain_words(at, words[r]);
            __builtin_prefetch(at + rows * s->row_bytes, 0, 2);
            __builtin_prefetch(at + rows * s->row_bytes + EFS_LANES, 0, 2);
        }
        for (unsigned k = 0; k < EFS_STEPS; k++) {
            efs_number numbers[EFS_MANY_ROWS];
            for (unsigned r = 0; r < rows; r++)
                numbers[r] = efs_number_of(words[r], k);
            for (unsigned t = 0; t < tokens; t++) {
                efs_xs x = efs_load_xs(efs_part_x(s->x + t * s->x_stride + c, p, k));
                EFS_IN_REGISTER(x);
                for (unsigned r = 0; r < rows; r++) {
                    efs_floats *sum = k % 2 == 0 ? &sums[r][t].even[p] : &sums[r][t].odd[p];
                    *sum = efs_multiply_add(numbers[r], x, *sum);
                }
            }
        }
    }
}

/* The stretch's whole groups. */
EFS_INLINE void many_groups(const struct efs_stretch *s, size_t groups, const unsigned rows, const unsigned tokens,
                            struct efs_sums to[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS];

    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            sums[r][t] = to[r][t];
    }
    for (size_t c = 0; c < groups * EFS_GROUP; c += EFS_GROUP)
        many_group(s, c, rows, tokens, sums);
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            to[r][t] = sums[r][t];
    }
}

/* One copy of the code for each number of rows and of tokens. */
static void many_stretch(const struct efs_stretch *s, unsigned rows, unsigned tokens,
                         struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    const size_t groups = s->cols / EFS_GROUP, at = groups * EFS_GROUP;

#define MANY_GROUPS(r, t)                                                                                              \
    if (rows == (r) && tokens == (t))                                                                                  \
    many_groups(s, groups, r, t, sums)
    MANY_GROUPS(1, 1);
    MANY_GROUPS(1, 2);
    MANY_GROUPS(1, 3);
#if EFS_MANY_TOKENS > 3
    MANY_GROUPS(1, 4);
#endif
#if EFS_MANY_ROWS > 1
    MANY_GROUPS(2, 1);
    MANY_GROUPS(2, 2);
    MANY_GROUPS(2, 3);
    MANY_GROUPS(2, 4);
#endif
#undef MANY_GROUPS
    for (unsigned r = 0; r < rows && at < s->cols; r++) {
        for (unsigned t = 0; t < tokens; t++)
            efs_group_tail(&sums[r][t], s->w + r * s->row_bytes + 2 * at, s->cols - at, s->x + t * s->x_stride + at);
    }
}

/* rows rows, at most EFS_ROWS_AT_ONCE, times tokens tokens, at most EFS_MANY_TOKENS. */
static void many_rows(const uint8_t *w, unsigned rows, const struct efs_input *input, unsigned token, unsigned tokens,
                      const struct efs_output *out)
{
    struct efs_sums sums[EFS_ROWS_AT_ONCE / EFS_MANY_ROWS][EFS_MANY_ROWS][EFS_MANY_TOKENS];
    const size_t cols = input->cols, row_bytes = 2 * cols;

    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            efs_sums_clear(&sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t]);
    }
    for (size_t c = 0; c < cols; c += EFS_STRETCH) {
        for (unsigned r = 0; r < rows; r += EFS_MANY_ROWS) {
            const struct efs_stretch stretch = {
                .w = w + r * row_bytes + 2 * c,
                .x = (const efs_x *)efs_input_token(input, token) + c,
                .row_bytes = row_bytes,
                .x_stride = input->stride / sizeof(efs_x),
                .cols = cols - c < EFS_STRETCH ? cols - c : EFS_STRETCH,
            };
            unsigned n = rows - r < EFS_MANY_ROWS ? rows - r : EFS_MANY_ROWS;
            many_stretch(&stretch, n, tokens, sums[r / EFS_MANY_ROWS]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            efs_put_product(out, r, token + t, efs_sums_total(&sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t]));
    }
}

static void simd_many(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out)
{
    struct efs_output to = *out;

    while (rows > 0) {
        unsigned n = rows < EFS_ROWS_AT_ONCE ? (unsigned)rows : EFS_ROWS_AT_ONCE;
        for (unsigned t = 0; t < input->tokens; t += EFS_MANY_TOKENS) {
            unsigned tokens = input->tokens - t < EFS_MANY_TOKENS ? input->tokens - t : EFS_MANY_TOKENS;
            many_rows(w, n, input, t, tokens, &to);
        }
        w += n * 2 * (size_t)input->cols;
        to.y += n;
        rows -= n;
    }
}

#endif
