/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening damaged and malicious stores: cut at every place, bytes flipped, and indexes that were changed with their
 * checksums made right again. Each is refused with a message, or serves without touching what it should not.
 */
#include "test.h"
#include "codec_table.h"
#include "fixture.h"
#include "hash.h"
#include "layout.h"
#include "expertfs-private.h"

#include <fcntl.h>
#include <semaphore.h>
#include <unistd.h>

static struct fixture model;
static unsigned char *image; /* the good store */
static size_t image_bytes;

static int setup(void **state)
{
    (void)state;
    fixture_store(&model, 2, 3, 64, 128); /* large enough to be coded */
    image = fixture_read(model.store, &image_bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    free(image);
    return 0;
}

static void write_store(const unsigned char *data, size_t bytes)
{
    int fd = open(model.store, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

static errint_t try_open(char text[1024])
{
    struct efs_error err = {""};
    struct efs_store *store = NULL;
    errint_t rc = efs_store_open(model.store, &store, &err);
    memcpy(text, err.text, 1024);
    if (rc == 0) {
        struct efs_store_info info;
        efs_store_info(store, &info);
        efs_store_close(store);
    } else {
        assert_null(store);
        assert_true(text[0] != 0);
        assert_non_null(strstr(text, model.store)); /* names the file */
    }
    return rc;
}

TEST(test_good)
{
    char text[1024];
    write_store(image, image_bytes);
    assert_int_equal(try_open(text), 0);
}

TEST(test_cut)
{
    char text[1024];
    for (size_t bytes = 0; bytes < image_bytes; bytes += bytes < 5000 ? 97 : 1021) {
        write_store(image, bytes);
        assert_true(try_open(text) < 0);
    }
    unsigned char *longer = calloc(1, image_bytes + 100);
    memcpy(longer, image, image_bytes);
    write_store(longer, image_bytes + 100);
    assert_int_equal(try_open(text), -EUCLEAN);
    free(longer);
}

TEST(test_flips)
{
    struct efs_disk_superblock sb;
    char text[1024];
    memcpy(&sb, image, sizeof(sb));
    size_t index = sb.tables[0].offset;
    unsigned char *copy = malloc(image_bytes);
    unsigned refused = 0, padding = 0;
    for (size_t at = 0; at < image_bytes; at += at < 400 ? 1 : at < 4096 ? 61 : 7) {
        if (at >= 4096 && at < index)
            at = index;
        bool counts = at < 4096; /* padding between tables is not looked at */
        for (int t = 0; t < EFS_TABLE_COUNT; t++)
            counts = counts || (at >= sb.tables[t].offset && at - sb.tables[t].offset < sb.tables[t].bytes);
        memcpy(copy, image, image_bytes);
        copy[at] ^= (unsigned char)(1u << (at % 8));
        write_store(copy, image_bytes);
        assert_int_equal(try_open(text) < 0, counts);
        refused += counts;
        padding += !counts;
    }
    assert_true(refused > 500 && padding > 0);
    free(copy);
}

/* ---- indexes changed by someone who knows the format ---- */

static void seal(unsigned char *copy)
{
    struct efs_disk_superblock sb;
    memcpy(&sb, copy, sizeof(sb));
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        if (sb.tables[t].offset <= image_bytes && sb.tables[t].bytes <= image_bytes - sb.tables[t].offset)
            sb.tables[t].hash = efs_hash(copy + sb.tables[t].offset, sb.tables[t].bytes);
    uint64_t hashes[EFS_TABLE_COUNT];
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        hashes[t] = sb.tables[t].hash;
    sb.content_hash = efs_hash(hashes, sizeof(hashes));
    sb.hash = efs_hash(&sb, offsetof(struct efs_disk_superblock, hash));
    memcpy(copy, &sb, sizeof(sb));
}

static unsigned char *record(unsigned char *copy, int table, uint32_t i)
{
    struct efs_disk_superblock sb;
    memcpy(&sb, copy, sizeof(sb));
    assert_true(i < sb.tables[table].count);
    return copy + sb.tables[table].offset + (size_t)i * sb.tables[table].record_bytes;
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
    unsigned char *copy = malloc(image_bytes);
    char text[1024];
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const struct change *c = &changes[i];
        memcpy(copy, image, image_bytes);
        memcpy(record(copy, c->table, c->record) + c->offset, &c->value, c->bytes);
        seal(copy);
        write_store(copy, image_bytes);
        if (try_open(text) != -EUCLEAN)
            fail_msg("change %zu (table %d, offset %zu) was not refused: %s", i, c->table, c->offset, text);
        assert_non_null(strstr(text, "table"));
    }
    static const char *const paths[] = {"../x", "/etc", "a//b", ".", "a/..", "./a"};
    struct efs_disk_file file;
    memcpy(&file, record(image, EFS_TABLE_FILES, 0), sizeof(file));
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) { /* the first path, shortened to a bad one */
        memcpy(copy, image, image_bytes);
        struct efs_disk_file f = file;
        assert_true(strlen(paths[i]) <= f.path_bytes);
        f.path_bytes = (uint32_t)strlen(paths[i]);
        memcpy(record(copy, EFS_TABLE_STRINGS, f.path_offset), paths[i], f.path_bytes);
        memcpy(record(copy, EFS_TABLE_FILES, 0), &f, sizeof(f));
        seal(copy);
        write_store(copy, image_bytes);
        assert_int_equal(try_open(text), -EUCLEAN);
    }
    free(copy);
}

/* ---- what other versions may use ---- */

/* The image with another superblock; tables are as they were. */
static errint_t try_superblock(struct efs_disk_superblock sb, char text[1024])
{
    unsigned char *copy = malloc(image_bytes);
    memcpy(copy, image, image_bytes);
    sb.hash = efs_hash(&sb, offsetof(struct efs_disk_superblock, hash));
    memcpy(copy, &sb, sizeof(sb));
    write_store(copy, image_bytes);
    free(copy);
    return try_open(text);
}

TEST(test_other_versions)
{
    struct efs_disk_superblock good, sb;
    char text[1024];
    memcpy(&good, image, sizeof(good));
    assert_int_equal(good.version, 2);
    sb = good;
    sb.version = 99;
    assert_int_equal(try_superblock(sb, text), -EPROTONOSUPPORT);
    assert_non_null(strstr(text, "a later expertfs"));
    sb.version = 1;
    assert_int_equal(try_superblock(sb, text), -EPROTONOSUPPORT);
    assert_non_null(strstr(text, "pack the checkpoint again"));
    for (int bit = 0; bit < 64; bit++) {
        sb = good;
        sb.incompat = 1ull << bit;
        assert_int_equal(try_superblock(sb, text), -EPROTONOSUPPORT);
        assert_non_null(strstr(text, "a later expertfs"));
        sb = good;
        sb.compat = 1ull << bit; /* may be ignored */
        assert_int_equal(try_superblock(sb, text), 0);
    }
}

/* A shard of a codec that we do not have is of a later program and not damaged. Its writer is to say so by a feature,
 * which each codec but the first four has. */
TEST(test_later_codec)
{
    unsigned char *copy = malloc(image_bytes);
    char text[1024];
    for (uint32_t codec = EFS_CODEC_COUNT; codec != 0; codec = codec < 1000          ? codec + 499
                                                               : codec == UINT32_MAX ? 0
                                                                                     : UINT32_MAX) {
        memcpy(copy, image, image_bytes);
        memcpy(record(copy, EFS_TABLE_SHARDS, 0) + offsetof(struct efs_disk_shard, codec), &codec, sizeof(codec));
        seal(copy);
        write_store(copy, image_bytes);
        assert_int_equal(try_open(text), -EPROTONOSUPPORT);
        assert_non_null(strstr(text, "a later expertfs"));
    }
    free(copy);
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++) {
        uint64_t bit = efs_codec_of(c)->incompat;
        assert_int_equal(bit & ~EFS_INCOMPAT_KNOWN, 0);
        assert_true(c <= EFS_CODEC_LZ4 ? bit == 0 : bit != 0 && (bit & (bit - 1)) == 0);
    }
}

