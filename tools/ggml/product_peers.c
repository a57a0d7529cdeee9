/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product_peers.c - products that other machines compute, if the source has peers. Gate and up of an expert are one
 * request, down is another: what lies between them is ggml's, with its bits. The library's products have the same bits
 * on the peer; those of the host's kernels, for quantised types, are not sent.
 */
#include "product.h"

#include "expertfs-peer.h"

#include <string.h>

static const struct place *places_of(const struct products *p, const struct chosen *c)
{
    return p->portions[c->portion].places;
}

/* Whether peers can compute these products: by the library, with inputs in rows of equal distance. */
static bool can_send(const struct products *p)
{
    const struct ggml_tensor *x = p->nodes[0]->src[1];
    return p->kernel == &efsg_kernel_coded && p->count <= 2 && x->nb[1] % sizeof(float) == 0 &&
           x->nb[2] == x->nb[1] * (size_t)x->ne[1] && x->ne[1] * x->ne[2] <= INT32_MAX;
}

/* The tokens of each chosen expert. false: an expert has a token twice. */
static bool set_routes(const struct products *p, struct efs_route_to *routes, uint32_t *token)
{
    for (uint32_t i = 0; i < p->chosen_count; i++) {
        const struct place *places = places_of(p, &p->chosen[i]);
        routes[i] = (struct efs_route_to){.expert = p->chosen[i].expert, .count = p->needs[i].tokens, .token = token};
        for (uint32_t t = 0; t < routes[i].count; t++) {
            if (t > 0 && places[t].token == places[t - 1].token)
                return false;
            *token++ = (uint32_t)input_row(p->nodes[0]->src[1], places[t]);
        }
    }
    return true;
}

/* Moves the experts that were sent from chosen to away. */
static void move_away(struct products *p)
{
    uint32_t here = 0;
    p->away.counted = p->away.call != NULL;
    for (uint32_t i = 0; i < p->chosen_count; i++) {
        if (efs_peer_products_sent(p->away.call, i)) {
            p->away.number[p->away.count] = i;
            p->away.chosen[p->away.count++] = p->chosen[i];
            continue;
        }
        p->needs[here] = p->needs[i];
        p->chosen[here] = p->chosen[i];
        p->chosen[here].item = here;
        here++;
    }
    p->chosen_count = here;
}

void efsg_peers_begin(struct products *p, struct efsg_buffers *room)
{
    const struct efsg_weight *const *w = p->weights;
    const struct ggml_tensor *x = p->nodes[0]->src[1], *ids = p->nodes[0]->src[2];
    struct efs_client *client = efsg_source_peers(w[0]->source);
    const uint32_t count = p->chosen_count;
    const size_t each = sizeof(struct efs_route_to) + sizeof(struct chosen) + sizeof(uint32_t);
    const size_t choices = (size_t)(ids->ne[0] * ids->ne[1]);
    struct efs_route_to *routes =
        client && can_send(p) ? efsg_memory(&room->away, count * each + choices * sizeof(uint32_t)) : NULL;
    if (!routes)
        return;
    p->away.chosen = (void *)(routes + count);
    p->away.number = (void *)(p->away.chosen + count);
    if (!set_routes(p, routes, p->away.number + count))
        return;
    const struct efs_peer_products products = {.stack = "",
                                               .layer = w[0]->layer,
                                               .matrix = {w[0]->name, p->count == 2 ? w[1]->name : NULL},
                                               .rows = w[0]->rows + (p->count == 2 ? w[1]->rows : 0),
                                               .cols = w[0]->cols,
                                               .more = w[0]->first,
                                               .again = !w[0]->first,
                                               .activation = w[0]->activation,
                                               .x = x->data,
                                               .x_stride = x->nb[1] / sizeof(float),
                                               .tokens = (uint32_t)(x->ne[1] * x->ne[2]),
                                               .expert_count = count,
                                               .experts = routes};
    if (efs_peer_products_begin(client, &products, &p->away.call) == 0)
        move_away(p);
}

static void write_results(const struct products *p, const struct chosen *c, uint32_t tokens, const float *vectors)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (unsigned n = 0; n < p->count; vectors += p->weights[n++]->rows)
            memcpy(output_at(p->nodes[n], places_of(p, c)[t]), vectors, p->weights[n]->rows * sizeof(float));
}

void efsg_peers_end(struct products *p, errint_t rc)
{
    if (!p->away.call)
        return;
    efs_peer_products_wait(p->away.call);
    p->chosen_count = 0;
    for (uint32_t i = 0; i < p->away.count; i++) {
        const struct chosen *c = &p->away.chosen[i];
        uint32_t tokens = 0;
        for (uint32_t q = 0; q < c->portions; q++)
            tokens += p->portions[c->portion + q].count;
        const float *vectors = efs_peer_products_vectors(p->away.call, p->away.number[i]);
        if (vectors) {
            write_results(p, c, tokens, vectors);
            continue;
        }
        p->needs[p->chosen_count] = (struct efs_need){.expert = c->expert, .tokens = tokens};
        p->chosen[p->chosen_count] = *c;
        p->chosen[p->chosen_count].item = p->chosen_count;
        p->chosen_count++;
    }
    efs_peer_products_end(p->away.call, rc == 0);
    p->away.call = NULL;
    p->arrived_count = p->at = p->node = p->portion = p->row = 0;
    p->hold = false;
}
