/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_write.h - the file that becomes a store: it grows without a name, and gets its name when all of it is on disk.
 *
 * One thread writes at a time. Nothing of a writer that was not committed stays behind.
 */
#ifndef EFS_STORE_WRITE_H
#define EFS_STORE_WRITE_H

#include "layout.h"
#include "expertfs.h"
#include "newfile.h"

struct efs_store_writer {
    char *path, *name; /* as given; its last part */
    int dir;
    struct efs_newfile file; /* O_DIRECT where the filesystem takes it */
    bool direct, force;
    uint64_t offset;           /* where the next chunk comes to lie; a multiple of EFS_CHUNK_ALIGN */
    uint64_t synced;           /* buffered writes: on disk, and no longer in memory, up to here */
    struct efs_behind *behind; /* what was appended and is not written yet; its thread writes file */
};

/*
 * Begin a store that will be called path. -EEXIST: it exists and force is not set; -EISDIR, -EACCES, ... The first
 * EFS_ALIGN bytes are left for the superblock. On success writer is to be closed.
 */
errint_t efs_store_writer_open(struct efs_store_writer *writer, const char *path, bool force, struct efs_error *err);
/*
 * Go on with a store that has a name already, in the directory dir (which stays the caller's), offset bytes of which
 * are written (a multiple of EFS_CHUNK_ALIGN); what is behind them is cut off. path: for messages. Such a writer is
 * never committed, and what it wrote stays. -EUCLEAN: the file has less.
 */
errint_t efs_store_writer_resume(struct efs_store_writer *writer, int dir, const char *name, const char *path,
                                 uint64_t offset, struct efs_error *err);
/* Append bytes (a chunk, a table), then zero bytes up to the next multiple of EFS_CHUNK_ALIGN; writer->offset before is
 * where they are. They are copied, and written by a thread of the
 * writer meanwhile; an error of that is told by a later call. Blocks. -ENOSPC, -EIO, ... */
errint_t efs_store_writer_append(struct efs_store_writer *writer, const void *data, size_t bytes,
                                 struct efs_error *err);
/* Go on at a page: append zero bytes up to the next multiple of EFS_ALIGN, and write all that was appended. */
errint_t efs_store_writer_page(struct efs_store_writer *writer, struct efs_error *err);
/* All that was appended to disk; what is appended next goes on where that ends. */
errint_t efs_store_writer_sync(struct efs_store_writer *writer, struct efs_error *err);
/* Go on at offset, a page behind all that was appended: a hole before it. For stores that tests make. */
errint_t efs_store_writer_hole(struct efs_store_writer *writer, uint64_t offset, struct efs_error *err);
/* Write the superblock and sync everything. */
errint_t efs_store_writer_finish(struct efs_store_writer *writer, const struct efs_disk_superblock *sb,
                                 struct efs_error *err);
/* Give it its name, synced. -EEXIST: someone else did so meanwhile and force is not set. */
errint_t efs_store_writer_commit(struct efs_store_writer *writer, struct efs_error *err);
/* Close; a file that was not committed is gone. */
void efs_store_writer_close(struct efs_store_writer *writer);

#endif
