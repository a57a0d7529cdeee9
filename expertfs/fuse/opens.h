/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opens.h - open files, and the leases that opens of an expert share.
 */
#ifndef EFSD_OPENS_H
#define EFSD_OPENS_H

#include <pthread.h>

#include "decode_ahead.h"
#include "mount.h"

struct efsd_share; /* of all opens of one expert */

/* Where reads for the page cache go (reads.c). */
struct efsd_faults {
    _Atomic uint64_t begin, next; /* of the run that is going on; its end */
};

/* One open file, its handle in the kernel; alive until release and the last read in flight. */
struct efsd_open {
    struct efsd_faults faults;
    struct efsd_guess guess;
    uint32_t node;
    _Atomic uint32_t references;
    struct efsd_share *share; /* experts that may have a lease, else NULL */
    char *text;               /* control files: the whole text, as it was when opened */
    size_t text_bytes;
    fuse_req_t req; /* while it waits for a lease; guarded by efsd_opens.lock, like the links */
    struct efsd_open **link, *after;
};

struct efsd_opens {
    pthread_mutex_t lock;       /* guards all of this, and what is in the shares */
    struct efsd_share **shares; /* by expert number; NULL: not open */
    _Atomic bool *mapped;       /* by node: it was read for the page cache while opens went past it */
    struct efsd_open *waiting;  /* those that wait for a lease */
    struct efsd_open *answered; /* all others */
};

errint_t efsd_opens_init(struct efsd *daemon);
/* Also frees what is still open: the kernel's side is gone, the engine closes its leases. */
void efsd_opens_free(struct efsd *daemon);
/* Answer an open of a file or expert; maybe later and from another thread. */
void efsd_open_file(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags);
void efsd_open_release(struct efsd *daemon, struct efsd_open *open);
/* The node was read for the page cache: it is mapped. Later opens of it leave there what is there. */
void efsd_opens_mapped(struct efsd *daemon, uint32_t node);
/* The open of a handle that the kernel gave back, maybe to another thread than the one that made it, with references
 * more to give up by efsd_open_unref(). Whoever answers a read holds one until the answer was sent: with the answer the
 * reader may close the file. */
struct efsd_open *efsd_open_ref(const struct fuse_file_info *file, uint32_t references);
void efsd_open_unref(struct efsd_open *open);

#endif
