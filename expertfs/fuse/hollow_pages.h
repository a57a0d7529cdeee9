/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hollow_pages.h - where the page cache has pages without data, since requests were refused (read_around.h). The kernel
 * reads such pages one by one, and reads ahead only where there is no page. Any thread; no lock.
 */
#ifndef EFSD_HOLLOW_PAGES_H
#define EFSD_HOLLOW_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EFSD_HOLLOW_SLOT_BYTES (512u << 10)

/* Of one file. All 0: none. */
struct efsd_hollow_pages {
    _Atomic(_Atomic uint8_t *)
        slots;              /* pages without data in each EFSD_HOLLOW_SLOT_BYTES; NULL: no request was refused */
    _Atomic uint64_t count; /* pages without data: an estimate while requests are in flight */
};

void efsd_hollow_free(struct efsd_hollow_pages *pages);
/* A request inside a file of this size was refused. Without memory for the table it is not recorded. */
void efsd_hollow_refused(struct efsd_hollow_pages *pages, uint64_t file_bytes, uint64_t offset, size_t bytes);
/* A page was requested alone: if it was one without data, it has some now. */
void efsd_hollow_read(struct efsd_hollow_pages *pages, uint64_t offset);
/* Moves *offset to the next range with such pages, from *offset on, and forgets these: the caller drops them. false:
 * there is none. */
bool efsd_hollow_next(struct efsd_hollow_pages *pages, uint64_t file_bytes, uint64_t *offset);

static inline bool efsd_hollow_any(const struct efsd_hollow_pages *pages)
{
    return atomic_load_explicit(&pages->count, memory_order_relaxed) > 0;
}

#endif
