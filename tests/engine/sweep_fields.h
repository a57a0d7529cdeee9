/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep_fields.h - every field of a store, for tests that change one at a time: the superblock, a record of each table,
 * and the headers of a cascade chunk and of its spans, with the offsets that kernels.h documents.
 */
#ifndef EFS_SWEEP_FIELDS_H
#define EFS_SWEEP_FIELDS_H

#include "layout.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct sweep_field {
    const char *name;
    size_t offset; /* from the start of the record */
    unsigned bytes;
};

#define SWEEP_FIELD(type, name)                                                                                        \
    {                                                                                                                  \
#type "." #name, offsetof(struct efs_disk_##type, name), sizeof(((struct efs_disk_##type *)0)->name)           \
    }

static const struct sweep_field superblock_fields[] = {
    SWEEP_FIELD(superblock, magic),
    SWEEP_FIELD(superblock, version),
    SWEEP_FIELD(superblock, superblock_bytes),
    SWEEP_FIELD(superblock, incompat),
    SWEEP_FIELD(superblock, compat),
    SWEEP_FIELD(superblock, store_bytes),
    SWEEP_FIELD(superblock, source_bytes),
    SWEEP_FIELD(superblock, content_hash),
    SWEEP_FIELD(superblock, shard_elements),
    SWEEP_FIELD(superblock, block_elements),
    SWEEP_FIELD(superblock, hash),
};
static const struct sweep_field table_fields[] = {
    SWEEP_FIELD(table, offset),       SWEEP_FIELD(table, bytes), SWEEP_FIELD(table, hash),
    SWEEP_FIELD(table, record_bytes), SWEEP_FIELD(table, count),
};
static const struct sweep_field file_fields[] = {
    SWEEP_FIELD(file, path_offset),  SWEEP_FIELD(file, path_bytes),   SWEEP_FIELD(file, bytes),
    SWEEP_FIELD(file, extent_first), SWEEP_FIELD(file, extent_count), SWEEP_FIELD(file, reserved),
};
static const struct sweep_field extent_fields[] = {
    SWEEP_FIELD(extent, file_offset), SWEEP_FIELD(extent, bytes),    SWEEP_FIELD(extent, object_offset),
    SWEEP_FIELD(extent, object),      SWEEP_FIELD(extent, reserved),
};
#define SHAPE(d)                                                                                                       \
    {                                                                                                                  \
        "tensor.shape[" #d "]", offsetof(struct efs_disk_tensor, shape) + 8 * d, 8                                     \
    }
static const struct sweep_field tensor_fields[] = {
    SWEEP_FIELD(tensor, name_offset),
    SWEEP_FIELD(tensor, name_bytes),
    SWEEP_FIELD(tensor, dtype),
    SWEEP_FIELD(tensor, dims),
    SWEEP_FIELD(tensor, expert_dim),
    SWEEP_FIELD(tensor, file),
    SWEEP_FIELD(tensor, file_offset),
    SWEEP_FIELD(tensor, bytes),
    SHAPE(0),
    SHAPE(1),
    SHAPE(2),
    SHAPE(3),
    SHAPE(4),
    SHAPE(5),
    SHAPE(6),
    SHAPE(7),
};
static const struct sweep_field group_fields[] = {
    SWEEP_FIELD(group, kind),         SWEEP_FIELD(group, stack_offset), SWEEP_FIELD(group, stack_bytes),
    SWEEP_FIELD(group, layer),        SWEEP_FIELD(group, expert),       SWEEP_FIELD(group, object_first),
    SWEEP_FIELD(group, object_count), SWEEP_FIELD(group, reserved),
};
static const struct sweep_field object_fields[] = {
    SWEEP_FIELD(object, tensor), SWEEP_FIELD(object, group),       SWEEP_FIELD(object, tensor_offset),
    SWEEP_FIELD(object, bytes),  SWEEP_FIELD(object, shard_first), SWEEP_FIELD(object, shard_count),
    SWEEP_FIELD(object, format), SWEEP_FIELD(object, reserved),
};
static const struct sweep_field shard_fields[] = {
    SWEEP_FIELD(shard, e_offset), SWEEP_FIELD(shard, sm_offset), SWEEP_FIELD(shard, e_hash),
    SWEEP_FIELD(shard, sm_hash),  SWEEP_FIELD(shard, raw_hash),  SWEEP_FIELD(shard, e_bytes),
    SWEEP_FIELD(shard, sm_bytes), SWEEP_FIELD(shard, codec),     SWEEP_FIELD(shard, checks),
};
static const struct sweep_field part_fields[] = {
    SWEEP_FIELD(part, address),    SWEEP_FIELD(part, bytes),    SWEEP_FIELD(part, name_offset),
    SWEEP_FIELD(part, name_bytes), SWEEP_FIELD(part, reserved),
};
/* Two samples of the bytes of a table of text. */
static const struct sweep_field string_fields[] = {{"strings byte", 0, 1}, {"strings word", 0, 4}};

