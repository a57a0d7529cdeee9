/*
 * matvec_many.h - products of rows, plain or in halves, with several tokens; included by a matvec_*.c after
 * matvec_simd.h. Private.
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
    const uint8_t *w;                 /* BF16; in halves: turned exponents */
    const uint8_t *sm[EFS_MANY_ROWS]; /* in halves */
    const efs_x *x;
    size_t row_bytes, x_stride, cols; /* row_bytes: of w, from row to row */
    bool halves;
    bool ask; /* the rows that come next are not in the cache yet */
};

/* A part's BF16 numbers: of row r of rows, from column c on. The rows that come next are asked for: no processor
 * foresees them. */
EFS_INLINE void many_words(const struct efs_stretch *s, size_t c, unsigned r, const unsigned rows, const bool halves,
                           const bool ask, efs_vector words[2])
{
    const uint8_t *at = s->w + r * s->row_bytes + (halves ? c : 2 * c);

    if (halves) {
        efs_vector bytes[2];
        efs_turned_join(efs_load(at), efs_load(s->sm[r] + c), bytes);
        efs_unpack_lanes(bytes, words);
        if (ask)
            __builtin_prefetch(s->sm[r] + c + rows * s->row_bytes, 0, 2);
    } else {
        efs_plain_words(at, words);
        if (ask) {
            __builtin_prefetch(at + rows * s->row_bytes, 0, 2);
            __builtin_prefetch(at + rows * s->row_bytes + EFS_LANES, 0, 2);
        }
    }
}

/* One group of rows rows times tokens tokens. */
EFS_INLINE void many_group(const struct efs_stretch *s, size_t c, const unsigned rows, const unsigned tokens,
                           const bool halves, const bool ask, struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    for (unsigned p = 0; p < EFS_PARTS; p++) {
        efs_vector words[EFS_MANY_ROWS][2];
        for (unsigned r = 0; r < rows; r++)
            many_words(s, c + p * EFS_LANES, r, rows, halves, ask, words[r]);
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
EFS_INLINE void many_groups(const struct efs_stretch *s, const unsigned rows, const unsigned tokens, const bool halves,
                            const bool ask, struct efs_sums to[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    const size_t end = s->cols / EFS_GROUP * EFS_GROUP;
    struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS];

    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            sums[r][t] = to[r][t];
    }
    for (size_t c = 0; c < end; c += EFS_GROUP)
        many_group(s, c, rows, tokens, halves, ask, sums);
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            to[r][t] = sums[r][t];
    }
}

/* One copy of the code for each number of rows and of tokens, and for what the stretch is. */
static void many_stretch(const struct efs_stretch *s, unsigned rows, unsigned tokens,
                         struct efs_sums sums[EFS_MANY_ROWS][EFS_MANY_TOKENS])
{
    const size_t at = s->cols / EFS_GROUP * EFS_GROUP;

#define MANY_GROUPS(r, t)                                                                                              \
    if (rows == (r) && tokens == (t) && !s->halves && !s->ask)                                                         \
        many_groups(s, r, t, false, false, sums);                                                                      \
    if (rows == (r) && tokens == (t) && !s->halves && s->ask)                                                          \
        many_groups(s, r, t, false, true, sums);                                                                       \
    if (rows == (r) && tokens == (t) && s->halves && !s->ask)                                                          \
        many_groups(s, r, t, true, false, sums);                                                                       \
    if (rows == (r) && tokens == (t) && s->halves && s->ask)                                                           \
    many_groups(s, r, t, true, true, sums)
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

/*
 * rows rows, at most EFS_ROWS_AT_ONCE, times tokens tokens, at most EFS_MANY_TOKENS. sm: NULL, or that of each row, and
 * w is turned exponents. Only the first tokens ask for the rows that come next: that takes as long as a load.
 */
static void many_rows(const uint8_t *w, const uint8_t *const *sm, unsigned rows, const struct efs_input *input,
                      unsigned token, unsigned tokens, const struct efs_output *out)
{
    struct efs_sums sums[EFS_ROWS_AT_ONCE / EFS_MANY_ROWS][EFS_MANY_ROWS][EFS_MANY_TOKENS];
    const size_t cols = input->cols, size = sm == NULL ? 2 : 1;

    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            efs_sums_clear(&sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t]);
    }
    for (size_t c = 0; c < cols; c += EFS_STRETCH) {
        for (unsigned r = 0; r < rows; r += EFS_MANY_ROWS) {
            const unsigned n = rows - r < EFS_MANY_ROWS ? rows - r : EFS_MANY_ROWS;
            struct efs_stretch stretch = {
                .w = w + size * (r * cols + c),
                .x = (const efs_x *)efs_input_token(input, token) + c,
                .row_bytes = size * cols,
                .x_stride = input->stride / sizeof(efs_x),
                .cols = cols - c < EFS_STRETCH ? cols - c : EFS_STRETCH,
                .halves = sm != NULL,
                .ask = token == 0,
            };
            for (unsigned i = 0; i < n && sm != NULL; i++)
                stretch.sm[i] = sm[r + i] + c;
            many_stretch(&stretch, n, tokens, sums[r / EFS_MANY_ROWS]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned t = 0; t < tokens; t++)
            efs_put_product(out, r, token + t, efs_sums_total(&sums[r / EFS_MANY_ROWS][r % EFS_MANY_ROWS][t]));
    }
}

