/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec.h - products of a BF16 or F16 matrix with 1 to 256 vectors, computed from the matrix's stored form, which may
 * be coded.
 *
 * Definition. W has rows x cols numbers, row-major; X has cols numbers per token, F32, BF16 or F16 (BF16 and F16 are
 * widened to F32, which is exact). Element (row, t) of the product is computed from 32 partial sums, each initialised
 * to +0: column c is added to sum (c / 16 % 4) * 8 + (c / 2 % 4) * 2 + c % 2 by one fused multiply-add in F32, columns
 * in ascending order, rows padded with +0 x +0 to a multiple of 64 columns. Then the sums are added pairwise: first
 * sums whose numbers differ in bit 0, then in bit 4, 3, 2, 1. With an F16 matrix column c is added to sum c % 32, and
 * the sums are added by bit 4 first, then 3, 2, 1, 0. The order depends only on the column, so a product is identical
 * to the bit for every form of the matrix, every processor, every split of the rows and every number of tokens
 * (exception: EFS_INPUT_BF16_DOT). NaN and infinities follow IEEE 754 (the payload of a NaN is unspecified). Subnormals
 * are computed unless the calling thread has set flush-to-zero.
 *
 * Nothing here does I/O, starts threads or allocates: functions return sizes, the caller provides memory. Threads can
 * split a product by rows: each passes its own range of rows and its own scratch.
 */
#ifndef EFS_MATVEC_H
#define EFS_MATVEC_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_TOKENS_MAX 256
#define EFS_COLS_MAX (1u << 20)
/* Alignment of the memory for inputs and scratch, bytes. */
#define EFS_MATVEC_ALIGN 64

/* ---- the matrix ------------------------------------------------------------------------------------------------ */

/* Form of a shard's exponents. */
enum efs_matrix_e {
    EFS_E_CASCADE = 0, /* e: a cascade chunk of the shard's elements */
    EFS_E_BYTES = 1,   /* e: the exponents, a byte an element */
    EFS_E_CALLBACK = 2 /* the matrix's exponents() returns them, for codecs other than the cascade */
};

/* A shard: exponents, and signs with mantissas. */
struct efs_matrix_shard {
    const uint8_t *e;
    const uint8_t *sm; /* in the layout of efs_split() */
    size_t e_bytes, sm_bytes;
    enum efs_matrix_e form;
};

/*
 * A BF16 or F16 matrix in memory, plain or split in E and SM. Row-major elements are cut in shards of shard_elements, a
 * multiple of EFS_BLOCK; the last shard has the remaining elements. The caller owns all memory, which is only read.
 */
struct efs_matrix {
    uint32_t rows, cols; /* 1 <= cols <= EFS_COLS_MAX */
    bool f16;            /* F16 numbers, not BF16 */
    const void *plain;   /* rows * cols numbers, of any alignment; NULL: split */
    const struct efs_matrix_shard *shards;
    size_t shard_elements;
    /*
     * For EFS_E_CALLBACK: sets *e to the exponents of all elements of a shard, a byte each, valid until the next call
     * with the same user. 0 or -errno, which the product then returns. A product calls it once for each shard of its
     * rows, in order. Threads that share a matrix need a copy of this struct each, with their own user.
     */
    int (*exponents)(void *user, size_t shard, const uint8_t **e);
    void *user;
};

/* ---- the vectors ----------------------------------------------------------------------------------------------- */

/*
 * Type of the vectors, and of the matrices that they can be multiplied with.
 *
 * EFS_INPUT_BF16_DOT and EFS_INPUT_F32_DOT use the order of sums of ggml_vec_dot_bf16() of ggml (llama.cpp) on the code
 * path in use, to the bit, so products differ between processors:
 *
 * - AVX-512 with BF16: the processor's dot product instruction, which is faster. Each of 32 partial sums accumulates
 *   columns c and c + 1 with the instruction's rounding, which treats subnormals as zeros (matvec_avx512bf16.c).
 * - AVX2: 32 partial sums of the columns that are equal modulo 32 (matvec_ggml_avx2.c).
 *
 * Products are still identical to the bit for every form of the matrix, every split of the rows and every number of
 * tokens. On other processors both are the same as EFS_INPUT_BF16.
 */
