/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense_product.c - MUL_MAT with a matrix whose first rows are kept while the rest is read. Threads take
 * blocks of rows: first those that are kept, then those of each part in the order of arrival. One input is multiplied
 * by the host's vec_dot(); several by the host's CPU backend, as a MUL_MAT of the block's rows. So results have the
 * bits of ggml's own MUL_MAT.
 */
#include "dense.h"

#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>

#define BLOCK_BYTES (256u << 10) /* of a matrix: hides the cost of the lock, balances the threads */

struct run {
    struct ggml_tensor *op;
    const struct efsg_dense *weight;
    const uint8_t *input; /* the input converted; NULL: several */
    uint32_t block;       /* rows */

    pthread_mutex_t lock;         /* guards the fields below, and the stream */
    pthread_cond_t freed;         /* signals that a part is done, or error is set */
    uint32_t row;                 /* the next one */
    struct efsg_dense_part *part; /* contains row; NULL: it is kept, or not read yet */
    errint_t error;               /* the first error; no block is taken after it */
};

/* Rows [begin, end) of a matrix. */
struct block {
    uint32_t begin, end;
    const uint8_t *rows;
    struct efsg_dense_part *part; /* NULL: kept */
};

/* Waits for the part that begins with r->row. Caller holds the lock; while a read is waited for, too. */
static void run_next_part(struct run *r)
{
    struct efsg_dense_part *p = efsg_dense_stream_next(&r->error);
    p->blocks = (p->end - p->begin + r->block - 1) / r->block;
    r->part = p;
    if (r->error)
        pthread_cond_broadcast(&r->freed);
}

/* Takes the next block. False: none is left, or an error. */
static bool run_next_block(struct run *r, struct block *b)
{
    const struct efsg_dense *w = r->weight;
    pthread_mutex_lock(&r->lock);
    while (r->error == 0 && r->row >= w->kept && r->row < w->rows && !r->part)
        if (efsg_dense_stream_ready())
            run_next_part(r);
        else
            pthread_cond_wait(&r->freed, &r->lock);
    const bool taken = r->error == 0 && r->row < w->rows;
    if (taken) {
        struct efsg_dense_part *p = r->part;
        const uint32_t end = p ? p->end : w->kept;
        *b = (struct block){.begin = r->row, .end = end - r->row < r->block ? end : r->row + r->block, .part = p};
        b->rows = p ? p->rows + (b->begin - p->begin) * w->row_bytes
                    : w->pages + w->offset % DENSE_PAGE + b->begin * w->row_bytes;
        r->row = b->end;
        r->part = p && r->row < p->end ? p : NULL;
    }
    pthread_mutex_unlock(&r->lock);
    return taken;
}

static void run_done(struct run *r, const struct block *b, errint_t error)
{
    pthread_mutex_lock(&r->lock);
    if (error) {
        r->error = r->error ? r->error : error;
        pthread_cond_broadcast(&r->freed);
    }
    if (b->part && --b->part->blocks == 0) {
        efsg_dense_stream_done(b->part);
        pthread_cond_broadcast(&r->freed);
    }
    pthread_mutex_unlock(&r->lock);
}

static void multiply_one(const struct run *r, const struct block *b)
{
    const struct efsg_dense *w = r->weight;
    float *y = (float *)r->op->data + b->begin;
    for (uint32_t i = 0; i < b->end - b->begin; i++)
        w->host.vec_dot((int)w->cols, y + i, 0, b->rows + i * w->row_bytes, 0, r->input, 0, 1);
}

