/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_registry.h - registers the chunk pool's segments with the driver, so that the device copies from them by DMA
 * instead of through a staging buffer. The pages are those that io_uring has registered, too.
 *
 * Only for a store served in this process. Windows of a mount are not registered: the driver would keep their pages
 * pinned after the mount released them.
 */
#ifndef EFS_SEGMENT_REGISTRY_H
#define EFS_SEGMENT_REGISTRY_H

#include "driver.h"
#include "expertfs-private.h"

#include <pthread.h>

struct efs_registered_segment {
    void *base;
    size_t bytes;
    bool registered; /* false: the driver refused; not retried */
};

struct efs_segment_registry {
    const struct efs_driver *driver;
    efs_cu_context context;
    struct efs *fs; /* NULL: no segments are registered */
    struct efs_chunk_watch watch;
    pthread_mutex_t lock;                   /* guards the fields below */
    struct efs_registered_segment *segment; /* [count] of [room], ascending by base */
    size_t count, room;
};

/* fs: NULL for a client of a mount. driver and context must outlive registry. */
void efs_segment_registry_init(struct efs_segment_registry *registry, const struct efs_driver *driver,
                               efs_cu_context context, struct efs *fs);
/* Unregisters all segments. No copy from them may be in flight. */
void efs_segment_registry_free(struct efs_segment_registry *registry);
/* Registers the segment of a pinned chunk that is to be copied, unless this was tried before or the chunk is in no
 * segment. Returns whether the driver has registered it. Called by one thread, in the device's context. May take
 * milliseconds. */
bool efs_segment_registry_register(struct efs_segment_registry *registry, const void *chunk);

#endif
