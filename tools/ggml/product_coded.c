/* SPDX-License-Identifier: Apache-2.0 */
/* product_coded.c - products by the library's efs_product(): BF16 and F16, in coded form too. The vectors of a portion
 * are gathered and converted together. */
#include "product.h"

#include <errno.h>
#include <string.h>

/* Allocates the vectors of all portions. */
static int coded_alloc(struct products *p, struct efsg_buffers *room)
{
    const uint32_t cols = p->weights[0]->cols;
    const bool one = efsg_one_vector(p);
    size_t bytes = 0;
    for (uint32_t i = 0; i < p->portion_count; i++) {
        size_t own = (efs_vectors_bytes(cols, p->portions[i].count) + 63) / 64 * 64;
        if (own == 0)
            return efs_fail(&p->err, -EINVAL, "%u columns are too many", cols);
        bytes = one ? own : bytes + own;
    }
    uint8_t *at = efsg_memory(&room->vectors, bytes);
    if (!at)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->portion_count; i++) {
        p->portions[i].vectors = at;
        at += one ? 0 : (efs_vectors_bytes(cols, p->portions[i].count) + 63) / 64 * 64;
    }
    return one ? 1 : (int)p->portion_count;
}

static errint_t coded_prepare(struct products *p, uint32_t piece, struct efsg_thread_buffers *own)
{
    const struct portion *portion = &p->portions[piece];
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    const uint32_t cols = p->weights[0]->cols;
    const float *rows = input_at(x, input_row(x, portion->places[0]));
    if (portion->count > 1) {
        float *side_by_side = efsg_memory(&own->out, (size_t)portion->count * cols * sizeof(float));
        for (uint32_t i = 0; side_by_side && i < portion->count; i++)
            memcpy(side_by_side + (size_t)i * cols, input_at(x, input_row(x, portion->places[i])),
                   cols * sizeof(float));
        rows = side_by_side;
    }
    return rows ? efs_vectors_prepare(p->weights[0]->activation, rows, cols, cols, portion->count, portion->vectors)
                : -ENOMEM;
}

static errint_t coded_multiply(struct products *p, const struct block *b, struct efsg_thread_buffers *own,
                               struct efs_error *err)
{
    struct ggml_tensor *out = p->nodes[b->node];
    const struct efs_tensor *matrix = b->chosen->matrix[b->node];
    const uint32_t rows = p->weights[b->node]->rows, count = b->portion->count;
    void *scratch = efsg_memory(&own->scratch, efs_product_scratch_bytes(matrix, false));
    float *y = count == 1 ? output_at(out, b->portion->places[0])
                          : efsg_memory(&own->out, (size_t)count * rows * sizeof(float));
    errint_t rc = scratch && y
                      ? efs_product(matrix, false, b->portion->vectors, b->begin, b->end, y, rows, scratch, err)
                      : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && count > 1 && i < count; i++)
        memcpy(output_at(out, b->portion->places[i]) + b->begin, y + (size_t)i * rows + b->begin,
               (b->end - b->begin) * sizeof(float));
    return rc;
}

const struct kernel efsg_kernel_coded = {coded_alloc, coded_prepare, coded_multiply};
