/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product_batch.c - products of a batch by the host's CPU backend itself, whose kernels for batches are several times
 * as fast as vec_dot(). Each thread has its own backend of one thread, and computes a MUL_MAT_ID of one expert: the
 * rows of a block with the inputs of a portion. So results have the bits of ggml's own MUL_MAT_ID.
 */
#include "product.h"

#include <errno.h>
#include <string.h>

errint_t efsg_batch_gather(const struct products *p, const struct block *b, struct efsg_thread_buffers *own)
{
    const uint32_t count = b->portion->count;
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    uint8_t *inputs = efsg_memory(&own->inputs, count * (p->row_bytes + sizeof(int32_t)));
    if (!inputs)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        memcpy(inputs + i * p->row_bytes, p->vectors + input_row(x, b->portion->places[i]) * p->vector_bytes,
               p->row_bytes);
    memset(inputs + count * p->row_bytes, 0, count * sizeof(int32_t)); /* ids: all of expert 0 */
    return 0;
}

/* y[inputs][rows] = the rows times the gathered inputs. */
static errint_t compute(const struct products *p, const struct block *b, struct efsg_thread_buffers *own,
                        const void *rows, uint32_t row_count, float *y)
{
    const struct efsg_weight *w = p->weights[b->node];
    const uint32_t count = b->portion->count;
    struct efsg_graph graph;
    if (!efsg_graph_begin(&graph, own))
        return -ENOMEM;
    struct ggml_tensor *matrix = efsg_host.new_tensor_3d(graph.context, w->type, w->cols, row_count, 1);
    struct ggml_tensor *x = efsg_host.new_tensor_3d(graph.context, w->host.vector_type, w->cols, 1, count);
    struct ggml_tensor *ids = efsg_host.new_tensor_2d(graph.context, GGML_TYPE_I32, 1, count);
    struct ggml_tensor *out = efsg_host.mul_mat_id(graph.context, matrix, x, ids);
    memcpy(&matrix->data, &rows, sizeof(rows)); /* only read */
    x->data = own->inputs.at;
    ids->data = (uint8_t *)own->inputs.at + count * p->row_bytes;
    out->data = y;
    return efsg_graph_compute(&graph, out);
}

errint_t efsg_batch_rows(const struct products *p, const struct block *b, struct efsg_thread_buffers *own,
                         const void *rows, uint32_t row, uint32_t count)
{
    float *y = efsg_memory(&own->out, (size_t)b->portion->count * count * sizeof(float));
    errint_t rc = y ? compute(p, b, own, rows, count, y) : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < b->portion->count; i++)
        memcpy(output_at(p->nodes[b->node], b->portion->places[i]) + row, y + (size_t)i * count, count * sizeof(*y));
    return rc;
}
