/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_products.c - see server_products.h: each expert is computed as it arrives, its rows by all threads of the
 * team. efs_product() has the bits of the caller's own product for every form and number of threads.
 */
#include "server_products.h"

#include "expertfs-private.h"
#include "sys.h"
#include "team.h"

#include <stdatomic.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_ROWS 64u

struct products {
    const struct efs_wire_work *work;
    struct efs_team *team;
    unsigned matrices;
    /* the expert that is computed */
    const struct efs_tensor *matrix[EFS_WIRE_MATRICES];
    const void *inputs;    /* of some of its tokens, prepared */
    float *y;              /* [those tokens][rows] */
    _Atomic uint32_t next; /* block of rows, counted through all matrices */
    _Atomic errint_t error;
};

/* The matrices of the request among the tensors of an expert, which must fit the request. */
static errint_t find_matrices(struct products *p, const struct efs_tensor *tensors, uint32_t count)
{
    const struct efs_wire_request *r = &p->work->head;
    uint64_t rows = 0;
    for (unsigned m = 0; m < p->matrices; m++) {
        p->matrix[m] = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (strcmp(tensors[i].name, r->matrix[m]) == 0)
                p->matrix[m] = &tensors[i];
        if (!p->matrix[m] || p->matrix[m]->dims != 2 || p->matrix[m]->shape[1] != r->hidden ||
            p->matrix[m]->shape[0] > r->rows)
            return -EINVAL;
        rows += p->matrix[m]->shape[0];
    }
    return rows == r->rows ? 0 : -EINVAL;
}

static errint_t multiply_block(const struct products *p, uint32_t block, unsigned thread, bool *done)
{
    size_t offset = 0;
    for (unsigned m = 0; m < p->matrices; offset += (size_t)p->matrix[m++]->shape[0]) {
        const uint32_t rows = (uint32_t)p->matrix[m]->shape[0], blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        if (block >= blocks) {
            block -= blocks;
            continue;
        }
        const size_t bytes = efs_product_scratch_bytes(p->matrix[m], false);
        void *scratch = bytes ? efs_team_scratch(p->team, thread, bytes) : NULL;
        const uint32_t begin = block * BLOCK_ROWS, end = rows - begin < BLOCK_ROWS ? rows : begin + BLOCK_ROWS;
        *done = false;
        return scratch ? efs_product(p->matrix[m], false, p->inputs, begin, end, p->y + offset, p->work->head.rows,
                                     scratch, NULL)
               : bytes ? -ENOMEM
                       : -EINVAL;
    }
    *done = true;
    return 0;
}

static void multiply(void *arg, unsigned thread)
{
    struct products *p = arg;
    bool done = false;
    while (!done && atomic_load(&p->error) == 0) {
        errint_t rc = multiply_block(p, atomic_fetch_add(&p->next, 1), thread, &done), none = 0;
        if (rc < 0)
            atomic_compare_exchange_strong(&p->error, &none, rc);
    }
}

/* Products of an expert with `count` of its tokens, at most EFS_VECTORS_MAX. y: [count][rows]. */
static errint_t run_tokens(struct products *p, const uint32_t *token, uint32_t count, float *y)
{
    const struct efs_wire_request *r = &p->work->head;
    const size_t row_bytes = r->hidden * sizeof(float), bytes = efs_vectors_bytes(r->hidden, count);
    uint8_t *x = efs_sys_malloc(count * row_bytes);
    void *inputs = bytes ? efs_sys_aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    errint_t rc = x && inputs ? 0 : -ENOMEM;
    for (uint32_t t = 0; rc == 0 && t < count; t++)
        memcpy(x + t * row_bytes, (const uint8_t *)p->work->x + token[t] * row_bytes, row_bytes);
    if (rc == 0)
        rc = efs_vectors_prepare((enum efs_activation)r->activation, (const float *)(void *)x, r->hidden, r->hidden,
                                 count, inputs);
    p->inputs = inputs;
    p->y = y;
    atomic_store(&p->next, 0);
    if (rc == 0)
        efs_team_run(p->team, multiply, p);
    free(inputs);
    free(x);
    return rc < 0 ? rc : atomic_load(&p->error);
}

static errint_t run_expert(struct products *p, struct efs_client_request *request, uint32_t index, float *vectors)
{
    const struct efs_wire_work *work = p->work;
    const struct efs_tensor *tensors;
    uint32_t count, pair = 0;
    for (uint32_t i = 0; i < index; i++)
        pair += work->expert[i].count;
    errint_t rc = efs_client_tensors(request, index, &tensors, &count);
    if (rc == 0)
        rc = find_matrices(p, tensors, count);
    for (uint32_t t = 0, some; rc == 0 && t < work->expert[index].count; t += some) {
        some = work->expert[index].count - t;
        some = some < EFS_VECTORS_MAX ? some : EFS_VECTORS_MAX;
        rc = run_tokens(p, work->token + pair + t, some, vectors + ((size_t)pair + t) * work->head.rows);
    }
    efs_client_drop(request, index);
    return rc;
}

errint_t efs_server_products(struct efs_client *client, struct efs_team *team, const struct efs_wire_work *work,
                             float *vectors)
{
    const struct efs_wire_request *r = &work->head;
    struct products p = {.work = work, .team = team};
    struct efs_client_request *request = NULL;
    struct efs_need *needs = efs_sys_calloc(r->experts, sizeof(*needs));
    while (p.matrices < EFS_WIRE_MATRICES && r->matrix[p.matrices][0])
        p.matrices++;
    for (uint32_t i = 0; needs && i < r->experts; i++)
        needs[i] = (struct efs_need){.expert = work->expert[i].expert, .tokens = work->expert[i].count};
    errint_t rc = needs ? efs_client_begin(client, r->stack, r->layer, needs, r->experts,
                                           EFS_FORM_ANY | EFS_FORM_COUNTED, &request, NULL)
                        : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < r->experts; i++) {
        uint32_t index;
        errint_t status;
        int returned = efs_client_wait_any(request, -1, &index, &status);
        rc = returned < 0 ? returned : returned == 0 ? -EINVAL : status;
        if (rc == 0)
            rc = run_expert(&p, request, index, vectors);
    }
    efs_client_release(request);
    free(needs);
    return rc;
}