/* Each byte of the superblock that has no meaning yet, and each place of a later table, is zero unless a feature bit
 * that we do not know says what it is for. */
TEST(test_reserved_superblock)
{
    struct efs_disk_superblock good, sb;
    char text[1024];
    memcpy(&good, image, sizeof(good));
    size_t from = offsetof(struct efs_disk_superblock, tables) + EFS_TABLE_COUNT * sizeof(struct efs_disk_table);
    for (size_t at = from; at < offsetof(struct efs_disk_superblock, hash); at += at < from + 300 ? 1 : 97) {
        sb = good;
        ((unsigned char *)&sb)[at] = 1;
        assert_int_equal(try_superblock(sb, text), -EUCLEAN);
        assert_non_null(strstr(text, "features"));
        sb.compat = 1ull << 63;
        assert_int_equal(try_superblock(sb, text), 0);
    }
    sb = good;
    sb.content_hash++;
    assert_int_equal(try_superblock(sb, text), -EUCLEAN);
}

TEST(test_reserved_fields)
{
    static const struct {
        int table;
        size_t offset, bytes;
    } fields[] = {
        {EFS_TABLE_FILES, FIELD(efs_disk_file, reserved)},     {EFS_TABLE_FILES, FIELD(efs_disk_file, flags)},
        {EFS_TABLE_EXTENTS, FIELD(efs_disk_extent, reserved)}, {EFS_TABLE_GROUPS, FIELD(efs_disk_group, reserved)},
        {EFS_TABLE_OBJECTS, FIELD(efs_disk_object, reserved)}, {EFS_TABLE_SHARDS, FIELD(efs_disk_shard, reserved)},
        {EFS_TABLE_PARTS, FIELD(efs_disk_part, reserved)},
    };
    unsigned char *copy = malloc(image_bytes);
    char text[1024];
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        for (unsigned compat = 0; compat < 2; compat++) {
            struct efs_disk_superblock sb;
            memcpy(copy, image, image_bytes);
            memset(record(copy, fields[i].table, 0) + fields[i].offset, 0x40, fields[i].bytes);
            memcpy(&sb, copy, sizeof(sb));
            sb.compat = compat ? UINT64_C(1) << 63 : 0;
            memcpy(copy, &sb, sizeof(sb));
            seal(copy);
            write_store(copy, image_bytes);
            assert_int_equal(try_open(text), compat ? 0 : -EUCLEAN);
        }
    free(copy);
}

