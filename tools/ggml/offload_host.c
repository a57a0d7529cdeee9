/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_host.c - the processor's part of a call, while a thread waits for the device's part: copies of the nodes with
 * a row for each choice of its experts, in memory of the processor. The calling thread computes them, because ggml's
 * OpenMP threads are its own.
 */
#include "offload.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define OTHERS_MAX (3 * PRODUCTS_MAX)

/* ---- the device's thread ---- */

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0) /* EINTR */
        continue;
}

static void *thread_run(void *arg)
{
    struct offload_thread *t = arg;
    for (;;) {
        wait_for(&t->begin);
        if (!t->call)
            return NULL;
        t->rc = t->compute(t->call);
        sem_post(&t->end);
    }
}

bool offload_thread_start(struct offload_thread *t)
{
    sigset_t all, before;
    sem_init(&t->begin, 0, 0);
    sem_init(&t->end, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    t->started = pthread_create(&t->id, NULL, thread_run, t) == 0; /* stack: as drivers of devices expect */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->started)
        pthread_setname_np(t->id, "efs-device");
    return t->started;
}

void offload_thread_stop(struct offload_thread *t)
{
    if (!t->started)
        return;
    t->call = NULL;
    sem_post(&t->begin);
    pthread_join(t->id, NULL);
}

/* ---- the processor's part ---- */

struct part {
    struct offload_call *call;
    struct place *places; /* [rows], by expert */
    uint32_t rows;
    uint8_t *memory;                                               /* what is left of it */
    struct ggml_tensor ids, made[PRODUCTS_MAX], other[OTHERS_MAX]; /* made: by node; other: inputs, and views */
    const struct ggml_tensor *outside[OTHERS_MAX];
    unsigned others;
};

static struct ggml_tensor tensor(struct part *part, enum ggml_type type, int64_t width)
{
    const size_t row_bytes = (size_t)width * sizeof(float);
    struct ggml_tensor t = {.type = type,
                            .ne = {width, 1, part->rows, 1},
                            .nb = {sizeof(float), row_bytes, row_bytes, part->rows * row_bytes},
                            .data = part->memory};
    part->memory += (part->rows * row_bytes + 63) / 64 * 64;
    return t;
}

/* Bytes of all tensors of a part, or more. */
static size_t part_bytes(const struct offload_call *call, uint32_t rows)
{
    size_t bytes = rows * sizeof(int32_t) + 64;
    for (unsigned i = 0; i < call->count; i++) {
        const struct ggml_tensor *node = call->nodes[i], *x = node->op == GGML_OP_MUL_MAT_ID ? node->src[1] : NULL;
        bytes += (size_t)(node->ne[0] + (x ? x->ne[0] : 0)) * rows * sizeof(float) + 128;
    }
    return bytes;
}

/* The copy of a node or of a view of one, or a new input with its values. */
static struct ggml_tensor *copy_of(struct part *part, const struct ggml_tensor *t)
{
    const struct ggml_tensor *base = offload_base(t);
    for (unsigned i = 0; i < part->others; i++)
        if (part->outside[i] == t)
            return &part->other[i];
    part->outside[part->others] = t;
    struct ggml_tensor *other = &part->other[part->others];
    for (unsigned i = 0; i < part->call->count; i++)
        if (part->call->nodes[i] == base) {
            if (t == base)
                return &part->made[i];
            *other = part->made[i];
            other->ne[0] = t->ne[0];
            other->data = (uint8_t *)other->data + t->view_offs;
            return &part->other[part->others++];
        }
    *other = tensor(part, GGML_TYPE_F32, t->ne[0]);
    for (uint32_t r = 0; r < part->rows; r++)
        memcpy((uint8_t *)other->data + r * other->nb[2], input_at(t, input_row(t, part->places[r])), other->nb[2]);
    return &part->other[part->others++];
}

