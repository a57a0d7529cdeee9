/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opens.h - open files, and the lease that all opens of an expert share.
 */
#ifndef EFSD_OPENS_H
#define EFSD_OPENS_H

#include <pthread.h>

#include "decode_ahead.h"
#include "mount.h"

struct efsd_share; /* shared by all opens of one expert */

/* Position of the reads for the page cache (reads.c). */
struct efsd_faults {
    _Atomic uint64_t begin, next; /* start and end of the current run */
};

/* One open file; its address is the handle in the kernel. Freed after its release and its last read in flight. */
struct efsd_open {
    struct efsd_faults faults;
    struct efsd_read_prediction prediction;
    uint32_t node;
    uint32_t thread, user; /* thread and user that opened it */
    _Atomic uint32_t references;
    _Atomic uint64_t read_bytes; /* bytes of the file requested from the daemon */
    bool fits;                   /* a file of a checkpoint that fits into the page cache: its pages stay there */
    struct efsd_share *share;    /* experts with passthrough, else NULL */
    char *text;                  /* control files: the whole text, generated at open; mapped */
    size_t text_bytes, map_bytes;
    fuse_req_t req; /* while it waits for a lease, else NULL; guarded by efsd_opens.lock, like the links */
    struct efsd_open **link, *after;
};

struct efsd_opens {
    pthread_mutex_t lock;           /* guards shares, waiting, answered, and the contents of shares */
    struct efsd_share **shares;     /* by expert number; NULL: not open */
    _Atomic uint64_t *cached_bytes; /* by node: bytes read for the page cache */
    struct efsd_open *waiting;      /* opens that wait for a lease */
    struct efsd_open *answered;     /* all other opens */
    _Atomic uint64_t map_bytes;     /* of all control files that are open */
    uint64_t map_bytes_max;
};

/* An open file of the checkpoint or of an expert. */
struct efsd_reader {
    uint32_t thread, user;
    uint64_t read_bytes;
};

errint_t efsd_opens_init(struct efsd *daemon);
/* Returns the open files, without those below .expertfs, as an array that the caller frees; NULL: none, or no memory.
 * Any thread; takes the time to copy them under the lock of the opens. */
struct efsd_reader *efsd_opens_list(struct efsd *daemon, size_t *count);
/* Also frees files that are still open: the connection to the kernel has ended, and the engine closes the leases. */
void efsd_opens_free(struct efsd *daemon);
/* Answers an open of a file or expert, possibly later and from another thread. */
void efsd_open_file(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags);
void efsd_open_release(struct efsd *daemon, struct efsd_open *open);
/* The open of a handle that the kernel sent, possibly to another thread than the one that created it. Takes references
 * on it, each to be dropped by efsd_open_unref(). The thread that answers a read holds one until the reply was sent,
 * because the reader may close the file after the reply. */
struct efsd_open *efsd_open_ref(const struct fuse_file_info *file, uint32_t references);
void efsd_open_unref(struct efsd_open *open);

#endif
