/* SPDX-License-Identifier: Apache-2.0 */
/* waiting.h - the engine's calls with callbacks, as calls that return when it is done. */
#ifndef EFS_WAITING_H
#define EFS_WAITING_H

#include "expertfs-private.h"

#include <sys/types.h>

/* Bytes read, or -errno. */
ssize_t read_wait(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t bytes);
errint_t lease_wait(struct efs *fs, uint32_t file, struct efs_lease **lease);

#endif