/* A second part would be another file or object, which needs a feature bit; none at all is not a store either. */
TEST(test_one_part)
{
    unsigned char *copy = calloc(1, image_bytes);
    char text[1024];
    for (uint32_t count = 0; count < 3; count++) {
        struct efs_disk_superblock sb;
        memcpy(copy, image, image_bytes);
        memcpy(&sb, copy, sizeof(sb));
        struct efs_disk_table *parts = &sb.tables[EFS_TABLE_PARTS];
        parts->count = count;
        parts->bytes = count * sizeof(struct efs_disk_part);
        if (parts->offset + parts->bytes > image_bytes)
            continue;
        memcpy(copy, &sb, sizeof(sb));
        seal(copy);
        write_store(copy, image_bytes);
        assert_int_equal(try_open(text), count == 1 ? 0 : -EUCLEAN);
    }
    free(copy);
}

static void post(void *arg, errint_t error, size_t bytes)
{
    (void)error, (void)bytes;
    sem_post(arg);
}

struct reading {
    sem_t done;
    errint_t error;
};

static void keep_error(void *arg, errint_t error, size_t bytes)
{
    struct reading *reading = arg;
    (void)bytes;
    reading->error = error;
    sem_post(&reading->done);
}

/* Random fields get random values: whatever opens is served to the end. The sanitizers watch. */
TEST(test_random_indexes)
{
    uint64_t rnd = 42;
    unsigned char *copy = malloc(image_bytes), *buffer = malloc(1 << 20);
    unsigned served = 0, refused = 0;
    for (int round = 0; round < 1500; round++) {
        memcpy(copy, image, image_bytes);
        struct efs_disk_superblock sb;
        memcpy(&sb, copy, sizeof(sb));
        unsigned changes = 1 + (unsigned)(fixture_random(&rnd) % 3);
        for (unsigned i = 0; i < changes; i++) {
            const struct efs_disk_table *t = &sb.tables[fixture_random(&rnd) % EFS_TABLE_COUNT];
            if (t->bytes < 8)
                continue;
            size_t at = t->offset + fixture_random(&rnd) % (t->bytes - 7);
            uint64_t value = fixture_random(&rnd) >> (fixture_random(&rnd) % 64);
            memcpy(copy + at, &value, (size_t)1 << fixture_random(&rnd) % 4);
        }
        seal(copy);
        write_store(copy, image_bytes);
        struct efs_options options = {.budget_bytes = 64 << 20, .workers = 1, .full_pool = true};
        struct efs_error err = {""};
        struct efs *fs;
        if (efs_open(model.store, &options, &fs, &err) < 0) {
            refused++;
            continue;
        }
        served++;
        sem_t done;
        sem_init(&done, 0, 0);
        for (uint32_t f = 0; f < efs_file_count(fs); f++) {
            struct efs_file_info info;
            assert_int_equal(efs_file_info(fs, f, &info), 0);
            efs_read(fs, f, NULL, 0, buffer, 1 << 20, post, &done);
            sem_wait(&done);
        }
        efs_close(fs);
        sem_destroy(&done);
    }
    assert_true(refused > 300 && served > 100);
    print_message("%u refused, %u served\n", refused, served);
    free(copy);
    free(buffer);
}

