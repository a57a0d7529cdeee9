/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c - see slots.h. */
#include "slots.h"

#include "sys.h"

#include <errno.h>
#include <sys/mman.h>

errint_t efs_slots_build(struct efs_slots *slots, void *first, size_t stride, unsigned count, size_t slot_bytes)
{
    *slots = (struct efs_slots){.bytes = count * slot_bytes};
    EFS_QUEUE_INIT(&slots->waiting);
    pthread_mutex_init(&slots->lock, NULL);
    if (slots->bytes == 0)
        return 0;
    slots->memory = efs_sys_mmap(NULL, slots->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!slots->memory)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++) {
        struct efs_slot *slot = (struct efs_slot *)(void *)((char *)first + i * stride);
        *slot = (struct efs_slot){slots->free, slots->memory + i * slot_bytes};
        slots->free = slot;
    }
    return 0;
}

void efs_slots_destroy(struct efs_slots *slots)
{
    if (slots->memory)
        efs_sys_munmap(slots->memory, slots->bytes);
    pthread_mutex_destroy(&slots->lock);
}

struct efs_slot *efs_slots_get(struct efs_slots *slots, struct efs_slot_waiter *waiter)
{
    pthread_mutex_lock(&slots->lock);
    struct efs_slot *slot = slots->free;
    if (slot)
        slots->free = slot->next;
    else
        EFS_QUEUE_PUSH(&slots->waiting, waiter);
    pthread_mutex_unlock(&slots->lock);
    return slot;
}

struct efs_slot_waiter *efs_slots_put(struct efs_slots *slots, struct efs_slot *slot)
{
    pthread_mutex_lock(&slots->lock);
    struct efs_slot_waiter *next = slots->waiting.head;
    if (next && !(slots->waiting.head = next->next))
        EFS_QUEUE_INIT(&slots->waiting);
    if (!next) {
        slot->next = slots->free;
        slots->free = slot;
    }
    pthread_mutex_unlock(&slots->lock);
    return next;
}