/* Copies the nodes and their inputs, before the device's part writes a result. */
static errint_t part_begin(struct part *part)
{
    struct offload_call *call = part->call;
    const struct ggml_tensor *ids = call->p.nodes[0]->src[2];
    const struct chosen *const *chosen = call->order + call->device;
    const uint32_t count = call->p.chosen_count - call->device, all = (uint32_t)(ids->ne[0] * ids->ne[1]);
    for (uint32_t i = 0; i < count; i++)
        part->rows += call->p.needs[chosen[i]->item].tokens;
    part->places = (struct place *)call->o->places.at + all - part->rows; /* behind those of the device */
    offload_places(call, part->places, chosen, count);
    part->memory = efsg_memory(&call->o->host, part_bytes(call, part->rows));
    if (!part->memory)
        return -ENOMEM;
    part->ids = tensor(part, GGML_TYPE_I32, 1);
    part->ids.ne[1] = part->rows;
    part->ids.ne[2] = 1;
    part->ids.nb[2] = part->ids.nb[3];
    for (uint32_t r = 0; r < part->rows; r++)
        ((int32_t *)part->ids.data)[r] = efsg_id_at(ids, part->places[r].slot, part->places[r].token);
    for (unsigned i = 0; i < call->count; i++) {
        const struct ggml_tensor *node = call->nodes[i];
        struct ggml_tensor *made = &part->made[i];
        *made = tensor(part, GGML_TYPE_F32, node->ne[0]);
        made->op = node->op;
        made->flags = node->flags;
        memcpy(made->op_params, node->op_params, sizeof(made->op_params));
        memcpy(made->name, node->name, sizeof(made->name));
        const bool product = node->op == GGML_OP_MUL_MAT_ID;
        for (unsigned s = 0; s < (product ? 2 : GGML_MAX_SRC); s++)
            made->src[s] = !node->src[s] ? NULL : product && s == 0 ? node->src[0] : copy_of(part, node->src[s]);
        if (product)
            made->src[2] = &part->ids;
    }
    return 0;
}

/* Whether two products have the same input, in the same format. */
static bool together(const struct ggml_tensor *a, const struct ggml_tensor *b)
{
    return b->op == GGML_OP_MUL_MAT_ID && a->src[1] == b->src[1] &&
           efsg_weight_same_input(efsg_product_weight(a), efsg_product_weight(b));
}

static errint_t part_compute(struct part *part, struct efsg_buffers *room, int threads)
{
    struct ggml_tensor *nodes[PRODUCTS_MAX];
    enum ggml_status status = GGML_STATUS_SUCCESS;
    const unsigned count = part->call->count;
    for (unsigned i = 0, n; i < count && status == GGML_STATUS_SUCCESS; i += n) {
        n = 1;
        nodes[0] = &part->made[i];
        if (nodes[0]->op != GGML_OP_MUL_MAT_ID) {
            status = efsg_graph_node(room, nodes[0]) == 0 ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
            continue;
        }
        for (; i + n < count && together(nodes[0], &part->made[i + n]); n++)
            nodes[n] = &part->made[i + n];
        status = efsg_products(room, NULL, nodes, n, threads);
    }
    return status == GGML_STATUS_SUCCESS ? 0 : status == GGML_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO;
}

static void part_end(const struct part *part)
{
    for (unsigned i = 0; i < part->call->count; i++) {
        const struct ggml_tensor *made = &part->made[i];
        for (uint32_t r = 0; r < part->rows && part->call->need[i]; r++)
            memcpy(output_at(part->call->nodes[i], part->places[r]), (const uint8_t *)made->data + r * made->nb[2],
                   made->nb[2]);
    }
}

errint_t offload_share(struct offload_call *call, errint_t (*device)(struct offload_call *call),
                       struct efsg_buffers *room, int threads)
{
    struct offload_thread *t = &call->o->thread;
    struct part part = {.call = call};
    errint_t rc = part_begin(&part);
    if (rc < 0)
        return rc;
    t->rc = 0;
    if (call->device > 0) {
        t->call = call;
        t->compute = device;
        sem_post(&t->begin);
    } else {
        efsg_products_hint(&call->p, call->hints);
    }
    const uint64_t start = efs_clock_ns(CLOCK_MONOTONIC);
    rc = part_compute(&part, room, threads);
    call->host_ns = efs_clock_ns(CLOCK_MONOTONIC) - start;
    if (call->device > 0)
        wait_for(&t->end);
    if (rc < 0) { /* logged */
        call->computing = false;
        return rc;
    }
    if (t->rc == 0)
        part_end(&part);
    return t->rc;
}