/* ---- each field, one at a time ---- */

/* All files, one behind the other; what could not be read is left as it was in bytes. 0, or the first error. */
static errint_t read_files(struct efs *fs, unsigned char *bytes, size_t room, size_t *used)
{
    errint_t first = 0;
    *used = 0;
    for (uint32_t f = 0; f < efs_file_count(fs); f++) {
        struct efs_file_info info;
        struct reading reading;
        assert_int_equal(efs_file_info(fs, f, &info), 0);
        if (info.bytes > room - *used) /* another file than was packed: it cannot be right */
            return -EFBIG;
        sem_init(&reading.done, 0, 0);
        efs_read(fs, f, NULL, 0, bytes + *used, info.bytes, keep_error, &reading);
        sem_wait(&reading.done);
        sem_destroy(&reading.done);
        first = first ? first : reading.error;
        *used += info.bytes;
    }
    return first;
}

static uint64_t changed(uint64_t value, unsigned bits, unsigned how, uint64_t *rnd)
{
    const uint64_t values[] = {0,         UINT64_MAX, value ^ 1ull << (bits - 1), value ^ 1ull << bits / 2, value ^ 1,
                               value + 1, value - 1,  fixture_random(rnd)};
    return values[how];
}

/* With the checksums made right again: a store that opens gives the right bytes or an error. */
TEST(test_fields)
{
    const struct efs_options options = {.budget_bytes = 64 << 20, .workers = 1};
    const size_t room = 4u << 20;
    unsigned char *copy = malloc(image_bytes), *want = malloc(room), *got = malloc(room);
    unsigned refused = 0, errors = 0, right = 0;
    size_t want_bytes, got_bytes;
    uint64_t rnd = 11;
    struct efs *fs;
    struct efs_error err;
    struct efs_disk_superblock sb;
    write_store(image, image_bytes);
    assert_int_equal(efs_open(model.store, &options, &fs, &err), 0);
    assert_int_equal(read_files(fs, want, room, &want_bytes), 0);
    efs_close(fs);
    memcpy(&sb, image, sizeof(sb));
    const struct {
        size_t begin, bytes;
    } areas[] = {{0, offsetof(struct efs_disk_superblock, zero) + 8},
                 {sb.tables[EFS_TABLE_PARTS].offset, sizeof(struct efs_disk_part)},
                 {sb.tables[EFS_TABLE_SHARDS].offset, 3 * sizeof(struct efs_disk_shard)}};
    for (size_t a = 0; a < sizeof(areas) / sizeof(areas[0]); a++)
        for (size_t at = areas[a].begin; at < areas[a].begin + areas[a].bytes; at += 4)
            for (unsigned how = 0; how < 16; how++) { /* as 32 and as 64 bits */
                unsigned bytes = how < 8 ? 4 : 8;
                uint64_t value = 0;
                if (bytes == 8 && at % 8 != 0)
                    continue;
                memcpy(copy, image, image_bytes);
                memcpy(&value, copy + at, bytes);
                value = changed(value, 8 * bytes, how % 8, &rnd);
                memcpy(copy + at, &value, bytes);
                seal(copy);
                write_store(copy, image_bytes);
                if (efs_open(model.store, &options, &fs, &err) < 0) {
                    refused++;
                    continue;
                }
                errint_t rc = read_files(fs, got, room, &got_bytes);
                efs_close(fs);
                if (rc == 0 && (got_bytes != want_bytes || memcmp(got, want, want_bytes) != 0))
                    fail_msg("offset %zu, %u bytes are 0x%llx: wrong bytes", at, bytes, (unsigned long long)value);
                errors += rc < 0;
                right += rc == 0;
            }
    print_message("%u refused, %u with errors, %u right\n", refused, errors, right);
    assert_true(refused > 1000 && errors > 100 && right > 10);
    free(copy);
    free(want);
    free(got);
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
