/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx512bf16.c - products by the BF16 dot product of processors with AVX-512 VBMI2 and BF16: two columns at
 * once.
 */
#include "matvec_avx512.h"

#define EFS_STEPS 2

typedef uint16_t efs_x;
typedef __m512i efs_number;
typedef __m512i efs_xs;

/* Number k of a part: its even eights, its odd eights. */
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    return words[k];
}

EFS_INLINE efs_xs efs_load_xs(const efs_x *p)
{
    return _mm512_load_si512(p);
}

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)number, (__m512bh)x);
}

#include "matvec_simd.h"

#include "matvec_many.h"

static bool supported(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

const struct efs_matvec_ops efs_matvec_avx512bf16 = {
    .plain = simd_plain,
    .lower_turned = simd_lower_turned,
    .coded = simd_coded,
    .many = simd_many,
    .exponents = simd_exponents,
    .halves = simd_halves,
    .supported = supported,
};
