/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_file.h - files of the state directory: data about a store, named by its content hash.
 */
#ifndef EFS_STATE_FILE_H
#define EFS_STATE_FILE_H

#include "expertfs.h"

#define EFS_STATE_PATH_BYTES 4096

/* The path KIND-HASH.ENDING below $EXPERTFS_STATE, else /var/lib/expertfs for root, else $XDG_STATE_HOME/expertfs or
 * ~/.local/state/expertfs. -ENOENT: no home; -ENAMETOOLONG. */
errint_t efs_state_path(const char *kind, uint64_t content_hash, const char *ending, char *path, size_t room,
                        struct efs_error *err);

/* Replace a file atomically; creates missing directories. Blocks until it is on disk. After an error of the system,
 * which err reports with the path, the old file remains. */
errint_t efs_state_save(const char *path, const void *data, size_t bytes, struct efs_error *err);

#endif
