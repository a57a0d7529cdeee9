/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_check.c - checks every rule of the index before it is used. One function per table; each error names the table
 * and the record.
 */
#include "checks.h"
#include "codec_table.h"
#include "kernels.h"
#include "store.h"

#include <errno.h>
#include <string.h>

#define BAD(table, i, ...)                                                                                             \
    return efs_fail(err, -EUCLEAN, "%s: index table " table ", record %u: %s", store->path, (unsigned)(i), __VA_ARGS__)

#define RESERVED "uses a field of a feature that the superblock does not name"

static bool string_fits(const struct efs_store *store, uint32_t offset, uint32_t bytes)
{
    uint64_t all = store->sb.tables[EFS_TABLE_STRINGS].bytes;
    return offset <= all && bytes <= all - offset;
}

static bool range_fits(uint32_t first, uint32_t count, uint32_t all)
{
    return first <= all && count <= all - first;
}

/* Whether the path is relative, at most 1023 bytes, without NUL, and each component is 1 to 255 bytes and not "." or
 * "..": it can only name a file below the mount. */
static bool path_is_sane(const char *path, uint32_t bytes)
{
    if (bytes == 0 || bytes > 1023 || memchr(path, 0, bytes))
        return false;
    for (uint32_t begin = 0; begin <= bytes;) {
        const char *slash = memchr(path + begin, '/', bytes - begin);
        uint32_t part = slash ? (uint32_t)(slash - path) - begin : bytes - begin;
        const char *p = path + begin;
        if (part == 0 || part > 255 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        begin += part + 1;
    }
    return true;
}

static int compare_bytes(const char *a, uint32_t a_bytes, const char *b, uint32_t b_bytes)
{
    int c = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return c ? c : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static bool has_file(const struct efs_store *store, const char *path, uint32_t bytes)
{
    uint32_t low = 0, high = store->file_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct efs_disk_file *f = &store->files[mid];
        int c = compare_bytes(path, bytes, store->strings + f->path_offset, f->path_bytes);
        if (c == 0)
            return true;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return false;
}

static errint_t check_extents(const struct efs_store *store, uint32_t file, struct efs_error *err)
{
    const struct efs_disk_file *f = &store->files[file];
    uint64_t at = 0;
    for (uint32_t i = f->extent_first; i < f->extent_first + f->extent_count; i++) {
        const struct efs_disk_extent *x = &store->extents[i];
        if (x->file_offset != at || x->bytes == 0 || x->bytes > f->bytes - at)
            BAD("extents", i, "does not continue its file");
        if (x->reserved != 0 && efs_store_knows_all(&store->sb))
            BAD("extents", i, RESERVED);
        if (x->object >= store->object_count)
            BAD("extents", i, "names an object that is not there");
        const struct efs_disk_object *o = &store->objects[x->object];
        if (x->object_offset > o->bytes || x->bytes > o->bytes - x->object_offset)
            BAD("extents", i, "reaches past its object");
        at += x->bytes;
    }
    if (at != f->bytes)
        BAD("files", file, "extents do not cover the file");
    return 0;
}

static errint_t check_files(const struct efs_store *store, struct efs_error *err)
{
    uint32_t next_extent = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; i < store->file_count; i++) {
        const struct efs_disk_file *f = &store->files[i], *before = i ? f - 1 : NULL;
        if (!string_fits(store, f->path_offset, f->path_bytes) ||
            !path_is_sane(store->strings + f->path_offset, f->path_bytes))
            BAD("files", i, "bad path");
        if (before && compare_bytes(store->strings + before->path_offset, before->path_bytes,
                                    store->strings + f->path_offset, f->path_bytes) >= 0)
            BAD("files", i, "paths are not in order");
        if (f->bytes > INT64_MAX || __builtin_add_overflow(total, f->bytes, &total))
            BAD("files", i, "impossible size");
        uint32_t known_flags = store->sb.compat & EFS_COMPAT_FILE_FLAGS ? EFS_FILE_OTHER_MODEL : 0;
        if ((f->reserved != 0 || (f->flags & ~known_flags)) && efs_store_knows_all(&store->sb))
            BAD("files", i, RESERVED);
        if (f->extent_first != next_extent || !range_fits(f->extent_first, f->extent_count, store->extent_count))
            BAD("files", i, "bad extents");
        next_extent += f->extent_count;
        errint_t rc = check_extents(store, i, err);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < store->file_count; i++) {
        const struct efs_disk_file *f = &store->files[i];
        const char *path = store->strings + f->path_offset;
        for (uint32_t n = 0; n < f->path_bytes; n++)
            if (path[n] == '/' && has_file(store, path, n))
                BAD("files", i, "its directory is a file");
    }
    if (total != store->sb.source_bytes)
        return efs_fail(err, -EUCLEAN, "%s: files do not add up to the size in the superblock", store->path);
    return 0;
}

static errint_t check_tensors(const struct efs_store *store, struct efs_error *err)
{
    for (uint32_t i = 0; i < store->tensor_count; i++) {
        const struct efs_disk_tensor *t = &store->tensors[i];
        if (!string_fits(store, t->name_offset, t->name_bytes) || t->name_bytes > 65535)
            BAD("tensors", i, "bad name");
        if (t->dims > EFS_MAX_DIMS || t->expert_dim > 1 || (t->expert_dim && (t->dims < 1 || t->shape[0] == 0)))
            BAD("tensors", i, "bad shape");
        for (uint32_t d = t->dims; d < EFS_MAX_DIMS; d++)
            if (t->shape[d] != 0)
                BAD("tensors", i, "has more dimensions than it says");
        if (t->dtype == EFS_DTYPE_NONE || (t->dtype >= EFS_DTYPE_COUNT && t->dtype < EFS_DTYPE_GGML))
            BAD("tensors", i, "unknown dtype");
        if (t->file >= store->file_count)
            BAD("tensors", i, "names a file that is not there");
        uint64_t bytes = store->files[t->file].bytes;
        if (t->file_offset > bytes || t->bytes > bytes - t->file_offset)
            BAD("tensors", i, "reaches past its file");
    }
    return 0;
}

static int compare_groups(const struct efs_store *store, const struct efs_disk_group *a, const struct efs_disk_group *b)
{
    int c = compare_bytes(store->strings + a->stack_offset, a->stack_bytes, store->strings + b->stack_offset,
                          b->stack_bytes);
    if (c)
        return c;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return (a->expert > b->expert) - (a->expert < b->expert);
}

static errint_t check_groups(const struct efs_store *store, struct efs_error *err)
{
    uint32_t next_object = 0;
    for (uint32_t i = 0; i < store->group_count; i++) {
        const struct efs_disk_group *g = &store->groups[i];
        if (g->kind > EFS_GROUP_BLOB || (i > 0 && g->kind < g[-1].kind))
            BAD("groups", i, "bad kind");
        if (!string_fits(store, g->stack_offset, g->stack_bytes) || g->stack_bytes > 32 ||
            memchr(store->strings + g->stack_offset, '/', g->stack_bytes) ||
            memchr(store->strings + g->stack_offset, 0, g->stack_bytes))
            BAD("groups", i, "bad stack");
        if (g->reserved != 0 && efs_store_knows_all(&store->sb))
            BAD("groups", i, RESERVED);
        if (g->kind == EFS_GROUP_EXPERT && i > 0 && compare_groups(store, g - 1, g) >= 0)
            BAD("groups", i, "experts are not in order");
        if (g->object_first != next_object || !range_fits(g->object_first, g->object_count, store->object_count))
            BAD("groups", i, "bad objects");
        next_object += g->object_count;
        for (uint32_t o = g->object_first; o < next_object; o++)
            if (store->objects[o].group != i)
                BAD("objects", o, "names another group");
    }
    if (next_object != store->object_count)
        return efs_fail(err, -EUCLEAN, "%s: groups do not cover all objects", store->path);
    return 0;
}

/* Whether a chunk is inside the store's data. The data starts and ends at page boundaries, so the chunk's whole
 * pages are inside, too. */
static bool chunk_fits(const struct efs_store *store, uint64_t offset, uint32_t bytes)
{
    uint64_t end = store->sb.tables[0].offset;
    if (bytes == 0)
        return offset == 0;
    return (store->plain || offset % EFS_CHUNK_ALIGN == 0) && offset >= sizeof(store->sb) && offset <= end &&
           bytes <= end - offset;
}

/* A one-entry cache of efs_shard_e_bound(): nearly all of up to 600,000 shards have as many elements as the previous
 * one. */
struct e_bound {
    size_t elements, bytes;
};

static size_t e_bound_of(struct e_bound *last, size_t elements)
{
    if (last->elements != elements)
        *last = (struct e_bound){elements, efs_shard_e_bound(elements)};
    return last->bytes;
}

static errint_t check_shard(const struct efs_store *store, const struct efs_disk_object *o, uint32_t i,
                            struct e_bound *bound, struct efs_error *err)
{
    const struct efs_disk_shard *s = &store->shards[i];
    size_t elements = efs_store_shard_elements(store, o, i);
    enum efs_format format = (enum efs_format)o->format;
    const struct efs_codec *codec = efs_codec_of(s->codec);
    if (!codec) /* not damage: the writer failed to set a feature bit */
        return efs_fail(err, -EPROTONOSUPPORT,
                        "%s: index table shards, record %u: codec %u is not known to this program: a later expertfs "
                        "made it, use that",
                        store->path, (unsigned)i, (unsigned)s->codec);
    if (codec->incompat & ~store->sb.incompat)
        BAD("shards", i, "has a codec of a feature that the superblock does not name");
    bool none = s->codec == EFS_CODEC_NONE;
    size_t sm_bytes = none ? elements : efs_sm_bytes(format, elements);
    if ((none && (format != EFS_FORMAT_BYTES || s->e_bytes != 0)) ||
        (!none && (s->e_bytes == 0 || s->e_bytes > e_bound_of(bound, elements))) || s->sm_bytes != sm_bytes)
        BAD("shards", i, "chunk sizes do not fit its elements");
    if ((s->e_bytes == 0 && s->e_hash != 0) || (s->sm_bytes == 0 && s->sm_hash != 0))
        BAD("shards", i, "a chunk without bytes has a checksum");
    if (!chunk_fits(store, s->e_offset, s->e_bytes) || !chunk_fits(store, s->sm_offset, s->sm_bytes))
        BAD("shards", i, "a chunk lies outside the store's data");
    if (s->checks == 0)
        return 0;
    if (!(store->sb.incompat & EFS_INCOMPAT_CHECKS))
        BAD("shards", i, RESERVED);
    if (store->groups[o->group].kind == EFS_GROUP_EXPERT || (s->codec != EFS_CODEC_CASCADE && !none))
        BAD("shards", i, "has page checksums, which experts and its codec do not have");
    if (!chunk_fits(store, efs_checks_offset(s), efs_checks_bytes(s)))
        BAD("shards", i, "page checksums lie outside the store's data");
    return 0;
}

static errint_t check_objects(const struct efs_store *store, struct efs_error *err)
{
    struct e_bound bound = {0, efs_shard_e_bound(0)};
    uint32_t next_shard = 0;
    for (uint32_t i = 0; i < store->object_count; i++) {
        const struct efs_disk_object *o = &store->objects[i];
        size_t element = efs_format_bytes((enum efs_format)o->format);
        if (element == 0 || o->bytes == 0 || o->bytes % element != 0)
            BAD("objects", i, "bad format or size");
        if (o->reserved != 0 && efs_store_knows_all(&store->sb))
            BAD("objects", i, RESERVED);
        uint64_t shards = (o->bytes / element + store->sb.shard_elements - 1) / store->sb.shard_elements;
        if (o->shard_first != next_shard || o->shard_count != shards ||
            !range_fits(o->shard_first, o->shard_count, store->shard_count))
            BAD("objects", i, "bad shards");
        next_shard += o->shard_count;
        if (o->tensor != EFS_NONE) {
            if (o->tensor >= store->tensor_count)
                BAD("objects", i, "names a tensor that is not there");
            uint64_t bytes = store->tensors[o->tensor].bytes;
            if (o->tensor_offset > bytes || o->bytes > bytes - o->tensor_offset)
                BAD("objects", i, "reaches past its tensor");
        }
        if (o->group >= store->group_count)
            BAD("objects", i, "names a group that is not there");
        bool is_blob = store->groups[o->group].kind == EFS_GROUP_BLOB, has_tensor = o->tensor != EFS_NONE;
        if (is_blob == has_tensor)
            BAD("objects", i, "a blob and a tensor are mixed up");
        for (uint32_t s = o->shard_first; s < next_shard; s++) {
            errint_t rc = check_shard(store, o, s, &bound, err);
            if (rc < 0)
                return rc;
        }
    }
    return next_shard == store->shard_count
               ? 0
               : efs_fail(err, -EUCLEAN, "%s: objects do not cover all shards", store->path);
}

/* Requires one part, the store's file. More parts would need a feature bit. */
static errint_t check_parts(const struct efs_store *store, struct efs_error *err)
{
    const struct efs_disk_part *p = store->parts;
    if (store->part_count != 1)
        return efs_fail(err, -EUCLEAN, "%s: index table parts has %u records in place of 1", store->path,
                        store->part_count);
    if (p->address != 0 || p->bytes != store->sb.store_bytes)
        BAD("parts", 0, "is not the store's file");
    if (!string_fits(store, p->name_offset, p->name_bytes) || p->name_bytes != 0)
        BAD("parts", 0, "bad name");
    if (p->reserved != 0 && efs_store_knows_all(&store->sb))
        BAD("parts", 0, RESERVED);
    return 0;
}

errint_t efs_store_check(const struct efs_store *store, struct efs_error *err)
{
    errint_t rc = check_parts(store, err);
    if (rc == 0)
        rc = check_objects(store, err);
    if (rc == 0)
        rc = check_groups(store, err);
    if (rc == 0)
        rc = check_tensors(store, err);
    if (rc == 0)
        rc = check_files(store, err);
    return rc;
}
