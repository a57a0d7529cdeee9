/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - opens a store, reads and checks its superblock and index. */
#include "store.h"

#include "hash.h"
#include "kernels.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t record_bytes[EFS_TABLE_COUNT] = {
    [EFS_TABLE_STRINGS] = 1,
    [EFS_TABLE_FILES] = sizeof(struct efs_disk_file),
    [EFS_TABLE_EXTENTS] = sizeof(struct efs_disk_extent),
    [EFS_TABLE_TENSORS] = sizeof(struct efs_disk_tensor),
    [EFS_TABLE_GROUPS] = sizeof(struct efs_disk_group),
    [EFS_TABLE_OBJECTS] = sizeof(struct efs_disk_object),
    [EFS_TABLE_SHARDS] = sizeof(struct efs_disk_shard),
    [EFS_TABLE_REPORT] = 1,
    [EFS_TABLE_PARTS] = sizeof(struct efs_disk_part),
};
static const char *const table_names[EFS_TABLE_COUNT] = {"strings", "files",  "extents", "tensors", "groups",
                                                         "objects", "shards", "report",  "parts"};

#define WAY_OUT "\nhint: copy or download it again, or pack the checkpoint again"
#define PACK_FIRST "\nhint: pack a checkpoint first, with mkexpertfs"

static bool is_zero(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes > 0 && p[bytes - 1] == 0)
        bytes--;
    return bytes == 0;
}

static errint_t check_tables(const struct efs_disk_superblock *sb, uint64_t file_bytes, const char *path,
                             struct efs_error *err)
{
    uint64_t end = EFS_ALIGN;
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        const struct efs_disk_table *table = &sb->tables[t];
        uint64_t bytes, step = t == 0 ? EFS_ALIGN : EFS_CHUNK_ALIGN;
        if (table->record_bytes != record_bytes[t] ||
            __builtin_mul_overflow((uint64_t)table->count, record_bytes[t], &bytes) || bytes != table->bytes ||
            table->offset % step != 0 || table->offset < end || table->offset > file_bytes ||
            bytes > file_bytes - table->offset)
            return efs_fail(err, -EUCLEAN, "%s: table %s (offset %llu, %llu bytes) does not fit the store" WAY_OUT,
                            path, table_names[t], (unsigned long long)table->offset, (unsigned long long)table->bytes);
        end = table->offset + bytes;
    }
    return 0;
}

static errint_t check_superblock(const struct efs_disk_superblock *sb, uint64_t file_bytes, const char *path,
                                 struct efs_error *err)
{
    if (memcmp(sb->magic, EFS_MAGIC, sizeof(sb->magic)) != 0)
        return efs_fail(err, -EUCLEAN, "%s: not an expertfs store (no magic at offset 0)" PACK_FIRST, path);
    if (sb->version < EFS_VERSION_OLDEST || sb->version > EFS_VERSION)
        return efs_fail(err, -EPROTONOSUPPORT, "%s: store version %u, this program reads versions %u to %u\nhint: %s",
                        path, sb->version, EFS_VERSION_OLDEST, EFS_VERSION,
                        sb->version < EFS_VERSION ? "pack the checkpoint again with mkexpertfs"
                                                  : "a later expertfs made it, use that");
    if (sb->superblock_bytes != sizeof(*sb) || sb->hash != efs_hash(sb, offsetof(struct efs_disk_superblock, hash)))
        return efs_fail(err, -EUCLEAN, "%s: superblock at offset 0 is damaged (checksum differs)" WAY_OUT, path);
    uint64_t known = sb->version == EFS_VERSION_OLDEST ? 0 : EFS_INCOMPAT_KNOWN;
    if (sb->incompat & ~known)
        return efs_fail(
            err, -EPROTONOSUPPORT,
            "%s: store uses features 0x%llx that this program does not know\nhint: a later expertfs made it, use "
            "that",
            path, (unsigned long long)(sb->incompat & ~known));
    if (sb->store_bytes != file_bytes)
        return efs_fail(err, -EUCLEAN, "%s: the file has %llu bytes and should have %llu: %s" WAY_OUT, path,
                        (unsigned long long)file_bytes, (unsigned long long)sb->store_bytes,
                        file_bytes < sb->store_bytes ? "it was cut" : "data was appended");
    if (sb->block_elements != EFS_BLOCK || sb->shard_elements < EFS_SHARD_ELEMENTS_MIN ||
        sb->shard_elements > EFS_SHARD_ELEMENTS_MAX || sb->shard_elements % EFS_BLOCK != 0)
        return efs_fail(err, -EUCLEAN, "%s: superblock names a shard of %u elements", path, sb->shard_elements);
    if (efs_store_knows_all(sb) &&
        (!is_zero(&sb->tables[EFS_TABLE_COUNT], (EFS_TABLE_PLACES - EFS_TABLE_COUNT) * sizeof(sb->tables[0])) ||
         !is_zero(sb->zero, sizeof(sb->zero))))
        return efs_fail(err, -EUCLEAN, "%s: superblock uses fields of features that it does not name", path);
    return check_tables(sb, file_bytes, path, err);
}

