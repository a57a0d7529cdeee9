/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_simd.h - products with vectors; included by a matvec_*.c after what it defines: the operations named efs_*
 * that are used here and not in simd_*.h, the order of sums among them (matvec_order.h, or its own). Private.
 *
 * EFS_FLOATS floats make a vector, 2 * EFS_FLOATS words, EFS_LANES = 4 * EFS_FLOATS bytes. A group has EFS_PARTS parts
 * of EFS_LANES columns; a row's partial sums are EFS_SUM_VECTORS vectors.
 */
#ifndef EFS_KERNELS_MATVEC_SIMD_H
#define EFS_KERNELS_MATVEC_SIMD_H

#include "matvec_ops.h"
#include "simd_level.h"

struct efs_sums {
    efs_floats of[EFS_SUM_VECTORS];
};

/* What number k of part p of a group is multiplied with. */
EFS_INLINE const efs_x *efs_part_x(const efs_x *x, unsigned p, unsigned k)
{
    return x + k * (EFS_GROUP / EFS_STEPS) + p * EFS_FLOATS;
}

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

/* A row's product: from its sums, and the n < EFS_GROUP columns that are no whole group. */
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

/* No prefetch: processors foresee one plain stream, and asking for it costs (measured on Zen 4: 0.65 of the speed). */
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

/* ---- coded ---------------------------------------------------------------------------------------------------------
 */

#define EFS_PLANE (EFS_BLOCK / 4) /* bytes of the first level's planes */

/* A block's first level, from the plane on whose symbols are next. */
struct efs_stream {
    const uint8_t *planes, *used; /* used: the next symbol from below */
    struct efs_tables tables;
    const uint8_t *ahead; /* code that is read soon, which is asked for bit by bit */
    size_t ahead_step;
};

/* That of a whole block with planes, whose lower symbols are turned. */
EFS_INLINE struct efs_stream efs_stream_of(const struct efs_cascade_block *block)
{
    return (struct efs_stream){
        .planes = block->planes,
        .used = block->below,
        .tables = efs_load_tables(efs_table_word(block->table, true)),
        .ahead = block->ahead,
        .ahead_step = block->ahead_bytes / (EFS_BLOCK / EFS_GROUP) + 1,
    };
}

/* Passes over the symbols [begin, end) of a plane. */
EFS_INLINE void pass_over(struct efs_stream *stream, const unsigned plane, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += EFS_LANES)
        efs_plane_symbols(efs_load(stream->planes + i), plane, &stream->tables, EFS_LANES, &stream->used);
}

/* The symbols of part p of the group that is next. */
EFS_INLINE efs_vector part_symbols(const uint8_t *codes, unsigned p, const unsigned plane,
                                   const struct efs_tables *tables, const uint8_t **used)
{
    return efs_plane_symbols(efs_load(codes + p * EFS_LANES), plane, tables, EFS_LANES, used);
}

/* Part p of a group from its symbols and SM. */
EFS_INLINE void part_add(struct efs_sums *sums, unsigned p, efs_vector e, const uint8_t *sm, const efs_x *x)
{
    efs_vector bytes[2], words[2];

    efs_turned_join(e, efs_load(sm + p * EFS_LANES), bytes);
    efs_unpack_lanes(bytes, words);
    efs_sums_add(sums, p, words, x);
}

/*
 * The symbols [begin, end) of a plane, at least one group, with their SM. Each group asks for SM and code that come
 * later, evenly, into the second level of the cache: to the first, there could not be enough on their way (measured on
 * Zen 4). The symbols of a group are made while the group before it is multiplied: the way from codes to sums is long,
 * and fewer operations wait for each other (up to 5 % faster there, AVX2 up to 8 %; two groups ahead is slower).
 *
 * What is left to gain there is little (cycles on Zen 4, AVX-512). From the first level of the cache a group takes 11
 * to 12.5 with F32, in whatever order: the symbols by themselves 5, and without joining, cutting to floats or
 * multiplying it would be 1 to 2 less each. Lower levels take 2.4 more: of 300 a block, its header 40, the small levels
 * 100, the second level 160; done step by step between the planes of the block before, they cost as much. From the
 * second level all of it takes 15, by the dot product 12, and 1 more from memory, whence one core brings 64 plain
 * columns in 15 to 18.
 */
