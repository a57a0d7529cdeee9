/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product.c - the products of a layer. Tokens are sorted by expert; all threads prepare the input vectors once; then
 * the threads take blocks of rows of the experts, in the order of their arrival. An expert is released when its last
 * block is done, so that the experts of a layer may be larger than the budget.
 *
 * The threads are those of ggml's OpenMP: they spin on their cores between parallel regions, and other threads would
 * compete with them.
 */
#include "plugin.h"

#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_CHECK_MS 100       /* interval at which a waiting thread checks for errors of other threads */
#define BLOCK_BYTES (256u << 10) /* part of a matrix per block: hides the cost of the lock, balances the threads */
#define PRODUCTS_MAX 8           /* most nodes of a call */
#define ALONE_NUMBERS 32768      /* up to that many input values are prepared by one thread, faster than waking more */

/* A row of the output: of token `token`, for its choice `slot`. */
struct place {
    uint32_t slot, token;
};

/* Up to EFS_VECTORS_MAX vectors that are multiplied with a matrix in one call. */
struct portion {
    const struct place *places;
    uint32_t count;
    uint8_t *vectors; /* prepared by efs_vectors_prepare() */
};

/* An expert that tokens chose. */
struct chosen {
    uint32_t expert, portion, portions; /* index of its first portion; number of portions */
    const struct efs_tensor *matrix[PRODUCTS_MAX];
    uint32_t left; /* blocks not done */
};

struct products {
    struct ggml_tensor *const *nodes;
    const struct efsg_weight *weights[PRODUCTS_MAX];
    unsigned count; /* nodes */
    uint32_t block; /* rows per block */
    uint32_t *counts;
    struct place *places;
    struct portion *portions;
    uint32_t portion_count;
    struct chosen *chosen;
    struct efs_need *needs;
    uint32_t chosen_count;
    struct efs_client_request *request;
    bool here; /* all experts arrived before the threads started */

    pthread_mutex_t lock;       /* guards the fields below, and chosen[].left */
    pthread_cond_t fetched;     /* signals that fetching is false or error is set */
    bool fetching;              /* a thread waits for the next expert, without the lock, so that experts are released */
    uint32_t *arrived;          /* indices in chosen, in the order of arrival */
    uint32_t arrived_count, at; /* at: index in arrived of the expert whose blocks are being taken */
    uint32_t node, portion, row; /* its next block */
    errint_t error;              /* the first error; no block is taken after it */
    struct efs_error err;
};

/* ---- memory ---- */

static void *memory_of(struct efsg_memory *memory, size_t bytes)
{
    if (bytes > memory->bytes) {
        free(memory->at);
        memory->at = bytes <= SIZE_MAX - 64 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
        memory->bytes = memory->at ? bytes : 0;
    }
    return memory->at;
}

void efsg_buffers_free(struct efsg_buffers *room)
{
    for (unsigned t = 0; t < room->threads; t++) {
        free(room->own[t].scratch.at);
        free(room->own[t].out.at);
    }
    free(room->own);
    free(room->lists.at);
    free(room->vectors.at);
}

/* ---- sorting choices by expert ---- */

static int32_t id_at(const struct ggml_tensor *ids, size_t slot, size_t token)
{
    int32_t id;
    memcpy(&id, (const char *)ids->data + slot * ids->nb[0] + token * ids->nb[1], sizeof(id));
    return id;
}

/* The input vector of a place: x has one vector per token (ne[1] is 1) or one per slot. */
static const float *input_at(const struct ggml_tensor *x, struct place place)
{
    return (const float *)((const char *)x->data + (size_t)(place.slot % (uint64_t)x->ne[1]) * x->nb[1] +
                           place.token * x->nb[2]);
}

static float *output_at(const struct ggml_tensor *y, struct place place)
{
    return (float *)((char *)y->data + place.slot * y->nb[1] + place.token * y->nb[2]);
}

/* Allocates all lists in one block. experts: of the layer; choices: slots * tokens. false: no memory. */
static bool alloc_lists(struct products *p, struct efsg_buffers *room, size_t experts, size_t choices)
{
    size_t most = experts < choices ? experts : choices, portions = most + choices / EFS_VECTORS_MAX;
    if (experts > UINT32_MAX / 2 || choices > UINT32_MAX / 2)
        return false;
    size_t bytes = portions * sizeof(*p->portions) + most * sizeof(*p->chosen) + choices * sizeof(*p->places) +
                   most * sizeof(*p->needs) + most * sizeof(*p->arrived) + experts * sizeof(*p->counts);
    uint8_t *at = memory_of(&room->lists, bytes);
    if (!at)
        return false;
    p->portions = (void *)at;
    p->chosen = (void *)(p->portions + portions);
    p->places = (void *)(p->chosen + most);
    p->needs = (void *)(p->places + choices);
    p->arrived = (void *)(p->needs + most);
    p->counts = p->arrived + most;
    return true;
}

