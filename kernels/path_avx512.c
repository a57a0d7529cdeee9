/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path_avx512.c - the path of processors with AVX-512 VBMI2: Ice Lake, Zen 4 and later.
 */
#include "simd_avx512.h"

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
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

const struct efs_kernel_ops efs_ops_avx512 = {
    .name = "avx512",
    .supported = supported,
    .histogram = efs_histogram_fast,
    .split = efs_split_block,
    .merge = simd_merge,
    .encode = simd_encode,
    .lower = simd_lower,
    .decode_merge = simd_decode_merge,
    .merge_short = simd_merge_short,
    .stream_end = stream_end,
    .matvec = &efs_matvec_avx512,
};
