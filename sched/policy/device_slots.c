/* SPDX-License-Identifier: Apache-2.0 */
/* device_slots.c - the experts in the slots of a device, and the victims. */
#include "device_slots.h"
#include "gpu_cache.h"
#include "policy.h"
#include "rank.h"
#include "tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY UINT32_MAX
#define SWAPS 8u /* DALI's u_size for models with many experts */

struct efs_device_slots {
    struct efs_tables tables;
    struct efs_policy *policy; /* only its ranks are used; NULL: LRU, DALI */
    unsigned layers, experts, slots;
    uint64_t wave, requests;
    int32_t *slot;                    /* [layer][expert]; -1: none */
    uint32_t *expert;                 /* [layer][slot]; EMPTY */
    uint64_t *used;                   /* [layer][slot] number of the last wave that used it */
    uint64_t *last;                   /* [layer][expert] number of its last request */
    uint32_t *rank;                   /* [expert] of the experts in the slots, by slot */
    uint32_t *members;                /* [slot] scratch */
    struct efs_placement *placements; /* [expert] scratch */
    unsigned ranked;                  /* the layer of `rank`; layers: none */
    struct efs_gpu_cache *window;     /* DALI: [layer], with tables of [layer][expert]; else NULL */
    uint32_t *tokens;                 /* DALI: [expert] scratch */
};

enum efs_device_rule efs_device_rule_by_name(const char *name)
{
    static const char *const names[EFS_DEVICE_RULES] = {
        [EFS_DEVICE_ZIPMOE] = "zipmoe", [EFS_DEVICE_LRU] = "lru", [EFS_DEVICE_LFU] = "lfu", [EFS_DEVICE_DALI] = "dali"};
    enum efs_device_rule rule = EFS_DEVICE_ZIPMOE;
    while (name && *name && rule < EFS_DEVICE_RULES && strcmp(names[rule], name) != 0)
        rule++;
    return rule;
}

static void alloc_windows(struct efs_device_slots *s)
{
    const size_t all = (size_t)s->layers * s->experts;
    bool *busy;
    uint64_t *score;
    EFS_TABLE(&s->tables, busy, all);
    EFS_TABLE(&s->tables, score, all);
    EFS_TABLE(&s->tables, s->tokens, s->experts);
    EFS_TABLE(&s->tables, s->window, s->layers);
    for (size_t l = 0; l < s->layers && efs_tables_error(&s->tables) == 0; l++)
        s->window[l] = (struct efs_gpu_cache){.experts = s->experts,
                                              .window = EFS_GPU_WINDOW,
                                              .swaps = SWAPS,
                                              .cached = busy + l * s->experts,
                                              .score = score + l * s->experts};
}

int efs_device_slots_new(const struct efs_device_slots_config *config, struct efs_device_slots **slots)
{
    static const uint64_t one[1][EFS_POOLS] = {{1, 1, 1, 1}};
    const unsigned layers = config->layers, experts = config->experts, n = config->slots;
    if (layers == 0 || layers > EFS_RANK_MAX_LAYERS || experts == 0 || experts > EFS_RANK_MAX_EXPERTS || n == 0 ||
        n > experts || config->rule >= EFS_DEVICE_RULES)
        return -EINVAL;
    struct efs_device_slots *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct efs_device_slots){.layers = layers, .experts = experts, .slots = n, .ranked = layers};
    EFS_TABLE(&s->tables, s->slot, (size_t)layers * experts);
    EFS_TABLE(&s->tables, s->last, (size_t)layers * experts);
    EFS_TABLE(&s->tables, s->expert, (size_t)layers * n);
    EFS_TABLE(&s->tables, s->used, (size_t)layers * n);
    EFS_TABLE(&s->tables, s->rank, n);
    EFS_TABLE(&s->tables, s->members, n);
    EFS_TABLE(&s->tables, s->placements, experts);
    const struct efs_policy_config policy = {.kind =
                                                 config->rule == EFS_DEVICE_LFU ? EFS_POLICY_LFU : EFS_POLICY_ZIPMOE,
                                             .layers = layers,
                                             .experts = experts,
                                             .chosen = config->chosen,
                                             .bytes = one,
                                             .same_bytes = true,
                                             .capacity_bytes = {[EFS_POOL_F] = (uint64_t)layers * n}};
    if (config->rule == EFS_DEVICE_DALI)
        alloc_windows(s);
    int rc = efs_tables_error(&s->tables);
    if (rc == 0 && (config->rule == EFS_DEVICE_ZIPMOE || config->rule == EFS_DEVICE_LFU))
        rc = efs_policy_new(&policy, &s->policy);
    if (rc < 0) {
        efs_device_slots_free(s);
        return rc;
    }
    for (size_t i = 0; i < (size_t)layers * experts; i++)
        s->slot[i] = -1;
    for (size_t i = 0; i < (size_t)layers * n; i++)
        s->expert[i] = EMPTY;
    *slots = s;
    return 0;
}

