/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small reads and rows of tables of a checkpoint served in place (engine/fetch/slot.c, read_rows.c): they read
 * only their pages, once; other bytes of a file that changed are never returned.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "sync_calls.h"

#define PAGE ((size_t)4096)
#define TABLE_BYTES ((size_t)5 << 20)
#define ROW_BYTES ((size_t)2000) /* crosses pages, and extents and shards at times */
#define ROWS (TABLE_BYTES / ROW_BYTES)
#define BATCH 64u

static struct fixture model;
static uint8_t *raw;
static uint64_t bytes, table; /* of the file; offset of the table */
static uint64_t seed = 5;

/* model.safetensors: an expert tensor, then a table that starts off a page. */
static int setup(void **state)
{
    char header[400];
    (void)state;
    int n = snprintf(header, sizeof(header),
                     "{\"model.layers.0.mlp.experts.0.up_proj.weight\":{\"dtype\":\"U8\",\"shape\":[100,1001],"
                     "\"data_offsets\":[0,100100]},\"embed.weight\":{\"dtype\":\"U8\",\"shape\":[%zu],"
                     "\"data_offsets\":[100100,%zu]}}",
                     TABLE_BYTES, 100100 + TABLE_BYTES);
    const uint64_t length = (uint64_t)n;
    table = 8 + length + 100100;
    bytes = table + TABLE_BYTES;
    raw = malloc(bytes);
    assert_non_null(raw);
    memcpy(raw, &length, 8);
    memcpy(raw + 8, header, length);
    for (size_t i = 8 + length; i < bytes; i++)
        raw[i] = (uint8_t)fixture_random(&seed);
    fixture_begin(&model);
    fixture_file(&model, "model.safetensors", raw, bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(raw);
    fixture_end(&model);
    return 0;
}

static struct efs *open_in_place(uint64_t budget_bytes)
{
    struct efs_error err = {""};
    struct efs *fs = NULL;
    struct efs_options options = {.workers = 2, .no_state = true, .budget_bytes = budget_bytes};
    if (efs_open(model.source, &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

static uint64_t disk_bytes(struct efs *fs)
{
    return fixture_drain(fs).disk_bytes;
}

/* Reads a batch of rows of this size and compares them. numbers: of the rows; [count], at most BATCH. */
static void check_rows_of(struct efs *fs, const uint64_t *numbers, unsigned count, size_t row_bytes)
{
    uint8_t *got = malloc(count * row_bytes);
    void *scratch = malloc(efs_rows_scratch_bytes(count, row_bytes));
    struct efs_row rows[BATCH];
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    for (unsigned i = 0; i < count; i++)
        rows[i] = (struct efs_row){table + numbers[i] * row_bytes, got + i * row_bytes};
    errint_t rc = efs_read_rows(fs, file, rows, count, row_bytes, scratch);
    bool same = rc == 0;
    for (unsigned i = 0; same && i < count; i++)
        same = memcmp(rows[i].dst, raw + rows[i].offset, row_bytes) == 0;
    if (!same) {
        fprintf(stderr, "rows differ, or error %d\n", rc);
        abort(); /* works on any thread, unlike cmocka's assertions */
    }
    free(scratch);
    free(got);
}

static void check_rows(struct efs *fs, const uint64_t *numbers, unsigned count)
{
    check_rows_of(fs, numbers, count, ROW_BYTES);
}

static void draw(uint64_t *numbers, unsigned count, uint64_t *state)
{
    for (unsigned i = 0; i < count; i++)
        numbers[i] = fixture_random(state) % ROWS;
}

TEST(small_reads)
{
    struct efs *fs = open_in_place(0);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    uint8_t got[PAGE];
    for (unsigned i = 0; i < 40; i++) {
        uint64_t at = table + fixture_random(&seed) % (TABLE_BYTES - PAGE), before = disk_bytes(fs);
        assert_int_equal(read_wait(fs, file, NULL, at, got, PAGE), PAGE);
        assert_memory_equal(got, raw + at, PAGE);
        assert_true(disk_bytes(fs) - before <= 2 * PAGE);
        before = disk_bytes(fs);
        assert_int_equal(read_wait(fs, file, NULL, at, got, PAGE), PAGE);
        assert_int_equal(disk_bytes(fs), before);
    }
    assert_true(fixture_drain(fs).reads_small >= 70); /* a random read may be sequential to one before it */
    efs_close(fs);
}

/* A row reads at most the pages that it touches, once. */
TEST(rows)
{
    struct efs *fs = open_in_place(0);
    uint64_t numbers[BATCH], before = disk_bytes(fs);
    draw(numbers, BATCH - 2, &seed);
    numbers[BATCH - 2] = 0;
    numbers[BATCH - 1] = ROWS - 1;
    check_rows(fs, numbers, BATCH);
    assert_true(disk_bytes(fs) - before <= 2 * PAGE * BATCH);
    before = disk_bytes(fs);
    check_rows(fs, numbers, BATCH);
    assert_int_equal(disk_bytes(fs), before);
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.reads_small, 2 * BATCH);
    assert_int_equal(s.reads, s.reads_c + s.reads_m);
    efs_close(fs);
}

/* Rows of any size, cold and from memory. However many bytes they have, no critical section copies more than
 * EFS_LOCKED_COPY_MAX, which efs_copy_locked() asserts. */
TEST(sizes)
{
    static const size_t sizes[] = {1, PAGE, 3 * PAGE + 1, 70000, EFS_ROW_BYTES_MAX - 1, EFS_ROW_BYTES_MAX};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct efs *fs = open_in_place(0);
        uint64_t numbers[BATCH], count = TABLE_BYTES / sizes[i] < BATCH ? TABLE_BYTES / sizes[i] : BATCH;
        for (unsigned k = 0; k < count; k++)
            numbers[k] = count - 1 - k;
        for (unsigned again = 0; again < 3; again++)
            check_rows_of(fs, numbers, (unsigned)count, sizes[i]);
        struct efs_stats s = fixture_drain(fs);
        assert_true(s.reads_c > 0);
        assert_int_equal(s.reads, s.reads_c + s.reads_m);
        efs_close(fs);
    }
}

static void *crowd_read(void *arg)
{
    uint64_t numbers[BATCH], state = (uint64_t)(uintptr_t)&numbers;
    for (unsigned i = 0; i < 30; i++) {
        draw(numbers, BATCH, &state);
        check_rows(arg, numbers, BATCH);
    }
    return NULL;
}

/* Threads at once, with little memory, within the budget. */
TEST(crowd)
{
    struct efs *fs = open_in_place(24 << 20);
    pthread_t threads[4];
    for (unsigned t = 0; t < 4; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, crowd_read, fs), 0);
    for (unsigned t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    fixture_drain(fs);
    fixture_within_budget(fs);
    efs_close(fs);
}

TEST(refused)
{
    struct efs *fs = open_in_place(0);
    uint8_t got[ROW_BYTES], *scratch = malloc(efs_rows_scratch_bytes(1, ROW_BYTES));
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    const uint64_t bad[] = {table - 2000 /* an expert's */, table - 100, table + TABLE_BYTES - ROW_BYTES + 1, bytes,
                            UINT64_MAX};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct efs_row row = {bad[i], got};
        assert_int_equal(efs_read_rows(fs, file, &row, 1, ROW_BYTES, scratch), -EINVAL);
    }
    struct efs_row row = {table, got};
    assert_int_equal(efs_read_rows(fs, file + 1000, &row, 1, ROW_BYTES, scratch), -EBADF);
    assert_int_equal(efs_read_rows(fs, file, &row, 1, EFS_ROW_BYTES_MAX + 1, scratch), -EOPNOTSUPP);
    efs_close(fs);
    fixture_pack(&model, &(struct efs_pack_options){.force = true});
    fs = fixture_open(&model, (struct efs_options){.workers = 1, .no_state = true});
    assert_int_equal(efs_read_rows(fs, 0, &row, 1, ROW_BYTES, scratch), -EOPNOTSUPP);
    efs_close(fs);
    free(scratch);
}

/* The file is shorter than when it was opened. */
TEST(truncated)
{
    char path[400];
    struct efs *fs = open_in_place(0);
    uint8_t got[ROW_BYTES], *scratch = malloc(efs_rows_scratch_bytes(1, ROW_BYTES));
    struct efs_row row = {table + 7 * ROW_BYTES, got};
    const uint64_t first = 7;
    check_rows(fs, &first, 1);
    snprintf(path, sizeof(path), "%s/model.safetensors", model.source);
    assert_int_equal(truncate(path, (off_t)(bytes - PAGE)), 0);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    assert_int_equal(efs_read_rows(fs, file, &row, 1, ROW_BYTES, scratch), 0); /* from memory, as it was */
    assert_memory_equal(got, raw + row.offset, ROW_BYTES);
    row.offset = table + 900 * ROW_BYTES;
    assert_int_equal(efs_read_rows(fs, file, &row, 1, ROW_BYTES, scratch), -EIO);
    assert_int_equal(fixture_drain(fs).read_errors, 1);
    efs_close(fs);
    free(scratch);
    fixture_file(&model, "model.safetensors", raw, bytes);
}

TEST_MAIN(setup, teardown)
