/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - an open store: superblock and index.
 *
 * store/ reads and writes the store format: it opens and checks stores, encodes and decodes shards, and writes,
 * verifies and unpacks stores. pack/, view/, io/, cache/, planner/, fetch/, serve/, gpu/ and compute/ call it, the
 * daemon and the tools through the public headers. It never writes to a complete store and never parses a checkpoint.
 *
 * Superblock and index are checked once at open, then read without a lock by any number of threads.
 *
 * efs_store_open() checks that every offset, length and number in the tables is in bounds (store_check.c has the
 * rules), so accessors do no further checks. Chunk contents are not checked: compare their hash before decoding.
 */
#ifndef EFS_STORE_H
#define EFS_STORE_H

#include "layout.h"
#include "expertfs.h"

#include <sys/stat.h>

/* Reads bytes of a store's source; blocks. 0 or -errno. The room io, above this one, has one for each backing. */
typedef errint_t efs_store_read_fn(void *arg, uint64_t offset, void *data, size_t bytes);

struct efs_store_backed;
struct efs_plain; /* the files of a checkpoint that is served in place: plain.h */
struct efs_store_plain {
    struct efs_plain *plain;
    efs_store_read_fn *read; /* arg: plain */
    void (*close)(struct efs_plain *plain);
    struct stat st; /* for efs_store_info() */
    bool direct;    /* its large files can be read with O_DIRECT */
    bool remote;    /* some file is on a file system of efs_sys_is_remote() */
};

struct efs_store {
    char *path;
    efs_store_read_fn *read; /* NULL: the file fd */
    void *read_arg;
    struct efs_store_backed *backed; /* queue and backing that the store owns (io/backing_store.c); may be NULL */
    void (*backed_close)(struct efs_store_backed *backed);
    const char *backed_said; /* why its last reads failed, a line and a hint, or ""; NULL without a backing */
    struct efs_plain *plain; /* NULL: a store that was packed; else chunks start anywhere, and have no checksums */
    void (*plain_close)(struct efs_plain *plain);
    int fd;                  /* opened without O_DIRECT; -1: no file */
    errint_t direct_refused; /* error of reads with O_DIRECT if only open(2) accepts it; else 0 */
    int direct_fd;           /* the same file with O_DIRECT; -1 if the file system rejects it */
    bool direct;             /* it can be read with O_DIRECT; of a store that is served: it is */
    bool remote;             /* efs_sys_is_remote() */
    struct stat opened_stat; /* fstat(2) of fd at open */
    struct efs_disk_superblock sb;
    void *index; /* all tables, in the on-disk format */
    size_t index_bytes;
    const char *strings;
    const struct efs_disk_file *files;
    const struct efs_disk_extent *extents;
    const struct efs_disk_tensor *tensors;
    const struct efs_disk_group *groups;
    const struct efs_disk_object *objects;
    const struct efs_disk_shard *shards;
    const struct efs_disk_part *parts;
    const char *report;
    uint32_t file_count, extent_count, tensor_count, group_count, object_count, shard_count, part_count;
    uint32_t expert_count; /* groups [0, expert_count) are experts */
};

/* Whether all feature bits of the store are known. Then reserved fields must be zero. */
static inline bool efs_store_knows_all(const struct efs_disk_superblock *sb)
{
    return ((sb->incompat & ~EFS_INCOMPAT_KNOWN) | (sb->compat & ~EFS_COMPAT_KNOWN)) == 0;
}
/* As efs_store_open(), for a store of that many bytes that read() reads, until efs_store_close(). name: for messages.
 */
errint_t efs_store_open_from(const char *name, uint64_t bytes, efs_store_read_fn *read, void *arg,
                             struct efs_store **store, struct efs_error *err);
/* Opens a store file; efs_store_open() also opens checkpoints. */
errint_t efs_store_open_file(const char *path, struct efs_store **store, struct efs_error *err);
/* As efs_store_open_from(), for a checkpoint that is served in place. On success the store owns source->plain. */
errint_t efs_store_open_plain(const char *name, uint64_t bytes, const struct efs_store_plain *source,
                              struct efs_store **store, struct efs_error *err);
/* Compares a chunk with its checksum. A plain store has none: the first call for a chunk sets it, so that later reads
 * must give the same bytes. Any thread. 0; -EUCLEAN: it differs; -EIO: the same of a plain store. */
errint_t efs_store_check_chunk(const struct efs_store *store, uint32_t shard, bool sm, const void *chunk);
/* Replaces the function that reads the store, of efs_store_open_from(). */
void efs_store_read_by(struct efs_store *store, efs_store_read_fn *read, void *arg);
/* Reads whole pages of the store; a file by pread(2), with O_DIRECT if possible. begin, to and bytes are multiples of
 * EFS_ALIGN. Blocks. 0 or -errno; -EIO at end of file. */
errint_t efs_store_read(const struct efs_store *store, uint64_t begin, void *to, size_t bytes);
/* Number of elements of shard `shard` (index into shards) of object. */
uint32_t efs_store_shard_elements(const struct efs_store *store, const struct efs_disk_object *object, uint32_t shard);
/* Describes a chunk for a message: "STORE: FILE offset 128, tensor "NAME", shard 3, E-chunk at store offset 4096
 * (177123 bytes)". */
void efs_store_name_chunk(const struct efs_store *store, uint32_t object, uint32_t shard, bool sm, char *text,
                          size_t bytes);
/* Checks the tables of a store of sb.store_bytes bytes; called by efs_store_open(). */
errint_t efs_store_check(const struct efs_store *store, struct efs_error *err);

/* The type of a tensor whose dtype or shape is unknown, as in struct efs_disk_tensor; *bytes is its length. NULL:
 * dtype and shape are known. */
const char *efs_store_tensor_type(const struct efs_store *store, const struct efs_disk_tensor *tensor, size_t *bytes);

#endif