void efs_device_slots_free(struct efs_device_slots *slots)
{
    if (!slots)
        return;
    efs_policy_free(slots->policy);
    efs_tables_free(&slots->tables);
    free(slots);
}

static void record_window(struct efs_device_slots *s, unsigned layer, const uint32_t *expert, const uint32_t *tokens,
                          unsigned count)
{
    memset(s->tokens, 0, s->experts * sizeof(*s->tokens));
    for (unsigned i = 0; i < count; i++)
        s->tokens[expert[i]] = tokens ? tokens[i] : 1;
    efs_gpu_cache_busy(&s->window[layer], s->tokens, s->slots);
}

int efs_device_slots_request(struct efs_device_slots *s, unsigned layer, const uint32_t *expert, const uint32_t *tokens,
                             unsigned count)
{
    if (layer >= s->layers || count == 0 || count > s->experts)
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        if (expert[i] >= s->experts)
            return -EINVAL;
    int rc = s->policy ? efs_policy_request(s->policy, layer, expert, count, s->placements) : 0;
    if (rc < 0)
        return rc;
    if (s->window)
        record_window(s, layer, expert, tokens, count);
    s->requests++;
    s->ranked = s->layers;
    for (unsigned i = 0; i < count; i++) {
        s->last[(size_t)layer * s->experts + expert[i]] = s->requests;
        if (s->policy)
            efs_policy_unpin(s->policy, layer, expert[i]);
    }
    return 0;
}

void efs_device_slots_wave(struct efs_device_slots *s)
{
    s->wave++;
}

int32_t efs_device_slots_find(const struct efs_device_slots *s, unsigned layer, uint32_t expert)
{
    return s->slot[(size_t)layer * s->experts + expert];
}

int32_t efs_device_slots_use(struct efs_device_slots *s, unsigned layer, uint32_t expert)
{
    const int32_t slot = efs_device_slots_find(s, layer, expert);
    if (slot >= 0)
        s->used[(size_t)layer * s->slots + (size_t)slot] = s->wave;
    return slot;
}

/* Ranks the experts in the slots of a layer, once a request: victims only leave. */
static void rank_layer(struct efs_device_slots *s, unsigned layer)
{
    const uint32_t *expert = s->expert + (size_t)layer * s->slots;
    if (s->ranked == layer || !s->policy)
        return;
    for (unsigned i = 0; i < s->slots; i++)
        s->members[i] = expert[i] == EMPTY ? 0 : expert[i];
    efs_policy_ranks(s->policy, layer, s->members, s->slots, s->rank);
    s->ranked = layer;
}

/* Whether slot a holds the better victim than slot b. */
static bool worse(const struct efs_device_slots *s, unsigned layer, unsigned a, unsigned b)
{
    const uint32_t *expert = s->expert + (size_t)layer * s->slots;
    const uint64_t *last = s->last + (size_t)layer * s->experts;
    if (expert[a] == EMPTY || expert[b] == EMPTY)
        return expert[a] == EMPTY && expert[b] != EMPTY;
    if (s->policy)
        return s->rank[a] > s->rank[b];
    const bool *busy = s->window ? s->window[layer].cached : NULL;
    if (busy && busy[expert[a]] != busy[expert[b]])
        return busy[expert[b]];
    return last[expert[a]] < last[expert[b]];
}

int32_t efs_device_slots_take(struct efs_device_slots *s, unsigned layer, uint32_t expert)
{
    uint32_t *held = s->expert + (size_t)layer * s->slots;
    uint64_t *used = s->used + (size_t)layer * s->slots;
    unsigned victim = s->slots;
    rank_layer(s, layer);
    for (unsigned i = 0; i < s->slots; i++)
        if (used[i] != s->wave && (victim == s->slots || worse(s, layer, i, victim)))
            victim = i;
    if (victim == s->slots)
        return -1;
    if (held[victim] != EMPTY)
        s->slot[(size_t)layer * s->experts + held[victim]] = -1;
    held[victim] = expert;
    used[victim] = s->wave;
    s->slot[(size_t)layer * s->experts + expert] = (int32_t)victim;
    if (s->policy)
        efs_policy_ranks(s->policy, layer, &expert, 1, &s->rank[victim]);
    return (int32_t)victim;
}

unsigned efs_device_slots_empty(const struct efs_device_slots *s, unsigned layer)
{
    unsigned count = 0;
    for (unsigned i = 0; i < s->slots; i++)
        count += s->expert[(size_t)layer * s->slots + i] == EMPTY;
    return count;
}

void efs_device_slots_drop(struct efs_device_slots *s, unsigned layer, uint32_t expert)
{
    const int32_t slot = efs_device_slots_find(s, layer, expert);
    if (slot < 0)
        return;
    s->slot[(size_t)layer * s->experts + expert] = -1;
    s->expert[(size_t)layer * s->slots + (size_t)slot] = EMPTY;
    s->used[(size_t)layer * s->slots + (size_t)slot] = 0;
}
