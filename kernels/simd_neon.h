/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_neon.h - the operations on 16 bytes that simd_decode.h and simd_encode.h are made of, with NEON. Private.
 *
 * simd_avx512.h says what each does. There are no streaming stores.
 */
#ifndef EFS_KERNELS_SIMD_NEON_H
#define EFS_KERNELS_SIMD_NEON_H

#include "byte_table.h"
#include "ops.h"

#include <arm_neon.h>
#include <string.h>

#define EFS_LANES 16
#define EFS_STREAMS 0
#define EFS_REALIGNS 0
#define EFS_INLINE static inline __attribute__((always_inline))

typedef uint8x16_t efs_vector;
typedef uint8x16_t efs_table;

EFS_INLINE efs_vector efs_load(const uint8_t *p)
{
    return vld1q_u8(p);
}

EFS_INLINE void efs_store(uint8_t *p, efs_vector v)
{
    vst1q_u8(p, v);
}

EFS_INLINE efs_vector efs_shifted_right(efs_vector v, unsigned bits)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t) - (int)bits));
}

EFS_INLINE efs_vector efs_shifted_left(efs_vector v, unsigned bits)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)bits));
}

/* The lanes of a comparison as bits: the first eight and the last eight. */
EFS_INLINE void efs_lane_bits(uint8x16_t lanes, uint8_t bits[2])
{
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t weighed = vandq_u8(lanes, vld1q_u8(weights));

    bits[0] = vaddv_u8(vget_low_u8(weighed));
    bits[1] = vaddv_u8(vget_high_u8(weighed));
}

/* Set lanes of each half. */
EFS_INLINE void efs_lane_counts(uint8x16_t lanes, uint8_t counts[2])
{
    uint8x16_t ones = vshrq_n_u8(lanes, 7);

    counts[0] = vaddv_u8(vget_low_u8(ones));
    counts[1] = vaddv_u8(vget_high_u8(ones));
}

EFS_INLINE uint8x16_t efs_first_lanes(size_t valid)
{
    static const uint8_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return vcltq_u8(vld1q_u8(numbers), vdupq_n_u8((uint8_t)valid));
}

EFS_INLINE efs_vector efs_rotated(efs_vector v)
{
    return vsliq_n_u8(vshrq_n_u8(v, 1), v, 7);
}

/* ---- decoding a level ------------------------------------------------------------------------------------------ */

EFS_INLINE efs_table efs_load_table(uint32_t word)
{
    return vreinterpretq_u8_u32(vdupq_n_u32(word));
}

EFS_INLINE uint8x8_t efs_expand_8(const uint8_t *below, uint8_t mask)
{
    return vtbl1_u8(vld1_u8(below), vcreate_u8(efs_expand_table[mask]));
}

EFS_INLINE efs_vector efs_symbols(efs_vector plane, unsigned shift, efs_table table, size_t valid,
                                  const uint8_t **below)
{
    const uint8x16_t three = vdupq_n_u8(3);
    uint8x16_t codes = vandq_u8(efs_shifted_right(plane, shift), three);
    uint8x16_t escapes = vceqq_u8(codes, three);
    uint8_t bits[2], counts[2];

    if (valid < EFS_LANES)
        escapes = vandq_u8(escapes, efs_first_lanes(valid));
    efs_lane_bits(escapes, bits);
    efs_lane_counts(escapes, counts);
    uint8x16_t filled = vcombine_u8(efs_expand_8(*below, bits[0]), efs_expand_8(*below + counts[0], bits[1]));
    *below += counts[0] + counts[1];
    return vorrq_u8(vqtbl1q_u8(table, codes), filled); /* the table has 0 for the escapes */
}

struct efs_tables {
    efs_table table;
};

EFS_INLINE struct efs_tables efs_load_tables(uint32_t word)
{
    return (struct efs_tables){efs_load_table(word)};
}

EFS_INLINE efs_vector efs_plane_symbols(efs_vector codes, const unsigned plane, const struct efs_tables *tables,
                                        size_t valid, const uint8_t **below)
{
    return efs_symbols(codes, plane * 2, tables->table, valid, below);
}

/* ---- coding a level -------------------------------------------------------------------------------------------- */

/* flip: what turns the escape's code, 3, into the symbol's own; 0 where no symbol is in use. */
struct efs_ranks {
    uint8x16_t symbol[3], flip[3];
};

EFS_INLINE struct efs_ranks efs_load_ranks(const uint8_t table[4], unsigned ranked)
{
    struct efs_ranks t;

    for (unsigned r = 0; r < 3; r++) {
        t.symbol[r] = vdupq_n_u8(table[r]);
        t.flip[r] = vdupq_n_u8((uint8_t)(ranked > r ? 3 ^ r : 0));
    }
    return t;
}

EFS_INLINE efs_vector efs_codes(efs_vector v, const struct efs_ranks *t, size_t valid, uint8_t **escaped)
{
    const uint8x16_t three = vdupq_n_u8(3);
    uint8x16_t codes = three;
    uint8_t bits[2], counts[2];

    for (unsigned r = 0; r < 3; r++)
        codes = veorq_u8(codes, vandq_u8(vceqq_u8(v, t->symbol[r]), t->flip[r]));
    if (valid < EFS_LANES)
        codes = vandq_u8(codes, efs_first_lanes(valid));
    uint8x16_t escapes = vceqq_u8(codes, three);
    efs_lane_bits(escapes, bits);
    efs_lane_counts(escapes, counts);
    vst1_u8(*escaped, vtbl1_u8(vget_low_u8(v), vcreate_u8(efs_compress_table[bits[0]])));
    *escaped += counts[0];
    vst1_u8(*escaped, vtbl1_u8(vget_high_u8(v), vcreate_u8(efs_compress_table[bits[1]])));
    *escaped += counts[1];
    return codes;
}

EFS_INLINE efs_vector efs_codes_into(efs_vector planes, efs_vector codes, unsigned at)
{
    return vorrq_u8(planes, vshlq_u8(codes, vdupq_n_s8((int8_t)at)));
}

/* ---- merging --------------------------------------------------------------------------------------------------- */

EFS_INLINE void efs_interleave(efs_vector low, efs_vector high, efs_vector words[2])
{
    words[0] = vzip1q_u8(low, high);
    words[1] = vzip2q_u8(low, high);
}

EFS_INLINE void efs_interleave_words(efs_vector low, efs_vector high, efs_vector dwords[2])
{
    uint16x8_t a = vreinterpretq_u16_u8(low), b = vreinterpretq_u16_u8(high);

    dwords[0] = vreinterpretq_u8_u16(vzip1q_u16(a, b));
    dwords[1] = vreinterpretq_u8_u16(vzip2q_u16(a, b));
}

EFS_INLINE void efs_join_bf16(efs_vector e, efs_vector sm, efs_vector words[2])
{
    efs_interleave(vsliq_n_u8(sm, e, 7), vsriq_n_u8(sm, e, 1), words);
}

EFS_INLINE efs_vector efs_join_small(efs_vector sign, efs_vector e, efs_vector mantissa, unsigned mantissa_bits)
{
    uint8x16_t bits = mantissa_bits == 2 ? vsliq_n_u8(mantissa, e, 2) : vsliq_n_u8(mantissa, e, 3);

    return vbslq_u8(vdupq_n_u8(0x80), sign, bits);
}

#endif
