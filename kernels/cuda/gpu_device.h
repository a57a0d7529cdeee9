/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_device.h - primitives that differ between device code and its CPU twin. Private to cuda/.
 */
#ifndef EFS_KERNELS_GPU_DEVICE_H
#define EFS_KERNELS_GPU_DEVICE_H

#include "gpu.h"

#include <string.h>

/* A step: every thread of the block executes `call`, which uses the variable `thread`; then a barrier. */
#ifdef __CUDACC__
#define EFS_GPU_STEP(call)                                                                                             \
    do {                                                                                                               \
        const unsigned thread = threadIdx.x;                                                                           \
        call;                                                                                                          \
        __syncthreads();                                                                                               \
    } while (0)
#else
/* Order in which the twin runs the threads: steps must not depend on it. The including file can define it. */
#ifndef EFS_GPU_TURN
#define EFS_GPU_TURN(turn) (turn)
#endif
#define EFS_GPU_STEP(call)                                                                                             \
    do {                                                                                                               \
        for (unsigned turn = 0; turn < EFS_GPU_THREADS; turn++) {                                                      \
            const unsigned thread = EFS_GPU_TURN(turn);                                                                \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)
#endif

EFS_DEVICE uint32_t efs_gpu_popcount(uint32_t v)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(v);
#else
    return (uint32_t)__builtin_popcount(v);
#endif
}

/* Atomic addition to a variable in shared memory. */
EFS_DEVICE void efs_gpu_add(uint32_t *sum, uint32_t v)
{
#ifdef __CUDACC__
    atomicAdd(sum, v);
#else
    *sum += v;
#endif
}

/* Selects four bytes of the eight in low and high; nibble i of the selector (0 to 7) is the index of byte i. */
EFS_DEVICE uint32_t efs_gpu_pick(uint32_t low, uint32_t high, uint32_t selector)
{
#ifdef __CUDACC__
    return __byte_perm(low, high, selector);
#else
    const uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t picked = 0;

    for (unsigned i = 0; i < 4; i++)
        picked |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return picked;
#endif
}

/* ---- memory: single loads and stores of 4, 8 or 16 bytes of byte arrays ------------------------------------------ */

typedef uint32_t efs_gpu_word __attribute__((may_alias));
struct efs_gpu_pair {
    uint32_t word[2];
} __attribute__((aligned(8), may_alias));
struct efs_gpu_quad {
    uint32_t word[4];
} __attribute__((aligned(16), may_alias));

EFS_DEVICE struct efs_gpu_pair efs_gpu_load_pair(const uint8_t *p)
{
    return *(const struct efs_gpu_pair *)p;
}

EFS_DEVICE struct efs_gpu_quad efs_gpu_load_quad(const uint8_t *p)
{
    return *(const struct efs_gpu_quad *)p;
}

EFS_DEVICE void efs_gpu_store_pair(uint8_t *p, uint32_t a, uint32_t b)
{
    *(struct efs_gpu_pair *)p = (struct efs_gpu_pair){{a, b}};
}

EFS_DEVICE void efs_gpu_store_quad(uint8_t *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    *(struct efs_gpu_quad *)p = (struct efs_gpu_quad){{a, b, c, d}};
}

/* Loads eight bytes from any address by three aligned words: reads up to 3 bytes before and 4 bytes after them. */
EFS_DEVICE struct efs_gpu_pair efs_gpu_load_any(const uint8_t *p)
{
    const efs_gpu_word *word = (const efs_gpu_word *)((uintptr_t)p & ~(uintptr_t)3);
    const unsigned shift = 8 * ((unsigned)(uintptr_t)p & 3);
    const uint32_t a = word[0], b = word[1], c = word[2];

    return (struct efs_gpu_pair){
        {(uint32_t)(((uint64_t)b << 32 | a) >> shift), (uint32_t)(((uint64_t)c << 32 | b) >> shift)}};
}

#endif
