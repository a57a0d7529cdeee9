/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path_avx2.c - the path of processors with AVX2: Haswell, Zen and later.
 */
#include "simd_avx2.h"

#include <cpuid.h>

#include "histogram.h"
#include "matvec_ops.h"
#include "simd_decode.h"
#include "simd_encode.h"

static void stream_end(void)
{
    _mm_sfence();
}

/* clang 14 does not know this one by name; that the system saves the registers is asked with avx2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_f16c();
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
    .merge_short = simd_merge_short,
    .stream_end = stream_end,
    .matvec = &efs_matvec_avx2,
};
