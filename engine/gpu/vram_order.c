/* SPDX-License-Identifier: Apache-2.0 */
/* vram_order.c - see vram_order.h. */
#include "vram_order.h"

#include "gpu_cache.h"
#include "policy_value.h"
#include "rank.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_FIRST 64u
#define EXPERTS_FIRST 128u
#define WINDOW 4u /* DALI's w_size and u_size, as moe-replay assign has them */
#define SWAPS 2u

static const char *const names[EFS_VRAM_ORDERS] = {
    [EFS_VRAM_LRU] = "lru", [EFS_VRAM_VALUE] = "value", [EFS_VRAM_DALI] = "dali"};

enum efs_vram_order_kind efs_vram_order_by_name(const char *name)
{
    enum efs_vram_order_kind kind = 0;
    if (!name)
        return EFS_VRAM_VALUE;
    while (kind < EFS_VRAM_ORDERS && strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

void efs_vram_order_free(struct efs_vram_order *order)
{
    efs_value_free(order->value);
    free(order->window);
    free(order->busy);
    free(order->score);
    free(order->tokens);
    free(order->layer);
    *order = (struct efs_vram_order){.kind = order->kind};
}

/* Tables of that room in place of those that there are; layers keep their numbers. chosen: experts of a request. */
static errint_t order_make(struct efs_vram_order *order, uint32_t layers, uint32_t experts, double chosen)
{
    struct efs_vram_order made = {.kind = order->kind, .layers = layers, .experts = experts, .known = order->known};
    const size_t all = (size_t)layers * experts;
    made.layer = efs_sys_calloc(layers, sizeof(*made.layer));
    bool good = made.layer != NULL;
    if (good && order->layer)
        memcpy(made.layer, order->layer, order->known * sizeof(*made.layer));
    if (order->kind == EFS_VRAM_VALUE) {
        const struct efs_value_tuning tuning = {.rate_weight = 0};
        made.value = efs_value_new(layers, experts, chosen, &tuning);
        made.expert = made.tokens = efs_sys_calloc(experts, sizeof(*made.tokens));
        good = good && made.value && made.tokens;
    } else {
        made.window = efs_sys_calloc(layers, sizeof(*made.window));
        made.busy = efs_sys_calloc(all, sizeof(*made.busy));
        made.score = efs_sys_calloc(all, sizeof(*made.score));
        made.tokens = efs_sys_calloc(experts, sizeof(*made.tokens));
        good = good && made.window && made.busy && made.score && made.tokens;
    }
    for (uint32_t l = 0; l < layers && good && made.window; l++)
        made.window[l] = (struct efs_gpu_cache){.experts = experts,
                                                .window = WINDOW,
                                                .swaps = SWAPS,
                                                .cached = made.busy + (size_t)l * experts,
                                                .score = made.score + (size_t)l * experts};
    if (!good) {
        efs_vram_order_free(&made);
        return -ENOMEM;
    }
    efs_vram_order_free(order);
    *order = made;
    return 0;
}

/* The number of a layer; known: there is none. */
static uint32_t order_layer(const struct efs_vram_order *order, const char *stack, uint32_t layer)
{
    uint32_t l = 0;
    while (l < order->known && (order->layer[l].layer != layer || strcmp(order->layer[l].stack, stack) != 0))
        l++;
    return l;
}

/* Room for a layer and for experts up to this number. */
static errint_t order_room(struct efs_vram_order *order, uint32_t layers, uint32_t most, double chosen)
{
    uint32_t all_layers = order->layers ? order->layers : LAYERS_FIRST;
    uint32_t all_experts = order->experts ? order->experts : EXPERTS_FIRST;
    if (layers <= order->layers && most < order->experts)
        return 0;
    if (layers > EFS_RANK_MAX_LAYERS || most >= EFS_RANK_MAX_EXPERTS)
        return -EINVAL;
    while (all_layers < layers)
        all_layers *= 2;
    while (all_experts <= most)
        all_experts *= 2;
    return order_make(order, all_layers, all_experts, chosen);
}

static void order_window(struct efs_vram_order *order, uint32_t l, const struct efs_need *needs, uint32_t count,
                         uint32_t share)
{
    struct efs_gpu_cache *window = &order->window[l];
    struct efs_gpu_swap swap[EFS_GPU_SWAPS_MAX];
    uint32_t busy = 0;
    for (uint32_t e = 0; e < order->experts; e++)
        busy += window->cached[e];
    memset(order->tokens, 0, order->experts * sizeof(*order->tokens));
    for (uint32_t i = 0; i < count; i++) {
        order->tokens[needs[i].expert] = needs[i].tokens;
        if (busy < share && !window->cached[needs[i].expert]) { /* the first that come fill it */
            window->cached[needs[i].expert] = true;
            busy++;
        }
    }
    (void)efs_gpu_cache_pass(window, order->tokens, swap);
}

void efs_vram_order_pass(struct efs_vram_order *order, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, uint32_t share)
{
    uint32_t l = order_layer(order, stack, layer), most = 0;
    if (order->kind == EFS_VRAM_LRU)
        return;
    for (uint32_t i = 0; i < count; i++)
        most = needs[i].expert > most ? needs[i].expert : most;
    if (order_room(order, l + 1, most, count) < 0)
        return;
    if (l == order->known) {
        order->layer[l].layer = layer;
        strcpy(order->layer[l].stack, stack); /* the caller has looked at how long it is */
        order->known++;
    }
    if (order->kind == EFS_VRAM_DALI) {
        order_window(order, l, needs, count, share);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        order->expert[i] = needs[i].expert;
    efs_value_request(order->value, l, order->expert, count);
}

double efs_vram_order_worth(struct efs_vram_order *order, const struct efs_expert_key *key, uint64_t used_at)
{
    uint32_t l = order_layer(order, key->stack, key->layer);
    if (order->kind == EFS_VRAM_LRU)
        return (double)used_at;
    if (l == order->known || key->expert >= order->experts)
        return order->kind == EFS_VRAM_VALUE ? -1e300 : (double)used_at;
    if (order->kind == EFS_VRAM_DALI)
        return (double)used_at + (order->window[l].cached[key->expert] ? 0x1p52 : 0);
    struct efs_value_view view = efs_value_look(order->value, l);
    return -efs_value_reuse(efs_value_score(&view, key->expert));
}
