/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counts.h - the history that an earlier mount saved: a file beside the store's profile, named by its content hash.
 *
 * Saved whole or not at all. What is read is checked before it is used: version, store, sizes, every number, a
 * checksum; a damaged or foreign file is refused with a reason and is no reason not to mount.
 */
#ifndef EFS_COUNTS_H
#define EFS_COUNTS_H

#include "expertfs-private.h"

#include "history.h"

/* Beside efs_profile_path(), the same errors. */
errint_t efs_counts_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err);

/*
 * Load it, for a store of these layers and experts. history is initialised by this and freed by the caller, also after
 * an error. -ENOENT: none was saved; -EUCLEAN: damaged, of another version, of another store or of other sizes;
 * -ENOMEM; what the system says.
 */
errint_t efs_counts_load(uint64_t content_hash, unsigned layers, unsigned experts, struct efs_history *history,
                         struct efs_error *err);

#endif