#define SWEEP_COUNT(fields) (sizeof(fields) / sizeof((fields)[0]))
#define SWEEP_TABLE(t, fields) [t] = {fields, SWEEP_COUNT(fields)}
static const struct {
    const struct sweep_field *fields;
    size_t count;
} record_fields[EFS_TABLE_COUNT] = {
    SWEEP_TABLE(EFS_TABLE_STRINGS, string_fields), SWEEP_TABLE(EFS_TABLE_FILES, file_fields),
    SWEEP_TABLE(EFS_TABLE_EXTENTS, extent_fields), SWEEP_TABLE(EFS_TABLE_TENSORS, tensor_fields),
    SWEEP_TABLE(EFS_TABLE_GROUPS, group_fields),   SWEEP_TABLE(EFS_TABLE_OBJECTS, object_fields),
    SWEEP_TABLE(EFS_TABLE_SHARDS, shard_fields),   SWEEP_TABLE(EFS_TABLE_REPORT, string_fields),
    SWEEP_TABLE(EFS_TABLE_PARTS, part_fields),
};

static const struct sweep_field cascade_chunk_fields[] = {
    {"cascade symbols", 0, 4}, {"cascade spans", 4, 4}, {"cascade code_bytes", 8, 4}, {"cascade zero", 12, 4}};
#define SWEEP_CASCADE_SPANS 16 /* offset of the first span header */
#define SWEEP_CASCADE_SPAN 36  /* bytes of a span header */
static const struct sweep_field cascade_span_fields[] = {
    {"span offset", 0, 4},    {"span count 1", 4, 2},   {"span count 2", 6, 2},   {"span count 3", 8, 2},
    {"span count 4", 10, 2},  {"span count 5", 12, 2},  {"span entry 1", 14, 2},  {"span entry 2", 16, 2},
    {"span entry 3", 18, 2},  {"span levels", 20, 1},   {"span table 0", 21, 1},  {"span table 1", 22, 1},
    {"span table 2", 23, 1},  {"span table 3", 24, 1},  {"span table 4", 25, 1},  {"span table 5", 26, 1},
    {"span table 6", 27, 1},  {"span table 7", 28, 1},  {"span table 8", 29, 1},  {"span table 9", 30, 1},
    {"span table 10", 31, 1}, {"span table 11", 32, 1}, {"span table 12", 33, 1}, {"span table 13", 34, 1},
    {"span table 14", 35, 1},
};

/* Changes that are made to a field. */
#define SWEEP_CHANGES 8
static const char *const sweep_change_names[SWEEP_CHANGES] = {"zero",    "ones", "high bit", "middle bit",
                                                              "low bit", "+1",   "-1",       "random"};

static inline uint64_t sweep_changed(uint64_t value, unsigned bytes, unsigned how, uint64_t random)
{
    const unsigned bits = 8 * bytes;
    const uint64_t values[SWEEP_CHANGES] = {
        0, UINT64_MAX, value ^ 1ull << (bits - 1), value ^ 1ull << bits / 2, value ^ 1, value + 1, value - 1, random};
    return bits < 64 ? values[how] & ((1ull << bits) - 1) : values[how];
}

#endif
