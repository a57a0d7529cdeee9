/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_avx512.h - the operations on 64 bytes that simd_decode.h and simd_encode.h are made of, with AVX-512 VBMI and
 * VBMI2. Private.
 */
#ifndef EFS_KERNELS_SIMD_AVX512_H
#define EFS_KERNELS_SIMD_AVX512_H

#include "ops.h"

#include <immintrin.h>
#include <string.h>

#define EFS_LANES 64
#define EFS_STREAMS 1  /* the path has streaming stores */
#define EFS_REALIGNS 1 /* and a fast realignment of vectors */
#define EFS_INLINE static inline __attribute__((always_inline))

typedef __m512i efs_vector;
/*
 * A level's table: the bytes for its four codes, repeated. The byte for an escape is the *mark*, which is none of the
 * three symbols, so a result that is the mark is an escape. The permutation uses only the low 6 bits of a byte, so the
 * codes need not be masked before it.
 */
typedef struct {
    __m512i symbols, mark;
} efs_table;

EFS_INLINE efs_vector efs_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

EFS_INLINE void efs_store(uint8_t *p, efs_vector v)
{
    _mm512_storeu_si512(p, v);
}

/* Past the cache; p is aligned. */
EFS_INLINE void efs_stream(uint8_t *p, efs_vector v)
{
    _mm512_stream_si512((void *)p, v);
}

/* The last 64 - skip bytes of one vector and the first skip bytes of the next. */
typedef __m512i efs_realign;

EFS_INLINE efs_realign efs_realign_by(size_t skip)
{
    const __m512i numbers =
        _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                         0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);

    return _mm512_add_epi8(numbers, _mm512_set1_epi8((char)skip));
}

EFS_INLINE efs_vector efs_realigned(efs_vector v, efs_vector next, efs_realign realign)
{
    return _mm512_permutex2var_epi8(v, realign, next);
}

