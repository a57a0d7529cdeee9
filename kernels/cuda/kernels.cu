/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - the kernels as a device runs them. gpu.h says how each is launched.
 */
#include "gpu_decode.h"
#include "gpu_ffn.h"
#include "gpu_recover.h"

extern "C" __global__ void __launch_bounds__(EFS_GPU_THREADS) efs_gpu_recover(const struct efs_gpu_shard *shards)
{
    efs_gpu_recover_block(&shards[blockIdx.y], blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(EFS_GPU_DECODE_THREADS, 2) efs_gpu_decode(struct efs_gpu_shard *shards)
{
    extern __shared__ __align__(16) uint8_t shared[];

    efs_gpu_decode_span(&shards[blockIdx.y], blockIdx.x, (struct efs_gpu_decode *)shared);
}

extern "C" __global__ void __launch_bounds__(EFS_GPU_THREADS)
    efs_gpu_ffn_up(const __grid_constant__ struct efs_gpu_mixture mixture)
{
    __shared__ struct efs_gpu_ffn state;

    efs_gpu_ffn_up_block(&mixture, blockIdx.y, blockIdx.x, &state);
}

extern "C" __global__ void __launch_bounds__(EFS_GPU_THREADS)
    efs_gpu_ffn_down(const __grid_constant__ struct efs_gpu_mixture mixture)
{
    __shared__ struct efs_gpu_ffn state;

    efs_gpu_ffn_down_block(&mixture, blockIdx.y, blockIdx.x, &state);
}

extern "C" __global__ void __launch_bounds__(EFS_GPU_THREADS)
    efs_gpu_ffn_sum(const __grid_constant__ struct efs_gpu_mixture mixture)
{
    efs_gpu_ffn_sum_block(&mixture, blockIdx.y, blockIdx.x);
}
