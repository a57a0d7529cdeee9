/*
 * store_write.h - the file that becomes a store: it grows without a name, and gets its name when all of it is on disk.
 *
 * One thread writes at a time. Nothing of a writer that was not committed stays behind.
 */
#ifndef EFS_STORE_WRITE_H
#define EFS_STORE_WRITE_H

#include "layout.h"
#include "libexpertfs.h"
#include "newfile.h"

#include <sys/uio.h>

struct efs_store_writer {
    char *path, *name; /* as given; its last part */
    int dir;
    struct efs_newfile file; /* O_DIRECT where the filesystem takes it */
    bool direct, force;
    uint64_t offset; /* the next byte to write; a multiple of EFS_ALIGN */
    uint64_t synced; /* buffered writes: on disk, and no longer in memory, up to here */
    uint8_t *bounce; /* aligned memory for what is not */
};

/*
 * Begin a store that will be called path. -EEXIST: it exists and force is not set; -EISDIR, -EACCES, ... The first
 * EFS_ALIGN bytes are left for the superblock. On success writer is to be closed.
 */
errint_t efs_store_writer_open(struct efs_store_writer *writer, const char *path, bool force, struct efs_error *err);
/* Append; memory and lengths are multiples of EFS_ALIGN. iov is used up. Blocks. -ENOSPC, -EIO, ... */
errint_t efs_store_writer_append(struct efs_store_writer *writer, struct iovec *iov, int count, struct efs_error *err);
/* Append bytes of any length and alignment, zero-padded; writer->offset before is where they are. */
errint_t efs_store_writer_append_bytes(struct efs_store_writer *writer, const void *data, size_t bytes,
                                       struct efs_error *err);
/* Write the superblock and sync everything. */
errint_t efs_store_writer_finish(struct efs_store_writer *writer, const struct efs_disk_superblock *sb,
                                 struct efs_error *err);
/* Give it its name, synced. -EEXIST: someone else did so meanwhile and force is not set. */
errint_t efs_store_writer_commit(struct efs_store_writer *writer, struct efs_error *err);
/* Close; a file that was not committed is gone. */
void efs_store_writer_close(struct efs_store_writer *writer);

#endif
