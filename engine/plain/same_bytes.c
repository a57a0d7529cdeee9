/* SPDX-License-Identifier: Apache-2.0 */
/* same_bytes.c - whether another file has the bytes of a file of the store. */
#include "plain.h"

#include "expertfs-private.h"
#include "hash.h"
#include "kernels.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A range of a file of the store, and where the other file has it. */
struct range {
    const struct efs_store *store;
    uint64_t offset, bytes;
    int fd;
    uint64_t fd_offset;
};

/* Reads bytes of the other file, in whole pages, because fd may be open with O_DIRECT. room has space for them and two
 * pages. NULL: a read error, or the end of the file. */
static const uint8_t *read_at(int fd, uint64_t offset, size_t bytes, uint8_t *room, errint_t *rc)
{
    const size_t skip = (size_t)(offset % EFS_ALIGN), want = (size_t)efs_page_up(skip + bytes);
    size_t got = 0;
    *rc = 0;
    while (got < skip + bytes) {
        const ssize_t n = efs_sys_pread(fd, room + got, want - got, offset - skip + got);
        if (n <= 0 || (got + (size_t)n < skip + bytes && (size_t)n % EFS_ALIGN)) {
            *rc = n < 0 ? (errint_t)n : -ESTALE;
            return NULL;
        }
        got += (size_t)n;
    }
    return room + skip;
}

/* Compares the shards of an object that make up bytes [begin, end) of it; at: the offset of `begin` in the other file.
 */
static errint_t same_shards(const struct range *r, const struct efs_disk_object *o, uint64_t begin, uint64_t end,
                            uint64_t at)
{
    const uint64_t shard_bytes = r->store->sb.shard_elements * (uint64_t)efs_format_bytes(o->format);
    if (begin % shard_bytes || (end % shard_bytes && end != o->bytes))
        return -ENODATA;
    uint8_t *room = efs_sys_aligned_alloc(EFS_ALIGN, (size_t)efs_page_up(shard_bytes) + 2 * EFS_ALIGN);
    errint_t rc = room ? 0 : -ENOMEM;
    for (uint64_t from = begin; rc == 0 && from < end; from += shard_bytes) {
        const size_t bytes = (size_t)(end - from < shard_bytes ? end - from : shard_bytes);
        const uint8_t *raw = read_at(r->fd, at + (from - begin), bytes, room, &rc);
        const struct efs_disk_shard *shard = &r->store->shards[o->shard_first + from / shard_bytes];
        if (raw && efs_hash(raw, bytes) != shard->raw_hash)
            rc = -ESTALE;
    }
    free(room);
    return rc;
}

static errint_t same_in_packed(const struct range *r, const struct efs_disk_file *file)
{
    const uint64_t end = r->offset + r->bytes;
    errint_t rc = 0;
    for (uint32_t i = 0; rc == 0 && i < file->extent_count; i++) {
        const struct efs_disk_extent *e = &r->store->extents[file->extent_first + i];
        const uint64_t e_end = e->file_offset + e->bytes;
        if (e_end <= r->offset || e->file_offset >= end)
            continue;
        const uint64_t from = e->file_offset > r->offset ? e->file_offset : r->offset, to = e_end < end ? e_end : end;
        const uint64_t shift = e->object_offset - e->file_offset; /* may wrap; so does the sum */
        rc = same_shards(r, &r->store->objects[e->object], from + shift, to + shift, r->fd_offset + (from - r->offset));
    }
    return rc;
}

/* A plain store has no checksums of its bytes: only its own file is known to have them. */
static errint_t same_in_place(const struct range *r, const struct efs_disk_file *file)
{
    const struct efs_plain *plain = r->store->plain;
    const char *path = r->store->strings + file->path_offset;
    struct stat st;
    errint_t rc = efs_sys_fstat(r->fd, &st);
    if (rc < 0 || r->offset != r->fd_offset)
        return rc < 0 ? rc : -ENODATA;
    for (uint32_t f = 0; f < plain->file_count; f++)
        if (strlen(plain->files[f].path) == file->path_bytes &&
            memcmp(plain->files[f].path, path, file->path_bytes) == 0)
            return st.st_dev == plain->files[f].opened_stat.st_dev && st.st_ino == plain->files[f].opened_stat.st_ino
                       ? 0
                       : -ENODATA;
    return -ENODATA;
}

errint_t efs_same_bytes(const struct efs_store *store, uint32_t file, uint64_t offset, uint64_t bytes, int fd,
                        uint64_t fd_offset)
{
    uint64_t end, fd_end;
    if (file >= store->file_count || __builtin_add_overflow(offset, bytes, &end) || end > store->files[file].bytes ||
        __builtin_add_overflow(fd_offset, bytes, &fd_end) || fd_end > INT64_MAX)
        return -EINVAL;
    const struct range r = {store, offset, bytes, fd, fd_offset};
    return store->plain ? same_in_place(&r, &store->files[file]) : same_in_packed(&r, &store->files[file]);
}
