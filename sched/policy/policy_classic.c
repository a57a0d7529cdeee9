/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_classic.c - the classic policies: eviction candidates of each pool in a heap with one key.
 *
 *     lru      clock of the last request
 *     lfu      number of requests, then the clock
 *     fifo     clock of the admission from the disk
 *     marking  random among the unmarked; a request marks; when none is unmarked, a new phase starts
 */
#include "policy_internal.h"
#include "random.h"

#include <errno.h>

#define MARKED (UINT64_C(1) << 63)

struct heap {
    uint64_t *key;               /* [units] */
    uint32_t *at;                /* [units] index in the heap of its pool and domain */
    uint32_t *unit[EFS_POOLS];   /* [units]: domain d starts at d * experts */
    uint32_t *length[EFS_POOLS]; /* [layers] */
    uint64_t random;
};

static int heap_open(struct efs_policy *policy)
{
    struct efs_tables *tables = &policy->tables;
    struct heap *heap = EFS_TABLE(tables, heap, 1);

    if (!heap)
        return -ENOMEM;
    policy->state = heap;
    heap->random = policy->seed;
    EFS_TABLE(tables, heap->key, policy->units);
    EFS_TABLE(tables, heap->at, policy->units);
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        EFS_TABLE(tables, heap->unit[p], policy->units);
        EFS_TABLE(tables, heap->length[p], policy->layers);
    }
    return efs_tables_error(tables);
}

static uint32_t *heap_of(struct efs_policy *policy, unsigned domain, enum efs_pool pool)
{
    struct heap *heap = policy->state;

    return heap->unit[pool] + (size_t)domain * policy->experts;
}

static void heap_place(struct heap *heap, uint32_t *units, uint32_t at, uint32_t unit)
{
    units[at] = unit;
    heap->at[unit] = at;
}

static void heap_sift_up(struct heap *heap, uint32_t *units, uint32_t at)
{
    uint32_t unit = units[at];

    while (at > 0 && heap->key[units[(at - 1) / 2]] > heap->key[unit]) {
        heap_place(heap, units, at, units[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_place(heap, units, at, unit);
}

static void heap_sift_down(struct heap *heap, uint32_t *units, uint32_t length, uint32_t at)
{
    uint32_t unit = units[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < length && heap->key[units[child + 1]] < heap->key[units[child]])
            child++;
        if (child >= length || heap->key[units[child]] >= heap->key[unit])
            break;
        heap_place(heap, units, at, units[child]);
        at = child;
    }
    heap_place(heap, units, at, unit);
}

static void heap_insert(struct efs_policy *policy, uint32_t unit)
{
    struct heap *heap = policy->state;
    unsigned domain = efs_unit_domain(policy, unit);
    enum efs_pool pool = policy->pool[unit];
    uint32_t *units = heap_of(policy, domain, pool), at = heap->length[pool][domain]++;

    units[at] = unit;
    heap_sift_up(heap, units, at);
}

static void heap_remove(struct efs_policy *policy, uint32_t unit)
{
    struct heap *heap = policy->state;
    unsigned domain = efs_unit_domain(policy, unit);
    enum efs_pool pool = policy->evictable[unit];
    uint32_t *units = heap_of(policy, domain, pool), at = heap->at[unit], last = --heap->length[pool][domain];

    if (at == last)
        return;
    heap_place(heap, units, at, units[last]);
    heap_sift_up(heap, units, at);
    heap_sift_down(heap, units, last, at);
}

static uint32_t heap_lowest(struct efs_policy *policy, unsigned domain, enum efs_pool pool)
{
    struct heap *heap = policy->state;

    return heap->length[pool][domain] ? heap_of(policy, domain, pool)[0] : EFS_NO_UNIT;
}

/* ---- keys: set while a unit is pinned, so while it is in no heap ------------------------------------------------- */

static void lru_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    struct heap *heap = policy->state;

    for (unsigned i = 0; i < count; i++)
        heap->key[layer * policy->experts + expert[i]] = policy->clock + i;
}

/* Count in the upper 24 bits, clock in the lower 40 (10^12 requests). */
static void lfu_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    struct heap *heap = policy->state;

    for (unsigned i = 0; i < count; i++) {
        uint32_t unit = layer * policy->experts + expert[i];
        uint64_t uses = policy->count[unit] < 0xffffff ? policy->count[unit] : 0xffffff;

        heap->key[unit] = uses << 40 | ((policy->clock + i) & 0xffffffffff);
    }
}

static void fifo_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    (void)policy;
    (void)layer;
    (void)expert;
    (void)count;
}

static void fifo_insert(struct efs_policy *policy, uint32_t unit)
{
    struct heap *heap = policy->state;

    heap->key[unit] = policy->since[unit];
    heap_insert(policy, unit);
}

static uint64_t marking_draw(struct heap *heap)
{
    return efs_random(&heap->random) & ~MARKED;
}

static void marking_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    struct heap *heap = policy->state;

    for (unsigned i = 0; i < count; i++)
        heap->key[layer * policy->experts + expert[i]] = MARKED | marking_draw(heap);
}

static uint32_t marking_lowest(struct efs_policy *policy, unsigned domain, enum efs_pool pool)
{
    struct heap *heap = policy->state;
    uint32_t *units = heap_of(policy, domain, pool), length = heap->length[pool][domain];

    if (!length)
        return EFS_NO_UNIT;
    if (heap->key[units[0]] & MARKED) { /* all units are marked: start a new phase with a new random order */
        for (uint32_t i = 0; i < length; i++)
            heap->key[units[i]] = marking_draw(heap);
        for (uint32_t i = length / 2; i-- > 0;)
            heap_sift_down(heap, units, length, i);
    }
    return units[0];
}

#define HEAP_ORDER(kind, request_, enter_, lowest_)                                                                    \
    const struct efs_policy_order efs_order_##kind = {                                                                 \
        .open = heap_open, .request = request_, .insert = enter_, .remove = heap_remove, .lowest = lowest_}
HEAP_ORDER(lru, lru_request, heap_insert, heap_lowest);
HEAP_ORDER(lfu, lfu_request, heap_insert, heap_lowest);
HEAP_ORDER(fifo, fifo_request, fifo_insert, heap_lowest);
HEAP_ORDER(marking, marking_request, heap_insert, marking_lowest);
