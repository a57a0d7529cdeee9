/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - an open store: superblock and index, checked once at open, then read in place by any number of threads.
 *
 * After efs_store_open() every offset, length and number in the tables is known to be in bounds (store_check.c says
 * which rules), so accessors need no further checks. Chunk contents are not: check their hash before decoding.
 */
#ifndef EFS_STORE_H
#define EFS_STORE_H

#include "layout.h"
#include "expertfs.h"

#include <sys/stat.h>

struct efs_store {
    char *path;
    int fd;                  /* buffered */
    errint_t direct_refused; /* reads with O_DIRECT, though it can be opened; or 0 */
    int direct_fd;           /* the same file with O_DIRECT, or -1 where the filesystem refuses it */
    struct stat seen;        /* of fd, when it was opened */
    struct efs_disk_superblock sb;
    void *index; /* all tables, as on disk */
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

/* Whether all feature bits of a store are known: then fields that are reserved for others are zero. */
static inline bool efs_store_knows_all(const struct efs_disk_superblock *sb)
{
    return ((sb->incompat & ~EFS_INCOMPAT_KNOWN) | (sb->compat & ~EFS_COMPAT_KNOWN)) == 0;
}
/* Pages of the store by pread(2), past the page cache where that can be; to is aligned as they are. 0, -errno: -EIO if
 * it ends before. */
errint_t efs_store_read(const struct efs_store *store, uint64_t begin, void *to, size_t bytes);
/* Elements of shard `shard` (table index) of object. */
uint32_t efs_store_shard_elements(const struct efs_store *store, const struct efs_disk_object *object, uint32_t shard);
/* Names a place for a message: "FILE: tensor NAME, shard 3, E-chunk at store offset 4096 (177123 bytes)". */
void efs_store_name_chunk(const struct efs_store *store, uint32_t object, uint32_t shard, bool sm, char *text,
                          size_t bytes);
/* Check tables for a store of sb.store_bytes bytes; used by efs_store_open(). */
errint_t efs_store_check(const struct efs_store *store, struct efs_error *err);

/* What the tensor's safetensors file says of a dtype or shape that is not known, as struct efs_disk_tensor has it;
 * *bytes long. NULL: they are known. */
const char *efs_store_tensor_type(const struct efs_store *store, const struct efs_disk_tensor *tensor, size_t *bytes);

#endif
