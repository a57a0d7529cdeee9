/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens stores whose index breaks a rule of the format, with valid checksums: each is refused with a message that names
 * the file, or served where the rule says so. test_sweep.c and test_sweep_places.c test damage, and reads of forged
 * stores.
 */
#include "test.h"
#include "codec_table.h"
#include "fixture.h"
#include "store_rehash.h"
#include "expertfs-private.h"

static struct fixture model;
static unsigned char *image, *copy; /* the good store and a changed copy */
static size_t image_bytes;
static char said[1024]; /* message of the last open */

static int setup(void **state)
{
    (void)state;
    fixture_store(&model, 2, 3, 64, 128); /* large enough to be coded */
    image = fixture_read(model.store, &image_bytes);
    copy = malloc(image_bytes);
    assert_non_null(copy);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    free(image);
    free(copy);
    return 0;
}

/* Resets the copy to the good store. */
static struct efs_disk_superblock *begin(void)
{
    memcpy(copy, image, image_bytes);
    return (struct efs_disk_superblock *)(void *)copy;
}

static unsigned char *record(int table, uint32_t i)
{
    struct efs_disk_superblock sb;
    memcpy(&sb, copy, sizeof(sb));
    assert_true(i < sb.tables[table].count);
    return copy + sb.tables[table].offset + (size_t)i * sb.tables[table].record_bytes;
}

static errint_t open_copy(void)
{
    struct efs_error err = {""};
    struct efs_store *store = NULL;
    fixture_file_below(model.directory, "model.efs", copy, image_bytes);
    errint_t rc = efs_store_open(model.store, &store, &err);
    memcpy(said, err.text, sizeof(said));
    if (rc == 0) {
        efs_store_close(store);
    } else {
        assert_null(store);
        assert_non_null(strstr(said, model.store)); /* names the file */
    }
    return rc;
}

static errint_t open_sealed(void)
{
    store_rehash(copy, image_bytes);
    return open_copy();
}

TEST(test_good)
{
    begin();
    assert_int_equal(open_copy(), 0);
}

struct change {
    int table;
    uint32_t record;
    size_t offset, bytes;
    uint64_t value;
};
#define FIELD(type, name) offsetof(struct type, name), sizeof(((struct type *)0)->name)

