/*
 * simd_decode.h - cascade decoding and merging with vectors; included by a path_*.c after its simd_*.h. Private.
 *
 * The levels below the first are decoded to bytes (simd_level.h); the first one is fused with the merge.
 */
#ifndef EFS_KERNELS_SIMD_DECODE_H
#define EFS_KERNELS_SIMD_DECODE_H

#include "format_block.h"
#include "simd_level.h"
#include "simd_merge.h"

static bool simd_decode(const struct efs_cascade_block *block, uint8_t *out)
{
    uint8_t a[EFS_SCRATCH], b[EFS_SCRATCH];

    if (block->levels == 0) {
        memcpy(out, block->rest, block->size[0]);
        return true;
    }
    if (block->size[0] != EFS_BLOCK) {
        const uint8_t *symbols = decode_below(block, 0, a, b, false);
        if (symbols != NULL)
            memcpy(out, symbols, block->size[0]);
        return symbols != NULL;
    }
    const uint8_t *below = decode_below(block, 1, a, b, false);
    return below != NULL && decode_level(block->planes[0], EFS_BLOCK, efs_table_word(block->table[0], false), below,
                                         out) == block->size[1];
}

/* The first level of a whole block, fused with the merge. */
EFS_INLINE bool merge_first_level(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *below,
                                  const uint8_t *sm, uint8_t *dst, enum efs_way way)
{
    const efs_table table = efs_load_table(efs_table_word(block->table[0], false));
    const uint8_t *used = below;
    struct efs_sink sink = {.to = dst};
    /* The next block's code lies behind this one's and is read from its end to its beginning, which no processor
     * foresees: ask for it little by little. A guess of its size is enough, and no address does harm. */
    const uint8_t *next = block->rest + block->size[block->levels];
    const size_t next_step = (size_t)(next - block->planes[0]) / (EFS_BLOCK / 64) + 1;

    for (unsigned unit = 0; unit < EFS_UNITS; unit++) {
        const efs_shift shift = efs_shift_right((int)(unit / 2) * 2);
        const uint8_t *plane = block->planes[0] + unit % 2 * EFS_UNIT;
        for (size_t at = 0; at < EFS_UNIT; at += 64) {
            efs_prefetch(next);
            next += next_step;
            efs_prefetch_sm(format, unit, at, sm, way);
            for (size_t k = at; k < at + 64; k += EFS_LANES) {
                efs_vector e = efs_symbols(efs_load(plane + k), shift, table, EFS_LANES, &used);
                efs_merge_lanes(format, unit, k, e, sm, &sink, way);
            }
        }
    }
    efs_sink_end(&sink, way);
    return (size_t)(used - below) == block->size[1];
}

/* One copy of the code for each format and way. */
#define MERGE_FIRST_LEVEL(name)                                                                                        \
    case EFS_FORMAT_##name:                                                                                            \
        if (way == EFS_STREAM && EFS_STREAMS)                                                                          \
            return merge_first_level(EFS_FORMAT_##name, block, below, sm, dst, EFS_STREAM);                            \
        if (way == EFS_SHIFTED && EFS_REALIGNS)                                                                        \
            return merge_first_level(EFS_FORMAT_##name, block, below, sm, dst, EFS_SHIFTED);                           \
        return merge_first_level(EFS_FORMAT_##name, block, below, sm, dst, EFS_PLAIN)

static bool decode_merge_whole(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                               uint8_t *dst, enum efs_way way)
{
    uint8_t a[EFS_SCRATCH], b[EFS_SCRATCH];
    const uint8_t *below = decode_below(block, 1, a, b, false);

    if (below == NULL)
        return false;
    switch (format) {
        MERGE_FIRST_LEVEL(BYTES);
        MERGE_FIRST_LEVEL(BF16);
        MERGE_FIRST_LEVEL(F16);
        MERGE_FIRST_LEVEL(F32);
        MERGE_FIRST_LEVEL(E4M3);
        MERGE_FIRST_LEVEL(E5M2);
    case EFS_FORMAT_COUNT:
        break;
    }
    return false;
}

/* Merge a whole block whose exponents are bytes in memory. */
EFS_INLINE void merge_bytes(enum efs_format format, const uint8_t *e, const uint8_t *sm, uint8_t *dst)
{
    struct efs_sink sink = {.to = dst};

    for (unsigned unit = 0; unit < EFS_UNITS; unit++) {
        for (size_t at = 0; at < EFS_UNIT; at += EFS_LANES)
            efs_merge_lanes(format, unit, at, efs_load(e + unit * EFS_UNIT + at), sm, &sink, EFS_PLAIN);
    }
}

#define MERGE_BYTES(name)                                                                                              \
    case EFS_FORMAT_##name:                                                                                            \
        merge_bytes(EFS_FORMAT_##name, e, sm, dst);                                                                    \
        break

static void simd_merge(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    if (m != EFS_BLOCK) {
        efs_merge_block(format, e, sm, m, dst);
        return;
    }
    switch (format) {
        MERGE_BYTES(BF16);
        MERGE_BYTES(F16);
        MERGE_BYTES(F32);
        MERGE_BYTES(E4M3);
        MERGE_BYTES(E5M2);
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
}

static bool simd_decode_merge(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                              uint8_t *dst, bool stream)
{
    uint8_t e[EFS_BLOCK];

    if (block->levels > 0 && block->size[0] == EFS_BLOCK)
        return decode_merge_whole(format, block, sm, dst,
                                  !stream                           ? EFS_PLAIN
                                  : (uintptr_t)dst % EFS_LANES == 0 ? EFS_STREAM
                                                                    : EFS_SHIFTED);
    if (format == EFS_FORMAT_BYTES)
        return simd_decode(block, dst);
    if (!simd_decode(block, e))
        return false;
    simd_merge(format, e, sm, block->size[0], dst);
    return true;
}

#endif
