/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_avx2.h - the operations on 32 bytes that simd_decode.h and simd_encode.h are made of, with AVX2. Private.
 *
 * simd_avx512.h documents each operation. pdep and pext are not used: they take hundreds of cycles on Zen 1 and Zen 2.
 */
#ifndef EFS_KERNELS_SIMD_AVX2_H
#define EFS_KERNELS_SIMD_AVX2_H

#include "byte_table.h"
#include "ops.h"

#include <immintrin.h>
#include <string.h>

#define EFS_LANES 32
#define EFS_STREAMS 1
#define EFS_REALIGNS 0 /* half as fast as storing plainly, with what AVX2 has for it */
#define EFS_INLINE static inline __attribute__((always_inline))

typedef __m256i efs_vector;
typedef __m256i efs_table;

EFS_INLINE efs_vector efs_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

EFS_INLINE void efs_store(uint8_t *p, efs_vector v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

EFS_INLINE void efs_stream(uint8_t *p, efs_vector v)
{
    _mm256_stream_si256((__m256i *)(void *)p, v);
}

EFS_INLINE efs_vector efs_select(efs_vector mask, efs_vector a, efs_vector b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

EFS_INLINE efs_vector efs_shifted_right(efs_vector v, unsigned bits)
{
    return _mm256_srl_epi16(v, _mm_cvtsi32_si128((int)bits));
}

EFS_INLINE efs_vector efs_shifted_left(efs_vector v, unsigned bits)
{
    return _mm256_sll_epi16(v, _mm_cvtsi32_si128((int)bits));
}

EFS_INLINE efs_vector efs_rotated(efs_vector v)
{
    return efs_select(_mm256_set1_epi8((char)0x80), _mm256_slli_epi16(v, 7), _mm256_srli_epi16(v, 1));
}

/* ---- decoding a level ------------------------------------------------------------------------------------------ */

EFS_INLINE efs_table efs_load_table(uint32_t word)
{
    return _mm256_set1_epi32((int32_t)word);
}

EFS_INLINE __m128i efs_load_8(const void *p)
{
    return _mm_loadl_epi64(p);
}

/*
 * symbols, and at the escapes, which are bytes of all ones, the next bytes of below. Within 16 bytes, each escape takes
 * the byte of below whose number is that of the escapes before it: sums of 4 bytes by a multiplication, and then sums
 * of 8 and 16 by adding the last byte of what comes before. Faster than a table of 8-bit masks. The factor is
 * 0x01010101 / 255 modulo 2^32: four bytes of 255 each count as 1.
 */
EFS_INLINE efs_vector efs_filled(efs_vector symbols, efs_vector escapes, const uint8_t **below)
{
    const __m256i over_4 = _mm256_setr_epi32(-1, 0x03030303, -1, 0x0b0b0b0b, -1, 0x03030303, -1, 0x0b0b0b0b);
    const __m256i over_8 = _mm256_setr_epi32(-1, -1, 0x07070707, 0x07070707, -1, -1, 0x07070707, 0x07070707);
    uint32_t bits = (uint32_t)_mm256_movemask_epi8(escapes);
    __m256i sums = _mm256_mullo_epi32(escapes, _mm256_set1_epi32((int32_t)0xfbfcfdff));
    uint64_t first = 0;

    /* Writes only the low 16 bits; gcc extends the result of the intrinsic once more. */
    __asm__("popcntw %w1, %w0" : "+r"(first) : "r"(bits) : "cc");
    sums = _mm256_add_epi8(sums, _mm256_shuffle_epi8(sums, over_4));
    sums = _mm256_add_epi8(sums, _mm256_shuffle_epi8(sums, over_8));
    /* The number of an escape is its count - 1. */
    __m256i from = _mm256_add_epi8(sums, escapes);
    __m256i next = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)*below)),
                                           _mm_loadu_si128((const void *)(*below + first)), 1);

    *below += _mm_popcnt_u32(bits);
    return _mm256_blendv_epi8(symbols, _mm256_shuffle_epi8(next, from), escapes);
}

/* Bytes 0..valid-1 all ones. */
EFS_INLINE __m256i efs_first_lanes(size_t valid)
{
    static const uint64_t ones_and_zeros[8] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 0, 0, 0};

    return efs_load((const uint8_t *)ones_and_zeros + 32 - valid);
}

EFS_INLINE efs_vector efs_symbols(efs_vector plane, unsigned shift, efs_table table, size_t valid,
                                  const uint8_t **below)
{
    const __m256i three = _mm256_set1_epi8(3);
    __m256i codes = _mm256_and_si256(efs_shifted_right(plane, shift), three);
    __m256i escapes = _mm256_cmpeq_epi8(codes, three);

    if (valid < EFS_LANES)
        escapes = _mm256_and_si256(escapes, efs_first_lanes(valid));
    return efs_filled(_mm256_shuffle_epi8(table, codes), escapes, below);
}

/* A level's tables, for codes in bits 0 and 2 of a byte. */
struct efs_tables {
    __m256i table[2];
};

