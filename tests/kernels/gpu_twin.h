/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_twin.h - the GPU kernels compiled as C and run one block of threads after another, on memory with the alignment
 * that a device needs, which ends at guard pages.
 */
#ifndef EFS_TESTS_KERNELS_GPU_TWIN_H
#define EFS_TESTS_KERNELS_GPU_TWIN_H

#include "cases.h"

/* Another thread order on each run: a race between two threads of a step changes the result in some order. */
static unsigned gpu_twin_order;
#define EFS_GPU_TURN(turn) ((turn) ^ gpu_twin_order)

#include "cuda/gpu_decode.h"
#include "cuda/gpu_recover.h"

/* Allocates at least `bytes` bytes aligned to EFS_GPU_ALIGN; the excess is filled with 0x5c. */
static inline struct guarded gpu_twin_new(const void *from, size_t bytes)
{
    struct guarded g = guarded_new((bytes + EFS_GPU_ALIGN - 1) / EFS_GPU_ALIGN * EFS_GPU_ALIGN);

    if (g.bytes > 0)
        memset(g.data, 0x5c, g.bytes);
    if (from != NULL && bytes > 0)
        memcpy(g.data, from, bytes);
    return g;
}

/* Runs the kernel on one shard: decode, or recover where e is not a chunk. Writes the elements to out. Returns the
 * status of decode. */
static inline uint32_t gpu_twin_run(bool decode, enum efs_format format, const uint8_t *e, size_t e_bytes,
                                    const uint8_t *sm, size_t n, uint8_t *out)
{
    const size_t bytes = n * efs_format_bytes(format);
    struct guarded in = gpu_twin_new(e, e_bytes), rest = gpu_twin_new(sm, efs_sm_bytes(format, n));
    struct guarded dst = gpu_twin_new(NULL, bytes);
    struct efs_gpu_shard shard = {in.data,     rest.data,        dst.data,  (uint32_t)e_bytes,
                                  (uint32_t)n, (uint32_t)format, EFS_GPU_OK};

    gpu_twin_order = (gpu_twin_order + 89) % EFS_GPU_THREADS;
    for (uint32_t b = 0; b < n / EFS_BLOCK + 2; b++) { /* more blocks than the shard has */
        static struct efs_gpu_decode state;
        if (!decode) {
            efs_gpu_recover_block(&shard, b);
        } else if (b < n / EFS_SPAN + 2) {
            memset(&state, 0xb7, sizeof(state)); /* shared memory is not initialised */
            efs_gpu_decode_span(&shard, b, &state);
        }
    }
    for (size_t i = bytes; i < dst.bytes; i++)
        assert_int_equal(dst.data[i], 0x5c);
    if (bytes > 0)
        memcpy(out, dst.data, bytes);
    guarded_free(&in);
    guarded_free(&rest);
    guarded_free(&dst);
    return shard.status;
}

/* Checks that a chunk and its SM decode and merge to raw, as on the CPU. */
static inline void gpu_twin_decodes(enum efs_format format, const uint8_t *chunk, size_t chunk_bytes, const uint8_t *sm,
                                    size_t n, const uint8_t *raw)
{
    uint8_t *out = malloc(n * efs_format_bytes(format) + 1);

    assert_non_null(out);
    assert_int_equal(gpu_twin_run(true, format, chunk, chunk_bytes, sm, n, out), EFS_GPU_OK);
    assert_memory_equal(out, raw, n * efs_format_bytes(format));
    free(out);
}

#endif
