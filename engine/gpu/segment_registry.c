/* SPDX-License-Identifier: Apache-2.0 */
/* segment_registry.c - see segment_registry.h. */
#include "segment_registry.h"

#include "sys.h"

#include <stdlib.h>
#include <string.h>

/* Lock held. The number of segments that begin at or before an address. */
static size_t pins_before(const struct efs_pins *pins, const void *at)
{
    size_t low = 0, high = pins->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)pins->pin[middle].base <= (uintptr_t)at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void pin_end(const struct efs_pins *pins, const struct efs_pin *pin)
{
    efs_cu_context context;
    if (!pin->registered)
        return;
    bool entered = pins->driver->context_push(pins->context) == 0;
    (void)pins->driver->host_unregister(pin->base);
    if (entered)
        (void)pins->driver->context_pop(&context);
}

/* The engine is about to release a segment: unregisters it. No copy from it is in flight, because a copy holds its
 * chunk. */
static void pins_gone(void *arg, void *base)
{
    struct efs_pins *pins = arg;
    pthread_mutex_lock(&pins->lock);
    const size_t before = pins_before(pins, base);
    if (before > 0 && pins->pin[before - 1].base == base) {
        pin_end(pins, &pins->pin[before - 1]);
        memmove(&pins->pin[before - 1], &pins->pin[before], (pins->count - before) * sizeof(pins->pin[0]));
        pins->count--;
    }
    pthread_mutex_unlock(&pins->lock);
}

void efs_pins_init(struct efs_pins *pins, const struct efs_driver *driver, efs_cu_context context, struct efs *fs)
{
    *pins = (struct efs_pins){.driver = driver,
                              .context = context,
                              .fs = fs,
                              .watch = {.gone = pins_gone, .arg = pins},
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    if (fs)
        efs_chunk_watch(fs, &pins->watch);
}

void efs_pins_end(struct efs_pins *pins)
{
    if (!pins->fs)
        return;
    efs_chunk_unwatch(pins->fs, &pins->watch);
    for (size_t i = 0; i < pins->count; i++)
        pin_end(pins, &pins->pin[i]);
    free(pins->pin);
    pins->pin = NULL;
    pins->count = pins->room = 0;
    pins->fs = NULL;
}

/* The segment of a chunk; false: it was not tried yet. */
static bool pins_find(struct efs_pins *pins, const void *chunk, struct efs_pin *pin)
{
    pthread_mutex_lock(&pins->lock);
    const size_t before = pins_before(pins, chunk);
    if (before > 0)
        *pin = pins->pin[before - 1];
    pthread_mutex_unlock(&pins->lock);
    return before > 0 && (uintptr_t)chunk - (uintptr_t)pin->base < pin->bytes;
}

/* Lock held. Makes room for one more. */
static bool pins_grow(struct efs_pins *pins)
{
    if (pins->count < pins->room)
        return true;
    const size_t room = 2 * pins->room + 64;
    struct efs_pin *more = efs_sys_calloc(room, sizeof(*more));
    if (!more)
        return false;
    if (pins->count)
        memcpy(more, pins->pin, pins->count * sizeof(*more));
    free(pins->pin);
    pins->pin = more;
    pins->room = room;
    return true;
}

bool efs_pins_take(struct efs_pins *pins, const void *chunk)
{
    struct efs_pin pin;
    if (!pins->fs)
        return false;
    if (pins_find(pins, chunk, &pin))
        return pin.registered;
    if (!efs_chunk_segment(pins->fs, chunk, &pin.base, &pin.bytes))
        return false; /* of the full pool */
    pin.registered = pins->driver->host_register(pin.base, pin.bytes, EFS_CU_HOST_PORTABLE) == 0;
    pthread_mutex_lock(&pins->lock);
    const bool room = pins_grow(pins);
    if (room) {
        const size_t before = pins_before(pins, pin.base);
        memmove(&pins->pin[before + 1], &pins->pin[before], (pins->count - before) * sizeof(pin));
        pins->pin[before] = pin;
        pins->count++;
    }
    pthread_mutex_unlock(&pins->lock);
    if (!room)
        pin_end(pins, &pin);
    return room && pin.registered;
}
