/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of real size, in small: 20,000 experts in one file of 6 GB, with chunks at offsets of up to 9 TiB, beyond
 * 32-bit byte and page numbers. The generator of the store is the reference.
 */
#include "test.h"
#include "fixture.h"
#include "large_store.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "sync_calls.h"

#define MIB (1ull << 20)

static const struct large_store large = {.layers = 80,
                                         .experts = 250,
                                         .hidden = 512,
                                         .inner = 96,
                                         .distinct = 12,
                                         .file_bytes = 1ull << 40,
                                         .spread_bytes = 9ull << 40};
static struct fixture place;
static bool written;

static int setup(void **state)
{
    (void)state;
    struct efs_error err = {""};
    fixture_begin(&place);
    errint_t rc = large_store_write(place.store, &large, &err);
    if (rc < 0)
        print_error("%s\n", err.text);
    written = rc == 0;
    return rc == 0 || rc == -EFBIG || rc == -EINVAL ? 0 : -1; /* no such offsets in this filesystem */
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&place);
    return 0;
}

static struct efs *open_large(struct efs_options options)
{
    if (!written)
        skip();
    options.workers = 2;
    options.no_state = true;
    return fixture_open(&place, options);
}

static uint32_t weights_file(struct efs *fs, struct efs_file_info *info)
{
    for (uint32_t i = 0; i < efs_file_count(fs); i++) {
        *info = fixture_file_info(fs, i);
        if (info->kind == EFS_FILE_CHECKPOINT && strstr(info->path, ".safetensors"))
            return i;
    }
    fail_msg("no file of weights");
    return 0;
}

/* Offset of an expert's matrix in the file. */
static uint64_t matrix_offset(uint64_t data_offset, uint32_t layer, uint32_t expert, uint32_t matrix)
{
    uint64_t norm = large.hidden * 2, router = (uint64_t)large.experts * large.hidden * 2;
    uint64_t bytes = large_store_matrix_bytes(&large);
    return data_offset + layer * (2 * norm + router + large.experts * 3 * bytes) + norm + router +
           (expert * 3 + matrix) * bytes;
}

TEST(test_far_reads)
{
    struct efs *fs = open_large((struct efs_options){.budget_bytes = 256 * MIB});
    struct efs_file_info info;
    uint32_t file = weights_file(fs, &info);
    size_t bytes = (size_t)large_store_matrix_bytes(&large);
    uint8_t *want = malloc(bytes), *got = malloc(bytes);
    uint64_t header, seed = 3;
    assert_true(want && got);
    assert_true(info.bytes > UINT32_MAX);
    assert_int_equal(read_wait(fs, file, NULL, 0, &header, 8), 8);
    for (unsigned n = 0; n < 60; n++) { /* the first, the last, and random ones */
        uint32_t layer = n == 0 ? 0 : n == 1 ? large.layers - 1 : (uint32_t)(fixture_random(&seed) % large.layers);
        uint32_t expert = n == 0 ? 0 : n == 1 ? large.experts - 1 : (uint32_t)(fixture_random(&seed) % large.experts);
        uint32_t matrix = n == 1 ? 2 : n % 3;
        uint64_t at = matrix_offset(8 + header, layer, expert, matrix);
        large_store_matrix(&large, layer, expert, matrix, want);
        assert_int_equal(read_wait(fs, file, NULL, at, got, bytes), bytes);
        assert_memory_equal(got, want, bytes);
    }
    assert_int_equal(read_wait(fs, file, NULL, info.bytes - 3, got, bytes), 3);
    assert_int_equal(read_wait(fs, file, NULL, info.bytes, got, bytes), 0);
    free(want);
    free(got);
    efs_close(fs);
}

/* true: the matrix is in the file at a multiple of 8. Other tests check the exact offset. */
static bool holds(const uint8_t *file, uint64_t file_bytes, const uint8_t *matrix, uint64_t bytes)
{
    for (uint64_t at = 0; at + bytes <= file_bytes; at += 8)
        if (memcmp(file + at, matrix, bytes) == 0)
            return true;
    return false;
}

TEST(test_expert_files)
{
    struct efs *fs = open_large((struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true});
    size_t bytes = (size_t)large_store_matrix_bytes(&large);
    uint8_t *want = malloc(bytes);
    const uint32_t numbers[] = {0, 1, 7777, 19999};
    assert_non_null(want);
    assert_int_equal(efs_expert_count(fs), 20000);
    for (unsigned n = 0; n < 4; n++) {
        const struct efs_expert_info expert = fixture_expert_info(fs, numbers[n]);
        struct efs_lease *lease;
        uint32_t file;
        size_t file_bytes;
        assert_int_equal(expert.layer, numbers[n] / large.experts);
        uint8_t *got = fixture_expert(fs, numbers[n], &file, &file_bytes);
        assert_int_equal(lease_wait(fs, file, &lease), 0);
        assert_memory_equal(lease_data(lease), got, file_bytes);
        efs_lease_release(lease);
        for (uint32_t matrix = 0; matrix < 3; matrix++) {
            large_store_matrix(&large, expert.layer, expert.expert, matrix, want);
            assert_true(holds(got, file_bytes, want, bytes));
        }
        free(got);
    }
    free(want);
    efs_close(fs);
}

