/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_decode.h - cascade decoding and merging with vectors; included by a path_*.c after its simd_*.h. Private.
 *
 * The levels after the first are decoded to bytes (simd_level.h); the first level is fused with the merge.
 */
#ifndef EFS_KERNELS_SIMD_DECODE_H
#define EFS_KERNELS_SIMD_DECODE_H

#include "format_block.h"
#include "simd_level.h"
#include "simd_merge.h"

static const uint8_t *simd_lower(const struct efs_span *span, uint8_t *room)
{
    return decode_lower(span, room, false);
}

/* The first level of a whole block, fused with the merge: a vector is decoded while the one before it is merged. */
EFS_INLINE bool merge_first_level(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                                  uint8_t *dst, enum efs_way way)
{
    const efs_table table = efs_load_table(efs_table_word(block->table, false));
    const uint8_t *used = block->below;
    struct efs_sink sink = {.to = dst};
    const uint8_t *ahead = block->prefetch;
    const size_t ahead_step = block->prefetch_bytes / (EFS_BLOCK / 64) + 1;

    for (unsigned unit = 0; unit < EFS_UNITS; unit++) {
        const unsigned shift = unit / 2 * 2;
        const uint8_t *plane = block->planes + unit % 2 * EFS_UNIT;
        efs_vector next = efs_symbols(efs_load(plane), shift, table, EFS_LANES, &used);
        for (size_t at = 0; at < EFS_UNIT; at += 64) {
            efs_prefetch(ahead);
            ahead += ahead_step;
            efs_prefetch_sm(format, unit, at, sm, way);
            for (size_t k = at; k < at + 64; k += EFS_LANES) {
                efs_vector e = next;
                if (k + EFS_LANES < EFS_UNIT)
                    next = efs_symbols(efs_load(plane + k + EFS_LANES), shift, table, EFS_LANES, &used);
                efs_merge_lanes(format, unit, k, e, sm, &sink, way);
            }
        }
    }
    efs_sink_end(&sink, way);
    return (size_t)(used - block->below) == block->escaped;
}

/* One copy of the code for each format and way. */
#define MERGE_FIRST_LEVEL(name)                                                                                        \
    case EFS_FORMAT_##name:                                                                                            \
        if (way == EFS_STREAM && EFS_STREAMS)                                                                          \
            return merge_first_level(EFS_FORMAT_##name, block, sm, dst, EFS_STREAM);                                   \
        if (way == EFS_SHIFTED && EFS_REALIGNS)                                                                        \
            return merge_first_level(EFS_FORMAT_##name, block, sm, dst, EFS_SHIFTED);                                  \
        return merge_first_level(EFS_FORMAT_##name, block, sm, dst, EFS_PLAIN)

static bool decode_merge_whole(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                               uint8_t *dst, enum efs_way way)
{
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

/* The first level of a short span of `units` units, fused with the merge. */
EFS_INLINE bool merge_short_units(enum efs_format format, unsigned units, const struct efs_cascade_block *block,
                                  const uint8_t *sm, uint8_t *dst, enum efs_way way)
{
    const efs_table table = efs_load_table(efs_table_word(block->table, false));
    const size_t width = units * EFS_UNIT / 4, sm_step = efs_unit_sm_bytes(format);
    const uint8_t *used = block->below, *ahead = block->prefetch;
    const size_t ahead_step = block->prefetch_bytes / (units * EFS_UNIT / 64) + 1;
    struct efs_sink sink = {.to = dst};

    for (unsigned unit = 0; unit < units; unit++, sm += sm_step) {
        const unsigned shift = (unsigned)(unit * EFS_UNIT / width) * 2;
        const uint8_t *plane = block->planes + unit * EFS_UNIT % width;
        efs_vector next = efs_symbols(efs_load(plane), shift, table, EFS_LANES, &used);
        for (size_t at = 0; at < EFS_UNIT; at += 64) {
            efs_prefetch(ahead);
            ahead += ahead_step;
            if (way != EFS_PLAIN && format != EFS_FORMAT_BYTES) /* as in efs_prefetch_sm() */
                efs_prefetch(sm + sm_step + at * sm_step / EFS_UNIT);
            for (size_t k = at; k < at + 64; k += EFS_LANES) {
                efs_vector e = next;
                if (k + EFS_LANES < EFS_UNIT)
                    next = efs_symbols(efs_load(plane + k + EFS_LANES), shift, table, EFS_LANES, &used);
                efs_merge_short_lanes(format, k, e, sm, &sink, way);
            }
        }
    }
    efs_sink_end(&sink, way);
    return (size_t)(used - block->below) == block->escaped;
}

#define MERGE_SHORT_AS(name, way)                                                                                      \
    (block->size == EFS_BLOCK ? merge_short_units(EFS_FORMAT_##name, EFS_UNITS, block, sm, dst, way)                   \
                              : merge_short_units(EFS_FORMAT_##name, EFS_UNITS / 2, block, sm, dst, way))
#define MERGE_SHORT(name)                                                                                              \
    case EFS_FORMAT_##name:                                                                                            \
        if (stream && EFS_STREAMS && (uintptr_t)dst % EFS_LANES == 0)                                                  \
            return MERGE_SHORT_AS(name, EFS_STREAM);                                                                   \
        return MERGE_SHORT_AS(name, EFS_PLAIN)

static bool simd_merge_short(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                             uint8_t *dst, bool stream)
{
    switch (format) {
        MERGE_SHORT(BYTES);
        MERGE_SHORT(BF16);
        MERGE_SHORT(F16);
        MERGE_SHORT(F32);
        MERGE_SHORT(E4M3);
        MERGE_SHORT(E5M2);
    case EFS_FORMAT_COUNT:
        break;
    }
    return false;
}

/* Merge a whole block whose exponents are bytes in memory. */
EFS_INLINE void merge_bytes(enum efs_format format, const uint8_t *e, const uint8_t *sm, uint8_t *dst)
{
    struct efs_sink sink = {.to = dst};

    for (unsigned unit = 0; unit < EFS_UNITS; unit++)
        for (size_t at = 0; at < EFS_UNIT; at += EFS_LANES)
            efs_merge_lanes(format, unit, at, efs_load(e + unit * EFS_UNIT + at), sm, &sink, EFS_PLAIN);
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
    uint8_t decoded[EFS_BLOCK + EFS_LANES];
    const uint8_t *e = block->below;

    if (block->planes != NULL && block->size == EFS_BLOCK)
        return decode_merge_whole(format, block, sm, dst,
                                  !stream                           ? EFS_PLAIN
                                  : (uintptr_t)dst % EFS_LANES == 0 ? EFS_STREAM
                                                                    : EFS_SHIFTED);
    if (block->planes != NULL) {
        if (decode_level(block->planes, block->size, efs_table_word(block->table, false), block->below, decoded) !=
            block->escaped)
            return false;
        e = decoded;
    }
    if (format == EFS_FORMAT_BYTES)
        memcpy(dst, e, block->size);
    else
        simd_merge(format, e, sm, block->size, dst);
    return true;
}

#endif
