/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counts.h - loads the request history (history.h: how often each expert was requested) that an earlier mount saved
 * with efs_counts_save(): a file in the state directory, named by the store's content hash.
 *
 * The file is replaced atomically. Loading checks version, store, sizes, every number and a checksum; a damaged or
 * foreign file is refused with a reason, and the mount goes on without it.
 */
#ifndef EFS_COUNTS_H
#define EFS_COUNTS_H

#include "expertfs-private.h"
#include "expertfs-profile-private.h"

#include "history.h"

/* A path in the directory of efs_profile_path(), with the same errors. */
errint_t efs_counts_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err);

/*
 * efs_counts_read() of the file that efs_counts_save() writes. -ENOENT: none were saved; -EUCLEAN: damaged, or of
 * another version, store or size; -ENOMEM; errors of the system.
 */
errint_t efs_counts_load(uint64_t content_hash, unsigned layers, unsigned experts, struct efs_history *history,
                         struct efs_error *err);

#endif
