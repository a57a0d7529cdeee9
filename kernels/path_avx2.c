/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path_avx2.c - the path of processors with AVX2: Haswell, Zen and later.
 */
#include "simd_avx2.h"

#include "histogram.h"
#include "matvec_ops.h"
#include "simd_decode.h"
#include "simd_encode.h"

static void stream_end(void)
{
    _mm_sfence();
}

static bool supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("f16c");
}

const struct efs_kernel_ops efs_ops_avx2 = {
    .name = "avx2",
    .supported = supported,
    .histogram = efs_histogram_fast,
    .split = efs_split_block,
    .merge = simd_merge,
    .encode = simd_encode,
    .lower = simd_lower,
    .decode_merge = simd_decode_merge,
    .stream_end = stream_end,
    .matvec = &efs_matvec_avx2,
};
