/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_recover.h - elements from exponents that are plain and SM, in one pass (ZipMoE 3.1 and 4.4, the recovery kernel).
 * Private to cuda/.
 */
#ifndef EFS_KERNELS_GPU_RECOVER_H
#define EFS_KERNELS_GPU_RECOVER_H

#include "gpu_merge.h"

/*
 * Step. A whole block of BF16, on which time goes: a thread takes 16 elements at a time by one load of 16 bytes from
 * either stream, so that a warp reads runs of 512 bytes and writes one of 1 KiB. Of other formats, 8 elements.
 */
EFS_DEVICE void efs_gpu_recover_step(unsigned thread, const struct efs_gpu_shard *shard, uint32_t b)
{
    const uint32_t first = b * EFS_BLOCK, left = shard->elements - first, m = left < EFS_BLOCK ? left : EFS_BLOCK;
    const uint8_t *e = shard->e + first, *sm = shard->sm + (size_t)b * efs_gpu_block_sm_bytes(shard->format);
    uint8_t *dst = shard->dst + (size_t)first * efs_gpu_element_bytes(shard->format);

    if (shard->format == EFS_FORMAT_BF16 && m == EFS_BLOCK) {
        for (uint32_t at = 16 * thread; at < m; at += 16 * EFS_GPU_THREADS) {
            const struct efs_gpu_quad exponents = efs_gpu_load_quad(e + at), rest = efs_gpu_load_quad(sm + at);
            uint32_t out[8];
            for (unsigned i = 0; i < 4; i++) {
                uint32_t low, high;
                efs_gpu_merge_e8(exponents.word[i], rest.word[i], &low, &high);
                out[2 * i] = efs_gpu_pick(low, high, 0x5140);
                out[2 * i + 1] = efs_gpu_pick(low, high, 0x7362);
            }
            efs_gpu_store_quad(dst + 2 * at, out[0], out[1], out[2], out[3]);
            efs_gpu_store_quad(dst + 2 * at + 16, out[4], out[5], out[6], out[7]);
        }
        return;
    }
    for (uint32_t at = 8 * thread; at < m; at += 8 * EFS_GPU_THREADS) {
        const uint32_t count = m - at < 8 ? m - at : 8;
        struct efs_gpu_pair exponents = {{0, 0}};
        if (count == 8)
            exponents = efs_gpu_load_pair(e + at);
        else
            for (uint32_t i = 0; i < count; i++)
                exponents.word[i / 4] |= (uint32_t)e[at + i] << 8 * (i % 4);
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
