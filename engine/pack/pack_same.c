/* SPDX-License-Identifier: Apache-2.0 */
/* pack_same.c - compares a checkpoint with the checksums of a store: names, sizes and all bytes. */
#include "catalog.h"
#include "codec.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "hash.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct compare {
    const struct efs_store *store;
    const struct efs_catalog *catalog;
    uint8_t *buffer; /* of the largest shard */
    uint64_t done_bytes;
    efs_progress_fn *progress;
    void *progress_arg;
};

static bool lists_are_equal(const struct efs_store *store, const struct efs_catalog *catalog)
{
    bool same = store->file_count == catalog->file_count;
    for (uint32_t f = 0; same && f < store->file_count; f++) {
        const struct efs_disk_file *file = &store->files[f];
        same = file->bytes == catalog->files[f].bytes && strlen(catalog->files[f].path) == file->path_bytes &&
               memcmp(catalog->files[f].path, store->strings + file->path_offset, file->path_bytes) == 0;
    }
    return same;
}

static size_t shard_bytes(const struct efs_store *store, const struct efs_disk_object *object, uint32_t shard)
{
    return efs_store_shard_elements(store, object, shard) * efs_format_bytes((enum efs_format)object->format);
}

/* Compares one extent of a file: its first shard, or all later ones. -ESTALE: other bytes. */
static errint_t compare_extent(struct compare *c, int fd, const struct efs_disk_extent *extent, bool first)
{
    const struct efs_disk_object *object = &c->store->objects[extent->object];
    uint64_t offset = extent->file_offset;
    errint_t rc = extent->object_offset == 0 && extent->bytes == object->bytes ? 0 : -ESTALE;
    for (uint32_t nth = 0; rc == 0 && nth < object->shard_count; nth++) {
        uint32_t shard = object->shard_first + nth;
        size_t bytes = shard_bytes(c->store, object, shard);
        if ((nth == 0) == first) {
            rc = efs_sys_pread_all(fd, c->buffer, bytes, offset);
            if (rc == -ENODATA || (rc == 0 && efs_hash(c->buffer, bytes) != c->store->shards[shard].raw_hash))
                rc = -ESTALE;
            c->done_bytes += bytes;
            if (c->progress && c->progress(c->progress_arg, c->done_bytes, c->store->sb.source_bytes, "comparing"))
                rc = -ECANCELED;
        }
        offset += bytes;
    }
    return rc;
}

static errint_t compare_file(struct compare *c, uint32_t number, bool first, struct efs_error *err)
{
    const struct efs_disk_file *file = &c->store->files[number];
    char *path = NULL;
    if (asprintf(&path, "%s/%s", c->catalog->root, c->catalog->files[number].path) < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    int fd = efs_sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    errint_t rc = fd < 0 ? fd : 0;
    for (uint32_t e = 0; rc == 0 && e < file->extent_count; e++)
        rc = compare_extent(c, fd, &c->store->extents[file->extent_first + e], first);
    if (fd >= 0)
        efs_sys_close(fd);
    if (rc < 0)
        efs_fail(err, rc, "%s: %s", path, rc == -ESTALE ? "other bytes than were packed" : strerror(-rc));
    free(path);
    return rc;
}

/* The first shard of each tensor of all files, then the rest: another version of a model differs early. */
static errint_t compare_all(struct compare *c, struct efs_error *err)
{
    size_t largest = 1;
    errint_t rc = 0;
    for (uint32_t o = 0; o < c->store->object_count; o++)
        if (c->store->objects[o].shard_count) {
            size_t bytes = shard_bytes(c->store, &c->store->objects[o], c->store->objects[o].shard_first);
            largest = bytes > largest ? bytes : largest;
        }
    c->buffer = efs_sys_malloc(largest);
    if (!c->buffer)
        return efs_fail(err, -ENOMEM, "no memory");
    for (int rest = 0; rest < 2; rest++)
        for (uint32_t f = 0; rc == 0 && f < c->store->file_count; f++)
            rc = compare_file(c, f, !rest, err);
    free(c->buffer);
    return rc;
}

errint_t efs_pack_compare(const char *src, const struct efs_store *store, efs_progress_fn *progress, void *progress_arg,
                          struct efs_error *err)
{
    struct efs_catalog catalog;
    if (store->plain)
        return efs_fail(err, -EINVAL, "%s: a checkpoint that is not packed has no checksums", store->path);
    errint_t rc = efs_catalog_list(src, &catalog, err);
    if (rc < 0)
        return rc;
    struct compare c = {store, &catalog, NULL, 0, progress, progress_arg};
    if (!lists_are_equal(store, &catalog))
        rc = efs_fail(err, -ESTALE, "%s: other files, or other sizes, than were packed", src);
    else
        rc = compare_all(&c, err);
    efs_catalog_free(&catalog);
    return rc;
}
