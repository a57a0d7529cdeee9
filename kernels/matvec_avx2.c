/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_avx2.c - products on processors with AVX2 and FMA.
 */
#include "matvec_avx2.h"

#include "matvec_sum_order.h"

#include "matvec_coded.h"

const struct efs_matvec_ops efs_matvec_avx2 = {
    EFS_SIMD_PRODUCTS,
    .f16 = &efs_matvec_f16_avx2,
    .dot = &efs_matvec_ggml_avx2,
};
