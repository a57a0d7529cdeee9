/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.h - reads of a store by the thread that needs the bytes, which waits for them. A few pages are here sooner
 * than by way of the I/O thread, without two of three changes of threads.
 */
#ifndef EFS_DIRECT_H
#define EFS_DIRECT_H

#include "queue.h"

#include <liburing.h>

/* A ring for reads of several pieces at once. All zero: not used yet. One thread at a time. */
struct efs_direct {
    struct io_uring ring;
    enum { EFS_DIRECT_NEW, EFS_DIRECT_RING, EFS_DIRECT_PREAD } state;
};

/* Reads the requests, linked by `next`, from fd (efs_io_direct_fd()), and waits for them. Only offset, bytes and data
 * of a request are used; EFS_DIRECT_MOST requests at most. Without io_uring they are read one after the other. 0, or
 * -errno: -EIO also for a short read. After an error no read is in flight, and any bytes may have been read. */
#define EFS_DIRECT_MOST 32u
errint_t efs_direct_read(struct efs_direct *direct, int fd, const struct efs_io *requests);
void efs_direct_close(struct efs_direct *direct); /* no read is in flight */

#endif
