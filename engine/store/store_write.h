/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_write.h - writes a store to a new file that gets its name when all of it is on disk (newfile.h), or continues a
 * file that has a name (packing in place).
 *
 * One thread at a time may use a writer. A writer that was not committed leaves no file behind.
 */
#ifndef EFS_STORE_WRITE_H
#define EFS_STORE_WRITE_H

#include "layout.h"
#include "expertfs.h"
#include "newfile.h"

struct efs_store_writer {
    char *path, *name; /* the path of the store; its last component */
    int dir;
    struct efs_newfile file; /* with O_DIRECT if the file system accepts it */
    bool direct, force;
    uint64_t offset;                 /* offset of the next chunk; a multiple of EFS_CHUNK_ALIGN */
    uint64_t synced;                 /* without O_DIRECT: written back and dropped from the page cache up to here */
    struct efs_write_behind *behind; /* appended bytes that are not written yet; its thread writes to file */
};

/*
 * Starts a store to be named path. -EEXIST: it exists and force is not set; -EISDIR, -EACCES, ... Reserves the first
 * EFS_ALIGN bytes for the superblock. On success the caller must call efs_store_writer_close().
 */
errint_t efs_store_writer_open(struct efs_store_writer *writer, const char *path, bool force, struct efs_error *err);
/*
 * Continues a store that has a name in the directory dir (owned by the caller) and of which offset bytes (a multiple of
 * EFS_CHUNK_ALIGN) are written; truncates the file to them. path: for messages. Such a writer is never committed, and
 * its file stays after close. -EUCLEAN: the file is shorter than offset.
 */
errint_t efs_store_writer_resume(struct efs_store_writer *writer, int dir, const char *name, const char *path,
                                 uint64_t offset, struct efs_error *err);
/* Appends a chunk or a table, then zero bytes up to the next multiple of EFS_CHUNK_ALIGN; writer->offset before the
 * call is its offset. Copies the bytes; a thread of the writer writes them, and a later call returns its error.
 * Blocks while the buffer is full. -ENOSPC, -EIO, ... */
errint_t efs_store_writer_append(struct efs_store_writer *writer, const void *data, size_t bytes,
                                 struct efs_error *err);
/* Appends zero bytes up to the next multiple of EFS_ALIGN and writes all appended bytes. */
errint_t efs_store_writer_page(struct efs_store_writer *writer, struct efs_error *err);
/* Syncs all appended bytes to disk, including a partial last page; appending continues at writer->offset. */
errint_t efs_store_writer_sync(struct efs_store_writer *writer, struct efs_error *err);
/* Continues at offset, a page boundary after everything appended, with a hole before it. For stores made by tests. */
errint_t efs_store_writer_hole(struct efs_store_writer *writer, uint64_t offset, struct efs_error *err);
/* Writes the superblock and syncs everything. */
errint_t efs_store_writer_finish(struct efs_store_writer *writer, const struct efs_disk_superblock *sb,
                                 struct efs_error *err);
/* Links the store under its name and syncs the directory. -EEXIST: another process created the name meanwhile and
 * force is not set. */
errint_t efs_store_writer_commit(struct efs_store_writer *writer, struct efs_error *err);
/* Closes the writer; a file that was not committed is discarded. */
void efs_store_writer_close(struct efs_store_writer *writer);

#endif
