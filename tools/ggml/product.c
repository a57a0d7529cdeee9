/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product.c - the products of a layer. Tokens are sorted by expert; all threads prepare the input vectors once; then
 * the threads take blocks of rows of the experts, in the order of their arrival. An expert is released when its last
 * block is done, so that the experts of a layer may be larger than the budget.
 *
 * The threads are those of ggml's OpenMP: they spin on their cores between parallel regions, and other threads would
 * compete with them.
 */
#include "product.h"

#include "expertfs-private.h"

#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_CHECK_MS 100       /* interval at which a waiting thread checks for errors of other threads */
#define BLOCK_BYTES (256u << 10) /* part of a matrix per block: hides the cost of the lock, balances the threads */
#define AHEAD_UNCHOSEN 8    /* the next layer is read ahead if at most 1/8 of this layer's experts are not chosen */
#define ALONE_NUMBERS 32768 /* up to that many input values are prepared by one thread, faster than waking more */

/* ---- on all threads ---- */

/* Records the first error and wakes waiting threads. Caller holds the lock. */
static void products_failed(struct products *p, errint_t error, const struct efs_error *err)
{
    if (p->error == 0) {
        p->error = error;
        pthread_cond_broadcast(&p->fetched);
        if (err && err->text[0])
            p->err = *err;
    }
}

static void fail(struct products *p, errint_t error, const struct efs_error *err)
{
    pthread_mutex_lock(&p->lock);
    products_failed(p, error, err);
    pthread_mutex_unlock(&p->lock);
}

/* Reads experts of the next layer while this one is computed, if a batch chooses nearly all: as many as take 3/4 of the
 * pools together with those that are kept for down, or 1/4 if none are kept. Whether it does. */
static bool products_read_ahead(const struct products *p)
{
    const struct efsg_weight *w = p->weights[0];
    if ((w->first && !p->keep) || p->nodes[0]->src[2]->ne[1] == 1 || !efsg_buffers_alone(p->room) ||
        p->chosen_count < w->experts - w->experts / AHEAD_UNCHOSEN)
        return false;
    const uint32_t room = p->keep ? efsg_source_room(w->source, 3, 4) : efsg_source_room(w->source, 1, 4);
    const uint32_t kept = p->keep ? p->chosen_count : 0;
    return efsg_kept_read_ahead(&p->room->ahead, w, room > kept ? room - kept : 0);
}

/* Adds an expert that arrived, or returns its error. Caller holds the lock, or the threads have not started. */
static errint_t products_accept(struct products *p, uint32_t index, errint_t status)
{
    const struct efs_tensor *tensors = NULL;
    uint32_t count = 0;
    struct chosen *c = &p->chosen[index];
    if (status == 0)
        status = efs_client_tensors(p->request, c->item, &tensors, &count);
    if (status < 0)
        return efs_fail(&p->err, status, "expert %u of layer %u cannot be had: %s", c->expert, p->weights[0]->layer,
                        strerror(-status));
    for (unsigned n = 0; n < p->count; n++) {
        c->matrix[n] = efsg_weight_matrix(p->weights[n], tensors, count);
        if (!c->matrix[n])
            return efs_fail(&p->err, -EINVAL, "expert %u of %s has another shape", c->expert, p->weights[n]->name);
        c->left += c->portions * ((p->weights[n]->rows + p->block - 1) / p->block);
    }
    p->arrived[p->arrived_count++] = index;
    return 0;
}

/* Accepts the experts that are in memory, before the threads start. On a busy machine a thread that sleeps until
 * another thread has accepted an expert wakes up late, and all threads wait for it at the end. */
static errint_t products_accept_resident(struct products *p)
{
    errint_t rc = 0, status = 0;
    uint32_t index = 0;
    while (rc == 0 && p->arrived_count < p->chosen_count) {
        int returned = efs_client_wait_any(p->request, 0, &index, &status);
        if (returned < 1)
            return returned == -ETIMEDOUT ? 0 : returned < 0 ? returned : -EINVAL;
        rc = products_accept(p, index, status);
    }
    if (rc == 0)
        p->hold = !products_read_ahead(p) || p->keep;
    return rc;
}

/* If the experts of the request do not fit into memory at once, releases each when it is done, from now on. Caller
 * holds the lock, or the threads have not started. */
static void products_keep_if_room(struct products *p)
{
    if (!p->keep || !efs_client_is_oversize(p->request))
        return;
    for (uint32_t i = 0; i < p->arrived_count; i++)
        if (p->chosen[p->arrived[i]].left == 0)
            efs_client_drop(p->request, p->chosen[p->arrived[i]].item);
    p->keep = false;
}

