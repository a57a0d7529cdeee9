/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.h - memory that the pools leave to the page cache.
 */
#ifndef EFSD_SHRINK_H
#define EFSD_SHRINK_H

#include <stdatomic.h>

#include "expertfs.h"

struct efsd;

struct efsd_shrink {
    _Atomic uint64_t cached_bytes; /* read for the page cache */
    _Atomic uint64_t direct_bytes; /* read past it, since the last look */
    _Atomic uint64_t look_bytes;   /* cached_bytes at which to look again */
    _Atomic bool leased;           /* an expert was opened since the last look */
    _Atomic bool small;            /* the budget is ours, and small */
    _Atomic bool looking;          /* guards the rest, and changes of small */
    uint64_t set_bytes;            /* cached_bytes when it was set last */
    char budget[64];               /* what we set it to, as efs_get() shows it */
};

/* A read of a file: for the page cache, or past it. */
void efsd_shrink_read(struct efsd *daemon, size_t bytes, bool cached);
/* An expert is opened with a lease: the memory is wanted back. */
void efsd_shrink_leased(struct efsd *daemon);

#endif
