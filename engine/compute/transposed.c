/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transposed.c - see ffn.h: matrices that a checkpoint has with [columns][rows], as Llama 4 and gpt-oss do. The rows of
 * a block are copied out of the decoded matrix, and multiplied as those of any other: the bits are the same.
 */
#include "ffn.h"

#include <string.h>

#define TILE 32u /* stored rows that are read at a time: their lines stay in the L1 cache for all rows of a block */

struct efs_matrix efs_ffn_transposed_rows(const struct efs_matrix *w, uint32_t first, uint32_t step, uint32_t rows,
                                          void *to)
{
    const uint8_t *from = w->plain;
    uint16_t *out = to;
    const uint32_t cols = w->rows;
    for (uint32_t at = 0; at < cols; at += TILE) {
        const uint32_t end = cols - at < TILE ? cols : at + TILE;
        for (uint32_t row = 0; row < rows; row++) {
            const size_t column = first + (size_t)row * step;
            for (uint32_t c = at; c < end; c++)
                memcpy(&out[(size_t)row * cols + c], from + 2 * ((size_t)c * w->cols + column), 2);
        }
    }
    return (struct efs_matrix){.rows = rows, .cols = cols, .f16 = w->f16, .plain = to};
}
