/* SPDX-License-Identifier: Apache-2.0 */
/* sync_calls.h - synchronous versions of the engine's calls with callbacks; bytes of a lease. */
#ifndef EFS_SYNC_CALLS_H
#define EFS_SYNC_CALLS_H

#include "expertfs-private.h"

#include <sys/types.h>

/* Returns the number of bytes read, or -errno. */
ssize_t read_wait(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t bytes);
errint_t lease_wait(struct efs *fs, uint32_t file, struct efs_lease **lease);
/* The expert's file, mapped read-only, until the lease is released. */
const void *lease_data(const struct efs_lease *lease);

#endif
