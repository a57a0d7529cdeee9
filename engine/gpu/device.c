/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - context, wake-up and loss of a device, for all of engine/gpu/; the names of hinted experts. */
#include "device_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

efs_cu_result efs_device_enter(struct efs_device *device)
{
    return device->driver.context_push(device->context);
}

void efs_device_leave(struct efs_device *device)
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

/* ---- names ---- */

#define LEAST 0.5f /* probability; names below it would be wrong more often than right */

struct efs_ahead_name *efs_ahead_find(struct efs_ahead *ahead, const struct efs_expert_key *key)
{
    for (uint32_t i = 0; i < ahead->count; i++)
        if (efs_expert_key_is(&ahead->name[i].key, key))
            return &ahead->name[i];
    return NULL;
}

/* Removes a name. If no other sequence names the expert, it may be evicted for a prefetch and, if prefetched, is
 * wasted. */
static void ahead_forget(struct efs_ahead *ahead, struct efs_vram *vram, uint32_t i)
{
    const struct efs_expert_key key = ahead->name[i].key;
    struct efs_vram_expert *expert = efs_vram_find(vram, &key);
    memmove(&ahead->name[i], &ahead->name[i + 1], (--ahead->count - i) * sizeof(ahead->name[0]));
    ahead->next -= i < ahead->next;
    if (!expert || efs_ahead_find(ahead, &key))
        return;
    expert->named = false;
    if (expert->state == EFS_VRAM_HERE) /* in flight: device_prefetch.c removes it */
        efs_vram_waste(vram, expert);
}

static bool name_is_of(const struct efs_ahead_name *name, const char *stack, uint32_t layer)
{
    return name->key.layer == layer && strcmp(name->key.stack, stack) == 0;
}

static bool routing_has(const struct efs_routing *routing, uint32_t expert)
{
    for (uint32_t i = 0; i < routing->count; i++)
        if (routing->experts[i] == expert && (!routing->weights || routing->weights[i] >= LEAST))
            return true;
    return false;
}

static void ahead_add(struct efs_ahead *ahead, struct efs_vram *vram, const struct efs_routing *routing,
                      uint32_t number)
{
    const struct efs_expert_key key = efs_expert_key(routing->stack, routing->layer, number);
    struct efs_vram_expert *expert = efs_vram_find(vram, &key);
    if (ahead->count == EFS_AHEAD_NAMES)
        ahead_forget(ahead, vram, 0);
    ahead->name[ahead->count++] = (struct efs_ahead_name){
        .key = key, .sequence = routing->sequence, .missing = !expert, .begun = expert && expert->ahead};
    if (expert)
        expert->named = true;
}

void efs_ahead_hint(struct efs_ahead *ahead, struct efs_vram *vram, const struct efs_routing *routing)
{
    bool known[EFS_ROUTING_EXPERTS] = {false};
    for (uint32_t i = ahead->count; i-- > 0;) {
        const struct efs_ahead_name *name = &ahead->name[i];
        if (name->sequence == routing->sequence &&
            (routing->count == 0 ||
             (name_is_of(name, routing->stack, routing->layer) && !routing_has(routing, name->key.expert))))
            ahead_forget(ahead, vram, i);
    }
    for (uint32_t i = 0; i < ahead->count; i++)
        for (uint32_t k = 0; k < routing->count; k++)
            if (ahead->name[i].sequence == routing->sequence && ahead->name[i].key.expert == routing->experts[k] &&
                name_is_of(&ahead->name[i], routing->stack, routing->layer))
                known[k] = true;
    for (uint32_t k = 0; k < routing->count; k++)
        if (!known[k] && (!routing->weights || routing->weights[k] >= LEAST))
            ahead_add(ahead, vram, routing, routing->experts[k]);
    efs_ahead_again(ahead);
}

static void ahead_judge(struct efs_ahead *ahead, bool right)
{
    ahead->right += right;
    ahead->wrong += !right;
    if (ahead->right + ahead->wrong >= EFS_AHEAD_JUDGED) {
        ahead->right /= 2;
        ahead->wrong /= 2;
    }
}

void efs_ahead_asked(struct efs_ahead *ahead, struct efs_vram *vram, const char *stack, uint32_t layer,
                     const struct efs_need *needs, uint32_t count)
{
    for (uint32_t i = ahead->count; i-- > 0;) {
        const struct efs_ahead_name *name = &ahead->name[i];
        bool asked = false;
        if (!name_is_of(name, stack, layer))
            continue;
        for (uint32_t k = 0; k < count && !asked; k++)
            asked = needs[k].expert == name->key.expert;
        if (name->missing)
            ahead_judge(ahead, asked);
        ahead_forget(ahead, vram, i);
    }
}

struct efs_ahead_name *efs_ahead_next(struct efs_ahead *ahead, const struct efs_vram *vram)
{
    const uint32_t mean = vram->placed ? vram->used_granules / vram->placed : 0; /* granules per expert */
    if (vram->ahead_granules + (uint64_t)mean > vram->ahead_most)
        return NULL;
    if (ahead->wrong > ahead->right && ahead->right + ahead->wrong >= EFS_AHEAD_TRIED)
        return NULL;
    while (ahead->next < ahead->count) {
        struct efs_ahead_name *name = &ahead->name[ahead->next++];
        if (!name->begun && !efs_vram_find(vram, &name->key))
            return name;
    }
    return NULL;
}

void efs_ahead_again(struct efs_ahead *ahead)
{
    ahead->next = 0;
}
