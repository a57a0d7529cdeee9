/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_level.h - the levels of a cascade span as bytes, with vectors; included after a simd_*.h. Private.
 *
 * From the rest up: a vector of codes comes from a plane by a shift and a mask, the level's table gives the symbols of
 * codes 0..2, and the symbols of the level below, in order, fill the escapes.
 */
#ifndef EFS_KERNELS_SIMD_LEVEL_H
#define EFS_KERNELS_SIMD_LEVEL_H

#include "ops.h"

#include <string.h>

/* A level's three symbols, and 0 for the escape; turned: each of them as efs_turned() does it. */
EFS_INLINE uint32_t efs_table_word(const uint8_t *table, bool turned)
{
    uint32_t word;

    memcpy(&word, table, sizeof(word));
    return turned ? (word >> 1 & 0x7f7f7f7f) | (word & 0x01010101) << 7 : word;
}

/* How many of a level's size symbols are in a plane. */
EFS_INLINE size_t in_plane(size_t size, size_t width, size_t plane)
{
    size_t start = plane * width;

    return size < start ? 0 : size - start < width ? size - start : width;
}

/* The len symbols of a level's plane. */
EFS_INLINE void decode_plane(const uint8_t *planes, const unsigned plane, const struct efs_tables *tables, size_t len,
                             uint8_t *out, const uint8_t **used)
{
    size_t j = 0;

    for (; j + EFS_LANES <= len; j += EFS_LANES)
        efs_store(out + j, efs_plane_symbols(efs_load(planes + j), plane, tables, EFS_LANES, used));
    if (j < len) /* what is stored too much is overwritten by the next plane, or is in the room after it */
        efs_store(out + j, efs_plane_symbols(efs_load(planes + j), plane, tables, len - j, used));
}

/*
 * One level, size symbols, into out, which has room for a vector more unless size is a multiple of 4 vectors. below has
 * the symbols of the next level, and size + EFS_LANES readable bytes in all. Returns how many of them were used.
 */
EFS_INLINE size_t decode_level(const uint8_t *planes, size_t size, uint32_t table, const uint8_t *below, uint8_t *out)
{
    const struct efs_tables tables = efs_load_tables(table);
    const size_t width = efs_plane_bytes(size, 2);
    const uint8_t *used = below;

    /* 1 to 3 symbols may be missing at the end, so that planes are short or empty. */
    decode_plane(planes, 0, &tables, width, out, &used);
    decode_plane(planes, 1, &tables, in_plane(size, width, 1), out + width, &used);
    decode_plane(planes, 2, &tables, in_plane(size, width, 2), out + 2 * width, &used);
    decode_plane(planes, 3, &tables, in_plane(size, width, 3), out + 3 * width, &used);
    return (size_t)(used - below);
}

EFS_INLINE void copy_vector(const uint8_t *from, uint8_t *to, bool turned)
{
    efs_vector v = efs_load(from);

    efs_store(to, turned ? efs_turned(v) : v);
}

/*
 * The symbols that enter level 1, of a span with levels; NULL when the planes contradict the sizes. They lie in one of
 * the two halves of room. turned: each of them is turned by one bit (efs_turned).
 */
EFS_INLINE const uint8_t *decode_lower(const struct efs_span *span, uint8_t *room, bool turned)
{
    uint8_t *a = room, *b = room + EFS_LOWER_ROOM;
    const size_t rest = span->size[span->levels];
    size_t i = rest < EFS_LANES ? rest : EFS_LANES;

    /* The rest is copied, so that planes with too many escapes do not read past the chunk. Mostly it is one vector or
     * two: always two cost less than to decide. */
    copy_vector(span->rest, a, turned);
    copy_vector(span->rest + i, a + i, turned);
    for (i += EFS_LANES; i < rest; i += EFS_LANES)
        copy_vector(span->rest + i, a + i, turned);
    for (unsigned level = span->levels; level-- > 1;) {
        if (decode_level(span->planes[level], span->size[level], efs_table_word(span->table[level], turned), a, b) !=
            span->size[level + 1])
            return NULL;
        uint8_t *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

#endif
