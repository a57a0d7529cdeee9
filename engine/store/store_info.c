/* SPDX-License-Identifier: Apache-2.0 */
/* store_info.c - see store.h: queries of an open store: sizes, names of chunks, totals. */
#include "store.h"

#include "codec.h"
#include "sys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint32_t efs_store_shard_elements(const struct efs_store *store, const struct efs_disk_object *object, uint32_t shard)
{
    uint64_t elements = object->bytes / efs_format_bytes((enum efs_format)object->format);
    uint64_t before = (uint64_t)(shard - object->shard_first) * store->sb.shard_elements;
    uint64_t left = elements - before;
    return left < store->sb.shard_elements ? (uint32_t)left : store->sb.shard_elements;
}

/* The file and file offset of byte `offset` of an object: from its tensor, or for a blob by a search of all extents.
 * NULL: not found. */
static const struct efs_disk_file *place_of(const struct efs_store *store, const struct efs_disk_object *o,
                                            uint64_t offset, uint64_t *file_offset)
{
    if (o->tensor != EFS_NONE) {
        const struct efs_disk_tensor *t = &store->tensors[o->tensor];
        *file_offset = t->file_offset + o->tensor_offset + offset;
        return &store->files[t->file];
    }
    for (const struct efs_disk_file *f = store->files; f < store->files + store->file_count; f++)
        for (uint32_t i = f->extent_first; i < f->extent_first + f->extent_count; i++) {
            const struct efs_disk_extent *x = &store->extents[i];
            *file_offset = x->file_offset + (offset - x->object_offset);
            if (&store->objects[x->object] == o && offset >= x->object_offset && offset - x->object_offset < x->bytes)
                return f;
        }
    return NULL;
}

void efs_store_name_chunk(const struct efs_store *store, uint32_t object, uint32_t shard, bool sm, char *text,
                          size_t bytes)
{
    const struct efs_disk_object *o = &store->objects[object];
    const struct efs_disk_shard *s = &store->shards[shard];
    uint64_t file_offset = 0, in_object = (uint64_t)(shard - o->shard_first) * store->sb.shard_elements *
                                          efs_format_bytes((enum efs_format)o->format);
    const struct efs_disk_file *f = place_of(store, o, in_object, &file_offset);
    const struct efs_disk_tensor *t = o->tensor == EFS_NONE ? NULL : &store->tensors[o->tensor];
    snprintf(text, bytes, "%s: %.*s offset %llu, %s%.*s%sshard %u, %s-chunk at store offset %llu (%u bytes)",
             store->path, f ? (int)f->path_bytes : 1, f ? store->strings + f->path_offset : "?",
             (unsigned long long)(f ? file_offset : 0), t ? "tensor \"" : "", t ? (int)t->name_bytes : 0,
             t ? store->strings + t->name_offset : "", t ? "\", " : "", shard - o->shard_first, sm ? "SM" : "E",
             (unsigned long long)(sm ? s->sm_offset : s->e_offset), sm ? s->sm_bytes : s->e_bytes);
}

/* Permissions to read the store. An ACL can restrict group and other below the mode; if the file has one, only the
 * owner's bit is reported. */
static unsigned may_read(const struct efs_store *store)
{
    unsigned mode = store->opened_stat.st_mode & 0444;
    return store->fd >= 0 && efs_sys_has_acl(store->fd) ? mode & 0400 : mode;
}

void efs_store_info(const struct efs_store *store, struct efs_store_info *out)
{
    static_assert(EFS_CODEC_COUNT <= EFS_CODECS, "places by codec");
    struct efs_store_info info = {
        .store_bytes = store->sb.store_bytes,
        .source_bytes = store->sb.source_bytes,
        .index_bytes = store->index_bytes,
        .content_hash = store->sb.content_hash,
        .files = store->file_count,
        .tensors = store->tensor_count,
        .experts = store->expert_count,
        .groups = store->group_count,
        .objects = store->object_count,
        .shards = store->shard_count,
        .version = store->sb.version,
        .shard_elements = store->sb.shard_elements,
        .report_json = store->report,
        .report_bytes = store->sb.tables[EFS_TABLE_REPORT].bytes,
        .direct = store->direct,
        .mode = may_read(store),
        .group = store->opened_stat.st_gid,
        .mtime = store->opened_stat.st_mtim,
        .device = store->opened_stat.st_dev,
        .inode = store->opened_stat.st_ino,
        .in_place = store->plain != NULL,
    };
    uint64_t in_layer = 0;
    for (uint32_t g = 0; g < store->expert_count; g++) {
        const struct efs_disk_group *a = &store->groups[g], *b = g ? a - 1 : NULL;
        bool same = b && a->layer == b->layer && a->stack_bytes == b->stack_bytes &&
                    memcmp(store->strings + a->stack_offset, store->strings + b->stack_offset, a->stack_bytes) == 0;
        in_layer = same ? in_layer + 1 : 1;
        info.layers += !same;
        info.layer_experts = in_layer > info.layer_experts ? in_layer : info.layer_experts;
    }
    for (uint32_t o = 0; o < store->object_count; o++) {
        const struct efs_disk_object *object = &store->objects[o];
        uint64_t whole = (uint64_t)store->sb.shard_elements * efs_format_bytes((enum efs_format)object->format);
        uint64_t left = object->bytes;
        for (uint32_t i = object->shard_first; i < object->shard_first + object->shard_count; i++) {
            const struct efs_disk_shard *s = &store->shards[i];
            uint64_t raw = left < whole ? left : whole;
            left -= raw;
            uint64_t coded = (uint64_t)s->e_bytes + s->sm_bytes;
            info.codec_shards[s->codec]++;
            info.codec_raw_bytes[s->codec] += raw;
            info.codec_coded_bytes[s->codec] += coded;
            if (object->group < store->expert_count) {
                info.expert_raw_bytes += raw;
                info.expert_coded_bytes += coded;
            }
        }
    }
    *out = info;
}

const char *efs_store_tensor_type(const struct efs_store *store, const struct efs_disk_tensor *tensor, size_t *bytes)
{
    size_t at = (size_t)tensor->name_offset + tensor->name_bytes, all = store->sb.tables[EFS_TABLE_STRINGS].bytes;
    const char *type = store->strings + at + 1;
    if (tensor->dtype != EFS_DTYPE_U8 || at + 1 >= all || store->strings[at] != '\0')
        return NULL;
    *bytes = strnlen(type, all - at - 1);
    return *bytes ? type : NULL;
}
