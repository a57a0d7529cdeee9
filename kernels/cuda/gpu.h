/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - what kernels of a graphics processor are given, for the host and for device code.
 *
 * A kernel is written as steps between barriers: a step is a function of (thread, state of the block), and all threads
 * of a block end it before one begins the next. nvcc compiles the steps for a device (kernels.cu); a C compiler makes
 * of the same lines a loop over the threads, which is the twin that the tests run (tests/kernels/gpu_twin.h).
 */
#ifndef EFS_KERNELS_GPU_H
#define EFS_KERNELS_GPU_H

#include "ops.h"

/* Threads of a block of every kernel; other numbers are not launched. */
#define EFS_GPU_THREADS 256
/* What chunks, exponents, SM and destinations are aligned to, bytes. The store aligns chunks to 64. */
#define EFS_GPU_ALIGN 16

/*
 * A shard that is to be plain. Memory is the caller's, reached by the device: its own, or the host's when that is
 * registered (SM is read once, so it can stay there). Kernels that take shards are launched with a grid of
 * (blocks of EFS_BLOCK elements of the largest shard, shards), no dynamic shared memory; blocks that a shard does not
 * have end at once.
 */
struct efs_gpu_shard {
    const uint8_t *e;  /* decode: a cascade chunk of e_bytes; recover: the exponents, a byte an element */
    const uint8_t *sm; /* efs_sm_bytes(format, elements) bytes; BYTES: not read */
    uint8_t *dst;      /* elements * efs_format_bytes(format) bytes; written once, never read */
    uint32_t e_bytes, elements;
    uint32_t format; /* enum efs_format */
};

/* Status of a shard: set to EFS_GPU_FINE by the host, and to EFS_GPU_DAMAGED by the kernel that finds its chunk not
 * well formed, or of another number of elements. dst then holds anything; nothing outside of it was written. */
enum efs_gpu_status { EFS_GPU_FINE = 0, EFS_GPU_DAMAGED = 1 };

#define EFS_GPU_ROWS 8 /* of a matrix that a block of threads takes */

/* An expert of a mixture: plain matrices, row-major, each aligned to EFS_GPU_ALIGN. */
struct efs_gpu_expert {
    const uint16_t *gate, *up; /* [inner][hidden] */
    const uint16_t *down;      /* [hidden][inner] */
    uint32_t first, count;     /* its routes */
};

/*
 * What a layer is to compute, all of it in memory of the device and the caller's. A route is an expert and one of its
 * tokens; those of an expert follow one another. Launched are efs_gpu_ffn_up with a grid of (inner / EFS_GPU_ROWS,
 * experts), then efs_gpu_ffn_down (hidden / EFS_GPU_ROWS, experts), then efs_gpu_ffn_sum (hidden / EFS_GPU_THREADS,
 * tokens), all rounded up. Numbers of tokens and routes are the host's and are not checked.
 */
struct efs_gpu_mixture {
    const struct efs_gpu_expert *experts;
    uint32_t hidden, inner;
    bool f16;              /* matrices are F16, not BF16 */
    const float *x;        /* [tokens][hidden]; x and h are aligned to EFS_GPU_ALIGN */
    const uint32_t *token; /* [routes] */
    const float *weight;   /* [routes] */
    /* The routes of token t, in the order in which they are added up: token_route[token_begin[t]] and on. */
    const uint32_t *token_begin; /* [tokens + 1] */
    const uint32_t *token_route; /* [routes] */
    float *h;                    /* [routes][inner], made by the first kernel */
    float *part;                 /* [routes][hidden], made by the second one */
    float *y;                    /* [tokens][hidden], overwritten; tokens of no expert get zeros */
};

#endif