/* Sorts the choices by expert into places, portions, chosen and needs. -EINVAL: an id out of range; -ENOMEM. */
static errint_t sort_choices(struct products *p, struct efsg_buffers *room)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    const uint32_t experts = p->weights[0]->experts;
    const size_t slots = (size_t)ids->ne[0], tokens = (size_t)ids->ne[1];
    if (slots > UINT32_MAX || tokens > UINT32_MAX || !alloc_lists(p, room, experts, slots * tokens))
        return -ENOMEM;
    memset(p->counts, 0, experts * sizeof(*p->counts));
    for (size_t t = 0; t < tokens; t++)
        for (size_t s = 0; s < slots; s++) {
            int32_t id = id_at(ids, s, t);
            if (id < 0 || (uint32_t)id >= experts)
                return efs_fail(&p->err, -EINVAL, "token %zu chose expert %d of %u", t, (int)id, experts);
            p->counts[id]++;
        }
    uint32_t begin = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = p->counts[e];
        if (count > 0) {
            struct chosen *c = &p->chosen[p->chosen_count];
            *c = (struct chosen){.expert = e, .portion = p->portion_count};
            p->needs[p->chosen_count++] = (struct efs_need){.expert = e, .tokens = count};
            for (uint32_t i = 0; i < count; i += EFS_VECTORS_MAX, c->portions++)
                p->portions[p->portion_count++] =
                    (struct portion){.places = p->places + begin + i,
                                     .count = count - i < EFS_VECTORS_MAX ? count - i : EFS_VECTORS_MAX};
        }
        p->counts[e] = begin; /* from here on: index of the expert's next place */
        begin += count;
    }
    for (size_t t = 0; t < tokens; t++)
        for (size_t s = 0; s < slots; s++)
            p->places[p->counts[id_at(ids, s, t)]++] = (struct place){(uint32_t)s, (uint32_t)t};
    return 0;
}

/* Whether all portions share one vector: a single token with one input whose choices are all different experts. */
static bool one_vector(const struct products *p)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    return p->nodes[0]->src[1]->ne[1] == 1 && ids->ne[1] == 1 && p->chosen_count == ids->ne[0];
}

/* Allocates the vectors of all portions. */
static errint_t alloc_vectors(struct products *p, struct efsg_buffers *room)
{
    const uint32_t cols = p->weights[0]->cols;
    size_t bytes = 0;
    for (uint32_t i = 0; i < p->portion_count; i++) {
        size_t own = (efs_vectors_bytes(cols, p->portions[i].count) + 63) / 64 * 64;
        if (own == 0)
            return efs_fail(&p->err, -EINVAL, "%u columns are too many", cols);
        bytes = one_vector(p) ? own : bytes + own;
    }
    uint8_t *at = memory_of(&room->vectors, bytes);
    for (uint32_t i = 0; at && i < p->portion_count; i++) {
        p->portions[i].vectors = at;
        at += one_vector(p) ? 0 : (efs_vectors_bytes(cols, p->portions[i].count) + 63) / 64 * 64;
    }
    return at ? 0 : -ENOMEM;
}

static errint_t alloc_threads(struct efsg_buffers *room, unsigned threads)
{
    if (threads <= room->threads)
        return 0;
    struct efsg_thread_buffers *own = realloc(room->own, threads * sizeof(*own));
    if (!own)
        return -ENOMEM;
    memset(own + room->threads, 0, (threads - room->threads) * sizeof(*own));
    room->own = own;
    room->threads = threads;
    return 0;
}

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

/* Prepares the vectors of a portion: gathers them if there are several, and converts them to the format of
 * efs_product(). Errors are recorded. */
static void lay_out(struct products *p, const struct portion *portion, struct efsg_thread_buffers *own)
{
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    const uint32_t cols = p->weights[0]->cols;
    const float *rows = input_at(x, portion->places[0]);
    if (portion->count > 1) {
        float *side_by_side = memory_of(&own->out, (size_t)portion->count * cols * sizeof(float));
        for (uint32_t i = 0; side_by_side && i < portion->count; i++)
            memcpy(side_by_side + (size_t)i * cols, input_at(x, portion->places[i]), cols * sizeof(float));
        rows = side_by_side;
    }
    errint_t rc =
        rows ? efs_vectors_prepare(p->weights[0]->activation, rows, cols, cols, portion->count, portion->vectors)
             : -ENOMEM;
    if (rc < 0)
        fail(p, rc, NULL);
}

/* A block of rows of an expert's matrix, for one portion of its vectors. */
struct block {
    struct chosen *chosen;
    const struct portion *portion;
    unsigned node;
    uint32_t begin, end;
};

/* Adds an expert that arrived, or returns its error. Caller holds the lock, or the threads have not started. */
static errint_t products_accept(struct products *p, uint32_t index, errint_t status)
{
    const struct efs_tensor *tensors = NULL;
    uint32_t count = 0;
    struct chosen *c = &p->chosen[index];
    if (status == 0)
        status = efs_client_tensors(p->request, index, &tensors, &count);
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
    p->here = rc == 0;
    return rc;
}

