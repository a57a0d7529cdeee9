/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_f16_avx512.c - products of F16 on processors with AVX-512 VBMI2.
 */
#define EFS_F16
#include "matvec_avx512.h"

#include "matvec_f32.h"

EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    return _mm512_cvtph_ps(k % 2 == 0 ? _mm512_castsi512_si256(words[k / 2])
                                      : _mm512_extracti64x4_epi64(words[k / 2], 1));
}

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return _mm512_fmadd_ps(number, x, sum);
}

#include "matvec_sum_order.h"

#include "matvec_many.h"

const struct efs_matvec_ops efs_matvec_f16_avx512 = {.plain = simd_plain, .many = simd_many};
