/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_cache_share.h - reduces the engine's budget while the page cache needs the memory.
 */
#ifndef EFSD_PAGE_CACHE_SHARE_H
#define EFSD_PAGE_CACHE_SHARE_H

#include <stdatomic.h>

#include "expertfs.h"

struct efsd;

struct efsd_shrink {
    _Atomic uint64_t cached_bytes;  /* bytes read for the page cache */
    _Atomic uint64_t direct_bytes;  /* bytes read uncached since the last check */
    _Atomic uint64_t checked_bytes; /* cached_bytes at the last check */
    _Atomic bool leased;            /* an expert was leased since the last check */
    _Atomic bool reduced;           /* the budget was reduced by this file */
    _Atomic bool checking;          /* try-lock; guards the fields below, and changes of reduced */
    uint64_t set_bytes;             /* cached_bytes when the budget was last set */
    char budget[64];                /* the reduced budget, as efs_get() returns it */
};

/* Whether all files of the checkpoint fit into the page cache now, with a budget that is used up. Takes some 50 us.
 */
bool efsd_page_cache_fits(struct efsd *daemon);
/* Counts a read of a file, for the page cache or uncached, and checks the budget every 64 MiB. */
void efsd_shrink_read(struct efsd *daemon, size_t bytes, bool cached);
/* An expert was opened with a lease or requested over the export socket: restores budget=auto. */
void efsd_shrink_leased(struct efsd *daemon);

#endif