static void *table_at(const struct efs_store *store, int t)
{
    return (char *)store->index + (store->sb.tables[t].offset - store->sb.tables[0].offset);
}

static errint_t store_read(const struct efs_store *store, uint64_t offset, void *data, size_t bytes)
{
    return store->read ? store->read(store->read_arg, offset, data, bytes)
                       : efs_sys_pread_all(store->fd, data, bytes, offset);
}

static errint_t read_index(struct efs_store *store, struct efs_error *err)
{
    const struct efs_disk_table *tables = store->sb.tables;
    const struct efs_disk_table *last = &tables[EFS_TABLE_COUNT - 1];
    store->index_bytes = last->offset + last->bytes - tables[0].offset;
    store->index = efs_sys_aligned_alloc(EFS_ALIGN, store->index_bytes ? store->index_bytes : 1);
    if (!store->index)
        return efs_fail(err, -ENOMEM, "%s: no memory for the index (%zu bytes)", store->path, store->index_bytes);
    efs_sys_advise_huge(store->index, store->index_bytes);
    errint_t rc = store_read(store, tables[0].offset, store->index, store->index_bytes);
    if (rc < 0)
        return efs_fail(err, rc == -ENODATA ? -EUCLEAN : rc, "%s: cannot read the index at offset %llu: %s",
                        store->path, (unsigned long long)tables[0].offset, strerror(-rc));
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        if (efs_hash(table_at(store, t), tables[t].bytes) != tables[t].hash)
            return efs_fail(err, -EUCLEAN, "%s: table %s at offset %llu is damaged (checksum differs)" WAY_OUT,
                            store->path, table_names[t], (unsigned long long)tables[t].offset);
    uint64_t hashes[EFS_TABLE_COUNT];
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        hashes[t] = tables[t].hash;
    if (efs_hash(hashes, sizeof(hashes)) != store->sb.content_hash)
        return efs_fail(err, -EUCLEAN,
                        "%s: superblock is damaged (its checksum of the tables' checksums differs)" WAY_OUT,
                        store->path);
    store->strings = table_at(store, EFS_TABLE_STRINGS);
    store->files = table_at(store, EFS_TABLE_FILES);
    store->extents = table_at(store, EFS_TABLE_EXTENTS);
    store->tensors = table_at(store, EFS_TABLE_TENSORS);
    store->groups = table_at(store, EFS_TABLE_GROUPS);
    store->objects = table_at(store, EFS_TABLE_OBJECTS);
    store->shards = table_at(store, EFS_TABLE_SHARDS);
    store->parts = table_at(store, EFS_TABLE_PARTS);
    store->report = table_at(store, EFS_TABLE_REPORT);
    store->file_count = tables[EFS_TABLE_FILES].count;
    store->extent_count = tables[EFS_TABLE_EXTENTS].count;
    store->tensor_count = tables[EFS_TABLE_TENSORS].count;
    store->group_count = tables[EFS_TABLE_GROUPS].count;
    store->object_count = tables[EFS_TABLE_OBJECTS].count;
    store->shard_count = tables[EFS_TABLE_SHARDS].count;
    store->part_count = tables[EFS_TABLE_PARTS].count;
    while (store->expert_count < store->group_count && store->groups[store->expert_count].kind == EFS_GROUP_EXPERT)
        store->expert_count++;
    return efs_store_check(store, err);
}

/* Opens the same file with O_DIRECT even if path was replaced since: an index and chunks of two stores would give
 * wrong bytes. FUSE file systems may accept O_DIRECT at open(2) and reject the reads, so one page is read. -1:
 * O_DIRECT is not available. */
static int open_direct(struct efs_store *store)
{
    int fd = efs_regular_reopen(store->fd, store->path, O_RDONLY | O_DIRECT);
    void *page = fd < 0 ? NULL : efs_sys_aligned_alloc(EFS_ALIGN, EFS_ALIGN);
    int rc = page ? efs_sys_pread_all(fd, page, EFS_ALIGN, 0) : 0;
    free(page);
    if (fd >= 0 && efs_sys_no_direct(rc)) {
        store->direct_refused = rc;
        efs_sys_close(fd);
        return -1;
    }
    return fd < 0 ? -1 : fd;
}