enum efs_input_type {
    EFS_INPUT_F32 = 0,
    EFS_INPUT_BF16 = 1,
    EFS_INPUT_BF16_DOT = 2,
    EFS_INPUT_F32_DOT = 3, /* F32, rounded to BF16 (nearest even) */
    /* For F16 matrices; the types above are for BF16 matrices. */
    EFS_INPUT_F32_BY_F16 = 4, /* F32, not rounded */
    EFS_INPUT_F16 = 5,
    EFS_INPUT_F32_TO_F16 = 6 /* F32, rounded to F16 (nearest even) */
};

/* Bytes of an input of tokens vectors of cols numbers; 0 when cols or tokens is out of range. */
size_t efs_input_bytes(uint32_t cols, uint32_t tokens);
/*
 * Lays out tokens vectors for products on the code path in use (see efs_cpu_force()): vector t starts at x + t *
 * x_stride numbers. memory has efs_input_bytes() bytes, aligned to EFS_MATVEC_ALIGN; the result can be shared by all
 * threads. 0 or -EINVAL.
 */
int efs_input_prepare(enum efs_input_type type, const void *x, size_t x_stride, uint32_t cols, uint32_t tokens,
                      void *memory);

/* Order of sums of the DOT types on this processor: "avx512bf16", "avx2"; NULL: the order defined above. */
const char *efs_matvec_order(void);

/* Widens n BF16 (or F16) numbers at the start of memory to n floats, in place; memory has 4 n bytes. */
void efs_widen(bool f16, void *memory, size_t n);
/* f as the nearest BF16 number, ties to even; a NaN stays a NaN. */
uint16_t efs_rounded_bf16(float f);

/* ---- the products ---------------------------------------------------------------------------------------------- */

/* Bytes of scratch that a product of a matrix of cols columns and tokens vectors needs for each thread. */
size_t efs_matvec_scratch_bytes(uint32_t cols, uint32_t tokens);
/*
 * Rows [row_begin, row_end) of W X: y[t * y_stride + row] for each token t and row of the range, and nothing else of y.
 * input was made by efs_input_prepare() for w->cols. 0; -EINVAL for inconsistent arguments; -EUCLEAN when a chunk is
 * not well formed: the contents of these rows of y are then undefined. Accesses only chunks, scratch and y.
 */
int efs_matvec(const struct efs_matrix *w, const void *input, uint32_t row_begin, uint32_t row_end, float *y,
               size_t y_stride, void *scratch);
/*
 * The first half of a SwiGLU expert: h[t * h_stride + row] = silu(gate x) * (up x), silu(v) = v / (1 + exp(-v)), for
 * the rows of the range, of two matrices of the same shape. The second half is efs_matvec() of down with h as input,
 * after all rows of h were computed. Errors as efs_matvec().
 */
int efs_matvec_swiglu(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input, uint32_t row_begin,
                      uint32_t row_end, float *h, size_t h_stride, void *scratch);

/*
 * The same, of one matrix whose first half of rows is gate and whose second half is up. gate and up are copies of it,
 * each with its own user. row_begin and row_end are rows of h.
 */
int efs_matvec_swiglu_fused(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input,
                            uint32_t row_begin, uint32_t row_end, float *h, size_t h_stride, void *scratch);

/*
 * The activation of gpt-oss, for n numbers: gate[i] = g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate[i], 7) and
 * u = up[i] clamped to [-7, 7]. Identical on every processor; a NaN stays a NaN.
 */
void efs_swiglu_clamped(float *gate, const float *up, size_t n);

#ifdef __cplusplus
}
#endif
#endif
