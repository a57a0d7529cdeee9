/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_encode.h - cascade coding with vectors; included by a path_*.c after its simd_*.h. Private.
 */
#ifndef EFS_KERNELS_SIMD_ENCODE_H
#define EFS_KERNELS_SIMD_ENCODE_H

#include "cascade_chunk.h"

#include <string.h>

/* Load a vector of which only `readable` bytes can be read; the remaining lanes are 0. */
EFS_INLINE efs_vector load_part(const uint8_t *p, size_t readable)
{
    uint8_t part[EFS_LANES] = {0};

    memcpy(part, p, readable);
    return efs_load(part);
}

/*
 * Encode one level of size symbols: planes to dst, the escaped symbols to escaped; both have room for one more vector.
 * The first plane is stored, the other three are merged into it. Bytes written past the planes are overwritten by the
 * caller. Returns the number of escaped symbols.
 */
static size_t encode_level(const uint8_t *symbols, size_t size, const struct efs_ranks *ranks, uint8_t *dst,
                           uint8_t *escaped)
{
    const uint8_t *begin = escaped;
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
    return (size_t)(escaped - begin);
}

/* Encode the first level block by block and set the entries. Symbols that escape are stored in escaped. */
static void encode_first(struct efs_span *plan, const uint8_t *symbols, uint8_t *first, uint8_t *escaped)
{
    const struct efs_ranks ranks = efs_load_ranks(plan->table[0], plan->ranked[0]);
    uint32_t count = 0;

    for (unsigned b = 0; b < EFS_SPAN_BLOCKS; b++) {
        const size_t m = efs_block_size(plan->size[0], b);
        plan->entry[b] = count;
        count += (uint32_t)encode_level(symbols, m, &ranks, first, escaped + count);
        symbols += m;
        first += efs_plane_bytes(m, 2);
    }
    plan->entry[EFS_SPAN_BLOCKS] = count;
}

_Static_assert(2 * (EFS_SPAN + 64) + EFS_SPAN / 4 + 64 <= EFS_CASCADE_SCRATCH_BYTES, "room for the buffers");

static void simd_encode(struct efs_span *plan, const uint8_t *symbols, uint8_t *code, uint8_t *scratch)
{
    uint8_t *const buffers[2] = {scratch, scratch + EFS_SPAN + 64}, *planes = buffers[1] + EFS_SPAN + 64;
    uint8_t *at = code + efs_lower_bytes(plan);

    if (plan->levels == 0) {
        memcpy(code, symbols, plan->size[0]);
        return;
    }
    encode_first(plan, symbols, at, buffers[0]);
    for (unsigned level = 1; level < plan->levels; level++) { /* the last level is stored first */
        const struct efs_ranks ranks = efs_load_ranks(plan->table[level], plan->ranked[level]);
        const size_t bytes = efs_plane_bytes(plan->size[level], 2);
        encode_level(buffers[(level + 1) % 2], plan->size[level], &ranks, planes, buffers[level % 2]);
        at -= bytes;
        memcpy(at, planes, bytes);
    }
    memcpy(code, buffers[(plan->levels + 1) % 2], plan->size[plan->levels]);
}

#endif
