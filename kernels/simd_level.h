/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_level.h - decodes the levels of a cascade span to bytes, with vectors; included after a simd_*.h. Private.
 *
 * Starts with the rest and ends with level 1 (the first level is level 0, see ops.h): a shift and a mask extract a
 * vector of codes from a plane, the level's table maps codes 0..2 to symbols, and the escapes are replaced by the
 * symbols of the next level, in order.
 */
#ifndef EFS_KERNELS_SIMD_LEVEL_H
#define EFS_KERNELS_SIMD_LEVEL_H

#include "ops.h"

#include <string.h>

/* A level's three symbols, and 0 for the escape; rotated: each rotated right by one bit. */
EFS_INLINE uint32_t efs_table_word(const uint8_t *table, bool rotated)
{
    uint32_t word;

    memcpy(&word, table, sizeof(word));
    return rotated ? (word >> 1 & 0x7f7f7f7f) | (word & 0x01010101) << 7 : word;
}

/* Number of symbols of a level in a plane. */
EFS_INLINE size_t in_plane(size_t size, size_t width, size_t plane)
{
    size_t start = plane * width;

    return size < start ? 0 : size - start < width ? size - start : width;
}

/* Decode the len symbols of a level's plane. */
EFS_INLINE void decode_plane(const uint8_t *planes, const unsigned plane, const struct efs_tables *tables, size_t len,
                             uint8_t *out, const uint8_t **used)
{
    size_t j = 0;

    for (; j + EFS_LANES <= len; j += EFS_LANES)
        efs_store(out + j, efs_plane_symbols(efs_load(planes + j), plane, tables, EFS_LANES, used));
    if (j < len) /* bytes past len are overwritten by the next plane, or are in the spare vector of out */
        efs_store(out + j, efs_plane_symbols(efs_load(planes + j), plane, tables, len - j, used));
}

/*
 * Decode one level of size symbols into out, which has room for one more vector unless size is a multiple of 4 vectors.
 * below has the symbols of the next level and size + EFS_LANES readable bytes. Returns the number of bytes of below
 * that were used.
 */
EFS_INLINE size_t decode_level(const uint8_t *planes, size_t size, uint32_t table, const uint8_t *below, uint8_t *out)
{
    const struct efs_tables tables = efs_load_tables(table);
    const size_t width = efs_plane_bytes(size, 2);
    const uint8_t *used = below;

    /* Up to 3 positions of the last plane have no symbol, so planes can be short or empty. */
    decode_plane(planes, 0, &tables, width, out, &used);
    decode_plane(planes, 1, &tables, in_plane(size, width, 1), out + width, &used);
    decode_plane(planes, 2, &tables, in_plane(size, width, 2), out + 2 * width, &used);
    decode_plane(planes, 3, &tables, in_plane(size, width, 3), out + 3 * width, &used);
    return (size_t)(used - below);
}

EFS_INLINE void copy_vector(const uint8_t *from, uint8_t *to, bool rotated)
{
    efs_vector v = efs_load(from);

    efs_store(to, rotated ? efs_rotated(v) : v);
}

/*
 * Decode the symbols that enter level 1 of a span with levels, into one of the two halves of room; NULL when the planes
 * contradict the sizes. rotated: rotate each symbol right by one bit (efs_rotated).
 */
EFS_INLINE const uint8_t *decode_lower(const struct efs_span *span, uint8_t *room, bool rotated)
{
    uint8_t *a = room, *b = room + EFS_LOWER_ROOM;
    const size_t rest = span->size[span->levels];
    size_t i = rest < EFS_LANES ? rest : EFS_LANES;

    /* The rest is copied, so that planes with too many escapes do not read past the chunk. It is mostly one or two
     * vectors: copying two without a branch is faster. */
    copy_vector(span->rest, a, rotated);
    copy_vector(span->rest + i, a + i, rotated);
    for (i += EFS_LANES; i < rest; i += EFS_LANES)
        copy_vector(span->rest + i, a + i, rotated);
    for (unsigned level = span->levels; level-- > 1;) {
        if (decode_level(span->planes[level], span->size[level], efs_table_word(span->table[level], rotated), a, b) !=
            span->size[level + 1])
            return NULL;
        uint8_t *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

#endif
