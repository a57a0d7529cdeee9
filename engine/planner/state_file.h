/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_file.h - what is known of a store and kept beside it: files of the state directory, by the store's content
 * hash.
 */
#ifndef EFS_STATE_FILE_H
#define EFS_STATE_FILE_H

#include "expertfs.h"

#define EFS_STATE_PATH_BYTES 4096

/* KIND-HASH.ENDING below $EXPERTFS_STATE, else /var/lib/expertfs for root, else $XDG_STATE_HOME/expertfs or
 * ~/.local/state/expertfs. -ENOENT: no home; -ENAMETOOLONG. */
errint_t efs_state_path(const char *kind, uint64_t content_hash, const char *ending, char *path, size_t room,
                        struct efs_error *err);

/* Write a file whole, in place of what was there; directories are made. Blocks until it is on disk. What the system
 * says, with the path; the old file stays then. */
errint_t efs_state_save(const char *path, const void *data, size_t bytes, struct efs_error *err);

#endif
