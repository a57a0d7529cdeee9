/* SPDX-License-Identifier: Apache-2.0 */
/* segment_registry.c - see segment_registry.h. */
#include "segment_registry.h"

#include "sys.h"

#include <stdlib.h>
#include <string.h>

/* Lock held. The number of segments that begin at or before an address. */
static size_t registry_before(const struct efs_segment_registry *registry, const void *at)
{
    size_t low = 0, high = registry->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)registry->segment[middle].base <= (uintptr_t)at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void segment_unregister(const struct efs_segment_registry *registry,
                               const struct efs_registered_segment *segment)
{
    efs_cu_context context;
    if (!segment->registered)
        return;
    bool entered = registry->driver->context_push(registry->context) == 0;
    (void)registry->driver->host_unregister(segment->base);
    if (entered)
        (void)registry->driver->context_pop(&context);
}

/* The engine is about to release a segment: unregisters it. No copy from it is in flight, because a copy pins its
 * chunk. */
static void registry_segment_released(void *arg, void *base)
{
    struct efs_segment_registry *registry = arg;
    pthread_mutex_lock(&registry->lock);
    const size_t before = registry_before(registry, base);
    if (before > 0 && registry->segment[before - 1].base == base) {
        segment_unregister(registry, &registry->segment[before - 1]);
        memmove(&registry->segment[before - 1], &registry->segment[before],
                (registry->count - before) * sizeof(registry->segment[0]));
        registry->count--;
    }
    pthread_mutex_unlock(&registry->lock);
}

void efs_segment_registry_init(struct efs_segment_registry *registry, const struct efs_driver *driver,
                               efs_cu_context context, struct efs *fs)
{
    *registry = (struct efs_segment_registry){.driver = driver,
                                              .context = context,
                                              .fs = fs,
                                              .watch = {.gone = registry_segment_released, .arg = registry},
                                              .lock = PTHREAD_MUTEX_INITIALIZER};
    if (fs)
        efs_chunk_watch(fs, &registry->watch);
}

void efs_segment_registry_free(struct efs_segment_registry *registry)
{
    if (!registry->fs)
        return;
    efs_chunk_unwatch(registry->fs, &registry->watch);
    for (size_t i = 0; i < registry->count; i++)
        segment_unregister(registry, &registry->segment[i]);
    free(registry->segment);
    registry->segment = NULL;
    registry->count = registry->room = 0;
    registry->fs = NULL;
}

/* The segment of a chunk; false: it was not tried yet. */
static bool registry_find(struct efs_segment_registry *registry, const void *chunk,
                          struct efs_registered_segment *segment)
{
    pthread_mutex_lock(&registry->lock);
    const size_t before = registry_before(registry, chunk);
    if (before > 0)
        *segment = registry->segment[before - 1];
    pthread_mutex_unlock(&registry->lock);
    return before > 0 && (uintptr_t)chunk - (uintptr_t)segment->base < segment->bytes;
}

/* Lock held. Reserves space for one more segment. */
static bool registry_grow(struct efs_segment_registry *registry)
{
    if (registry->count < registry->room)
        return true;
    const size_t room = 2 * registry->room + 64;
    struct efs_registered_segment *more = efs_sys_realloc(registry->segment, room * sizeof(*more));
    if (!more)
        return false;
    registry->segment = more;
    registry->room = room;
    return true;
}

bool efs_segment_registry_register(struct efs_segment_registry *registry, const void *chunk)
{
    struct efs_registered_segment segment;
    if (!registry->fs)
        return false;
    if (registry_find(registry, chunk, &segment))
        return segment.registered;
    if (!efs_chunk_segment(registry->fs, chunk, &segment.base, &segment.bytes))
        return false; /* of the full pool */
    segment.registered = registry->driver->host_register(segment.base, segment.bytes, EFS_CU_HOST_PORTABLE) == 0;
    pthread_mutex_lock(&registry->lock);
    const bool room = registry_grow(registry);
    if (room) {
        const size_t before = registry_before(registry, segment.base);
        memmove(&registry->segment[before + 1], &registry->segment[before],
                (registry->count - before) * sizeof(segment));
        registry->segment[before] = segment;
        registry->count++;
    }
    pthread_mutex_unlock(&registry->lock);
    if (!room)
        segment_unregister(registry, &segment);
    return room && segment.registered;
}
