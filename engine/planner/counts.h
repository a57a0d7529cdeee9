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

/* Save the history of that store; directories are made. Blocks (fsync). Errors as the system says, with the path; what
 * was there before stays then. */
errint_t efs_counts_save(uint64_t content_hash, const struct efs_history *history, struct efs_error *err);

/*
 * Load it, for a store of these layers and experts. history is initialised by this and freed by the caller, also after
 * an error. -ENOENT: none was saved; -EUCLEAN: damaged, of another version, of another store or of other sizes;
 * -ENOMEM; what the system says.
 */
errint_t efs_counts_load(uint64_t content_hash, unsigned layers, unsigned experts, struct efs_history *history,
                         struct efs_error *err);

/*
 * The history of a .route trace (efs_route_read()), mapped onto a store: its layer l takes the trace's layer l modulo
 * those that it has, experts are taken modulo experts. One sequence after the other; tuning NULL: the defaults. history
 * is initialised by this and freed by the caller, also after an error. -EINVAL, -ENOMEM.
 */
errint_t efs_counts_from_route(const struct efs_route *route, unsigned layers, unsigned experts,
                               const struct efs_policy_tuning *tuning, struct efs_history *history);

#endif
