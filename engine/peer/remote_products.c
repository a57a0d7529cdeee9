/* SPDX-License-Identifier: Apache-2.0 */
/* remote_products.c - products of single matrices, of which peers compute some: see efs_peer_products_begin(). */
#include "peers.h"

#include "peer_ops.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct efs_peer_call {
    struct efs_remote remote;
    uint32_t sent;
};

static bool set_name(char *to, size_t room, const char *name)
{
    const size_t bytes = strlen(name);
    if (bytes >= room)
        return false;
    memcpy(to, name, bytes);
    return true;
}

errint_t efs_peer_products_begin(struct efs_client *client, const struct efs_peer_products *p,
                                 struct efs_peer_call **call)
{
    const struct efs_peer_ops *ops;
    struct efs_peers *peers = efs_client_peers_of(client, &ops);
    *call = NULL;
    if (!peers || p->expert_count == 0)
        return 0;
    struct efs_peer_call *c = efs_sys_calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    struct efs_remote *r = &c->remote;
    *r = (struct efs_remote){
        .peers = peers,
        .client = client,
        .head = {.layer = p->layer, .hidden = p->cols, .rows = p->rows, .activation = p->activation},
        .experts = p->experts,
        .expert_count = p->expert_count,
        .tokens = p->tokens,
        .x = p->x,
        .x_stride = p->x_stride,
        .part = p->more ? 0.5 : 1,
        .counted = p->again};
    bool fits = set_name(r->head.stack, sizeof(r->head.stack), p->stack);
    for (unsigned m = 0; m < EFS_WIRE_MATRICES && p->matrix[m]; m++)
        fits = fits && set_name(r->head.matrix[m], sizeof(r->head.matrix[m]), p->matrix[m]);
    errint_t rc = fits && r->head.matrix[0][0] ? efs_remote_send(r, &c->sent) : -EINVAL;
    if (rc == 0 && r->counted) {
        *call = c;
        return 0;
    }
    if (rc == 0) /* no peer is connected */
        efs_remote_measured(r);
    efs_remote_free(r);
    free(c);
    return rc;
}

bool efs_peer_products_sent(const struct efs_peer_call *call, uint32_t expert)
{
    return call && call->remote.where[expert] != EFS_CHOOSE_HERE;
}

void efs_peer_products_wait(struct efs_peer_call *call)
{
    if (call && call->sent)
        efs_remote_measured(&call->remote);
    if (call)
        efs_remote_receive(&call->remote);
}

const float *efs_peer_products_vectors(const struct efs_peer_call *call, uint32_t expert)
{
    return call ? call->remote.vectors[expert] : NULL;
}

void efs_peer_products_end(struct efs_peer_call *call, bool computed)
{
    if (!call)
        return;
    if (computed && !call->sent)
        efs_remote_measured(&call->remote);
    efs_remote_free(&call->remote);
    free(call);
}
