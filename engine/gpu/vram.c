/* SPDX-License-Identifier: Apache-2.0 */
/* vram.c - see vram.h. */
#include "vram.h"

#include "gpu_cache.h"
#include "policy_reuse.h"
#include "rank.h"
#include "runs.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- eviction order ---- */

#define LAYERS_FIRST 64u
#define EXPERTS_FIRST 128u
#define SWAPS 2u /* DALI's u_size; the same as in moe-replay assign */

static const char *const order_names[EFS_VRAM_ORDERS] = {
    [EFS_VRAM_LRU] = "lru", [EFS_VRAM_VALUE] = "value", [EFS_VRAM_DALI] = "dali"};

enum efs_vram_order_kind efs_vram_order_by_name(const char *name)
{
    enum efs_vram_order_kind kind = 0;
    if (!name)
        return EFS_VRAM_VALUE;
    while (kind < EFS_VRAM_ORDERS && strcmp(order_names[kind], name) != 0)
        kind++;
    return kind;
}

void efs_vram_order_free(struct efs_vram_order *order)
{
    efs_reuse_free(order->value);
    free(order->window);
    free(order->busy);
    free(order->score);
    free(order->tokens);
    free(order->layer);
    *order = (struct efs_vram_order){.kind = order->kind};
}

/* Replaces the tables by tables of that size; layers keep their indices. chosen: experts of a request. */
static errint_t order_resize(struct efs_vram_order *order, uint32_t layers, uint32_t experts, double chosen)
{
    struct efs_vram_order made = {.kind = order->kind, .layers = layers, .experts = experts, .known = order->known};
    const size_t all = (size_t)layers * experts;
    made.layer = efs_sys_calloc(layers, sizeof(*made.layer));
    bool good = made.layer != NULL;
    if (good && order->layer)
        memcpy(made.layer, order->layer, order->known * sizeof(*made.layer));
    if (order->kind == EFS_VRAM_VALUE) {
        made.value = efs_reuse_new(layers, experts, chosen, false);
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
                                                .window = EFS_GPU_WINDOW,
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

/* The index of a layer; order->known if it has none. */
static uint32_t order_layer(const struct efs_vram_order *order, const char *stack, uint32_t layer)
{
    uint32_t l = 0;
    while (l < order->known && (order->layer[l].layer != layer || strcmp(order->layer[l].stack, stack) != 0))
        l++;
    return l;
}

/* Grows the tables to hold this many layers, and experts up to the number most. -EINVAL: above the limits. */
static errint_t order_reserve(struct efs_vram_order *order, uint32_t layers, uint32_t most, double chosen)
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
    return order_resize(order, all_layers, all_experts, chosen);
}

static void order_window(struct efs_vram_order *order, uint32_t l, const struct efs_need *needs, uint32_t count,
                         uint32_t share)
{
    memset(order->tokens, 0, order->experts * sizeof(*order->tokens));
    for (uint32_t i = 0; i < count; i++)
        order->tokens[needs[i].expert] = needs[i].tokens;
    efs_gpu_cache_busy(&order->window[l], order->tokens, share);
}

void efs_vram_order_record(struct efs_vram_order *order, const char *stack, uint32_t layer,
                           const struct efs_need *needs, uint32_t count, uint32_t share)
{
    uint32_t l = order_layer(order, stack, layer), most = 0;
    if (order->kind == EFS_VRAM_LRU)
        return;
    for (uint32_t i = 0; i < count; i++)
        most = needs[i].expert > most ? needs[i].expert : most;
    if (order_reserve(order, l + 1, most, count) < 0)
        return;
    if (l == order->known) {
        order->layer[l].layer = layer;
        strcpy(order->layer[l].stack, stack); /* the caller has checked the length */
        order->known++;
    }
    if (order->kind == EFS_VRAM_DALI) {
        order_window(order, l, needs, count, share);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        order->expert[i] = needs[i].expert;
    efs_reuse_request(order->value, l, order->expert, count);
}

double efs_vram_order_priority(struct efs_vram_order *order, const struct efs_expert_key *key, uint64_t used_at)
{
    uint32_t l = order_layer(order, key->stack, key->layer);
    if (order->kind == EFS_VRAM_LRU)
        return (double)used_at;
    if (l == order->known || key->expert >= order->experts)
        return order->kind == EFS_VRAM_VALUE ? -1e300 : (double)used_at;
    if (order->kind == EFS_VRAM_DALI)
        return (double)used_at + (order->window[l].cached[key->expert] ? 0x1p52 : 0);
    struct efs_reuse_view view = efs_reuse_view_layer(order->value, l);
    return -efs_reuse_passes(efs_reuse_score(&view, key->expert));
}

/* ---- the pool ---- */

errint_t efs_vram_init(struct efs_vram *vram, efs_cu_address base, uint64_t bytes, enum efs_vram_order_kind kind)
{
    uint64_t granules = bytes / EFS_VRAM_GRANULE, words = (granules + 63) / 64;
    if (words * 64 > UINT32_MAX)
        return -EFBIG;
    *vram = (struct efs_vram){.base = base, .granules = (uint32_t)granules, .order.kind = kind};
    vram->used_map = efs_sys_calloc(words, sizeof(*vram->used_map));
    if (!vram->used_map)
        return -ENOMEM;
    uint32_t beyond = (uint32_t)(words * 64 - granules);
    if (beyond)
        efs_runs_mark(vram->used_map, (uint32_t)granules, beyond, true);
    return 0;
}

static void vram_free_expert(struct efs_vram_expert *expert)
{
    free(expert->tensors);
    free(expert);
}

void efs_vram_destroy(struct efs_vram *vram)
{
    for (uint32_t b = 0; b < EFS_VRAM_BUCKETS; b++)
        while (vram->bucket[b]) {
            struct efs_vram_expert *expert = vram->bucket[b];
            vram->bucket[b] = expert->next;
            vram_free_expert(expert);
        }
    efs_vram_order_free(&vram->order);
    free(vram->used_map);
    vram->used_map = NULL;
}

static struct efs_vram_expert **vram_bucket(struct efs_vram *vram, const struct efs_expert_key *key)
{
    return &vram->bucket[efs_expert_key_hash(key) % EFS_VRAM_BUCKETS];
}

struct efs_vram_expert *efs_vram_find(const struct efs_vram *vram, const struct efs_expert_key *key)
{
    struct efs_vram_expert *expert = vram->bucket[efs_expert_key_hash(key) % EFS_VRAM_BUCKETS];
    while (expert && !efs_expert_key_is(&expert->key, key))
        expert = expert->next;
    return expert;
}

struct efs_vram_expert *efs_vram_add(struct efs_vram *vram, const struct efs_expert_key *key)
{
    struct efs_vram_expert *expert = efs_sys_calloc(1, sizeof(*expert)), **bucket = vram_bucket(vram, key);
    if (!expert)
        return NULL;
    expert->key = *key;
    expert->next = *bucket;
    *bucket = expert;
    vram->experts++;
    return expert;
}

void efs_vram_remove(struct efs_vram *vram, struct efs_vram_expert *expert, struct efs_vram_reader **readers)
{
    struct efs_vram_expert **at = vram_bucket(vram, &expert->key);
    while (*at != expert)
        at = &(*at)->next;
    *at = expert->next;
    if (expert->granules)
        efs_runs_mark(vram->used_map, expert->first, expert->granules, false);
    vram->used_granules -= expert->granules;
    vram->allocated -= expert->granules > 0;
    vram->experts--;
    while (expert->readers) {
        struct efs_vram_reader *one = expert->readers;
        expert->readers = one->next;
        one->next = *readers;
        *readers = one;
    }
    vram_free_expert(expert);
}

void efs_vram_pin(struct efs_vram *vram, struct efs_vram_expert *expert)
{
    vram->pinned += expert->pins++ == 0;
    expert->used_at = ++vram->clock;
}

void efs_vram_unpin(struct efs_vram *vram, struct efs_vram_expert *expert)
{
    vram->pinned -= --expert->pins == 0;
}

void efs_vram_requested(struct efs_vram *vram, const char *stack, uint32_t layer, const struct efs_need *needs,
                        uint32_t count)
{
    const uint32_t layers = vram->order.known ? vram->order.known : 1;
    const uint64_t fit = vram->used_granules ? (uint64_t)vram->granules * vram->allocated / vram->used_granules : count;
    efs_vram_order_record(&vram->order, stack, layer, needs, count, (uint32_t)(fit / layers));
}

/* The expert to evict first. NULL: all are pinned or in flight. */
static struct efs_vram_expert *vram_victim(struct efs_vram *vram)
{
    struct efs_vram_expert *victim = NULL;
    double least = 0;
    for (uint32_t b = 0; b < EFS_VRAM_BUCKETS; b++)
        for (struct efs_vram_expert *expert = vram->bucket[b]; expert; expert = expert->next) {
            if (expert->state != EFS_VRAM_RESIDENT || expert->pins)
                continue;
            const double priority = efs_vram_order_priority(&vram->order, &expert->key, expert->used_at);
            if (!victim || priority < least || (priority == least && expert->used_at < victim->used_at)) {
                victim = expert;
                least = priority;
            }
        }
    return victim;
}

/* Sum of the bytes of the tensors, each aligned; UINT64_MAX: overflow. names: bytes of their names. */
static uint64_t vram_bytes(const struct efs_tensor *tensors, uint32_t count, size_t *names)
{
    uint64_t bytes = 0;
    *names = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (__builtin_add_overflow(bytes, tensors[i].bytes, &bytes) ||
            __builtin_add_overflow(bytes, EFS_VRAM_ALIGN - 1, &bytes))
            return UINT64_MAX;
        bytes = bytes / EFS_VRAM_ALIGN * EFS_VRAM_ALIGN;
        *names += strlen(tensors[i].name) + 1;
    }
    return bytes;
}

/* Fills expert->tensors, which requests return: device addresses, and copies of the names. */
static void vram_set_tensors(const struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *from,
                             uint32_t count)
{
    efs_cu_address at = vram->base + (uint64_t)expert->first * EFS_VRAM_GRANULE;
    char *name = (char *)(expert->tensors + count);
    for (uint32_t i = 0; i < count; i++) {
        struct efs_tensor *to = &expert->tensors[i];
        *to = (struct efs_tensor){.name = name,
                                  .dtype = from[i].dtype,
                                  .dims = from[i].dims,
                                  .bytes = from[i].bytes,
                                  .data = (const void *)(uintptr_t)at};
        memcpy(to->shape, from[i].shape, sizeof(to->shape));
        name = stpcpy(name, from[i].name) + 1;
        at += (from[i].bytes + EFS_VRAM_ALIGN - 1) / EFS_VRAM_ALIGN * EFS_VRAM_ALIGN;
    }
    expert->tensor_count = count;
}

/* Computes the granules of these tensors and allocates expert->tensors. */
static errint_t vram_prepare(const struct efs_vram *vram, struct efs_vram_expert *expert,
                             const struct efs_tensor *tensors, uint32_t count, uint32_t *granules)
{
    size_t names;
    uint64_t bytes = vram_bytes(tensors, count, &names);
    if (bytes > (uint64_t)vram->granules * EFS_VRAM_GRANULE)
        return -EFBIG;
    *granules = (uint32_t)((bytes + EFS_VRAM_GRANULE - 1) / EFS_VRAM_GRANULE);
    *granules = *granules ? *granules : 1; /* an expert of 0 bytes gets an address, too */
    if (!expert->tensors)
        expert->tensors = efs_sys_malloc(count * sizeof(*expert->tensors) + names + 1);
    return expert->tensors ? 0 : -ENOMEM;
}

/* Allocates a run of granules. false: no free run is long enough. */
static bool vram_alloc_run(struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *tensors,
                           uint32_t count, uint32_t granules)
{
    uint32_t all = (vram->granules + 63) / 64 * 64, longest;
    expert->first = efs_runs_find(vram->used_map, all, granules, false, &longest);
    if (expert->first == all)
        return false;
    efs_runs_mark(vram->used_map, expert->first, granules, true);
    expert->granules = granules;
    vram->used_granules += granules;
    vram->allocated++;
    vram_set_tensors(vram, expert, tensors, count);
    return true;
}

errint_t efs_vram_alloc(struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *tensors,
                        uint32_t count, struct efs_vram_reader **readers)
{
    uint32_t granules;
    errint_t rc = vram_prepare(vram, expert, tensors, count, &granules);
    while (rc == 0 && !vram_alloc_run(vram, expert, tensors, count, granules)) {
        struct efs_vram_expert *victim = vram_victim(vram);
        if (!victim)
            return -EAGAIN;
        efs_vram_remove(vram, victim, readers);
        vram->evicted++;
    }
    return rc;
}