/* The products of a block's rows as a graph, which writes to the rows' places in the result. */
static errint_t multiply_batch(const struct run *r, const struct block *b, struct efsg_thread_buffers *own)
{
    const struct efsg_dense *w = r->weight;
    const struct ggml_tensor *inputs = r->op->src[1];
    struct efsg_graph graph;
    if (!efsg_graph_begin(&graph, own))
        return -ENOMEM;
    struct ggml_tensor *matrix = efsg_host.new_tensor_2d(graph.context, w->type, w->cols, b->end - b->begin);
    struct ggml_tensor *x = efsg_host.new_tensor_2d(graph.context, GGML_TYPE_F32, w->cols, inputs->ne[1]);
    struct ggml_tensor *out = efsg_host.mul_mat(graph.context, matrix, x);
    memcpy(&matrix->data, &b->rows, sizeof(b->rows)); /* only read */
    x->data = inputs->data;
    out->data = (float *)r->op->data + b->begin;
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        x->nb[i] = inputs->nb[i];
        out->nb[i] = r->op->nb[i];
    }
    return efsg_graph_compute(&graph, out);
}

static void run_thread(struct run *r, struct efsg_thread_buffers *own)
{
    struct block b;
    while (run_next_block(r, &b)) {
        errint_t rc = 0;
        if (r->input)
            multiply_one(r, &b);
        else
            rc = multiply_batch(r, &b, own);
        run_done(r, &b, rc);
    }
}

/* Chooses the rows of a block, and converts a single input. */
static errint_t run_begin(struct run *r, struct efsg_buffers *room, uint32_t threads)
{
    const struct efsg_dense *w = r->weight;
    const uint32_t share = (w->rows + threads - 1) / threads;
    r->block = (uint32_t)(BLOCK_BYTES / w->row_bytes) + 1;
    r->block = r->block < share ? r->block : share;
    r->block = (r->block + DENSE_ROWS - 1) / DENSE_ROWS * DENSE_ROWS;
    if (r->op->src[1]->ne[1] > 1)
        return 0;
    uint8_t *input = efsg_memory(&room->vectors, efsg_host.row_size(w->host.vector_type, w->cols));
    if (!input)
        return -ENOMEM;
    w->host.from_float(r->op->src[1]->data, input, w->cols);
    r->input = input;
    return 0;
}

bool efsg_dense_takes(const struct ggml_tensor *op)
{
    const struct ggml_tensor *w = op->src[0], *x = op->src[1];
    struct efsg_dense *dense = w && efsg_buffer_is_ours(w->buffer) && !w->view_src ? w->extra : NULL;
    /* op_params: a precision, and a hint that the matrix is a Hadamard transform */
    if (!dense || dense->extra != EFSG_DENSE || !x || x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) ||
        x->ne[2] != 1 || x->ne[3] != 1 || op->type != GGML_TYPE_F32 || op->nb[0] != sizeof(float) ||
        op->op_params[1] != 0)
        return false;
    efsg_dense_use(dense);
    return true;
}

enum ggml_status efsg_dense_product(struct efsg_buffers *room, struct ggml_tensor *op, int threads)
{
    struct efsg_dense *w = op->src[0]->extra;
    struct run r = {.op = op, .weight = w, .lock = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};
    if (op->src[1]->ne[1] == 0)
        return GGML_STATUS_SUCCESS;
    pthread_mutex_lock(&efsg_dense_lock);
    errint_t rc = efsg_dense_keep(w);
    if (rc == 0)
        rc = run_begin(&r, room, (uint32_t)threads);
    if (rc == 0)
        rc = efsg_alloc_threads(room, (unsigned)threads);
    if (rc == 0) {
        r.error = efsg_dense_stream_seek(w);
#pragma omp parallel num_threads(threads)
        run_thread(&r, &room->own[omp_get_thread_num()]);
        rc = r.error;
    }
    if (rc < 0)
        efsg_dense_stream_drop(); /* parts that were not used */
    pthread_mutex_unlock(&efsg_dense_lock);
    if (rc == 0)
        return GGML_STATUS_SUCCESS;
    efsg_log(GGML_LOG_LEVEL_ERROR, "%s: rows of %s cannot be had: %s", w->file->file.path, w->name, strerror(-rc));
    return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
}
