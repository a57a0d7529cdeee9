/*
 * simd_level.h - the levels of a cascade block as bytes, with vectors; included after a simd_*.h. Private.
 *
 * From the rest up: a vector of codes comes from a plane by a shift and a mask, the level's table gives the symbols of
 * codes 0..2, and the symbols of the level below, in order, fill the escapes.
 */
#ifndef EFS_KERNELS_SIMD_LEVEL_H
#define EFS_KERNELS_SIMD_LEVEL_H

#include "ops.h"

/* Ask for the next line from *ahead on, into the second level of the cache. No address does harm. */
EFS_INLINE void efs_ask_ahead(const uint8_t **ahead)
{
    if (ahead != NULL) {
        __builtin_prefetch(*ahead, 0, 2);
        *ahead += 64;
    }
}

/*
 * One level, size symbols, into out, which has room for a vector more unless size is EFS_BLOCK. below has the symbols
 * of the next level, and size + EFS_LANES readable bytes in all. Returns how many of them were used. ahead, if not
 * NULL: a line from there on is asked for with each vector, into the second level of the cache; no address does harm.
 */
EFS_INLINE size_t decode_level(const uint8_t *planes, size_t size, const uint8_t table_bytes[4], const uint8_t *below,
                               uint8_t *out, const uint8_t **ahead)
{
    const efs_table table = efs_load_table(table_bytes);
    const uint8_t *used = below;
    size_t width = efs_plane_bytes(size, 2);
    int bits = 0;

    for (size_t start = 0; start < size; start += width, bits += 2) {
        const efs_shift shift = efs_shift_right(bits);
        size_t len = size - start < width ? size - start : width;
        size_t j = 0;
        for (; j + EFS_LANES <= len; j += EFS_LANES) {
            efs_ask_ahead(ahead);
            efs_store(out + start + j, efs_symbols(efs_load(planes + j), shift, table, EFS_LANES, &used));
        }
        if (j < len) { /* what is stored too much is overwritten by the next plane, or is in the room after it */
            efs_ask_ahead(ahead);
            efs_store(out + start + j, efs_symbols(efs_load(planes + j), shift, table, len - j, &used));
        }
    }
    return (size_t)(used - below);
}

/*
 * The symbols that enter level `until`, which is below the last; NULL when the planes contradict the sizes. The result
 * lies in one of the two buffers of EFS_SCRATCH bytes. turned: block's tables have each symbol turned by one bit
 * (efs_turned), and so has the result. ahead as above.
 */
EFS_INLINE const uint8_t *decode_below(const struct efs_cascade_block *block, unsigned until, uint8_t *a, uint8_t *b,
                                       bool turned, const uint8_t **ahead)
{
    /* The rest is copied, so that planes with too many escapes do not read past the chunk. */
    for (size_t i = 0; i < block->size[block->levels]; i += EFS_LANES) {
        efs_vector rest = efs_load(block->rest + i);
        efs_store(a + i, turned ? efs_turned(rest) : rest);
    }
    for (unsigned level = block->levels; level-- > until;) {
        if (decode_level(block->planes[level], block->size[level], block->table[level], a, b, ahead) !=
            block->size[level + 1])
            return NULL;
        uint8_t *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

#endif
