/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - context, wake-up and loss of a device, for all of engine/gpu/; the list of hinted experts. */
#include "device_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

efs_cu_result efs_device_push_context(struct efs_device *device)
{
    return device->driver.context_push(device->context);
}

void efs_device_pop_context(struct efs_device *device)
{
    efs_cu_context context;
    (void)device->driver.context_pop(&context);
}

void efs_device_wake(struct efs_device *device)
{
    uint64_t one = 1;
    ssize_t n = write(device->wake, &one, sizeof(one));
    (void)n; /* fails only if the eventfd is readable already */
}

void efs_device_lose(struct efs_device *device, const char *call, efs_cu_result result)
{
    pthread_mutex_lock(&device->lock);
    if (!device->lost)
        (void)efs_driver_fail(&device->driver, call, result, &device->lost_error);
    device->lost = -EIO;
    pthread_mutex_unlock(&device->lock);
}

/* ---- hints ---- */

#define MIN_PROBABILITY 0.5f /* probability; hints below it would be wrong more often than right */

struct efs_hinted_expert *efs_hint_list_find(struct efs_hint_list *hints, const struct efs_expert_key *key)
{
    for (uint32_t i = 0; i < hints->count; i++)
        if (efs_expert_key_is(&hints->hint[i].key, key))
            return &hints->hint[i];
    return NULL;
}

/* Removes a hint. If no other sequence hints the expert, it may be evicted for a prefetch and, if prefetched, is
 * wasted. */
static void hints_remove(struct efs_hint_list *hints, struct efs_vram *vram, uint32_t i)
{
    const struct efs_expert_key key = hints->hint[i].key;
    struct efs_vram_expert *expert = efs_vram_find(vram, &key);
    memmove(&hints->hint[i], &hints->hint[i + 1], (--hints->count - i) * sizeof(hints->hint[0]));
    hints->next -= i < hints->next;
    if (!expert || efs_hint_list_find(hints, &key))
        return;
    expert->hinted = false;
    if (expert->state == EFS_VRAM_RESIDENT) /* in flight: device_prefetch.c removes it */
        efs_vram_prefetch_wasted(vram, expert);
}

static bool hint_is_of(const struct efs_hinted_expert *hint, const char *stack, uint32_t layer)
{
    return hint->key.layer == layer && strcmp(hint->key.stack, stack) == 0;
}

static bool routing_has(const struct efs_routing *routing, uint32_t expert)
{
    for (uint32_t i = 0; i < routing->count; i++)
        if (routing->experts[i] == expert && (!routing->weights || routing->weights[i] >= MIN_PROBABILITY))
            return true;
    return false;
}

static void hints_add(struct efs_hint_list *hints, struct efs_vram *vram, const struct efs_routing *routing,
                      uint32_t number)
{
    const struct efs_expert_key key = efs_expert_key(routing->stack, routing->layer, number);
    struct efs_vram_expert *expert = efs_vram_find(vram, &key);
    if (hints->count == EFS_HINTS_MAX)
        hints_remove(hints, vram, 0);
    hints->hint[hints->count++] = (struct efs_hinted_expert){
        .key = key, .sequence = routing->sequence, .missing = !expert, .issued = expert && expert->prefetched};
    if (expert)
        expert->hinted = true;
}

void efs_hint_list_update(struct efs_hint_list *hints, struct efs_vram *vram, const struct efs_routing *routing)
{
    bool known[EFS_ROUTING_EXPERTS] = {false};
    for (uint32_t i = hints->count; i-- > 0;) {
        const struct efs_hinted_expert *hint = &hints->hint[i];
        if (hint->sequence == routing->sequence &&
            (routing->count == 0 ||
             (hint_is_of(hint, routing->stack, routing->layer) && !routing_has(routing, hint->key.expert))))
            hints_remove(hints, vram, i);
    }
    for (uint32_t i = 0; i < hints->count; i++)
        for (uint32_t k = 0; k < routing->count; k++)
            if (hints->hint[i].sequence == routing->sequence && hints->hint[i].key.expert == routing->experts[k] &&
                hint_is_of(&hints->hint[i], routing->stack, routing->layer))
                known[k] = true;
    for (uint32_t k = 0; k < routing->count; k++)
        if (!known[k] && (!routing->weights || routing->weights[k] >= MIN_PROBABILITY))
            hints_add(hints, vram, routing, routing->experts[k]);
    efs_hint_list_rewind(hints);
}

static void hints_count(struct efs_hint_list *hints, bool right)
{
    hints->right += right;
    hints->wrong += !right;
    if (hints->right + hints->wrong >= EFS_HINTS_WINDOW) {
        hints->right /= 2;
        hints->wrong /= 2;
    }
}

void efs_hint_list_requested(struct efs_hint_list *hints, struct efs_vram *vram, const char *stack, uint32_t layer,
                             const struct efs_need *needs, uint32_t count)
{
    for (uint32_t i = hints->count; i-- > 0;) {
        const struct efs_hinted_expert *hint = &hints->hint[i];
        bool requested = false;
        if (!hint_is_of(hint, stack, layer))
            continue;
        for (uint32_t k = 0; k < count && !requested; k++)
            requested = needs[k].expert == hint->key.expert;
        if (hint->missing)
            hints_count(hints, requested);
        hints_remove(hints, vram, i);
    }
}

struct efs_hinted_expert *efs_hint_list_next(struct efs_hint_list *hints, const struct efs_vram *vram)
{
    const uint32_t mean = vram->allocated ? vram->used_granules / vram->allocated : 0; /* granules per expert */
    if (vram->prefetched_granules + (uint64_t)mean > vram->prefetch_max_granules)
        return NULL;
    if (hints->wrong > hints->right && hints->right + hints->wrong >= EFS_HINTS_MIN_SAMPLES)
        return NULL;
    while (hints->next < hints->count) {
        struct efs_hinted_expert *hint = &hints->hint[hints->next++];
        if (!hint->issued && !efs_vram_find(vram, &hint->key))
            return hint;
    }
    return NULL;
}

void efs_hint_list_rewind(struct efs_hint_list *hints)
{
    hints->next = 0;
}
