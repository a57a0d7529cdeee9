/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_merge.h - merges EFS_LANES exponents in a register with their SM; for any of the simd_*.h. Private.
 *
 * Only for whole blocks, where the planes' widths are known: a plane of 1, 2 or 4-bit values of EFS_BLOCK elements is
 * 1024, 2048 or 4096 bytes wide, so the 1024 elements of a *unit* have the same shift in every plane.
 */
#ifndef EFS_KERNELS_SIMD_MERGE_H
#define EFS_KERNELS_SIMD_MERGE_H

#include "ops.h"

#include <string.h>

#define EFS_UNIT 1024u
#define EFS_UNITS (EFS_BLOCK / EFS_UNIT)
#define EFS_E5_PLANES (EFS_BLOCK / 4 + EFS_BLOCK / 8) /* bytes of 2-bit mantissas and signs */

/* How elements are stored. */
enum efs_way {
    EFS_PLAIN,
    EFS_STREAM,  /* streaming stores, aligned destination */
    EFS_SHIFTED, /* streaming stores, unaligned destination: vectors are realigned in registers */
};

/* Destination of the next vector. Vectors arrive in order, from the first of a block to the last. */
struct efs_sink {
    uint8_t *to;
#if EFS_REALIGNS
    efs_vector last; /* EFS_SHIFTED: its first `head` bytes are stored, the rest is stored with the next vector */
    efs_realign realign;
    size_t head; /* bytes from the start of the block to the first aligned address */
    bool begun;
#endif
};

#if EFS_REALIGNS
EFS_INLINE void efs_put_shifted(struct efs_sink *sink, efs_vector v)
{
    if (sink->begun) {
        efs_stream(sink->to, efs_realigned(sink->last, v, sink->realign));
        sink->to += EFS_LANES;
    } else {
        uint8_t bytes[EFS_LANES];
        sink->head = -(uintptr_t)sink->to % EFS_LANES;
        sink->realign = efs_realign_by(sink->head);
        efs_store(bytes, v);
        memcpy(sink->to, bytes, sink->head);
        sink->to += sink->head;
        sink->begun = true;
    }
    sink->last = v;
}
#endif

EFS_INLINE void efs_put(struct efs_sink *sink, efs_vector v, enum efs_way way)
{
#if EFS_REALIGNS
    if (way == EFS_SHIFTED) {
        efs_put_shifted(sink, v);
        return;
    }
#endif
#if EFS_STREAMS
    if (way == EFS_STREAM)
        efs_stream(sink->to, v);
    else
        efs_store(sink->to, v);
#else
    (void)way;
    efs_store(sink->to, v);
#endif
    sink->to += EFS_LANES;
}

/* After the last vector. */
EFS_INLINE void efs_sink_end(struct efs_sink *sink, enum efs_way way)
{
#if EFS_REALIGNS
    if (way == EFS_SHIFTED) {
        uint8_t bytes[EFS_LANES];
        efs_store(bytes, sink->last);
        memcpy(sink->to, bytes + sink->head, EFS_LANES - sink->head);
    }
#else
    (void)sink;
    (void)way;
#endif
}

EFS_INLINE void efs_put_pair(struct efs_sink *sink, const efs_vector v[2], enum efs_way way)
{
    efs_put(sink, v[0], way);
    efs_put(sink, v[1], way);
}

/* sign << 7 | e << 2 | mantissa for the elements at `at` in `unit`, from the planes of mantissas and signs. */
EFS_INLINE efs_vector efs_join_e5(const uint8_t *planes, unsigned unit, size_t at, efs_vector e)
{
    efs_vector mantissas = efs_load(planes + unit % 2 * EFS_UNIT + at);
    efs_vector signs = efs_load(planes + EFS_BLOCK / 4 + at);

    return efs_join_small(efs_shifted_left(signs, 7 - unit), e, efs_shifted_right(mantissas, unit / 2 * 2), 2);
}

EFS_INLINE efs_vector efs_join_e4m3(const uint8_t *planes, unsigned unit, size_t at, efs_vector e)
{
    efs_vector nibbles = efs_load(planes + unit % 4 * EFS_UNIT + at);
    const unsigned bits = unit / 4 * 4;

    return efs_join_small(efs_shifted_left(nibbles, 4 - bits), e, efs_shifted_right(nibbles, bits), 3);
}

/* The EFS_LANES elements from `at` in `unit` of a whole block whose SM begins at sm. */
EFS_INLINE void efs_merge_lanes(enum efs_format format, unsigned unit, size_t at, efs_vector e, const uint8_t *sm,
                                struct efs_sink *sink, enum efs_way way)
{
    size_t i = unit * EFS_UNIT + at;
    efs_vector words[2], dwords[2];

    switch (format) {
    case EFS_FORMAT_BYTES:
        efs_put(sink, e, way);
        break;
    case EFS_FORMAT_BF16:
        efs_join_bf16(e, efs_load(sm + i), words);
        efs_put_pair(sink, words, way);
        break;
    case EFS_FORMAT_F16:
        efs_interleave(efs_load(sm + i), efs_join_e5(sm + EFS_BLOCK, unit, at, e), words);
        efs_put_pair(sink, words, way);
        break;
    case EFS_FORMAT_F32:
        efs_join_bf16(e, efs_load(sm + i), words);
        efs_interleave_words(efs_load(sm + EFS_BLOCK + 2 * i), words[0], dwords);
        efs_put_pair(sink, dwords, way);
        efs_interleave_words(efs_load(sm + EFS_BLOCK + 2 * i + EFS_LANES), words[1], dwords);
        efs_put_pair(sink, dwords, way);
        break;
    case EFS_FORMAT_E4M3:
        efs_put(sink, efs_join_e4m3(sm, unit, at, e), way);
        break;
    case EFS_FORMAT_E5M2:
        efs_put(sink, efs_join_e5(sm, unit, at, e), way);
        break;
    case EFS_FORMAT_COUNT:
        break;
    }
}

