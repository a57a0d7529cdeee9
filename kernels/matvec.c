/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec.c - products of a matrix in any form with one or several vectors.
 */
#include "matvec_ops.h"

#include <errno.h>
#include <string.h>

size_t efs_matvec_scratch_bytes(uint32_t cols, uint32_t tokens)
{
    if (efs_input_bytes(cols, tokens) == 0)
        return 0;
    return tokens == 1 ? EFS_WALK_BYTES + 2 * (EFS_GROUP + EFS_BLOCK) : efs_tile_scratch_bytes(cols);
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/*
 * Numbers that are not multiplied directly from the code are in scratch, after the iterator's room: [the incomplete
 * last group of a block][the next block].
 */
struct vector_product {
    const struct efs_matvec_ops *ops;
    struct efs_dot dot;
    uint8_t *block; /* EFS_GROUP elements after the walk's room */
    size_t kept;    /* elements before block that are not summed yet, from column dot.col on */
};

/* Multiplies the elements [begin, end) of block. */
static void use_block(struct vector_product *p, size_t begin, size_t end)
{
    const uint8_t *from = p->block + 2 * begin - 2 * p->kept; /* kept is 0 if begin is not */
    size_t n = p->kept + end - begin;
    size_t last = (p->dot.col + n) % p->dot.cols; /* columns of the incomplete last row */
    size_t keep = last % EFS_GROUP;

    p->ops->plain(from, n - keep, &p->dot);
    memmove(p->block - 2 * keep, from + 2 * (n - keep), 2 * keep);
    p->kept = keep;
}

static int multiply_vector(const struct efs_matvec_ops *ops, const struct efs_matrix *w, const struct efs_input *input,
                           size_t begin, size_t end, const struct efs_output *out, uint8_t *scratch)
{
    struct vector_product p = {
        .ops = ops,
        .dot = {.x = input->x, .cols = w->cols, .out = *out},
        .block = scratch + EFS_WALK_BYTES + 2 * EFS_GROUP,
    };
    const bool coded = w->cols % EFS_GROUP == 0 && ops->coded != NULL;
    struct efs_walk walk = {.w = w, .at = begin, .end = end, .ops = coded ? ops : NULL, .room = scratch};
    struct efs_piece piece;
    int r;

    if (w->plain != NULL) {
        p.ops->plain((const uint8_t *)w->plain + 2 * begin, end - begin, &p.dot);
        return 0;
    }
    while ((r = efs_walk_next(&walk, &piece)) > 0) {
        if (piece.rotated) {
            if (!p.ops->coded(&piece.block, piece.sm, piece.begin, piece.end, &p.dot))
                return -EUCLEAN;
        } else {
            r = efs_piece_decode(&piece, p.block);
            if (r != 0)
                return r;
            use_block(&p, piece.begin, piece.end);
        }
    }
    return r;
}

/* ---- both ----------------------------------------------------------------------------------------------------------
 */

static bool well_formed(const struct efs_matrix *w)
{
    return w->cols > 0 && w->cols <= EFS_COLS_MAX &&
           (w->plain != NULL || (w->shards != NULL && w->shard_elements > 0 && w->shard_elements % EFS_BLOCK == 0));
}

/* y: where the first row's result of the first vector is written. */
static int matvec_multiply(const struct efs_matrix *w, const void *memory, uint32_t row_begin, uint32_t row_end,
                           float *y, size_t y_stride, bool gated, void *scratch)
{
    const struct efs_input *input = efs_input_checked(memory, w);
    struct efs_output out = {y, y_stride, gated};
    size_t begin = (size_t)row_begin * w->cols, end = (size_t)row_end * w->cols;

    if (!well_formed(w) || input == NULL || row_begin > row_end || row_end > w->rows || y == NULL || scratch == NULL)
        return -EINVAL;
    const struct efs_matvec_ops *ops = efs_input_ops(input);
    if (ops == NULL)
        return -EINVAL;
    if (begin == end)
        return 0;
    if (input->tokens == 1)
        return multiply_vector(ops, w, input, begin, end, &out, scratch);
    if (w->plain == NULL)
        return efs_multiply_tiles(ops, w, input, begin, end, &out, scratch);
    ops->many((const uint8_t *)w->plain + 2 * begin, row_end - row_begin, input, &out);
    return 0;
}

int efs_matvec(const struct efs_matrix *w, const void *input, uint32_t row_begin, uint32_t row_end, float *y,
               size_t y_stride, void *scratch)
{
    return y == NULL ? -EINVAL : matvec_multiply(w, input, row_begin, row_end, y + row_begin, y_stride, false, scratch);
}

int efs_matvec_swiglu(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input, uint32_t row_begin,
                      uint32_t row_end, float *h, size_t h_stride, void *scratch)
{
    if (gate->rows != up->rows || gate->cols != up->cols || h == NULL)
        return -EINVAL;
    int r = matvec_multiply(gate, input, row_begin, row_end, h + row_begin, h_stride, false, scratch);
    return r != 0 ? r : matvec_multiply(up, input, row_begin, row_end, h + row_begin, h_stride, true, scratch);
}

int efs_matvec_swiglu_fused(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input,
                            uint32_t row_begin, uint32_t row_end, float *h, size_t h_stride, void *scratch)
{
    const uint32_t inner = gate->rows / 2;
    if (gate->rows != up->rows || gate->cols != up->cols || gate->rows % 2 != 0 || row_begin > row_end ||
        row_end > inner || h == NULL)
        return -EINVAL;
    int r = matvec_multiply(gate, input, row_begin, row_end, h + row_begin, h_stride, false, scratch);
    return r != 0
               ? r
               : matvec_multiply(up, input, inner + row_begin, inner + row_end, h + row_begin, h_stride, true, scratch);
}

void efs_swiglu_clamped(float *gate, const float *up, size_t n)
{
    const float alpha = 1.702f, limit = 7;

    for (size_t i = 0; i < n; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        gate[i] = g / (1 + efs_exp(-alpha * g)) * (u + 1);
    }
}
