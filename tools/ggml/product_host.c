/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product_host.c - products by the kernels of the host's CPU backend, for every type that it has: from_float() converts
 * the inputs, vec_dot() multiplies a row. These are the calls that ggml makes for MUL_MAT_ID without repacking, so
 * results have the same bits.
 */
#include "product.h"

#include "expertfs-private.h"

#include <errno.h>
#include <string.h>

#define BATCH_MIN 8  /* inputs from which ggml has kernels for batches; with fewer a graph costs more than it gains */
#define TILE_ROWS 16 /* rows that stay in the first-level cache while they meet all vectors */

/* Each input row is converted once, for all experts of its token. */
static int host_alloc(struct products *p, struct efsg_buffers *room)
{
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    const uint64_t rows = (uint64_t)x->ne[1] * (uint64_t)x->ne[2];
    p->row_bytes = efsg_host.row_size(p->weights[0]->host.vector_type, x->ne[0]);
    p->vector_bytes = (p->row_bytes + 63) / 64 * 64;
    if (rows > INT32_MAX || p->vector_bytes > SIZE_MAX / INT32_MAX)
        return -ENOMEM;
    p->vectors = efsg_memory(&room->vectors, (size_t)rows * p->vector_bytes);
    return p->vectors ? (int)rows : -ENOMEM;
}

static errint_t host_prepare(struct products *p, uint32_t piece, struct efsg_thread_buffers *own)
{
    (void)own;
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    p->weights[0]->host.from_float(input_at(x, piece), p->vectors + piece * p->vector_bytes, x->ne[0]);
    return 0;
}

/* Multiplies `count` rows of a matrix with the vectors of a portion; the first is row `row` of the output. */
static void dot_rows(const struct products *p, const struct block *b, const uint8_t *rows, uint32_t row, uint32_t count)
{
    struct ggml_tensor *out = p->nodes[b->node];
    const struct efsg_weight *w = p->weights[b->node];
    const struct ggml_tensor *x = out->src[1];
    for (uint32_t i = 0; i < b->portion->count; i++) {
        const struct place place = b->portion->places[i];
        const uint8_t *vector = p->vectors + input_row(x, place) * p->vector_bytes;
        float *y = output_at(out, place) + row;
        for (uint32_t r = 0; r < count; r++)
            w->host.vec_dot((int)w->cols, y + r, 0, rows + r * w->row_bytes, 0, vector, 0, 1);
    }
}

static errint_t host_multiply(struct products *p, const struct block *b, struct efsg_thread_buffers *own,
                              struct efs_error *err)
{
    const struct efsg_weight *w = p->weights[b->node];
    const bool batch = b->portion->count >= BATCH_MIN;
    void *scratch = efsg_memory(&own->scratch, (b->end - b->begin) * w->row_bytes);
    if (!scratch || (batch && efsg_batch_gather(p, b, own) < 0))
        return -ENOMEM;
    for (uint32_t row = b->begin, count; row < b->end; row += count) {
        const void *rows;
        count = b->end - row;
        errint_t rc = efs_tensor_rows(b->chosen->matrix[b->node], row, &count, scratch, &rows, err);
        if (rc == 0 && batch)
            rc = efsg_batch_rows(p, b, own, rows, row, count);
        if (rc < 0)
            return rc;
        for (uint32_t r = 0; r < count && !batch; r += TILE_ROWS)
            dot_rows(p, b, (const uint8_t *)rows + r * w->row_bytes, row + r,
                     count - r < TILE_ROWS ? count - r : TILE_ROWS);
    }
    return 0;
}

const struct kernel efsg_kernel_host = {host_alloc, host_prepare, host_multiply};
