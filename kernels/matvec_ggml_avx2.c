/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_ggml_avx2.c - products on processors with AVX2 and FMA in the order of sums that ggml_vec_dot_bf16() of ggml
 * has there, as gcc compiles it: column c of a group of 32 is added to sum c by a fused multiply-add; the sums are
 * added pairwise, 16, 8, 4, 2, 1 apart; the products of a row's last cols % 32 columns are added to that in double.
 */
#include "matvec_avx2.h"

#include "matvec_ops.h"

#define EFS_SUMS_REST 1
#define EFS_SUMS_STEP 32

/* Vectors of sums: the even columns of the first and third eight, their odd ones, those of the other eights. */
EFS_INLINE unsigned efs_sum_of(unsigned p, unsigned k)
{
    (void)p;
    return k;
}

EFS_INLINE __m128 efs_low_and_high(__m256 v)
{
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

EFS_INLINE double efs_sums_total(const efs_floats *sums)
{
    __m128 even = _mm_add_ps(efs_low_and_high(sums[0]), efs_low_and_high(sums[2]));
    __m128 odd = _mm_add_ps(efs_low_and_high(sums[1]), efs_low_and_high(sums[3]));

    even = _mm_add_ps(even, _mm_movehl_ps(even, even));
    odd = _mm_add_ps(odd, _mm_movehl_ps(odd, odd));
    even = _mm_add_ss(even, _mm_movehdup_ps(even));
    odd = _mm_add_ss(odd, _mm_movehdup_ps(odd));
    return 0.0 + (double)_mm_cvtss_f32(_mm_add_ss(even, odd));
}

EFS_INLINE float efs_x_at(const float *x, unsigned c)
{
    return x[efs_float_place(c)];
}

#include "matvec_coded.h"

const struct efs_matvec_ops efs_matvec_ggml_avx2 = {
    EFS_SIMD_PRODUCTS,
    .order = "avx2",
};