static errint_t open_files(struct efs_store *store, struct efs_error *err)
{
    store->fd = efs_regular_open_path(store->path, &store->opened_stat, err);
    if (store->fd == -EISDIR) { /* users often pass the checkpoint's directory or the mount point */
        char *config = NULL;
        int fd = asprintf(&config, "%s/.expertfs/config", store->path) < 0 ? -ENOMEM : efs_sys_open(config, O_PATH, 0);
        free(config);
        if (fd >= 0)
            efs_sys_close(fd);
        return efs_fail(err, -EISDIR, "%s: not a regular file but a directory %s", store->path,
                        fd >= 0 ? "of a mount\nhint: `expertctl ls` shows its store"
                                : "without weights: no safetensors or GGUF file is in it\nhint: name the folder that "
                                  "holds them, or a store; mkexpertfs --any packs other files");
    }
    if (store->fd >= 0)
        store->direct_fd = open_direct(store);
    store->direct = store->direct_fd >= 0;
    store->remote = store->fd >= 0 && efs_sys_is_remote(store->fd);
    return store->fd < 0 ? store->fd : 0;
}

/* All bytes of the store are read by store_read(), whether from a file or another source. */
static errint_t open_bytes(struct efs_store *store, uint64_t bytes, struct efs_error *err)
{
    if (bytes < sizeof(store->sb))
        return efs_fail(err, -EUCLEAN, "%s: not an expertfs store (only %llu bytes)" PACK_FIRST, store->path,
                        (unsigned long long)bytes);
    errint_t rc = store_read(store, 0, &store->sb, sizeof(store->sb));
    if (rc < 0)
        return efs_fail(err, rc == -ENODATA ? -EUCLEAN : rc, "%s: cannot read the superblock: %s", store->path,
                        strerror(-rc));
    rc = check_superblock(&store->sb, bytes, store->path, err);
    return rc < 0 ? rc : read_index(store, err);
}

static errint_t open_store(const char *name, uint64_t bytes, efs_store_read_fn *read, void *arg,
                           struct efs_plain *plain, struct efs_store **out, struct efs_error *err)
{
    *out = NULL;
    struct efs_store *store = efs_sys_calloc(1, sizeof(*store));
    if (!store)
        return efs_fail(err, -ENOMEM, "%s: no memory", name);
    store->plain = plain;
    store->fd = store->direct_fd = -1;
    store->read = read;
    store->read_arg = arg;
    store->path = strdup(name);
    errint_t rc = store->path ? 0 : efs_fail(err, -ENOMEM, "%s: no memory", name);
    if (rc == 0 && !read)
        rc = open_files(store, err);
    if (rc == 0)
        rc = open_bytes(store, read ? bytes : (uint64_t)store->opened_stat.st_size, err);
    if (rc < 0) {
        efs_store_close(store);
        return rc;
    }
    *out = store;
    return 0;
}

errint_t efs_store_open_file(const char *path, struct efs_store **out, struct efs_error *err)
{
    return efs_store_open_from(path, 0, NULL, NULL, out, err);
}

errint_t efs_store_open_from(const char *name, uint64_t bytes, efs_store_read_fn *read, void *arg,
                             struct efs_store **out, struct efs_error *err)
{
    return open_store(name, bytes, read, arg, NULL, out, err);
}

errint_t efs_store_open_plain(const char *name, uint64_t bytes, const struct efs_store_plain *source,
                              struct efs_store **out, struct efs_error *err)
{
    errint_t rc = open_store(name, bytes, source->read, source->plain, source->plain, out, err);
    if (rc < 0)
        return rc;
    (*out)->plain_close = source->close;
    (*out)->opened_stat = source->st;
    (*out)->direct = source->direct;
    (*out)->remote = source->remote;
    return 0;
}

void efs_store_read_by(struct efs_store *store, efs_store_read_fn *read, void *arg)
{
    store->read = read;
    store->read_arg = arg;
}

errint_t efs_store_read(const struct efs_store *store, uint64_t begin, void *to, size_t bytes)
{
    int rc = -EOPNOTSUPP;
    if (store->direct_fd >= 0)
        rc = efs_sys_pread_all(store->direct_fd, to, bytes, begin);
    if (efs_sys_no_direct(rc))
        rc = store_read(store, begin, to, bytes);
    return rc == -ENODATA ? -EIO : rc;
}

void efs_store_close(struct efs_store *store)
{
    if (!store)
        return;
    if (store->fd >= 0)
        efs_sys_close(store->fd);
    if (store->direct_fd >= 0)
        efs_sys_close(store->direct_fd);
    if (store->backed_close)
        store->backed_close(store->backed);
    if (store->plain_close)
        store->plain_close(store->plain);
    free(store->index);
    free(store->path);
    free(store);
}
