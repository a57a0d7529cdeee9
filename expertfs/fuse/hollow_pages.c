/* SPDX-License-Identifier: Apache-2.0 */
/* hollow_pages.c - see hollow_pages.h. */
#include "hollow_pages.h"

#include <stdlib.h>

#include "mount.h"

static uint64_t slot_count(uint64_t file_bytes)
{
    return file_bytes / EFSD_HOLLOW_SLOT_BYTES + 1;
}

void efsd_hollow_free(struct efsd_hollow_pages *pages)
{
    free((void *)atomic_load(&pages->slots));
}

/* The table, allocated at the first refused request. NULL: no memory. */
static _Atomic uint8_t *slots_of(struct efsd_hollow_pages *pages, uint64_t file_bytes)
{
    _Atomic uint8_t *slots = atomic_load(&pages->slots), *fresh;
    if (slots || !(fresh = calloc(slot_count(file_bytes), sizeof(*fresh))))
        return slots;
    if (atomic_compare_exchange_strong(&pages->slots, &slots, fresh))
        return fresh;
    free((void *)fresh); /* another thread was faster */
    return slots;
}

void efsd_hollow_refused(struct efsd_hollow_pages *pages, uint64_t file_bytes, uint64_t offset, size_t bytes)
{
    _Atomic uint8_t *slots = slots_of(pages, file_bytes);
    for (uint64_t at = offset; slots && at < offset + bytes && at < file_bytes; at += EFSD_PAGE_BYTES) {
        _Atomic uint8_t *slot = &slots[at / EFSD_HOLLOW_SLOT_BYTES];
        uint8_t before = atomic_load(slot);
        while (before < EFSD_HOLLOW_SLOT_BYTES / EFSD_PAGE_BYTES &&
               !atomic_compare_exchange_weak(slot, &before, (uint8_t)(before + 1)))
            ;
        if (before < EFSD_HOLLOW_SLOT_BYTES / EFSD_PAGE_BYTES)
            atomic_fetch_add(&pages->count, 1);
    }
}

void efsd_hollow_read(struct efsd_hollow_pages *pages, uint64_t offset)
{
    _Atomic uint8_t *slots = efsd_hollow_any(pages) ? atomic_load(&pages->slots) : NULL;
    if (!slots)
        return;
    _Atomic uint8_t *slot = &slots[offset / EFSD_HOLLOW_SLOT_BYTES];
    uint8_t before = atomic_load(slot);
    while (before > 0 && !atomic_compare_exchange_weak(slot, &before, (uint8_t)(before - 1)))
        ;
    if (before > 0)
        atomic_fetch_sub(&pages->count, 1);
}

bool efsd_hollow_next(struct efsd_hollow_pages *pages, uint64_t file_bytes, uint64_t *offset)
{
    _Atomic uint8_t *slots = efsd_hollow_any(pages) ? atomic_load(&pages->slots) : NULL;
    for (uint64_t i = *offset / EFSD_HOLLOW_SLOT_BYTES; slots && i < slot_count(file_bytes); i++) {
        uint8_t count = atomic_exchange(&slots[i], 0);
        if (count == 0)
            continue;
        atomic_fetch_sub(&pages->count, count);
        *offset = i * EFSD_HOLLOW_SLOT_BYTES;
        return true;
    }
    return false;
}
