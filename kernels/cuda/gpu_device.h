/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_device.h - primitives that differ between device code and its CPU twin. Private to cuda/.
 */
#ifndef EFS_KERNELS_GPU_DEVICE_H
#define EFS_KERNELS_GPU_DEVICE_H

#include "gpu.h"

#include <string.h>

/* A step: every thread of a block of `threads` executes `call`, which uses the variable `thread`; then a barrier. */
#ifdef __CUDACC__
#define EFS_GPU_STEP_OF(threads, call)                                                                                 \
    do {                                                                                                               \
        const unsigned thread = threadIdx.x;                                                                           \
        call;                                                                                                          \
        __syncthreads();                                                                                               \
    } while (0)
#define EFS_GPU_UNROLL _Pragma("unroll")
#define EFS_GPU_ROLLED _Pragma("unroll 1")
#else
/* Order in which the twin runs the threads: steps must not depend on it. The including file can define it. */
#ifndef EFS_GPU_TURN
#define EFS_GPU_TURN(turn) (turn)
#endif
#define EFS_GPU_STEP_OF(threads, call)                                                                                 \
    do {                                                                                                               \
        for (unsigned turn = 0; turn < (threads); turn++) {                                                            \
            const unsigned thread = EFS_GPU_TURN(turn);                                                                \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)
#define EFS_GPU_UNROLL
#define EFS_GPU_ROLLED
#endif
#define EFS_GPU_STEP(call) EFS_GPU_STEP_OF(EFS_GPU_THREADS, call)

EFS_DEVICE uint32_t efs_gpu_popcount(uint32_t v)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(v);
#else
    return (uint32_t)__builtin_popcount(v);
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

/* ---- memory: single loads and stores of 4 or 16 bytes of byte arrays --------------------------------------------- */

typedef uint32_t efs_gpu_word __attribute__((may_alias));
struct efs_gpu_quad {
    uint32_t word[4];
} __attribute__((aligned(16), may_alias));

EFS_DEVICE struct efs_gpu_quad efs_gpu_load_quad(const uint8_t *p)
{
    return *(const struct efs_gpu_quad *)p;
}

EFS_DEVICE void efs_gpu_store_quad(uint8_t *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    *(struct efs_gpu_quad *)p = (struct efs_gpu_quad){{a, b, c, d}};
}

/* Loads four bytes from any address by two aligned words: reads up to 3 bytes before and 4 bytes after them. */
EFS_DEVICE uint32_t efs_gpu_load_any(const uint8_t *p)
{
    const efs_gpu_word *word = (const efs_gpu_word *)((uintptr_t)p & ~(uintptr_t)3);
    const unsigned shift = 8 * ((unsigned)(uintptr_t)p & 3);

    return (uint32_t)(((uint64_t)word[1] << 32 | word[0]) >> shift);
}

/* The same of sixteen bytes, by five words. */
EFS_DEVICE struct efs_gpu_quad efs_gpu_load_any_quad(const uint8_t *p)
{
    const efs_gpu_word *word = (const efs_gpu_word *)((uintptr_t)p & ~(uintptr_t)3);
    const unsigned shift = 8 * ((unsigned)(uintptr_t)p & 3);
    struct efs_gpu_quad v;

    for (unsigned i = 0; i < 4; i++)
        v.word[i] = (uint32_t)(((uint64_t)word[i + 1] << 32 | word[i]) >> shift);
    return v;
}

/* ---- sums over the threads of a block ---------------------------------------------------------------------------- */

/* Replaces value[thread], of `threads` values (a multiple of 32, at most 1024), by the sum of those before it, and
 * value[threads] by the sum of all. All threads call it between steps; a barrier ends it. sums: a value per 32 threads,
 * in shared memory. */
EFS_DEVICE void efs_gpu_scan(uint64_t *value, unsigned threads, uint64_t *sums)
{
#ifdef __CUDACC__
    const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const uint64_t own = value[thread];
    uint64_t sum = own;

    for (unsigned away = 1; away < 32; away *= 2) {
        const uint64_t before = __shfl_up_sync(0xffffffffu, sum, away);
        sum += lane >= away ? before : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    uint64_t others = lane < warp ? sums[lane] : 0;
    for (unsigned away = 16; away > 0; away /= 2)
        others += __shfl_xor_sync(0xffffffffu, others, away);
    value[thread] = others + sum - own;
    if (thread + 1 == threads)
        value[threads] = others + sum;
    __syncthreads();
#else
    uint64_t sum = 0;

    (void)sums;
    for (unsigned i = 0; i <= threads; i++) {
        const uint64_t own = i < threads ? value[i] : 0;
        value[i] = sum;
        sum += own;
    }
#endif
}

#endif
