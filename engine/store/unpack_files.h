/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack_files.h - the files that an unpacking makes: directories as needed, each file under a temporary name until it
 * is complete, all of it removed when the unpacking fails. Private to unpack*.c.
 */
#ifndef EFS_UNPACK_FILES_H
#define EFS_UNPACK_FILES_H

#include "store.h"

struct efs_unpack_files; /* Thread-safe but for init and end. */

/* Open directory, made if missing. -EEXIST: it has one of the files and force is not set. */
errint_t efs_unpack_files_begin(const struct efs_store *store, const char *directory, bool force,
                                struct efs_unpack_files **files, struct efs_error *err);
/* Write bytes of a file; the file gets its name with its last byte, synced. Fastest where data and offset leave the
 * same remainder by EFS_ALIGN. Blocks. */
errint_t efs_unpack_files_write(struct efs_unpack_files *files, uint32_t file, const void *data, size_t bytes,
                                uint64_t offset, struct efs_error *err);
/* Name the files that have no bytes. */
errint_t efs_unpack_files_empty(struct efs_unpack_files *files, struct efs_error *err);
/* keep false: remove what was made. Frees files. NULL is fine. */
void efs_unpack_files_end(struct efs_unpack_files *files, bool keep);

#endif
