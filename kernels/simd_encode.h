/*
 * simd_encode.h - cascade coding with vectors; included by a path_*.c after its simd_*.h. Private.
 */
#ifndef EFS_KERNELS_SIMD_ENCODE_H
#define EFS_KERNELS_SIMD_ENCODE_H

#include "ops.h"

#include <string.h>

/* A vector's worth of symbols, when fewer are readable. */
EFS_INLINE efs_vector load_part(const uint8_t *p, size_t readable)
{
    uint8_t part[EFS_LANES] = {0};

    memcpy(part, p, readable);
    return efs_load(part);
}

/*
 * One level of size symbols: planes to dst, the escaped symbols to escaped; both have room for a vector more. The first
 * plane is stored, the others are put into it. What is written past the planes is overwritten later, by what follows.
 */
static void encode_level(const uint8_t *symbols, size_t size, const struct efs_ranks *ranks, uint8_t *dst,
                         uint8_t *escaped)
{
    size_t width = efs_plane_bytes(size, 2);
    unsigned at = 0;

    for (size_t start = 0; start < size; start += width, at += 2) {
        size_t len = size - start < width ? size - start : width;
        for (size_t j = 0; j < len; j += EFS_LANES) {
            size_t valid = len - j < EFS_LANES ? len - j : EFS_LANES;
            efs_vector v = size - start - j >= EFS_LANES ? efs_load(symbols + start + j)
                                                         : load_part(symbols + start + j, size - start - j);
            efs_vector codes = efs_codes(v, ranks, valid, &escaped);
            efs_store(dst + j, start == 0 ? codes : efs_codes_into(efs_load(dst + j), codes, at));
        }
    }
}

static void simd_encode(const struct efs_cascade_block *plan, const uint8_t *symbols, uint8_t *dst)
{
    uint8_t buffers[2][EFS_SCRATCH];

    for (unsigned level = 0; level < plan->levels; level++) {
        const struct efs_ranks ranks = efs_load_ranks(plan->table[level], plan->ranked[level]);
        encode_level(symbols, plan->size[level], &ranks, dst, buffers[level % 2]);
        symbols = buffers[level % 2];
        dst += efs_plane_bytes(plan->size[level], 2);
    }
    memcpy(dst, symbols, plan->size[plan->levels]);
}

#endif