EFS_INLINE struct efs_tables efs_load_tables(uint32_t word)
{
    const __m256i spread =
        _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0, 0x01010101, 0x02020202, 0x03030303);
    const __m256i table = efs_load_table(word);

    return (struct efs_tables){{table, _mm256_shuffle_epi8(table, spread)}};
}

EFS_INLINE efs_vector efs_plane_symbols(efs_vector codes, const unsigned plane, const struct efs_tables *tables,
                                        size_t valid, const uint8_t **below)
{
    const __m256i escape = _mm256_set1_epi8(plane % 2 ? 0x0c : 0x03);

    if (plane >= 2)
        codes = _mm256_srli_epi16(codes, 4);
    codes = _mm256_and_si256(codes, escape);
    __m256i escapes = _mm256_cmpeq_epi8(codes, escape);
    if (valid < EFS_LANES)
        escapes = _mm256_and_si256(escapes, efs_first_lanes(valid));
    return efs_filled(_mm256_shuffle_epi8(tables->table[plane % 2], codes), escapes, below);
}

/* ---- coding a level -------------------------------------------------------------------------------------------- */

/* flip: exclusive or with it turns the escape's code, 3, into the symbol's code; 0: the symbol is not in use. */
struct efs_ranks {
    __m256i symbol[3], flip[3];
};

EFS_INLINE struct efs_ranks efs_load_ranks(const uint8_t table[4], unsigned ranked)
{
    struct efs_ranks t;

    for (unsigned r = 0; r < 3; r++) {
        t.symbol[r] = _mm256_set1_epi8((char)table[r]);
        t.flip[r] = _mm256_set1_epi8((char)(ranked > r ? 3 ^ r : 0));
    }
    return t;
}

EFS_INLINE efs_vector efs_codes(efs_vector v, const struct efs_ranks *t, size_t valid, uint8_t **escaped)
{
    const __m256i three = _mm256_set1_epi8(3);
    __m256i codes = three;

    for (unsigned r = 0; r < 3; r++)
        codes = _mm256_xor_si256(codes, _mm256_and_si256(_mm256_cmpeq_epi8(v, t->symbol[r]), t->flip[r]));
    if (valid < EFS_LANES)
        codes = _mm256_and_si256(codes, efs_first_lanes(valid));
    uint32_t escapes = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, three));
    __m128i half = _mm256_castsi256_si128(v);
    for (unsigned k = 0; k < 4; k++, escapes >>= 8) {
        __m128i eight = k % 2 ? _mm_unpackhi_epi64(half, half) : half;
        _mm_storel_epi64((void *)*escaped, _mm_shuffle_epi8(eight, efs_load_8(&efs_compress_table[escapes & 0xff])));
        *escaped += _mm_popcnt_u32(escapes & 0xff);
        if (k == 1)
            half = _mm256_extracti128_si256(v, 1);
    }
    return codes;
}

EFS_INLINE efs_vector efs_codes_into(efs_vector planes, efs_vector codes, unsigned at)
{
    return _mm256_or_si256(planes, _mm256_sll_epi16(codes, _mm_cvtsi32_si128((int)at)));
}

/* ---- merging --------------------------------------------------------------------------------------------------- */

/* Unpack instructions work within halves of 128 bits: puts the halves of their two results in order. */
EFS_INLINE void efs_halves_in_order(efs_vector low, efs_vector high, efs_vector out[2])
{
    out[0] = _mm256_permute2x128_si256(low, high, 0x20);
    out[1] = _mm256_permute2x128_si256(low, high, 0x31);
}

EFS_INLINE void efs_interleave(efs_vector low, efs_vector high, efs_vector words[2])
{
    efs_halves_in_order(_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high), words);
}

EFS_INLINE void efs_interleave_words(efs_vector low, efs_vector high, efs_vector dwords[2])
{
    efs_halves_in_order(_mm256_unpacklo_epi16(low, high), _mm256_unpackhi_epi16(low, high), dwords);
}

EFS_INLINE void efs_join_bf16(efs_vector e, efs_vector sm, efs_vector words[2])
{
    const __m256i sign = _mm256_set1_epi8((char)0x80);

    efs_interleave(efs_select(sign, _mm256_slli_epi16(e, 7), sm), efs_select(sign, sm, _mm256_srli_epi16(e, 1)), words);
}

EFS_INLINE efs_vector efs_join_small(efs_vector sign, efs_vector e, efs_vector mantissa, unsigned mantissa_bits)
{
    const __m256i in_mantissa = _mm256_set1_epi8((char)((1 << mantissa_bits) - 1));
    const __m256i in_sign = _mm256_set1_epi8((char)0x80);
    __m256i shifted = mantissa_bits == 2 ? _mm256_slli_epi16(e, 2) : _mm256_slli_epi16(e, 3);

    shifted = _mm256_andnot_si256(_mm256_or_si256(in_sign, in_mantissa), shifted);
    return _mm256_or_si256(shifted,
                           _mm256_or_si256(_mm256_and_si256(sign, in_sign), _mm256_and_si256(mantissa, in_mantissa)));
}

#endif
