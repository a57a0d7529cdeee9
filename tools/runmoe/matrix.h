/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matrix.h - products of weights and activations, parallel on OpenMP threads.
 */
#ifndef RUNMOE_MATRIX_H
#define RUNMOE_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weights, row-major; does not own data. */
struct matrix {
    const void *data;
    uint32_t rows, columns;
    bool bf16; /* else F32 */
};

/* Converts a row to floats. */
void matrix_row(const struct matrix *matrix, uint32_t row, float *out);
float dot(const float *a, const float *b, size_t count);
/* Round to the nearest BF16, ties to even. */
void round_bf16(float *x, size_t count);
void to_bf16(const float *x, uint16_t *y, size_t count);

/* Splits [0, count) into one range [begin, end) per thread and calls work for each in parallel. Blocks until all are
 * done. */
void parallel(unsigned threads, void (*work)(void *arg, size_t begin, size_t end), void *arg, size_t count);
/* y[token][row] = w[row] . x[token], in parallel. The results of a token depend neither on the other tokens nor on the
 * number of threads. */
void parallel_product(unsigned threads, const struct matrix *w, const float *x, float *y, uint32_t tokens);

#endif
