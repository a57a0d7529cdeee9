/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_neon.c - products on 64-bit Arm processors.
 */
#include "matvec_neon.h"

#include "matvec_sum_order.h"

#include "matvec_coded.h"

const struct efs_matvec_ops efs_matvec_neon = {
    EFS_SIMD_PRODUCTS,
    .f16 = &efs_matvec_f16_neon,
};
