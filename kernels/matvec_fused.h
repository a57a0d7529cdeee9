/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_fused.h - the product of a coded block with one token, decoded and multiplied in one loop; included by
 * matvec_coded.h. Private.
 */
#ifndef EFS_KERNELS_MATVEC_FUSED_H
#define EFS_KERNELS_MATVEC_FUSED_H

/* Skips the symbols [begin, end) of a plane. */
EFS_INLINE void pass_over(struct efs_stream *stream, const unsigned plane, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += EFS_LANES)
        efs_plane_symbols(efs_load(stream->planes + i), plane, &stream->tables, EFS_LANES, &stream->used);
}

/* The symbols of part p of the next group. */
EFS_INLINE efs_vector part_symbols(const uint8_t *codes, unsigned p, const unsigned plane,
                                   const struct efs_tables *tables, const uint8_t **used)
{
    return efs_plane_symbols(efs_load(codes + p * EFS_LANES), plane, tables, EFS_LANES, used);
}

/* Part p of a group from its symbols and SM. */
EFS_INLINE void part_add(struct efs_sums *sums, unsigned p, efs_vector e, const uint8_t *sm, const efs_x *x)
{
    efs_vector bytes[2], words[2];

    efs_rotated_join(e, efs_load(sm + p * EFS_LANES), bytes);
    efs_unpack_lanes(bytes, words);
    efs_sums_add(sums, p, words, x);
}

/*
 * Multiplies the symbols [begin, end) of a plane, at least one group, with their SM. Each group prefetches one later
 * piece of SM and code into the L2 cache; L1 allows too few outstanding misses (measured on Zen 4). The symbols of a
 * group are decoded while the previous group is multiplied, which hides the latency from codes to sums (up to 5 %
 * faster on Zen 4; two groups ahead is slower).
 *
 * Cycles per group on Zen 4 with AVX-512: 11 to 12.5 from L1 with F32, of which decoding the symbols takes 5; leaving
 * out the join, the widening or the multiplication saves 1 to 2 each. The lower levels add 2.4 (300 per block: header
 * 40, levels 2 and above 100, level 1 160); decoding them interleaved with the previous block takes as long. From L2 a
 * group takes 15 in all, 12 with the dot product, and 1 more from memory, from which one core reads 64 plain columns in
 * 15 to 18.
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

/* Multiplies the elements [begin, end) of a block that are in this plane; stores a product at each end of a row. */
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
