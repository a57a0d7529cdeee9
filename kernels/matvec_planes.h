/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_planes.h - the product of a coded block with one token, plane by plane: first its exponents are decoded, then
 * they are multiplied; included by matvec_coded.h. Private.
 *
 * With AVX2 one loop for both is slower (cycles a group of 64 elements on Zen 4, from L2 and with lower levels: 24.8,
 * in two 23.9): it needs more registers than there are, and keeps fewer of its long chains in flight. Decoding takes
 * 8.3 cycles a group and 27 instructions on vector units, the lower levels 3.5 to 4 and 11, multiplying 8.6 and 28, of
 * which the chain of sums alone takes 8, ends of rows, blocks and spans 3 to 4. The vector units finish at most 3.3 to
 * 3.5 a cycle, so this is the bound: from memory a group takes 24.7 cycles, 64 plain columns 15 to 16. Decoding the
 * whole block first, into 8 KiB, takes 25.5 from memory.
 */
#ifndef EFS_KERNELS_MATVEC_PLANES_H
#define EFS_KERNELS_MATVEC_PLANES_H

/* Multiplies n exponents of a row, whole groups, with their SM, and prefetches later SM as coded_groups() of
 * matvec_fused.h does. */
EFS_INLINE void multiply_groups(const uint8_t *e, const uint8_t *sm, size_t n, const efs_x *x, struct efs_sums *to)
{
    struct efs_sums sums = *to;

    for (size_t i = 0; i < n; i += EFS_GROUP, x += EFS_GROUP) {
        __builtin_prefetch(sm + i + EFS_SM_AHEAD, 0, 2);
        for (unsigned p = 0; p < EFS_PARTS; p++) {
            const size_t at = i + p * EFS_LANES;
            efs_vector bytes[2], words[2];
            efs_rotated_join(efs_load(e + at), efs_load(sm + at), bytes);
            efs_unpack_lanes(bytes, words);
            efs_sums_add(&sums, p, words, x);
        }
    }
    *to = sums;
}

/* Multiplies the elements [begin, end) of a block that are in this plane, whose exponents are e; stores a product at
 * each end of a row. */
EFS_INLINE void multiply_plane(const uint8_t *e, unsigned plane, const uint8_t *sm, size_t begin, size_t end,
                               struct efs_dot *dot, struct efs_sums *sums)
{
    const size_t first = plane * EFS_PLANE;
    size_t i = begin < first ? 0 : begin - first < EFS_PLANE ? begin - first : EFS_PLANE;
    size_t stop = end < first ? 0 : end - first < EFS_PLANE ? end - first : EFS_PLANE;

    while (i < stop) {
        size_t left = dot->cols - dot->col, n = left < stop - i ? left : stop - i;
        multiply_groups(e + i, sm + first + i, n, (const efs_x *)dot->x + dot->col, sums);
        i += n;
        dot->col += (uint32_t)n;
        if (dot->col == dot->cols) {
            efs_dot_next(dot, efs_row_total(sums, NULL, 0, NULL));
            efs_sums_clear(sums);
            dot->col = 0;
        }
    }
}

static bool simd_coded(const struct efs_cascade_block *block, const uint8_t *sm, size_t begin, size_t end,
                       struct efs_dot *dot)
{
    uint8_t e[EFS_PLANE] __attribute__((aligned(64)));
    struct efs_stream stream = efs_stream_of(block);
    struct efs_sums sums;

    efs_sums_load(&sums, dot->sums);
    exponents_plane(&stream, 0, e);
    multiply_plane(e, 0, sm, begin, end, dot, &sums);
    exponents_plane(&stream, 1, e);
    multiply_plane(e, 1, sm, begin, end, dot, &sums);
    exponents_plane(&stream, 2, e);
    multiply_plane(e, 2, sm, begin, end, dot, &sums);
    exponents_plane(&stream, 3, e);
    multiply_plane(e, 3, sm, begin, end, dot, &sums);
    efs_sums_store(&sums, dot->sums);
    return (size_t)(stream.used - block->below) == block->escaped;
}

#endif