/* Takes the request that the backend has kept for these experts, which are all in memory; else requests them. */
static errint_t products_begin(struct products *p, struct efsg_buffers *room)
{
    const struct efsg_weight *w = p->weights[0];
    p->room = room;
    if (p->chosen_count == 0) { /* peers compute all */
        efsg_kept_release(&room->kept);
        return 0;
    }
    p->keep = w->first && efsg_buffers_alone(room) && p->chosen_count <= efsg_source_room(w->source, 3, 4);
    p->request = efsg_kept_take(&room->kept, p);
    if (p->request) {
        errint_t rc = 0;
        for (uint32_t i = 0; i < p->chosen_count && rc == 0; i++)
            rc = products_accept(p, i, 0);
        p->hold = true;
        return rc;
    }
    errint_t rc =
        efsg_source_begin(w->source, w->layer, p->needs, p->chosen_count, p->away.counted, &p->request, &p->err);
    if (w->first)
        efsg_kept_release(&room->ahead); /* the new request has its experts */
    if (rc == 0)
        products_keep_if_room(p);
    return rc == 0 ? products_accept_resident(p) : rc;
}

/* Waits for the next expert and accepts it; after the last one, reads the next layer. Caller holds the lock, which
 * is dropped while waiting: the expert may need memory that other threads release. Checks every ERROR_CHECK_MS for
 * their errors, after which no more experts may arrive. */
static errint_t products_wait_next(struct products *p)
{
    uint32_t index = 0;
    errint_t status = 0;
    int rc = -ETIMEDOUT;
    p->fetching = true;
    while (rc == -ETIMEDOUT && p->error == 0) {
        pthread_mutex_unlock(&p->lock);
        rc = efs_client_wait_any(p->request, ERROR_CHECK_MS, &index, &status);
        pthread_mutex_lock(&p->lock);
        if (rc == -ETIMEDOUT)
            products_keep_if_room(p);
    }
    p->fetching = false;
    pthread_cond_broadcast(&p->fetched);
    if (p->error < 0 || rc < 1)
        return p->error < 0 ? p->error : rc < 0 ? rc : -EINVAL;
    status = products_accept(p, index, status);
    if (status == 0 && p->arrived_count == p->chosen_count) {
        pthread_mutex_unlock(&p->lock);
        (void)products_read_ahead(p);
        pthread_mutex_lock(&p->lock);
    }
    return status;
}

/* Takes the next block; waits for an expert if all blocks of the arrived ones are taken. false: no blocks left, or an
 * error. */
static bool products_next_block(struct products *p, struct block *block)
{
    pthread_mutex_lock(&p->lock);
    while (p->error == 0 && p->at == p->arrived_count && p->at < p->chosen_count) {
        errint_t rc = 0;
        if (p->fetching)
            pthread_cond_wait(&p->fetched, &p->lock);
        else
            rc = products_wait_next(p);
        if (rc < 0)
            products_failed(p, rc, NULL);
    }
    bool taken = p->error == 0 && p->at < p->chosen_count;
    if (taken) {
        struct chosen *c = &p->chosen[p->arrived[p->at]];
        const uint32_t rows = p->weights[p->node]->rows;
        *block = (struct block){.chosen = c,
                                .portion = &p->portions[c->portion + p->portion],
                                .node = p->node,
                                .begin = p->row,
                                .end = rows - p->row < p->block ? rows : p->row + p->block};
        p->row = block->end;
        if (p->row == rows) {
            p->row = 0;
            p->portion++;
        }
        if (p->portion == c->portions) {
            p->portion = 0;
            p->node++;
        }
        if (p->node == p->count) {
            p->node = 0;
            p->at++;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}

/* Releases an expert after its last block, unless all are held to the end. */
static void products_done(struct products *p, struct chosen *c)
{
    if (p->hold)
        return;
    pthread_mutex_lock(&p->lock);
    bool last = --c->left == 0 && !p->keep;
    pthread_mutex_unlock(&p->lock);
    if (last)
        efs_client_drop(p->request, c->item);
}

static void multiply(struct products *p, const struct block *b, struct efsg_thread_buffers *own)
{
    struct efs_error err = {""};
    errint_t rc = p->kernel->multiply(p, b, own, &err);
    if (rc < 0)
        fail(p, rc, &err);
    products_done(p, b->chosen);
}

void efsg_products_hint(const struct products *p, struct efsg_hints *hints)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2], *x = p->nodes[0]->src[1];
    uint32_t chosen[EFS_ROUTING_EXPERTS];
    if (!hints || !p->weights[0]->first || !efsg_one_vector(p) || p->all > EFS_ROUTING_EXPERTS)
        return;
    for (uint32_t s = 0; s < p->all; s++) /* one_vector: each expert once */
        chosen[s] = (uint32_t)efsg_id_at(ids, s, 0);
    efsg_hints_submit(hints, p->weights[0], x->data, chosen, p->all);
}

