/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_coded.h - products of BF16 matrices from the coded form; included by a matvec_*.c after matvec_many.h.
 * Private.
 *
 * EFS_EXPONENTS_FIRST: with one token, decode a plane's exponents before they are multiplied (matvec_planes.h), not in
 * the same loop (matvec_fused.h).
 */
#ifndef EFS_KERNELS_MATVEC_CODED_H
#define EFS_KERNELS_MATVEC_CODED_H

#include "matvec_many.h"
#include "simd_level.h"

#define EFS_PLANE (EFS_BLOCK / 4) /* bytes of the first level's planes */

/* Read position in a block's first level. */
struct efs_stream {
    const uint8_t *planes, *used; /* used: the next symbol from below */
    struct efs_tables tables;
    const uint8_t *ahead; /* code to prefetch, ahead_step bytes per group */
    size_t ahead_step;
};

/* The start of a whole block with planes, whose lower symbols are rotated (efs_rotated). */
EFS_INLINE struct efs_stream efs_stream_of(const struct efs_cascade_block *block)
{
    return (struct efs_stream){
        .planes = block->planes,
        .used = block->below,
        .tables = efs_load_tables(efs_table_word(block->table, true)),
        .ahead = block->prefetch,
        .ahead_step = block->prefetch_bytes / (EFS_BLOCK / EFS_GROUP) + 1,
    };
}

/* Decodes the exponents of a plane of a whole block, rotated. */
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

/* Symbols are decoded already rotated (efs_rotated), so that a BF16 number takes two selections and no shift. */
static const uint8_t *simd_lower_rotated(const struct efs_span *span, uint8_t *room)
{
    return decode_lower(span, room, true);
}

#if EFS_EXPONENTS_FIRST
#include "matvec_planes.h"
#else
#include "matvec_fused.h"
#endif

/* ---- several tokens ------------------------------------------------------------------------------------------------
 */

static void simd_halves(const uint8_t *e, const uint8_t *const *sm, size_t rows, const struct efs_input *input,
                        const struct efs_output *out)
{
    many_all(e, sm, rows, input, out, true);
}

static bool simd_exponents(const struct efs_cascade_block *block, uint8_t *room)
{
    struct efs_stream stream = efs_stream_of(block);

    exponents_plane(&stream, 0, room);
    exponents_plane(&stream, 1, room + EFS_PLANE);
    exponents_plane(&stream, 2, room + 2 * EFS_PLANE);
    exponents_plane(&stream, 3, room + 3 * EFS_PLANE);
    return (size_t)(stream.used - block->below) == block->escaped;
}

/* The members of struct efs_matvec_ops that are the same for all instruction sets. */
#define EFS_SIMD_PRODUCTS                                                                                              \
    .plain = simd_plain, .lower_rotated = simd_lower_rotated, .coded = simd_coded, .many = simd_many,                  \
    .exponents = simd_exponents, .halves = simd_halves

#endif
