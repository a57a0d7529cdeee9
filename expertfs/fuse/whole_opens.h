/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole_opens.h - opens of checkpoint files that are whole in memory: the kernel serves them from the memory file.
 */
#ifndef EFSD_WHOLE_OPENS_H
#define EFSD_WHOLE_OPENS_H

#include "mount.h"

struct efsd_open;

/* Opens of a checkpoint file; guarded by efsd_opens.lock. The kernel serves all opens of a file from one backing file,
 * or none. */
struct efsd_file_opens {
    uint32_t plain, backed; /* opens of each kind, until their release */
    int backing_id;         /* while backed > 0 */
};

/* Decides how an open of a checkpoint file is served, until efsd_whole_release(). Returns the id of the backing file;
 * 0: none, the daemon serves it. Any thread, without locks. */
int efsd_whole_open(struct efsd *daemon, struct efsd_open *open);
/* efs_whole_fn, with the daemon as its argument. */
void efsd_whole_ready(void *arg, uint32_t number);
/* The kernel has released the open. Does nothing for one that efsd_whole_open() has not seen. */
void efsd_whole_release(struct efsd *daemon, const struct efsd_open *open);

#endif
