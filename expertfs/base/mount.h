/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - what all rooms ask of the mount: nodes, who may tune it, how a read is answered.
 */
#ifndef EFSD_MOUNT_H
#define EFSD_MOUNT_H

#define FUSE_USE_VERSION 314

#include <fuse_lowlevel.h>

#include "expertfs-private.h"

struct efsd;

/* Largest read that the kernel sends, and the size of a reply buffer. */
#define EFSD_IO_BYTES (1u << 20)
#define EFSD_PAGE_BYTES 4096u
/* The tree never changes, so the kernel may keep what it was told. */
#define EFSD_KEEP_SECONDS 86400.0

/* "passthrough", "direct_io" or "page_cache": the best path that this mount has. */
const char *efsd_serving_path(const struct efsd *daemon);
/* The node of an inode number; false for a number that the kernel cannot have from us. */
bool efsd_node_of(const struct efsd *daemon, fuse_ino_t ino, uint32_t *node);
/* May who sent this request tune the mount? Who mounted it, and root. */
bool efsd_may_tune(const struct efsd *daemon, fuse_req_t req);
/* Answer a read of a file, and count it. req NULL: its caller was ended and has its answer, it is only counted. */
void efsd_reply_read(struct efsd *daemon, fuse_req_t req, errint_t error, const void *data, size_t bytes);

/* What memory there is for us and for the page cache, which can be given back: of our cgroups, or of the machine. */
static inline uint64_t efsd_memory_bytes(void)
{
    struct efs_memory memory;
    efs_memory(&memory);
    return memory.available_bytes;
}

#endif