TEST(test_rules)
{
    static const struct change changes[] = {
        {EFS_TABLE_FILES, 0, FIELD(efs_disk_file, path_offset), UINT32_MAX},
        {EFS_TABLE_FILES, 0, FIELD(efs_disk_file, path_bytes), 0},
        {EFS_TABLE_FILES, 0, FIELD(efs_disk_file, path_bytes), UINT32_MAX},
        {EFS_TABLE_FILES, 1, FIELD(efs_disk_file, bytes), UINT64_MAX},
        {EFS_TABLE_FILES, 1, FIELD(efs_disk_file, bytes), 5},
        {EFS_TABLE_FILES, 1, FIELD(efs_disk_file, extent_first), UINT32_MAX},
        {EFS_TABLE_FILES, 1, FIELD(efs_disk_file, extent_count), UINT32_MAX},
        {EFS_TABLE_EXTENTS, 1, FIELD(efs_disk_extent, object), UINT32_MAX},
        {EFS_TABLE_EXTENTS, 1, FIELD(efs_disk_extent, object_offset), UINT64_MAX},
        {EFS_TABLE_EXTENTS, 1, FIELD(efs_disk_extent, bytes), 0},
        {EFS_TABLE_EXTENTS, 1, FIELD(efs_disk_extent, file_offset), 1},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, name_offset), UINT32_MAX},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, dims), 200},
        {EFS_TABLE_TENSORS, 0, offsetof(struct efs_disk_tensor, shape) + 7 * 8, 8, 1},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, dtype), 0},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, dtype), 200},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, file), UINT32_MAX},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, bytes), UINT64_MAX},
        {EFS_TABLE_TENSORS, 0, FIELD(efs_disk_tensor, expert_dim), 2},
        {EFS_TABLE_GROUPS, 0, FIELD(efs_disk_group, kind), 9},
        {EFS_TABLE_GROUPS, 0, FIELD(efs_disk_group, kind), EFS_GROUP_BLOB},
        {EFS_TABLE_GROUPS, 1, FIELD(efs_disk_group, expert), 0},
        {EFS_TABLE_GROUPS, 0, FIELD(efs_disk_group, stack_bytes), UINT32_MAX},
        {EFS_TABLE_GROUPS, 0, FIELD(efs_disk_group, object_count), UINT32_MAX},
        {EFS_TABLE_GROUPS, 0, FIELD(efs_disk_group, object_first), 1},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, tensor), 1000000},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, tensor), EFS_NONE},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, group), UINT32_MAX},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, bytes), 0},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, bytes), 3},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, bytes), UINT64_MAX - 1},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, format), 77},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, shard_first), UINT32_MAX},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, shard_count), 0},
        {EFS_TABLE_OBJECTS, 0, FIELD(efs_disk_object, tensor_offset), UINT64_MAX},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_offset), 1},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_offset), 0},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_offset), UINT64_MAX & ~4095ull},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, sm_offset), 1ull << 60},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_bytes), 0},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_bytes), UINT32_MAX},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, sm_bytes), 1},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, codec), EFS_CODEC_NONE},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, e_offset), 4096 + 32},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, sm_offset), 64},
        {EFS_TABLE_SHARDS, 0, FIELD(efs_disk_shard, sm_offset), UINT64_MAX & ~63ull},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, address), 4096},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, bytes), 0},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, bytes), UINT64_MAX},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, name_offset), UINT32_MAX},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, name_bytes), 1},
        {EFS_TABLE_PARTS, 0, FIELD(efs_disk_part, name_bytes), UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const struct change *c = &changes[i];
        begin();
        memcpy(record(c->table, c->record) + c->offset, &c->value, c->bytes);
        if (open_sealed() != -EUCLEAN)
            fail_msg("change %zu (table %d, offset %zu) was not refused: %s", i, c->table, c->offset, said);
        assert_non_null(strstr(said, "table"));
    }
}

/* The first path, replaced by a shorter, invalid one. */
TEST(test_paths)
{
    static const char *const paths[] = {"../x", "/etc", "a//b", ".", "a/..", "./a"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct efs_disk_file f;
        begin();
        memcpy(&f, record(EFS_TABLE_FILES, 0), sizeof(f));
        assert_true(strlen(paths[i]) <= f.path_bytes);
        f.path_bytes = (uint32_t)strlen(paths[i]);
        memcpy(record(EFS_TABLE_STRINGS, f.path_offset), paths[i], f.path_bytes);
        memcpy(record(EFS_TABLE_FILES, 0), &f, sizeof(f));
        assert_int_equal(open_sealed(), -EUCLEAN);
    }
}

/* ---- reserved for other versions ---- */

static void other_version(const char *words)
{
    assert_int_equal(open_sealed(), -EPROTONOSUPPORT);
    assert_non_null(strstr(said, words));
}

TEST(test_other_versions)
{
    assert_int_equal(begin()->version, 2);
    begin()->version = 99;
    other_version("a later expertfs");
    begin()->version = 1;
    other_version("pack the checkpoint again");
    for (int bit = 0; bit < 64; bit++) {
        begin()->incompat = 1ull << bit;
        other_version("a later expertfs");
        begin()->compat = 1ull << bit; /* is ignored */
        assert_int_equal(open_sealed(), 0);
    }
}

/* A shard of an unknown codec comes from a later version, and is not reported as damage. A store with such a shard
 * should set the codec's feature bit, which all codecs but the first four have. */
TEST(test_later_codec)
{
    static const uint32_t later[] = {EFS_CODEC_COUNT, 499, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        begin();
        memcpy(record(EFS_TABLE_SHARDS, 0) + offsetof(struct efs_disk_shard, codec), &later[i], sizeof(later[i]));
        other_version("a later expertfs");
    }
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++) {
        uint64_t bit = efs_codec_of(c)->incompat;
        assert_int_equal(bit & ~EFS_INCOMPAT_KNOWN, 0);
        assert_true(c <= EFS_CODEC_LZ4 ? bit == 0 : bit != 0 && (bit & (bit - 1)) == 0);
    }
}

