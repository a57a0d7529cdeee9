/*
 * matvec_avx512.h - what products with AVX-512 VBMI2 share, whatever multiplies. Private.
 */
#ifndef EFS_KERNELS_MATVEC_AVX512_H
#define EFS_KERNELS_MATVEC_AVX512_H

#include "simd_avx512.h"

#define EFS_SM_AHEAD 8192
#define EFS_MANY_ROWS 2
#define EFS_MANY_TOKENS 4
/* v is used several times: the compiler would rather load it anew for each, and loads are scarce. */
#define EFS_IN_REGISTER(v) __asm__("" : "+v"(v))

typedef __m512 efs_floats;

EFS_INLINE efs_floats efs_load_floats(const float *p)
{
    return _mm512_load_ps(p);
}

EFS_INLINE void efs_store_floats(float *p, efs_floats v)
{
    _mm512_store_ps(p, v);
}

EFS_INLINE efs_floats efs_zero_floats(void)
{
    return _mm512_setzero_ps();
}

EFS_INLINE efs_floats efs_add_floats(efs_floats a, efs_floats b)
{
    return _mm512_add_ps(a, b);
}

/* All floats, by halves. */
EFS_INLINE float efs_total(efs_floats v)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));

    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

/* A part's BF16 numbers from memory: even eights, odd eights. */
EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    efs_vector first = efs_load(w), second = efs_load(w + EFS_LANES);

    words[0] = _mm512_shuffle_i32x4(first, second, 0x88);
    words[1] = _mm512_shuffle_i32x4(first, second, 0xdd);
}

/* Low and high bytes of BF16 numbers from turned exponents, signs and mantissas. */
EFS_INLINE void efs_turned_join(efs_vector e, efs_vector sm, efs_vector bytes[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);

    /* Loaded once: the compiler would rather have it twice as a memory operand, and loads are scarce here. */
    __asm__("" : "+v"(sm));
    bytes[0] = efs_select(sign, e, sm);
    bytes[1] = efs_select(sign, sm, e);
}

/* A part's BF16 numbers from their low and high bytes: even eights, odd eights. */
EFS_INLINE void efs_unpack_lanes(const efs_vector bytes[2], efs_vector words[2])
{
    words[0] = _mm512_unpacklo_epi8(bytes[0], bytes[1]);
    words[1] = _mm512_unpackhi_epi8(bytes[0], bytes[1]);
}

/*
 * The first level's tables, for codes in bits 0, 2 and 4 of a byte. The permutation looks at 6 bits, so that these
 * planes need no shift, and the last one any shift that brings its codes within these bits.
 */
struct efs_first {
    __m512i plane[3], mark;
};

EFS_INLINE struct efs_first efs_first_load(const uint8_t table_bytes[4])
{
    const __m512i numbers = efs_realign_by(0);
    const efs_table table = efs_load_table(table_bytes);

    return (struct efs_first){
        .plane = {table.symbols, _mm512_permutexvar_epi8(_mm512_srli_epi16(numbers, 2), table.symbols),
                  _mm512_permutexvar_epi8(_mm512_srli_epi16(numbers, 4), table.symbols)},
        .mark = table.mark,
    };
}

EFS_INLINE efs_vector efs_first_symbols(efs_vector codes, const unsigned plane, const struct efs_first *first,
                                        const uint8_t **below)
{
    if (plane == 3)
        codes = _mm512_srli_epi16(codes, 2);
    const efs_table table = {first->plane[plane < 3 ? plane : 2], first->mark};
    return efs_symbols_at(codes, table, EFS_LANES, below);
}

#endif
