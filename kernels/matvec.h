/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec.h - products of a BF16 or F16 matrix with 1 to 256 vectors, straight from the form in which the matrix is
 * stored.
 *
 * What is computed. W has rows x cols numbers, row-major; X has cols numbers a token, F32, BF16 or F16 (these are
 * widened to F32, which is exact). Element (row, t) of the product is made of 32 partial sums, each begun at +0: column
 * c goes to sum (c / 16 % 4) * 8 + (c / 2 % 4) * 2 + c % 2, by one fused multiply-add in F32, columns in rising order,
 * rows filled up with +0 x +0 to a multiple of 64 columns. Then the sums are added by halves: sums that differ in bit 0
 * of their number, then in bit 4, 3, 2, 1. With a matrix of F16 column c goes to sum c % 32, and the sums are added bit
 * 4 first, then 3, 2, 1, 0. The order depends on nothing but the column: a product is the same to the bit from every
 * form of the matrix, on every processor, for every split of the rows and every number of tokens (but see
 * EFS_INPUT_BF16_DOT). NaN and infinities go their IEEE way (a NaN stays a NaN; which one it is is left open),
 * subnormals count unless the caller's thread has told its processor otherwise.
 *
 * Nothing here does I/O, starts threads or allocates: the caller asks for sizes and brings the memory. Threads share a
 * product by rows: each gives its own range of rows and its own scratch, nothing else.
 */
#ifndef EFS_MATVEC_H
#define EFS_MATVEC_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_TOKENS_MAX 256
#define EFS_COLS_MAX (1u << 20)
/* What memory for inputs and scratch is aligned to, bytes. */
#define EFS_MATVEC_ALIGN 64

/* ---- the matrix ------------------------------------------------------------------------------------------------ */

/* How a shard's exponents are at hand. */
enum efs_matrix_e {
    EFS_E_CASCADE = 0, /* e: a cascade chunk of the shard's elements */
    EFS_E_BYTES = 1,   /* e: the exponents, a byte an element */
    EFS_E_ASK = 2      /* the matrix's exponents() brings them: codecs that these kernels do not know */
};

/* A shard in two halves. */
struct efs_matrix_shard {
    const uint8_t *e;
    const uint8_t *sm; /* as efs_split() made it */
    size_t e_bytes, sm_bytes;
    enum efs_matrix_e form;
};

/*
 * A BF16 or F16 matrix in memory, plain or in halves. Row-major elements are cut in shards of shard_elements, a
 * multiple of EFS_BLOCK; the last one has what is left. All pointers are the caller's and are only read.
 */
struct efs_matrix {
    uint32_t rows, cols; /* 1 <= cols <= EFS_COLS_MAX */
    bool f16;            /* F16 numbers, not BF16 */
    const void *plain;   /* rows * cols numbers, at any address; NULL: in halves */
    const struct efs_matrix_shard *shards;
    size_t shard_elements;
    /*
     * For EFS_E_ASK: sets *e to the exponents of all the elements of a shard, a byte each, which stay until the next
     * call with the same user. 0 or -errno, which the product then returns. A product asks for the shards of its rows
     * in order, each once. Threads that share a matrix take a copy of this struct each, with a user of their own.
     */
    int (*exponents)(void *user, size_t shard, const uint8_t **e);
    void *user;
};

/* ---- the vectors ----------------------------------------------------------------------------------------------- */

/*
 * What vectors are given as, and which matrices they meet. With EFS_INPUT_BF16_DOT and EFS_INPUT_F32_DOT the order of
 * sums is that of ggml_vec_dot_bf16() of ggml (llama.cpp) on the code path in use, to the bit, and so no longer the
 * same on every processor: AVX-512 with BF16  the processor's dot product, which is faster: each of 32 partial sums
 * takes two columns, c and c + 1, at once, as the instruction rounds, which also takes subnormals for zeros AVX2 32
 * partial sums, of columns that are equal modulo 32 matvec_avx512bf16.c and matvec_ggml_avx2.c say the rest of it.
 * Products are still the same to the bit from every form of the matrix, for every split of the rows and every number of
 * tokens. Elsewhere these are as EFS_INPUT_BF16.
 */
enum efs_input_type {
    EFS_INPUT_F32 = 0,
    EFS_INPUT_BF16 = 1,
    EFS_INPUT_BF16_DOT = 2,
    EFS_INPUT_F32_DOT = 3, /* F32, rounded to BF16, to nearest even */
    /* For matrices of F16; those above are for BF16. */
    EFS_INPUT_F32_BY_F16 = 4, /* F32 as they are */
    EFS_INPUT_F16 = 5,
    EFS_INPUT_F32_TO_F16 = 6 /* F32, rounded to F16, to nearest even */
};

/* Bytes of an input of tokens vectors of cols numbers; 0 when that is out of range. */
size_t efs_input_bytes(uint32_t cols, uint32_t tokens);
/*
 * Lays out tokens vectors for products on the code path in use (see efs_cpu_force()): vector t begins at x + t *
 * x_stride numbers. memory has efs_input_bytes() bytes, is aligned to EFS_MATVEC_ALIGN, and may be read by all threads
 * from then on. 0 or -EINVAL.
 */
int efs_input_prepare(enum efs_input_type type, const void *x, size_t x_stride, uint32_t cols, uint32_t tokens,
                      void *memory);

/* Whose order of sums that is here: "avx512bf16", "avx2"; NULL: our own. */
const char *efs_matvec_order(void);

/* n numbers of BF16 (or F16) at the begin of memory become n floats in their place: memory has 4 n bytes. */
void efs_widen(bool f16, void *memory, size_t n);

/* ---- the products ---------------------------------------------------------------------------------------------- */

/* Bytes of scratch that a product of a matrix of cols columns and tokens vectors needs for each thread. */
size_t efs_matvec_scratch_bytes(uint32_t cols, uint32_t tokens);
/*
 * Rows [row_begin, row_end) of W X: y[t * y_stride + row] for each token t and row of the range, and nothing else of y.
 * input was made by efs_input_prepare() for w->cols. 0; -EINVAL when the arguments do not fit; -EUCLEAN when a chunk is
 * not well formed: then these rows of y hold anything, and nothing outside chunks, scratch and y was touched.
 */
int efs_matvec(const struct efs_matrix *w, const void *input, uint32_t row_begin, uint32_t row_end, float *y,
               size_t y_stride, void *scratch);
/*
 * The first half of a SwiGLU expert: h[t * h_stride + row] = silu(gate x) * (up x), silu(v) = v / (1 + exp(-v)), for
 * the rows of the range, of two matrices of the same shape. The second half is efs_matvec() of down with h as input,
 * when all rows of h are there. Errors as efs_matvec().
 */
int efs_matvec_swiglu(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input, uint32_t row_begin,
                      uint32_t row_end, float *h, size_t h_stride, void *scratch);

/*
 * What gpt-oss has in its place, for n numbers: g is at most 7, u is from -7 to 7, gate[i] = g / (1 + exp(-1.702 g)) *
 * (u + 1), where g is gate[i] and u is up[i]. The same on every processor; a NaN stays one.
 */
void efs_swiglu_clamped(float *gate, const float *up, size_t n);

#ifdef __cplusplus
}
#endif
#endif
