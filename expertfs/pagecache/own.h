/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h - files of the mount that the daemon itself opens, to read ahead in the page cache (loading.c).
 *
 * An open file makes umount fail with EBUSY. So a file is opened below a private clone of the mount (open_tree(2),
 * which needs CAP_SYS_ADMIN), which umount does not count. Without the privilege no file is opened.
 *
 * Each call waits for the daemon's own answer. Receiving threads answer such an open at once, without the engine and
 * without a lock, so the wait ends. Calls are made by a thread that has nothing of the daemon open (apart.h), so that
 * the daemon can be killed meanwhile. Descriptors are numbers of that thread's table: use them only with these
 * functions. One thread at a time calls them, that of loading.c.
 */
#ifndef EFSD_OWN_H
#define EFSD_OWN_H

#include <stdatomic.h>
#include <sys/types.h>

#include "apart.h"
#include "expertfs.h"

struct efsd;

struct efsd_own {
    struct efsd_apart calls;
    _Atomic pid_t opener; /* the thread that opens a file now, as the kernel names it in requests; 0: none */
};

/* The descriptor of a file of the mount, or -errno. */
int efsd_own_open(struct efsd *daemon, uint32_t node);
void efsd_own_close(struct efsd *daemon, int fd);
/* posix_fadvise(2). */
void efsd_own_advise(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, int advice);
/* Bytes of the file that are in the page cache. -ENOSYS: needs cachestat(2), Linux 6.5. */
errint_t efsd_own_cached(struct efsd *daemon, int fd, uint64_t *bytes);
/* Was the open that this process requests made by efsd_own_open()? True once for each. Any thread. */
bool efsd_own_opens(struct efsd *daemon, pid_t pid);

#endif
