/* SPDX-License-Identifier: Apache-2.0 */
/* pins.c - see pins.h. */
#include "pins.h"

#include "sys.h"

#include <stdlib.h>

/* The engine is about to release a segment: unregisters it. No copy from it is in flight, because a copy holds its
 * chunk. */
static void pins_gone(void *arg, void *base)
{
    struct efs_pins *pins = arg;
    pthread_mutex_lock(&pins->lock);
    struct efs_pin **at = &pins->list;
    while (*at && (*at)->base != base)
        at = &(*at)->next;
    struct efs_pin *pin = *at;
    if (pin) {
        *at = pin->next;
        efs_cu_context context;
        bool entered = pin->registered && pins->driver->context_push(pins->context) == 0;
        if (pin->registered)
            (void)pins->driver->host_unregister(base);
        if (entered)
            (void)pins->driver->context_pop(&context);
    }
    pthread_mutex_unlock(&pins->lock);
    free(pin);
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
    while (pins->list)
        pins_gone(pins, pins->list->base);
    pins->fs = NULL;
}

static bool pins_known(struct efs_pins *pins, const void *chunk)
{
    pthread_mutex_lock(&pins->lock);
    struct efs_pin *pin = pins->list;
    while (pin && (uintptr_t)chunk - (uintptr_t)pin->base >= pin->bytes)
        pin = pin->next;
    pthread_mutex_unlock(&pins->lock);
    return pin != NULL;
}

void efs_pins_take(struct efs_pins *pins, const void *chunk)
{
    if (!pins->fs || pins_known(pins, chunk))
        return;
    struct efs_pin *pin = efs_sys_calloc(1, sizeof(*pin));
    if (!pin)
        return;
    if (!efs_chunk_segment(pins->fs, chunk, &pin->base, &pin->bytes)) {
        free(pin); /* the chunk is in the full pool */
        return;
    }
    pin->registered = pins->driver->host_register(pin->base, pin->bytes, EFS_CU_HOST_PORTABLE) == 0;
    pthread_mutex_lock(&pins->lock);
    pin->next = pins->list;
    pins->list = pin;
    pthread_mutex_unlock(&pins->lock);
}
