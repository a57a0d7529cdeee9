/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx512.c - products on processors with AVX-512 VBMI2.
 */
#include "matvec_avx512.h"

#include "matvec_f32.h"

EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    if (k % 2 == 0)
        return _mm512_castsi512_ps(_mm512_slli_epi32(words[k / 2], 16));
    return _mm512_castsi512_ps(_mm512_and_si512(words[k / 2], _mm512_set1_epi32((int)0xffff0000)));
}

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return _mm512_fmadd_ps(number, x, sum);
}

#include "matvec_sum_order.h"

#include "matvec_coded.h"

const struct efs_matvec_ops efs_matvec_avx512 = {
    EFS_SIMD_PRODUCTS,
    .f16 = &efs_matvec_f16_avx512,
    .dot = &efs_matvec_avx512bf16,
};
