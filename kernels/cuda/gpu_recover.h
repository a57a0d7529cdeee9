/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_recover.h - merges exponents that are stored as bytes with SM, in one pass (ZipMoE 3.1 and 4.4, recovery kernel).
 * Private to cuda/.
 */
#ifndef EFS_KERNELS_GPU_RECOVER_H
#define EFS_KERNELS_GPU_RECOVER_H

#include "gpu_merge.h"

/* Step: a thread takes 16 elements at a time by loads of 16 bytes, so that a warp reads runs of 512 bytes. */
EFS_DEVICE void efs_gpu_recover_step(unsigned thread, const struct efs_gpu_shard *shard, uint32_t b)
{
    const uint32_t first = b * EFS_BLOCK, left = shard->elements - first, m = left < EFS_BLOCK ? left : EFS_BLOCK;
    const uint8_t *e = shard->e + first, *sm = shard->sm + (size_t)b * efs_gpu_block_sm_bytes(shard->format);
    uint8_t *dst = shard->dst + (size_t)first * efs_gpu_element_bytes(shard->format);

    for (uint32_t at = 16 * thread; at < m; at += 16 * EFS_GPU_THREADS) {
        const uint32_t count = m - at < 16 ? m - at : 16;
        struct efs_gpu_quad exponents = {{0, 0, 0, 0}};
        if (count == 16) {
            exponents = efs_gpu_load_quad(e + at);
        } else {
            EFS_GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                if (i < count)
                    exponents.word[i / 4] |= (uint32_t)e[at + i] << 8 * (i % 4);
        }
        efs_gpu_merge(shard->format, exponents, sm, m, at, count, dst);
    }
}

/* Kernel: block b of a shard. */
EFS_DEVICE void efs_gpu_recover_block(const struct efs_gpu_shard *shard, uint32_t b)
{
    if ((uint64_t)b * EFS_BLOCK < shard->elements)
        EFS_GPU_STEP(efs_gpu_recover_step(thread, shard, b));
}

#endif