/* Reserved bytes of the superblock, and its places for further tables, must be zero unless an unknown compat bit is
 * set. */
TEST(test_reserved_superblock)
{
    size_t from = offsetof(struct efs_disk_superblock, tables) + EFS_TABLE_COUNT * sizeof(struct efs_disk_table);
    for (size_t at = from; at < offsetof(struct efs_disk_superblock, hash); at += at < from + 300 ? 1 : 97) {
        struct efs_disk_superblock *sb = begin();
        copy[at] = 1;
        assert_int_equal(open_sealed(), -EUCLEAN);
        assert_non_null(strstr(said, "features"));
        sb->compat = 1ull << 63;
        assert_int_equal(open_sealed(), 0);
    }
    struct efs_disk_superblock *sb = begin();
    sb->content_hash++;
    sb->hash = efs_hash(sb, offsetof(struct efs_disk_superblock, hash));
    assert_int_equal(open_copy(), -EUCLEAN);
}

TEST(test_reserved_fields)
{
    static const struct {
        int table;
        size_t offset, bytes;
    } fields[] = {
        {EFS_TABLE_FILES, FIELD(efs_disk_file, reserved)},     {EFS_TABLE_FILES, FIELD(efs_disk_file, flags)},
        {EFS_TABLE_EXTENTS, FIELD(efs_disk_extent, reserved)}, {EFS_TABLE_GROUPS, FIELD(efs_disk_group, reserved)},
        {EFS_TABLE_OBJECTS, FIELD(efs_disk_object, reserved)}, {EFS_TABLE_PARTS, FIELD(efs_disk_part, reserved)},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        struct efs_disk_superblock *sb = begin();
        memset(record(fields[i].table, 0) + fields[i].offset, 0x40, fields[i].bytes);
        assert_int_equal(open_sealed(), -EUCLEAN);
        sb->compat = 1ull << 63;
        assert_int_equal(open_sealed(), 0);
    }
}

/* Page checksums need the feature bit, and lie among the chunks; experts have none. */
TEST(test_page_checksums)
{
    static const uint32_t checks[] = {1, 40, UINT32_MAX};
    struct efs_disk_superblock sb = *begin();
    for (uint32_t i = 0; i < sb.tables[EFS_TABLE_SHARDS].count; i++)
        for (size_t c = 0; c < sizeof(checks) / sizeof(checks[0]); c++)
            for (int feature = 0; feature < 2; feature++) {
                struct efs_disk_superblock *changed = begin();
                changed->version = feature ? 3 : 2;
                changed->incompat = feature ? EFS_INCOMPAT_CHECKS : 0;
                unsigned char *shard = record(EFS_TABLE_SHARDS, i);
                uint32_t codec;
                memcpy(&codec, shard + offsetof(struct efs_disk_shard, codec), sizeof(codec));
                memcpy(shard + offsetof(struct efs_disk_shard, checks), &checks[c], sizeof(checks[c]));
                errint_t rc = open_sealed();
                assert_true(rc == -EUCLEAN || (rc == 0 && feature && c < 2 && codec <= EFS_CODEC_CASCADE));
            }
}

/* A second part would be another file or object, which needs a feature bit. A store without a part is invalid. */
TEST(test_one_part)
{
    for (uint32_t count = 0; count < 3; count++) {
        struct efs_disk_table *parts = &begin()->tables[EFS_TABLE_PARTS];
        parts->count = count;
        parts->bytes = count * sizeof(struct efs_disk_part);
        if (parts->offset + parts->bytes <= image_bytes)
            assert_int_equal(open_sealed(), count == 1 ? 0 : -EUCLEAN);
    }
}

TEST(test_not_a_store)
{
    struct efs_error err = {""};
    struct efs_store *store;
    assert_int_equal(efs_store_open(model.directory, &store, &err), -EISDIR);
    assert_int_equal(efs_store_open("/nonexistent/x.efs", &store, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/x.efs"));
}

TEST_MAIN(setup, teardown)