TEST(test_plans)
{
    struct efs *fs = open_large((struct efs_options){.budget_bytes = 512 * MIB});
    char *text;
    size_t bytes;
    fixture_set_and_plan(fs, "goal", "io");
    fixture_set_and_plan(fs, "goal", "makespan");
    assert_int_equal(efs_describe(fs, "plan", &text, &bytes), 0);
    assert_non_null(strstr(text, "error: -\n"));
    free(text);
    efs_close(fs);
}

/* The budget that the error message suggests. */
static uint64_t asked_for(struct efs_options options)
{
    struct efs_error err = {""};
    struct efs *fs;
    unsigned long long mib;
    options.budget_bytes = MIB;
    assert_int_equal(efs_open(place.store, &options, &fs, &err), -ENOMEM);
    const char *said = strstr(err.text, "ask for budget=");
    assert_non_null(said);
    assert_int_equal(sscanf(said, "ask for budget=%lluM", &mib), 1);
    return mib * MIB;
}

/* The suggested budget is enough, and 1 MiB less is not, for any size of the reserved memory. */
TEST(test_floor)
{
    if (!written)
        skip();
    for (uint64_t reserved = 0; reserved <= 700 * MIB; reserved += 100 * MIB) {
        struct efs_options options = {.workers = 2, .no_state = true, .reserved_bytes = reserved};
        struct efs_error err = {""};
        struct efs *fs;
        uint64_t floor = options.budget_bytes = asked_for(options);
        if (efs_open(place.store, &options, &fs, &err) < 0)
            fail_msg("%llu MiB reserved: %s", (unsigned long long)(reserved / MIB), err.text);
        efs_close(fs);
        options.budget_bytes = floor - MIB;
        assert_int_equal(efs_open(place.store, &options, &fs, &err), -ENOMEM);
    }
}

/* efs_reserve() counts against the budget: without room it fails and suggests a budget. */
TEST(test_reserve)
{
    if (!written)
        skip();
    struct efs_options options = {.workers = 2, .no_state = true, .per_file_bytes = 100};
    struct efs_error err = {""};
    struct efs *fs;
    char byte;
    options.budget_bytes = asked_for(options);
    assert_int_equal(efs_open(place.store, &options, &fs, &err), 0);
    assert_int_equal(read_wait(fs, 0, NULL, 0, &byte, 1), 1);
    assert_int_equal(efs_reserve(fs, 0, &err), 0);
    assert_int_equal(efs_reserve(fs, 2 * MIB, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "ask for budget="));
    efs_close(fs);
    options.budget_bytes += 3 * MIB;
    assert_int_equal(efs_open(place.store, &options, &fs, &err), 0);
    assert_int_equal(efs_reserve(fs, 2 * MIB, &err), 0);
    assert_int_equal(read_wait(fs, 0, NULL, 0, &byte, 1), 1);
    efs_close(fs);
}

static char *lines[2000];
static unsigned line_count;

static void keep_line(void *arg, const char *line)
{
    (void)arg;
    if (line_count < sizeof(lines) / sizeof(lines[0]))
        lines[line_count++] = strdup(line);
}

/* A damaged chunk is reported once for each expert that shares it, with its offset in a file of more than 4 GiB. */
TEST(test_verify)
{
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 1;
    if (!written)
        skip();
    assert_int_equal(efs_store_open(place.store, &store, &err), 0);
    assert_int_equal(efs_store_verify(store, false, 2, NULL, keep_line, NULL, &damaged, &err), 0);
    assert_int_equal(damaged, 0);
    /* in the first E-chunk of distinct expert 7, which the last expert shares */
    fixture_damage(place.store, 4096 + ((9ull << 40) / 12 * 7 + 4095) / 4096 * 4096 + 100);
    assert_int_equal(efs_store_verify(store, false, 2, NULL, keep_line, NULL, &damaged, &err), -EUCLEAN);
    efs_store_close(store);
    assert_int_equal(damaged, 1667); /* 19999 = 7 + 12 * 1666 */
    assert_int_equal(line_count, 1667);
    unsigned named = 0;
    for (unsigned i = 0; i < line_count; i++) {
        unsigned long long offset;
        const char *at = strstr(lines[i], ".safetensors offset ");
        assert_non_null(at);
        assert_int_equal(sscanf(at, ".safetensors offset %llu", &offset), 1);
        if (strstr(lines[i], "layers.79.mlp.experts.249.gate_proj.weight"))
            named += offset > UINT32_MAX;
        free(lines[i]);
    }
    assert_int_equal(named, 1);
}

TEST_MAIN(setup, teardown)
