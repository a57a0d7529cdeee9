/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins.h - the chunk pool's segments, registered with the driver, so that it copies from them by itself (DMA) and does
 * not go by way of a buffer of its own. It is the memory that io_uring has registered, too, and counts once.
 *
 * Of a store in this process alone. What a mount lets clients map is not registered: the driver would hold its pages
 * when the mount gives them back to the system.
 */
#ifndef EFS_PINS_H
#define EFS_PINS_H

#include "driver.h"
#include "expertfs-private.h"

#include <pthread.h>

struct efs_pin {
    struct efs_pin *next;
    void *base;
    size_t bytes;
    bool registered; /* else the driver would not have it: it is not asked again */
};

struct efs_pins {
    const struct efs_driver *driver;
    efs_cu_context context;
    struct efs *fs; /* NULL: there is nothing to register */
    struct efs_chunk_watch watch;
    pthread_mutex_t lock; /* guards the list */
    struct efs_pin *list;
};

/* fs: NULL of a mount. The driver and its context are the caller's. */
void efs_pins_init(struct efs_pins *pins, const struct efs_driver *driver, efs_cu_context context, struct efs *fs);
/* No copy is under way. */
void efs_pins_end(struct efs_pins *pins);
/* A chunk that is held is to be copied: its segment is registered, if it was not and can be. By one thread, in the
 * device's context. May take milliseconds. */
void efs_pins_take(struct efs_pins *pins, const void *chunk);

#endif
