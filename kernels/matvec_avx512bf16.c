/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx512bf16.c - products by the BF16 dot product of processors with AVX-512 VBMI2 and BF16: two columns at
 * once. Sums and their order are those of ggml_vec_dot_bf16() of ggml on such a processor: a sum for each pair of
 * columns of a group; the 16 of its first 32 columns are added by halves, 8, 4, 2, 1 apart, and those of the other 32;
 * then the two, and what is left of a row, product by product, in double.
 */
#include "matvec_avx512.h"

#include "matvec_ops.h"

#define EFS_STEPS 2
#define EFS_SUMS_REST 1
#define EFS_SUMS_STEP EFS_GROUP

typedef uint16_t efs_x;
typedef __m512i efs_number;
typedef __m512i efs_xs;

/* Number k of a part: its even eights, its odd eights. */
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    return words[k];
}

/* What number k of part p of a group is multiplied with. */
EFS_INLINE const efs_x *efs_part_x(const efs_x *x, unsigned p, unsigned k)
{
    return x + k * (EFS_GROUP / EFS_STEPS) + p * EFS_FLOATS;
}

EFS_INLINE efs_xs efs_load_xs(const efs_x *p)
{
    return _mm512_load_si512(p);
}

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)number, (__m512bh)x);
}

/* Vectors of sums: even eights, odd eights. */
EFS_INLINE unsigned efs_sum_of(unsigned p, unsigned k)
{
    (void)p;
    return k;
}

EFS_INLINE double efs_sums_total(const efs_floats *sums)
{
    /* Eights 0 and 2 in the first quarter, 1 and 3 likewise; 4 and 6, 5 and 7 in the third one. */
    __m512 even = _mm512_add_ps(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0xb1));
    __m512 odd = _mm512_add_ps(sums[1], _mm512_shuffle_f32x4(sums[1], sums[1], 0xb1));
    __m512 all = _mm512_add_ps(even, odd);

    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
    return 0.0 + (double)_mm512_cvtss_f32(all) + (double)_mm_cvtss_f32(_mm512_extractf32x4_ps(all, 2));
}

EFS_INLINE float efs_x_at(const uint16_t *x, unsigned c)
{
    return efs_widened((const uint8_t *)(x + efs_pair_place(c)));
}

#include "matvec_coded.h"

static bool supported(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

const struct efs_matvec_ops efs_matvec_avx512bf16 = {
    EFS_SIMD_PRODUCTS,
    .supported = supported,
    .pairs = true,
    .order = "avx512bf16",
};
