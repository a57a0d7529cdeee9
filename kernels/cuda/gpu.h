/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - arguments of the GPU kernels, for host and device code.
 *
 * A kernel is written as steps between barriers: a step is a function of (thread, state of the block), and all threads
 * of a block finish it before any starts the next. nvcc compiles the steps for a device (kernels.cu); a C compiler
 * turns the same lines into a loop over the threads, which is the CPU twin that the tests run
 * (tests/kernels/gpu_twin.h).
 */
#ifndef EFS_KERNELS_GPU_H
#define EFS_KERNELS_GPU_H

#include "ops.h"

/* Threads per block of efs_gpu_decode, and of all other kernels. */
#define EFS_GPU_DECODE_THREADS 512
#define EFS_GPU_THREADS 256
/* Bytes of dynamic shared memory of efs_gpu_decode, which is more than a launch may ask for
 * unless the function's attribute was set. */
#define EFS_GPU_DECODE_SHARED (71u << 10)
/* Alignment of chunks, exponents, SM and destinations, bytes. The store aligns chunks to 64. */
#define EFS_GPU_ALIGN 16

/*
 * A shard to decode. The caller owns the memory, which the device must be able to access: device memory, or registered
 * host memory (SM is read once, so it can stay there). efs_gpu_decode is launched with a grid of (spans of EFS_SPAN
 * elements of the largest shard, shards), efs_gpu_recover with one of (blocks of EFS_BLOCK elements, shards); blocks
 * past the end of a shard return immediately.
 */
struct efs_gpu_shard {
    const uint8_t *e;  /* decode: a cascade chunk of e_bytes; recover: the exponents, a byte an element */
    const uint8_t *sm; /* efs_sm_bytes(format, elements) bytes; BYTES: not read */
    uint8_t *dst;      /* elements * efs_format_bytes(format) bytes; written once, never read */
    uint32_t e_bytes, elements;
    uint32_t format; /* enum efs_format */
    uint32_t status; /* enum efs_gpu_status */
};

/* Status of a shard: the host initialises it to EFS_GPU_OK; a kernel sets EFS_GPU_DAMAGED when the chunk is not well
 * formed or has another number of elements. The contents of dst are then undefined; nothing outside dst was written. */
enum efs_gpu_status { EFS_GPU_OK = 0, EFS_GPU_DAMAGED = 1 };

#define EFS_GPU_ROWS 8 /* matrix rows per block of threads */

/* An expert of a mixture: plain matrices, row-major, each aligned to EFS_GPU_ALIGN. */
struct efs_gpu_expert {
    const uint16_t *gate, *up; /* [inner][hidden] */
    const uint16_t *down;      /* [hidden][inner] */
    uint32_t first, count;     /* of its routes */
};

/*
 * The mixture of one layer; the caller owns all of it, in device memory. A route is a pair of an expert and a token;
 * the routes of an expert are contiguous. The host launches efs_gpu_ffn_up with a grid of (inner / EFS_GPU_ROWS,
 * experts), then efs_gpu_ffn_down (hidden / EFS_GPU_ROWS, experts), then efs_gpu_ffn_sum (hidden / EFS_GPU_THREADS,
 * tokens), all rounded up. The kernels do not check the numbers of tokens and routes.
 */
struct efs_gpu_mixture {
    const struct efs_gpu_expert *experts;
    uint32_t hidden, inner;
    bool f16;              /* matrices are F16, not BF16 */
    const float *x;        /* [tokens][hidden]; x and h are aligned to EFS_GPU_ALIGN */
    const uint32_t *token; /* [routes] */
    const float *weight;   /* [routes] */
    /* The routes of token t, in the order of their summation: token_route[token_begin[t] .. token_begin[t + 1]). */
    const uint32_t *token_begin; /* [tokens + 1] */
    const uint32_t *token_route; /* [routes] */
    float *h;                    /* [routes][inner], written by the first kernel */
    float *part;                 /* [routes][hidden], written by the second one */
    float *y;                    /* [tokens][hidden], overwritten; tokens without a route get zeros */
};

#endif