static void prepare(struct products *p, uint32_t piece, struct efsg_thread_buffers *own)
{
    errint_t rc = p->kernel->prepare(p, piece, own);
    if (rc < 0)
        fail(p, rc, NULL);
}

static void products_run(struct products *p, struct efsg_buffers *room, struct efsg_hints *hints, uint32_t pieces,
                         unsigned threads)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    const bool alone = pieces == 1 || ids->ne[0] * ids->ne[1] * p->weights[0]->cols <= ALONE_NUMBERS;
    for (uint32_t i = 0; alone && i < pieces; i++)
        prepare(p, i, &room->own[0]);
#pragma omp parallel num_threads(threads)
    {
        struct efsg_thread_buffers *own = &room->own[omp_get_thread_num()];
        struct block block;
        if (!alone) {
#pragma omp for schedule(dynamic)
            for (uint32_t i = 0; i < pieces; i++)
                prepare(p, i, own);
        }
#pragma omp single nowait
        efsg_products_hint(p, hints);
        while (products_next_block(p, &block))
            multiply(p, &block, own);
    }
}

/* Computes the products of the chosen experts. */
static errint_t products_compute(struct products *p, struct efsg_buffers *room, struct efsg_hints *hints,
                                 uint32_t pieces, unsigned threads)
{
    errint_t rc = products_begin(p, room);
    if (rc == 0) {
        products_run(p, room, hints, pieces, threads);
        rc = p->error;
    }
    if (rc == 0 && p->keep)
        efsg_kept_put(&room->kept, p);
    else
        efs_client_release(p->request);
    p->request = NULL;
    return rc;
}

const struct efsg_weight *efsg_product_weight(const struct ggml_tensor *op)
{
    const struct ggml_tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
    if (!w || !x || !ids || !w->extra || w->view_src || !efsg_buffer_is_ours(w->buffer))
        return NULL;
    const struct efsg_weight *experts = w->extra;
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && ids->type == GGML_TYPE_I32 &&
                   ids->ne[2] == 1 && ids->ne[3] == 1 && op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float) &&
                   op->ne[3] == 1
               ? experts
               : NULL;
}

enum ggml_status efsg_products(struct efsg_buffers *room, struct efsg_hints *hints, struct ggml_tensor *const *nodes,
                               unsigned count, int threads)
{
    struct products p = {.nodes = nodes,
                         .count = count,
                         .lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, /* held for less time than a wake-up takes */
                         .fetched = PTHREAD_COND_INITIALIZER};
    if (nodes[0]->src[2]->ne[0] == 0 || nodes[0]->src[2]->ne[1] == 0)
        return GGML_STATUS_SUCCESS;
    for (unsigned n = 0; n < count; n++)
        p.weights[n] = efsg_product_weight(nodes[n]);
    p.kernel = p.weights[0]->host.vec_dot ? &efsg_kernel_host : &efsg_kernel_coded;
    const uint32_t share = (p.weights[0]->rows + (uint32_t)threads - 1) / (uint32_t)threads;
    p.block = (uint32_t)(BLOCK_BYTES / p.weights[0]->row_bytes) + 1;
    p.block = p.block < share ? p.block : share;
    int pieces = 0;
    errint_t rc = efsg_sort_choices(&p, room);
    if (rc == 0)
        rc = pieces = p.kernel->alloc(&p, room);
    if (rc >= 0)
        rc = efsg_buffers_threads(room, (unsigned)threads);
    if (rc == 0)
        efsg_peers_begin(&p, room);
    if (rc == 0)
        rc = products_compute(&p, room, hints, (uint32_t)pieces, (unsigned)threads);
    efsg_peers_end(&p, rc);
    if (rc == 0 && p.away.count > 0 && p.chosen_count > 0) { /* the inputs are prepared */
        efsg_kept_release(&room->kept);
        rc = products_compute(&p, room, NULL, 0, (unsigned)threads);
    }
    if (rc == 0)
        return GGML_STATUS_SUCCESS;
    efsg_log(GGML_LOG_LEVEL_ERROR, "%s: %s", nodes[0]->name, p.err.text[0] ? p.err.text : strerror(-rc));
    return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
}