/* Waits for the next expert and accepts it. Caller holds the lock, which is dropped while waiting: the expert may need
 * memory that other threads release. Checks every ERROR_CHECK_MS for their errors, after which no more experts may
 * arrive. */
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
    }
    p->fetching = false;
    pthread_cond_broadcast(&p->fetched);
    if (p->error < 0 || rc < 1)
        return p->error < 0 ? p->error : rc < 0 ? rc : -EINVAL;
    return products_accept(p, index, status);
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

/* Releases an expert after its last block, unless all experts are in memory and no request waits for the space. */
static void products_done(struct products *p, struct chosen *c)
{
    if (p->here)
        return;
    pthread_mutex_lock(&p->lock);
    bool last = --c->left == 0;
    pthread_mutex_unlock(&p->lock);
    if (last)
        efs_client_drop(p->request, (uint32_t)(c - p->chosen));
}

static void multiply(struct products *p, const struct block *b, struct efsg_thread_buffers *own)
{
    struct ggml_tensor *out = p->nodes[b->node];
    const struct efs_tensor *matrix = b->chosen->matrix[b->node];
    const uint32_t rows = p->weights[b->node]->rows, count = b->portion->count;
    struct efs_error err = {""};
    void *scratch = memory_of(&own->scratch, efs_product_scratch_bytes(matrix));
    float *y =
        count == 1 ? output_at(out, b->portion->places[0]) : memory_of(&own->out, (size_t)count * rows * sizeof(float));
    errint_t rc =
        scratch && y ? efs_product(matrix, b->portion->vectors, b->begin, b->end, y, rows, scratch, &err) : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && count > 1 && i < count; i++)
        memcpy(output_at(out, b->portion->places[i]) + b->begin, y + (size_t)i * rows + b->begin,
               (b->end - b->begin) * sizeof(float));
    if (rc < 0)
        fail(p, rc, &err);
    products_done(p, b->chosen);
}

/* Reports the routing and submits hints. One thread calls it while the other threads multiply. */
static void products_hint(const struct products *p, struct efsg_hints *hints)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2], *x = p->nodes[0]->src[1];
    uint32_t chosen[EFS_ROUTING_EXPERTS];
    if (!p->weights[0]->first || !one_vector(p) || p->chosen_count > EFS_ROUTING_EXPERTS)
        return;
    for (uint32_t s = 0; s < p->chosen_count; s++) /* one_vector: each expert once */
        chosen[s] = (uint32_t)id_at(ids, s, 0);
    efsg_hints_submit(hints, p->weights[0], x->data, chosen, p->chosen_count);
}

static void products_run(struct products *p, struct efsg_buffers *room, struct efsg_hints *hints, unsigned threads)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    const uint32_t portions = one_vector(p) ? 1 : p->portion_count;
    const bool alone = one_vector(p) || ids->ne[0] * ids->ne[1] * p->weights[0]->cols <= ALONE_NUMBERS;
    for (uint32_t i = 0; alone && i < portions; i++)
        lay_out(p, &p->portions[i], &room->own[0]);
#pragma omp parallel num_threads(threads)
    {
        struct efsg_thread_buffers *own = &room->own[omp_get_thread_num()];
        struct block block;
        if (!alone) {
#pragma omp for schedule(dynamic)
            for (uint32_t i = 0; i < portions; i++)
                lay_out(p, &p->portions[i], own);
        }
#pragma omp single nowait
        products_hint(p, hints);
        while (products_next_block(p, &block))
            multiply(p, &block, own);
    }
}

const struct efsg_weight *efsg_product_weight(const struct ggml_tensor *op)
{
    const struct ggml_tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
    if (!w || !x || !ids || !w->extra || w->view_src || !efsg_buffer_is_ours(w->buffer))
        return NULL;
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && ids->type == GGML_TYPE_I32 &&
                   ids->ne[2] == 1 && ids->ne[3] == 1 && op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float) &&
                   op->ne[3] == 1
               ? w->extra
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
    const uint32_t share = (p.weights[0]->rows + (uint32_t)threads - 1) / (uint32_t)threads;
    p.block = BLOCK_BYTES / (2 * p.weights[0]->cols) + 1;
    p.block = p.block < share ? p.block : share;
    errint_t rc = sort_choices(&p, room);
    if (rc == 0)
        rc = alloc_vectors(&p, room);
    if (rc == 0)
        rc = alloc_threads(room, (unsigned)threads);
    if (rc == 0)
        rc = efsg_source_begin(p.weights[0]->source, p.weights[0]->layer, p.needs, p.chosen_count, &p.request, &p.err);
    if (rc == 0)
        rc = products_accept_resident(&p);
    if (rc == 0) {
        products_run(&p, room, hints, (unsigned)threads);
        rc = p.error;
    }
    efs_client_release(p.request);
    if (rc == 0)
        return GGML_STATUS_SUCCESS;
    efsg_log(GGML_LOG_LEVEL_ERROR, "%s: %s", nodes[0]->name, p.err.text[0] ? p.err.text : strerror(-rc));
    return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
}
