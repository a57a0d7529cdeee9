/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_f16_neon.c - products of F16 on 64-bit Arm processors.
 */
#define EFS_F16
#include "matvec_neon.h"

#include "matvec_sum_order.h"

#include "matvec_many.h"

const struct efs_matvec_ops efs_matvec_f16_neon = {.plain = simd_plain, .many = simd_many};
