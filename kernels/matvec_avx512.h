/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx512.h - operations of all products with AVX-512 VBMI2: F32, BF16 dot product and F16. Private.
 */
#ifndef EFS_KERNELS_MATVEC_AVX512_H
#define EFS_KERNELS_MATVEC_AVX512_H

#include "simd_avx512.h"

#define EFS_SM_AHEAD 8192
#define EFS_EXPONENTS_FIRST 0
#define EFS_MANY_ROWS 3
#define EFS_MANY_TOKENS 4
/* Keeps v in a register. gcc reloads it for each use instead, and the loop is bound by load ports. */
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

/* Sum of all floats, added pairwise. */
EFS_INLINE float efs_total(efs_floats v)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));

    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

#ifdef EFS_F16
EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    words[0] = efs_load(w);
    words[1] = efs_load(w + EFS_LANES);
}
#else
/* A part's BF16 numbers from memory: even eights, odd eights. */
EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    efs_vector first = efs_load(w), second = efs_load(w + EFS_LANES);

    words[0] = _mm512_shuffle_i32x4(first, second, 0x88);
    words[1] = _mm512_shuffle_i32x4(first, second, 0xdd);
}
#endif

/* Low and high bytes of BF16 numbers from rotated exponents, signs and mantissas. */
EFS_INLINE void efs_rotated_join(efs_vector e, efs_vector sm, efs_vector bytes[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);

    /* Load sm once: gcc uses it twice as a memory operand, and the loop is bound by load ports. */
    __asm__("" : "+v"(sm));
    bytes[1] = efs_select(sign, sm, e);
    bytes[0] = _mm512_ternarylogic_epi64(e, sm, bytes[1], 0x96); /* the bits that bytes[1] did not take */
}

/* A part's BF16 numbers from their low and high bytes: even eights, odd eights. */
EFS_INLINE void efs_unpack_lanes(const efs_vector bytes[2], efs_vector words[2])
{
    words[0] = _mm512_unpacklo_epi8(bytes[0], bytes[1]);
    words[1] = _mm512_unpackhi_epi8(bytes[0], bytes[1]);
}

#endif
