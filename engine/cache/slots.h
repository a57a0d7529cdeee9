/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h - a fixed number of slots, each with memory of the same size, for reads that queue for one in order. A leaf
 * lock guards the free slots and the queue.
 */
#ifndef EFS_SLOTS_H
#define EFS_SLOTS_H

#include "efs.h"

/* The first member of a slot. */
struct efs_slot {
    struct efs_slot *next; /* free */
    uint8_t *memory;       /* not initialised */
};

/* The first member of a read that needs a slot. */
struct efs_slot_waiter {
    struct efs_slot_waiter *next;
};

struct efs_slots {
    pthread_mutex_t lock;
    struct efs_slot *free;
    EFS_QUEUE(struct efs_slot_waiter) waiting;
    uint8_t *memory; /* of all slots */
    size_t bytes;
};

/* The slots are `count` structs of `stride` bytes from `first` on, all zero; each gets slot_bytes bytes. -ENOMEM: call
 * efs_slots_destroy() as after success. */
errint_t efs_slots_build(struct efs_slots *slots, void *first, size_t stride, unsigned count, size_t slot_bytes);
void efs_slots_destroy(struct efs_slots *slots);
/* Takes a free slot for the read. NULL: there is none, and the read is queued. Any thread. */
struct efs_slot *efs_slots_get(struct efs_slots *slots, struct efs_slot_waiter *waiter);
/* Returns the queued read that has the slot from here on; NULL: the slot is free. Any thread. */
struct efs_slot_waiter *efs_slots_put(struct efs_slots *slots, struct efs_slot *slot);

#endif
