/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path_neon.c - the path of 64-bit Arm processors, all of which have NEON.
 */
#include "simd_neon.h"

#include "histogram.h"
#include "matvec_ops.h"
#include "simd_decode.h"
#include "simd_encode.h"

static bool supported(void)
{
    return true;
}

const struct efs_kernel_ops efs_ops_neon = {
    .name = "neon",
    .supported = supported,
    .histogram = efs_histogram_fast,
    .split = efs_split_block,
    .merge = simd_merge,
    .encode = simd_encode,
    .lower = simd_lower,
    .decode_merge = simd_decode_merge,
    .merge_short = simd_merge_short,
    .matvec = &efs_matvec_neon,
};