/* a where mask has ones, else b. */
EFS_INLINE efs_vector efs_select(efs_vector mask, efs_vector a, efs_vector b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

/* Each byte becomes the 8 bits that begin `bits` above its own place. They wrap around in 64 bits; the caller masks
 * what is not its own. */
EFS_INLINE efs_vector efs_shifted_right(efs_vector v, unsigned bits)
{
    const __m512i places = _mm512_set1_epi64(0x3830282018100800);

    return _mm512_multishift_epi64_epi8(_mm512_add_epi8(places, _mm512_set1_epi8((char)bits)), v);
}

EFS_INLINE efs_vector efs_shifted_left(efs_vector v, unsigned bits)
{
    return efs_shifted_right(v, -bits);
}

/* Each byte rotated right by one bit. */
EFS_INLINE efs_vector efs_rotated(efs_vector v)
{
    return efs_select(_mm512_set1_epi8((char)0x80), _mm512_slli_epi16(v, 7), _mm512_srli_epi16(v, 1));
}

/* ---- decoding a level ------------------------------------------------------------------------------------------ */

/* word: three symbols, as bytes. */
EFS_INLINE efs_table efs_load_table(uint32_t word)
{
    /* The mark: one of 0..3 that is none of them. */
    uint32_t a = word & 0xff, b = word >> 8 & 0xff, c = word >> 16 & 0xff;
    uint32_t taken = (uint32_t)(a < 4) << (a & 3) | (uint32_t)(b < 4) << (b & 3) | (uint32_t)(c < 4) << (c & 3);
    uint32_t mark = (uint32_t)__builtin_ctz(~taken);

    return (efs_table){_mm512_set1_epi32((int32_t)((word & 0xffffff) | mark << 24)), _mm512_set1_epi8((char)mark)};
}

/* The symbols of 64 codes, one in the low bits of each byte. An escape among the first `valid` takes the next byte of
 * *below, which is advanced past the bytes taken. */
EFS_INLINE efs_vector efs_symbols_at(efs_vector codes, efs_table table, size_t valid, const uint8_t **below)
{
    __m512i symbols = _mm512_permutexvar_epi8(codes, table.symbols);
    __mmask64 escapes = _mm512_cmpeq_epi8_mask(symbols, table.mark);
    __m512i next = _mm512_loadu_si512(*below);

    if (valid < EFS_LANES)
        escapes = _bzhi_u64(escapes, (uint32_t)valid);
    /* The expand has its operand in a register: with one in memory it is microcoded on Zen 4, and the compiler would
     * make it so. */
    __asm__("" : "+v"(next));
    *below += __builtin_popcountll(escapes);
    return _mm512_mask_expand_epi8(symbols, escapes, next);
}

EFS_INLINE efs_vector efs_symbols(efs_vector plane, unsigned shift, efs_table table, size_t valid,
                                  const uint8_t **below)
{
    return efs_symbols_at(efs_shifted_right(plane, shift), table, valid, below);
}

/*
 * A level's tables for codes at bits 0, 2 and 4 of a byte. The permutation uses the low 6 bits of each byte, so codes
 * of planes 0 to 2 are looked up without a shift; those of plane 3, at bit 6, are first shifted into these bits.
 */
struct efs_tables {
    __m512i plane[3], mark;
};

EFS_INLINE struct efs_tables efs_load_tables(uint32_t word)
{
    const __m512i numbers = efs_realign_by(0);
    const efs_table table = efs_load_table(word);

    return (struct efs_tables){
        .plane = {table.symbols, _mm512_permutexvar_epi8(_mm512_srli_epi16(numbers, 2), table.symbols),
                  _mm512_permutexvar_epi8(_mm512_srli_epi16(numbers, 4), table.symbols)},
        .mark = table.mark,
    };
}

/* As efs_symbols(), for a plane that is known when this is compiled. */
EFS_INLINE efs_vector efs_plane_symbols(efs_vector codes, const unsigned plane, const struct efs_tables *tables,
                                        size_t valid, const uint8_t **below)
{
    if (plane == 3)
        codes = _mm512_srli_epi16(codes, 2);
    const efs_table table = {tables->plane[plane < 3 ? plane : 2], tables->mark};
    return efs_symbols_at(codes, table, valid, below);
}

/* ---- coding a level -------------------------------------------------------------------------------------------- */

/* The three symbols of a level, and which of them are in use. */
struct efs_ranks {
    __m512i symbol[3];
    __mmask64 used[3];
};

EFS_INLINE struct efs_ranks efs_load_ranks(const uint8_t table[4], unsigned ranked)
{
    struct efs_ranks t;

    for (unsigned r = 0; r < 3; r++) {
        t.symbol[r] = _mm512_set1_epi8((char)table[r]);
        t.used[r] = ranked > r ? UINT64_MAX : 0;
    }
    return t;
}

/* Codes of the first `valid` of 64 symbols, 0 for the rest. Symbols that escape are appended to *escaped. */
EFS_INLINE efs_vector efs_codes(efs_vector v, const struct efs_ranks *t, size_t valid, uint8_t **escaped)
{
    __mmask64 inside = _bzhi_u64(UINT64_MAX, (uint32_t)valid);
    __mmask64 is0 = _mm512_mask_cmpeq_epi8_mask(t->used[0], v, t->symbol[0]);
    __mmask64 is1 = _mm512_mask_cmpeq_epi8_mask(t->used[1], v, t->symbol[1]);
    __mmask64 is2 = _mm512_mask_cmpeq_epi8_mask(t->used[2], v, t->symbol[2]);
    __mmask64 escapes = inside & ~(is0 | is1 | is2);
    __m512i codes = _mm512_maskz_mov_epi8(is1 & inside, _mm512_set1_epi8(1));

    codes = _mm512_mask_mov_epi8(codes, is2 & inside, _mm512_set1_epi8(2));
    codes = _mm512_mask_mov_epi8(codes, escapes, _mm512_set1_epi8(3));
    _mm512_storeu_si512(*escaped, _mm512_maskz_compress_epi8(escapes, v));
    *escaped += __builtin_popcountll(escapes);
    return codes;
}

/* planes with codes put in at bit `at`; codes are 2 bits and do not leave their byte. */
EFS_INLINE efs_vector efs_codes_into(efs_vector planes, efs_vector codes, unsigned at)
{
    return _mm512_or_si512(planes, _mm512_sll_epi16(codes, _mm_cvtsi32_si128((int)at)));
}

/* ---- merging --------------------------------------------------------------------------------------------------- */

/* Bytes low[i], high[i] as 16-bit words in order: words 0..31 and 32..63. */
EFS_INLINE void efs_interleave(efs_vector low, efs_vector high, efs_vector words[2])
{
    const __m512i step =
        _mm512_set_epi64(0x1f1f1e1e1d1d1c1c, 0x1b1b1a1a19191818, 0x1717161615151414, 0x1313121211111010,
                         0x0f0f0e0e0d0d0c0c, 0x0b0b0a0a09090808, 0x0707060605050404, 0x0303020201010000);
    const __m512i first = _mm512_or_si512(step, _mm512_set1_epi16(0x4000)); /* bit 6: from the second operand */

    words[0] = _mm512_permutex2var_epi8(low, first, high);
    words[1] = _mm512_permutex2var_epi8(low, _mm512_or_si512(first, _mm512_set1_epi8(32)), high);
}

/* 16-bit words low[i], high[i] as 32-bit ones in order. */
EFS_INLINE void efs_interleave_words(efs_vector low, efs_vector high, efs_vector dwords[2])
{
    const __m512i step =
        _mm512_set_epi64(0x002f000f002e000e, 0x002d000d002c000c, 0x002b000b002a000a, 0x0029000900280008,
                         0x0027000700260006, 0x0025000500240004, 0x0023000300220002, 0x0021000100200000);

    dwords[0] = _mm512_permutex2var_epi16(low, step, high);
    dwords[1] = _mm512_permutex2var_epi16(low, _mm512_or_si512(step, _mm512_set1_epi16(16)), high);
}

/* sign << 7 | mantissa, and e: as words sign << 15 | e << 7 | mantissa. */
EFS_INLINE void efs_join_bf16(efs_vector e, efs_vector sm, efs_vector words[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i low = efs_select(sign, _mm512_slli_epi16(e, 7), sm);
    __m512i high = efs_select(sign, sm, _mm512_srli_epi16(e, 1));

    efs_interleave(low, high, words);
}

/* sign << 7 | e << mantissa_bits | mantissa, for 2 or 3 mantissa bits; sign is in bit 7, all other bits are junk. */
EFS_INLINE efs_vector efs_join_small(efs_vector sign, efs_vector e, efs_vector mantissa, unsigned mantissa_bits)
{
    __m512i shifted = mantissa_bits == 2 ? _mm512_slli_epi16(e, 2) : _mm512_slli_epi16(e, 3);
    __m512i bits = efs_select(_mm512_set1_epi8((char)((1 << mantissa_bits) - 1)), mantissa, shifted);

    return efs_select(_mm512_set1_epi8((char)0x80), sign, bits);
}

#endif
