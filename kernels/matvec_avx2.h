/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx2.h - operations of all products with AVX2 and FMA, independent of the order of sums. Private.
 */
#ifndef EFS_KERNELS_MATVEC_AVX2_H
#define EFS_KERNELS_MATVEC_AVX2_H

#include "simd_avx2.h"

#define EFS_SM_AHEAD 4096
#define EFS_EXPONENTS_FIRST 1
#define EFS_MANY_ROWS 1
#define EFS_MANY_TOKENS 3
#define EFS_IN_REGISTER(v) ((void)(v))

typedef __m256 efs_floats;

EFS_INLINE efs_floats efs_load_floats(const float *p)
{
    return _mm256_load_ps(p);
}

EFS_INLINE void efs_store_floats(float *p, efs_floats v)
{
    _mm256_store_ps(p, v);
}

EFS_INLINE efs_floats efs_zero_floats(void)
{
    return _mm256_setzero_ps();
}

EFS_INLINE efs_floats efs_add_floats(efs_floats a, efs_floats b)
{
    return _mm256_add_ps(a, b);
}

EFS_INLINE float efs_total(efs_floats v)
{
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));

    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

#include "matvec_f32.h"

#ifdef EFS_F16
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    return _mm256_cvtph_ps(k % 2 == 0 ? _mm256_castsi256_si128(words[k / 2])
                                      : _mm256_extracti128_si256(words[k / 2], 1));
}

EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    words[0] = efs_load(w);
    words[1] = efs_load(w + EFS_LANES);
}
#else
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    if (k % 2 == 0)
        return _mm256_castsi256_ps(_mm256_slli_epi32(words[k / 2], 16));
    return _mm256_castsi256_ps(_mm256_and_si256(words[k / 2], _mm256_set1_epi32((int)0xffff0000)));
}

EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    efs_halves_in_order(efs_load(w), efs_load(w + EFS_LANES), words);
}
#endif

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return _mm256_fmadd_ps(number, x, sum);
}

EFS_INLINE void efs_rotated_join(efs_vector e, efs_vector sm, efs_vector bytes[2])
{
    /* Exchange all bits except the sign. */
    __m256i differ = _mm256_xor_si256(e, sm);

    __asm__("" : "+x"(differ)); /* else gcc loads sm twice */
    bytes[0] = _mm256_xor_si256(e, _mm256_and_si256(differ, _mm256_set1_epi8(0x7f)));
    bytes[1] = _mm256_xor_si256(differ, bytes[0]);
}

EFS_INLINE void efs_unpack_lanes(const efs_vector bytes[2], efs_vector words[2])
{
    words[0] = _mm256_unpacklo_epi8(bytes[0], bytes[1]);
    words[1] = _mm256_unpackhi_epi8(bytes[0], bytes[1]);
}

#endif
