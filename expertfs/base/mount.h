/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - nodes by inode number, permission to tune, replies to reads.
 *
 * base/ has what the other rooms of the daemon share: options, log, counters, the tree of names, facts about the mount.
 * control/, export/, fuse/ and the daemon's own files call it. It never reads or
 * leases an expert, and never calls another room of the daemon.
 */
#ifndef EFSD_MOUNT_H
#define EFSD_MOUNT_H

#define FUSE_USE_VERSION 314

#include <fuse_lowlevel.h>

#include "expertfs-private.h"

struct efsd;

/* Maximum size of a read request, and size of a reply buffer. */
#define EFSD_IO_BYTES (1u << 20)
#define EFSD_PAGE_BYTES 4096u
/* Timeout of the kernel's cached entries and attributes: the tree never changes. */
#define EFSD_ENTRY_TIMEOUT_SECONDS 86400.0

/* The fastest serving path of this mount: "passthrough", "direct_io" or "page_cache". */
const char *efsd_serving_path(const struct efsd *daemon);
/* Sets *node to the node of an inode number; false: no such inode. */
bool efsd_node_of(const struct efsd *daemon, fuse_ino_t ino, uint32_t *node);
/* True if the sender of the request may tune the mount: root and the user who mounted it. */
bool efsd_may_tune(const struct efsd *daemon, fuse_req_t req);
/* Answers a read of a file, and counts the reply. req NULL: the request was already answered with EINTR; the read is
 * only counted. */
void efsd_reply_read(struct efsd *daemon, fuse_req_t req, errint_t error, const void *data, size_t bytes);

/* Memory available to this process and the page cache, bytes: efs_memory.available_bytes. */
static inline uint64_t efsd_memory_bytes(void)
{
    struct efs_memory memory;
    efs_memory(&memory);
    return memory.available_bytes;
}

#endif