EFS_INLINE void coded_groups(struct efs_stream *stream, const unsigned plane, const uint8_t *sm, size_t begin,
                             size_t end, const efs_x *x, struct efs_sums *to)
{
    const struct efs_tables tables = stream->tables;
    const uint8_t *planes = stream->planes, *used = stream->used, *ahead = stream->ahead;
    const size_t ahead_step = stream->ahead_step;
    struct efs_sums sums = *to;
    efs_vector next[EFS_PARTS];
    size_t i = begin;

    for (unsigned p = 0; p < EFS_PARTS; p++)
        next[p] = part_symbols(planes + i, p, plane, &tables, &used);
    for (; i + EFS_GROUP < end; i += EFS_GROUP, x += EFS_GROUP) {
        __builtin_prefetch(sm + i + EFS_SM_AHEAD, 0, 2);
        __builtin_prefetch(ahead, 0, 2);
        ahead += ahead_step;
        for (unsigned p = 0; p < EFS_PARTS; p++) {
            efs_vector e = next[p];
            next[p] = part_symbols(planes + i + EFS_GROUP, p, plane, &tables, &used);
            part_add(&sums, p, e, sm + i, x);
        }
    }
    __builtin_prefetch(sm + i + EFS_SM_AHEAD, 0, 2);
    __builtin_prefetch(ahead, 0, 2);
    for (unsigned p = 0; p < EFS_PARTS; p++)
        part_add(&sums, p, next[p], sm + i, x);
    stream->used = used;
    stream->ahead = ahead + ahead_step;
    *to = sums;
}

/* The elements [begin, end) of a block, as far as they are in the plane, wherever rows end. */
EFS_INLINE void coded_plane(struct efs_stream *stream, const unsigned plane, const uint8_t *sm, size_t begin,
                            size_t end, struct efs_dot *dot, struct efs_sums *sums)
{
    const size_t first = plane * EFS_PLANE;
    size_t i = begin < first ? 0 : begin - first < EFS_PLANE ? begin - first : EFS_PLANE;
    size_t stop = end < first ? 0 : end - first < EFS_PLANE ? end - first : EFS_PLANE;

    pass_over(stream, plane, 0, i);
    while (i < stop) {
        size_t left = dot->cols - dot->col, n = left < stop - i ? left : stop - i;
        coded_groups(stream, plane, sm + first, i, i + n, (const efs_x *)dot->x + dot->col, sums);
        i += n;
        dot->col += (uint32_t)n;
        if (dot->col == dot->cols) {
            efs_dot_next(dot, efs_row_total(sums, NULL, 0, NULL));
            efs_sums_clear(sums);
            dot->col = 0;
        }
    }
    pass_over(stream, plane, i, EFS_PLANE);
}

/* Symbols are turned (efs_turned) from the start, so that a BF16 number is made by two selections and no shift. */
static const uint8_t *simd_lower_turned(const struct efs_span *span, uint8_t *room)
{
    return decode_lower(span, room, true);
}

static bool simd_coded(const struct efs_cascade_block *block, const uint8_t *sm, size_t begin, size_t end,
                       struct efs_dot *dot)
{
    struct efs_stream stream = efs_stream_of(block);
    struct efs_sums sums;

    efs_sums_load(&sums, dot->sums);
    coded_plane(&stream, 0, sm, begin, end, dot, &sums);
    coded_plane(&stream, 1, sm, begin, end, dot, &sums);
    coded_plane(&stream, 2, sm, begin, end, dot, &sums);
    coded_plane(&stream, 3, sm, begin, end, dot, &sums);
    efs_sums_store(&sums, dot->sums);
    return (size_t)(stream.used - block->below) == block->escaped;
}

#endif