/* Rows, plain (sm is NULL) or in halves, times all tokens. */
EFS_INLINE void many_all(const uint8_t *w, const uint8_t *const *sm, size_t rows, const struct efs_input *input,
                         const struct efs_output *out)
{
    const size_t row_bytes = sm == NULL ? 2 * (size_t)input->cols : input->cols;
    struct efs_output to = *out;

    while (rows > 0) {
        unsigned n = rows < EFS_ROWS_AT_ONCE ? (unsigned)rows : EFS_ROWS_AT_ONCE;
        for (unsigned t = 0; t < input->tokens; t += EFS_MANY_TOKENS) {
            unsigned tokens = input->tokens - t < EFS_MANY_TOKENS ? input->tokens - t : EFS_MANY_TOKENS;
            many_rows(w, sm, n, input, t, tokens, &to);
        }
        w += n * row_bytes;
        sm = sm == NULL ? NULL : sm + n;
        to.y += n;
        rows -= n;
    }
}

static void simd_many(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out)
{
    many_all(w, NULL, rows, input, out);
}

static void simd_halves(const uint8_t *e, const uint8_t *const *sm, size_t rows, const struct efs_input *input,
                        const struct efs_output *out)
{
    many_all(e, sm, rows, input, out);
}

/* ---- exponents -----------------------------------------------------------------------------------------------------
 */

/* Those of a plane. */
EFS_INLINE void exponents_plane(struct efs_stream *stream, const unsigned plane, uint8_t *to)
{
    const struct efs_tables tables = stream->tables;
    const uint8_t *planes = stream->planes, *used = stream->used, *ahead = stream->ahead;
    const size_t ahead_step = stream->ahead_step;

    for (size_t i = 0; i < EFS_PLANE; i += EFS_GROUP) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += ahead_step;
        for (size_t k = i; k < i + EFS_GROUP; k += EFS_LANES)
            efs_store(to + k, efs_plane_symbols(efs_load(planes + k), plane, &tables, EFS_LANES, &used));
    }
    stream->used = used;
    stream->ahead = ahead;
}

static bool simd_exponents(const struct efs_cascade_block *block, uint8_t *room)
{
    uint8_t a[EFS_SCRATCH], b[EFS_SCRATCH];
    const uint8_t *below = decode_below(block, 1, a, b, true);

    if (below == NULL)
        return false;
    struct efs_stream stream = efs_stream_of(block, below);
    exponents_plane(&stream, 0, room);
    exponents_plane(&stream, 1, room + EFS_PLANE);
    exponents_plane(&stream, 2, room + 2 * EFS_PLANE);
    exponents_plane(&stream, 3, room + 3 * EFS_PLANE);
    return (size_t)(stream.used - below) == block->size[1];
}

#endif
