/* SPDX-License-Identifier: Apache-2.0 */
/* pack_index.c - the index tables behind the chunks, and the superblock that names them. */
#include "codec_table.h"
#include "hash.h"
#include "kernels.h"
#include "pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct table {
    const void *data;
    uint32_t record_bytes;
    uint64_t count;
};

static errint_t put_table(struct efs_store_writer *writer, const struct table *table, struct efs_disk_table *disk,
                          struct efs_error *err)
{
    disk->record_bytes = table->record_bytes;
    disk->count = (uint32_t)table->count;
    disk->bytes = table->count * table->record_bytes;
    disk->offset = writer->offset;
    disk->hash = efs_hash(table->data, disk->bytes);
    return efs_store_writer_append(writer, table->data, disk->bytes, err);
}

errint_t efs_pack_index(const struct efs_pack_plan *plan, struct efs_store_writer *writer,
                        struct efs_pack_report *report, struct efs_error *err)
{
    char *json = efs_pack_report_json(report);
    if (!json)
        return efs_fail(err, -ENOMEM, "%s: no memory for the report", writer->path);
    struct efs_disk_part part = {0}; /* the store's file, when its size is known */
    const struct table tables[EFS_TABLE_COUNT] = {
        [EFS_TABLE_STRINGS] = {plan->strings, 1, plan->string_bytes},
        [EFS_TABLE_FILES] = {plan->files, sizeof(*plan->files), plan->file_count},
        [EFS_TABLE_EXTENTS] = {plan->extents, sizeof(*plan->extents), plan->extent_count},
        [EFS_TABLE_TENSORS] = {plan->tensors, sizeof(*plan->tensors), plan->tensor_count},
        [EFS_TABLE_GROUPS] = {plan->groups, sizeof(*plan->groups), plan->group_count},
        [EFS_TABLE_OBJECTS] = {plan->objects, sizeof(*plan->objects), plan->object_count},
        [EFS_TABLE_SHARDS] = {plan->shards, sizeof(*plan->shards), plan->shard_count},
        [EFS_TABLE_REPORT] = {json, 1, strlen(json)},
        [EFS_TABLE_PARTS] = {&part, sizeof(part), 1},
    };
    struct efs_disk_superblock sb = {
        .magic = {'e', 'x', 'p', 'e', 'r', 't', 'f', 's'},
        .version = EFS_VERSION,
        .superblock_bytes = sizeof(sb),
        .source_bytes = plan->source_bytes,
        .shard_elements = plan->shard_elements,
        .block_elements = EFS_BLOCK,
    };
    for (uint32_t s = 0; s < plan->shard_count; s++)
        sb.incompat |= efs_codec_of(plan->shards[s].codec)->incompat;
    for (uint32_t f = 0; f < plan->file_count; f++)
        sb.compat |= plan->files[f].flags ? EFS_COMPAT_FILE_FLAGS : 0;
    uint64_t hashes[EFS_TABLE_COUNT];
    static_assert(EFS_TABLE_PARTS == EFS_TABLE_COUNT - 1, "behind the last table there are zeros up to a page");
    errint_t rc = efs_store_writer_page(writer, err);
    for (int t = 0; rc == 0 && t < EFS_TABLE_COUNT; t++) {
        if (t == EFS_TABLE_PARTS)
            part.bytes = efs_page_up(writer->offset + sizeof(part));
        rc = put_table(writer, &tables[t], &sb.tables[t], err);
        hashes[t] = sb.tables[t].hash;
    }
    free(json);
    if (rc < 0)
        return rc;
    sb.store_bytes = report->store_bytes = part.bytes; /* whole pages, so that O_DIRECT reaches the last byte */
    sb.content_hash = efs_hash(hashes, sizeof(hashes));
    sb.hash = efs_hash(&sb, offsetof(struct efs_disk_superblock, hash));
    return efs_store_writer_finish(writer, &sb, err);
}
