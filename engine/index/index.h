/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - the index of a store, made from a catalogue.
 *
 * index/ lays out groups, objects, shards and extents without reading weights, and makes the tables and the superblock.
 * pack/ calls it for a store that it writes, plain/ for a checkpoint that is served in place. It never reads or writes
 * a file.
 *
 *   index.c         catalogue -> groups, objects, shards, extents, and their order on disk
 *   index_tables.c  tables and superblock
 */
#ifndef EFS_INDEX_H
#define EFS_INDEX_H

#include "catalog.h"
#include "codec.h"
#include "layout.h"

#define EFS_INDEX_BYTES (160u << 20) /* limit of the tables; a source that needs more is rejected */

/* The source file and offset of an object's first byte. */
struct efs_index_origin {
    uint32_t file;
    uint64_t offset;
};

struct efs_index {
    const struct efs_catalog *catalog;
    enum efs_codec_choice codec;
    uint32_t shard_elements;
    uint64_t small_reads_bytes; /* as in struct efs_pack_options, never 0 */
    char *strings;
    size_t string_bytes, string_room;
    struct efs_disk_file *files;
    struct efs_disk_extent *extents;
    struct efs_disk_tensor *tensors;
    struct efs_disk_group *groups;
    struct efs_disk_object *objects;
    struct efs_disk_shard *shards;
    uint32_t file_count, extent_count, tensor_count, group_count, object_count, shard_count;
    struct efs_index_origin *origins;    /* for each object */
    uint32_t *order;                     /* groups in disk order */
    uint64_t source_bytes, copied_bytes; /* copied_bytes: bytes of files that are copies */
};

/* Builds the tables of the catalogue's store, with empty shards. The caller must free plan, also on error. -ENOMEM,
 * -E2BIG, -EUCLEAN. */
errint_t efs_index_plan(struct efs_index *plan, const struct efs_catalog *catalog, enum efs_codec_choice codec,
                        uint32_t shard_elements, struct efs_error *err);
void efs_index_free(struct efs_index *plan);
/* Whether an object gets page checksums and short spans. */
bool efs_index_for_small_reads(const struct efs_index *plan, uint32_t object);
/* Number of elements of a shard of an object. */
size_t efs_index_shard_elements(const struct efs_index *plan, uint32_t object, uint32_t shard);

/* Superblock and index tables of a store. The tables begin at `begin`, a multiple of EFS_ALIGN, one after the other at
 * multiples of EFS_CHUNK_ALIGN; sb.tables has their places. data points into the plan, report_json and the struct
 * itself, which must not be copied. */
struct efs_index_tables {
    const void *data[EFS_TABLE_COUNT];
    struct efs_disk_part part;
    struct efs_disk_superblock sb;
};
void efs_index_tables(const struct efs_index *plan, const char *report_json, uint64_t begin,
                      struct efs_index_tables *tables);

#endif
