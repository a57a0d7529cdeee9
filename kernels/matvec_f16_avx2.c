/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_f16_avx2.c - products of F16 on processors with AVX2, FMA and F16C.
 */
#define EFS_F16
#include "matvec_avx2.h"

#include "matvec_sum_order.h"

#include "matvec_many.h"

const struct efs_matvec_ops efs_matvec_f16_avx2 = {.plain = simd_plain, .many = simd_many};
