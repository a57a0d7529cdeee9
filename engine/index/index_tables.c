/* SPDX-License-Identifier: Apache-2.0 */
/* index_tables.c - the superblock and the tables of an index, with their places and hashes. */
#include "index.h"

#include "codec_table.h"
#include "hash.h"

#include <assert.h>
#include <string.h>

void efs_index_tables(const struct efs_index *plan, const char *report_json, uint64_t begin, struct efs_index_tables *t)
{
    *t = (struct efs_index_tables){.data = {[EFS_TABLE_STRINGS] = plan->strings,
                                            [EFS_TABLE_FILES] = plan->files,
                                            [EFS_TABLE_EXTENTS] = plan->extents,
                                            [EFS_TABLE_TENSORS] = plan->tensors,
                                            [EFS_TABLE_GROUPS] = plan->groups,
                                            [EFS_TABLE_OBJECTS] = plan->objects,
                                            [EFS_TABLE_SHARDS] = plan->shards,
                                            [EFS_TABLE_REPORT] = report_json,
                                            [EFS_TABLE_PARTS] = &t->part}};
    const struct {
        uint32_t record_bytes;
        uint64_t count;
    } sizes[EFS_TABLE_COUNT] = {
        [EFS_TABLE_STRINGS] = {1, plan->string_bytes},
        [EFS_TABLE_FILES] = {sizeof(*plan->files), plan->file_count},
        [EFS_TABLE_EXTENTS] = {sizeof(*plan->extents), plan->extent_count},
        [EFS_TABLE_TENSORS] = {sizeof(*plan->tensors), plan->tensor_count},
        [EFS_TABLE_GROUPS] = {sizeof(*plan->groups), plan->group_count},
        [EFS_TABLE_OBJECTS] = {sizeof(*plan->objects), plan->object_count},
        [EFS_TABLE_SHARDS] = {sizeof(*plan->shards), plan->shard_count},
        [EFS_TABLE_REPORT] = {1, strlen(report_json)},
        [EFS_TABLE_PARTS] = {sizeof(t->part), 1},
    };
    struct efs_disk_superblock *sb = &t->sb;
    *sb = (struct efs_disk_superblock){
        .magic = {'e', 'x', 'p', 'e', 'r', 't', 'f', 's'},
        .version = EFS_VERSION_OLDEST,
        .superblock_bytes = sizeof(*sb),
        .source_bytes = plan->source_bytes,
        .shard_elements = plan->shard_elements,
        .block_elements = EFS_BLOCK,
    };
    for (uint32_t s = 0; s < plan->shard_count; s++)
        sb->incompat |=
            efs_codec_of(plan->shards[s].codec)->incompat | (plan->shards[s].checks ? EFS_INCOMPAT_CHECKS : 0);
    if (sb->incompat)
        sb->version = EFS_VERSION;
    for (uint32_t f = 0; f < plan->file_count; f++)
        sb->compat |= plan->files[f].flags ? EFS_COMPAT_FILE_FLAGS : 0;
    uint64_t hashes[EFS_TABLE_COUNT];
    static_assert(EFS_TABLE_PARTS == EFS_TABLE_COUNT - 1, "behind the last table there are zeros up to a page");
    for (int i = 0; i < EFS_TABLE_COUNT; i++) {
        const uint64_t bytes = sizes[i].count * sizes[i].record_bytes;
        if (i == EFS_TABLE_PARTS) /* whole pages, so that O_DIRECT can read the last byte */
            sb->store_bytes = t->part.bytes = efs_page_up(begin + bytes);
        hashes[i] = efs_hash(t->data[i], bytes);
        sb->tables[i] = (struct efs_disk_table){.offset = begin,
                                                .bytes = bytes,
                                                .hash = hashes[i],
                                                .record_bytes = sizes[i].record_bytes,
                                                .count = (uint32_t)sizes[i].count};
        begin = efs_chunk_up(begin + bytes);
    }
    sb->content_hash = efs_hash(hashes, sizeof(hashes));
    sb->hash = efs_hash(sb, offsetof(struct efs_disk_superblock, hash));
}