/* Bytes of SM of EFS_UNIT elements. */
EFS_INLINE size_t efs_unit_sm_bytes(enum efs_format format)
{
    const size_t eighths[EFS_FORMAT_COUNT] = {[EFS_FORMAT_BF16] = 8,
                                              [EFS_FORMAT_F16] = 11,
                                              [EFS_FORMAT_F32] = 24,
                                              [EFS_FORMAT_E4M3] = 4,
                                              [EFS_FORMAT_E5M2] = 3};
    return eighths[format] * EFS_UNIT / 8;
}

/* The EFS_LANES elements from `at` of a block of EFS_UNIT elements, the blocks of a shard with short spans. */
EFS_INLINE void efs_merge_short_lanes(enum efs_format format, size_t at, efs_vector e, const uint8_t *sm,
                                      struct efs_sink *sink, enum efs_way way)
{
    const size_t width = EFS_UNIT / 8; /* of a plane of 1 bit */
    const uint8_t *planes = format == EFS_FORMAT_F16 ? sm + EFS_UNIT : sm;
    efs_vector words[2], dwords[2], small = e;

    if (format == EFS_FORMAT_F16 || format == EFS_FORMAT_E5M2)
        small =
            efs_join_small(efs_shifted_left(efs_load(planes + 2 * width + at % width), 7 - (unsigned)(at / width)), e,
                           efs_shifted_right(efs_load(planes + at % (2 * width)), (unsigned)(at / (2 * width)) * 2), 2);
    switch (format) {
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_E5M2:
        efs_put(sink, small, way);
        break;
    case EFS_FORMAT_BF16:
        efs_join_bf16(e, efs_load(sm + at), words);
        efs_put_pair(sink, words, way);
        break;
    case EFS_FORMAT_F16:
        efs_interleave(efs_load(sm + at), small, words);
        efs_put_pair(sink, words, way);
        break;
    case EFS_FORMAT_F32:
        efs_join_bf16(e, efs_load(sm + at), words);
        efs_interleave_words(efs_load(sm + EFS_UNIT + 2 * at), words[0], dwords);
        efs_put_pair(sink, dwords, way);
        efs_interleave_words(efs_load(sm + EFS_UNIT + 2 * at + EFS_LANES), words[1], dwords);
        efs_put_pair(sink, dwords, way);
        break;
    case EFS_FORMAT_E4M3: {
        const efs_vector nibbles = efs_load(sm + at % (4 * width));
        const unsigned bits = (unsigned)(at / (4 * width)) * 4;
        efs_put(sink, efs_join_small(efs_shifted_left(nibbles, 4 - bits), e, efs_shifted_right(nibbles, bits), 3), way);
        break;
    }
    case EFS_FORMAT_COUNT:
        break;
    }
}

EFS_INLINE void efs_prefetch(const uint8_t *p)
{
    __builtin_prefetch(p, 0, 3);
}

/* Prefetch the byte `ahead` after at, in an array of `run` bytes per block; arrays of blocks are step bytes apart. */
EFS_INLINE void efs_prefetch_run(const uint8_t *run_begin, size_t at, size_t ahead, size_t run, size_t step)
{
    size_t then = at + ahead;

    efs_prefetch(run_begin + (then < run ? then : then - run + step));
}

/*
 * For every 64 merged elements, prefetch one piece of later SM: prefetches in bursts are slower than none (measured on
 * Zen 4). Planes are read several times within a block, so they are prefetched one block ahead. The hardware prefetcher
 * handles arrays that are read once in order, except at page boundaries: prefetching them pays only when streaming.
 */
EFS_INLINE void efs_prefetch_sm(enum efs_format format, unsigned unit, size_t at, const uint8_t *sm, enum efs_way way)
{
    const size_t ahead = 1024, i = unit * EFS_UNIT + at;

    switch (format) {
    case EFS_FORMAT_BF16:
        if (way != EFS_PLAIN)
            efs_prefetch(sm + i + ahead);
        break;
    case EFS_FORMAT_F16:
        efs_prefetch_run(sm, i, ahead, EFS_BLOCK, EFS_BLOCK + EFS_E5_PLANES);
        efs_prefetch(sm + EFS_BLOCK + EFS_E5_PLANES + EFS_BLOCK + i * 3 / 8);
        break;
    case EFS_FORMAT_F32:
        if (way == EFS_PLAIN)
            break;
        efs_prefetch_run(sm, i, ahead, EFS_BLOCK, 3 * EFS_BLOCK);
        efs_prefetch_run(sm + EFS_BLOCK, 2 * i, ahead, 2 * EFS_BLOCK, 3 * EFS_BLOCK);
        efs_prefetch_run(sm + EFS_BLOCK, 2 * i + 64, ahead, 2 * EFS_BLOCK, 3 * EFS_BLOCK);
        break;
    case EFS_FORMAT_E4M3:
        efs_prefetch(sm + EFS_BLOCK / 2 + i / 2);
        break;
    case EFS_FORMAT_E5M2:
        efs_prefetch(sm + EFS_E5_PLANES + i * 3 / 8);
        break;
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
}

#endif
