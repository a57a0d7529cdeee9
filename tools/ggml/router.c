/* SPDX-License-Identifier: Apache-2.0 */
/*
 * router.c - predicts the experts of the next layer by running its router on the input of this layer's router, as
 * Mixtral-Offloading does (Eliseev and Mazur 2023, section 3.2): the input changes little from layer to layer. The
 * prediction is submitted as a hint, so that missing experts are read while this layer is computed.
 */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 4096u /* limit of the layer number in a tensor's name */

struct router {
    const float *data; /* [experts][cols]; NULL: not seen */
    uint32_t experts, cols;
};

struct efsg_routers {
    struct efsg_device *device;
    struct efsg_routers *next; /* in the list of the device, whose router_lock guards the list and its entries */
    uintptr_t begin, end;
    struct router *layers; /* [count] */
    uint32_t count;
};

struct efsg_routers *efsg_routers_new(struct efsg_device *device, const void *memory, size_t bytes)
{
    struct efsg_routers *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->device = device;
    r->begin = (uintptr_t)memory;
    r->end = r->begin + bytes;
    pthread_mutex_lock(&device->router_lock);
    r->next = device->routers;
    device->routers = r;
    pthread_mutex_unlock(&device->router_lock);
    return r;
}

void efsg_routers_free(struct efsg_routers *routers)
{
    if (!routers)
        return;
    pthread_mutex_lock(&routers->device->router_lock);
    for (struct efsg_routers **r = &routers->device->routers; *r; r = &(*r)->next)
        if (*r == routers) {
            *r = routers->next;
            break;
        }
    pthread_mutex_unlock(&routers->device->router_lock);
    free(routers->layers);
    free(routers);
}

/* Caller holds router_lock. */
static void note(struct efsg_routers *r, uint32_t layer, const struct ggml_tensor *w)
{
    if (layer >= r->count) {
        struct router *more = realloc(r->layers, (layer + 1) * sizeof(*more));
        if (!more)
            return;
        memset(more + r->count, 0, (layer + 1 - r->count) * sizeof(*more));
        r->layers = more;
        r->count = layer + 1;
    }
    r->layers[layer] = (struct router){.data = w->data, .experts = (uint32_t)w->ne[1], .cols = (uint32_t)w->ne[0]};
}

void efsg_router_record(struct efsg_device *device, const struct ggml_tensor *w)
{
    unsigned layer;
    int end = 0;
    if (w->type != GGML_TYPE_F32 || !w->data || sscanf(w->name, "blk.%4u.ffn_gate_inp.weight%n", &layer, &end) < 1 ||
        end == 0 || w->name[end] || layer >= LAYERS_MAX || w->ne[0] < 1 || w->ne[0] > UINT32_MAX || w->ne[1] < 1 ||
        w->ne[1] > EFS_ROUTING_EXPERTS || w->ne[2] != 1 || w->ne[3] != 1 || w->nb[0] != sizeof(float) ||
        w->nb[1] != (size_t)w->ne[0] * sizeof(float))
        return;
    const uintptr_t begin = (uintptr_t)w->data, bytes = w->nb[1] * (size_t)w->ne[1];
    pthread_mutex_lock(&device->router_lock);
    for (struct efsg_routers *r = device->routers; r; r = r->next)
        if (begin >= r->begin && begin < r->end && bytes <= r->end - begin)
            note(r, layer, w);
    pthread_mutex_unlock(&device->router_lock);
}

/* ---- hints ---- */

/* A copy of the layer's router; .data is NULL if it is not known. */
static struct router router_of(struct efsg_routers *r, uint32_t layer)
{
    struct router found = {.data = NULL};
    pthread_mutex_lock(&r->device->router_lock);
    if (layer < r->count)
        found = r->layers[layer];
    pthread_mutex_unlock(&r->device->router_lock);
    return found;
}

static float score(const float *row, const float *x, uint32_t cols)
{
    float sums[16] = {0};
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16)
        for (uint32_t l = 0; l < 16; l++)
            sums[l] += row[i + l] * x[i + l];
    for (; i < cols; i++)
        sums[0] += row[i] * x[i];
    for (uint32_t l = 1; l < 16; l++)
        sums[0] += sums[l];
    return sums[0];
}

/* Writes the experts with the `count` highest scores to picked, highest first. */
static void pick(const float *scores, uint32_t experts, uint32_t *picked, uint32_t count)
{
    uint32_t have = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t at = have < count ? have++ : count;
        for (; at > 0 && scores[e] > scores[picked[at - 1]]; at--)
            if (at < count)
                picked[at] = picked[at - 1];
        if (at < count)
            picked[at] = e;
    }
}

static bool is_among(uint32_t expert, const uint32_t *experts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

void efsg_hints_submit(struct efsg_hints *h, const struct efsg_weight *w, const float *x, const uint32_t *chosen,
                       uint32_t count)
{
    struct efs_client *client = efsg_source_prefetch_client(w->source);
    if (!client || !w->routers || count == 0 || count > EFS_ROUTING_EXPERTS)
        return;
    struct efs_routing now = {.sequence = h->sequence, .layer = w->layer, .count = count, .experts = chosen};
    (void)efs_observe(client, &now, NULL); /* an error only means less prefetch */
    for (uint32_t i = 0; h->count && h->layer == w->layer && i < h->count; i++) {
        h->right += is_among(h->experts[i], chosen, count);
        h->hinted++;
    }
    const struct router next = router_of(w->routers, w->layer + 1);
    h->count = 0;
    if (!next.data || next.cols != w->cols || count > next.experts)
        return;
    float scores[EFS_ROUTING_EXPERTS], weights[EFS_ROUTING_EXPERTS];
    for (uint32_t e = 0; e < next.experts; e++)
        scores[e] = score(next.data + (size_t)e * next.cols, x, next.cols);
    pick(scores, next.experts, h->experts, count);
    h->layer = w->layer + 1;
    h->count = count;
    for (uint32_t i = 0; i < count; i++) /* hit rate of the hints so far */
        weights[i] = (float)(h->right + 1) / (float)(h->hinted + 1);
    struct efs_routing guess = {
        .sequence = h->sequence, .layer = h->layer, .count = count, .experts = h->experts, .weights = weights};
    (void)efs_hint(client, &guess, NULL);
}
