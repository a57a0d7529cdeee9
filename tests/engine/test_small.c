/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small reads of dense tensors (engine/fetch/slot.c): every format gives its bytes from a few pages of the store,
 * also from several threads, from little memory, while the budget falls, and beside damage. Stores of version 2 are
 * read without them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "extent.h"
#include "fragment.h"
#include "kernels.h"
#include "store.h"
#include "sync_calls.h"

#define MIB ((size_t)1 << 20)
#define PAGE 4096u
#define SMALL (32u << 10)

static const struct {
    const char *dtype;
    unsigned width, most_pages; /* of the store, for an aligned read of 4 KiB whose page checksums and heads are here */
} formats[] = {{"BF16", 2, 4}, {"F16", 2, 5}, {"F32", 4, 5}, {"F8_E4M3", 1, 5}, {"F8_E5M2", 1, 5}, {"U8", 1, 2}};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

static struct fixture models[FORMATS];
static uint8_t *raw[FORMATS];
static size_t bytes[FORMATS];
static uint64_t seed = 77;

/* One tensor of 3 MiB and some elements, in shards of 64 Ki elements. */
static void make(unsigned f)
{
    size_t size = 3 * MIB + formats[f].width * 777;
    uint8_t *data = malloc(size);
    char header[200];
    assert_non_null(data);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)fixture_random(&seed);
    for (size_t i = formats[f].width - 1; i < size && strcmp(formats[f].dtype, "U8") != 0; i += formats[f].width) {
        uint64_t r = fixture_random(&seed);
        data[i] = (uint8_t)(0x30 + 2 * (unsigned)__builtin_ctzll(r | 1u << 6)) | (uint8_t)(r >> 56 & 0x81);
    }
    int n = snprintf(header, sizeof(header),
                     "{\"embed.weight\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", formats[f].dtype,
                     size / formats[f].width, size);
    uint64_t length = (uint64_t)n;
    bytes[f] = 8 + length + size;
    raw[f] = malloc(bytes[f]);
    assert_non_null(raw[f]);
    memcpy(raw[f], &length, 8);
    memcpy(raw[f] + 8, header, length);
    memcpy(raw[f] + 8 + length, data, size);
    free(data);
    fixture_begin(&models[f]);
    fixture_file(&models[f], "model.safetensors", raw[f], bytes[f]);
}

static void pack(unsigned f, uint64_t small_reads_bytes)
{
    fixture_pack(&models[f], &(struct efs_pack_options){.codec = EFS_CHOOSE_CASCADE,
                                                        .shard_elements = 64 << 10,
                                                        .force = true,
                                                        .small_reads_bytes = small_reads_bytes});
}

static int setup(void **state)
{
    (void)state;
    for (unsigned f = 0; f < FORMATS; f++) {
        make(f);
        pack(f, 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (unsigned f = 0; f < FORMATS; f++) {
        free(raw[f]);
        fixture_end(&models[f]);
    }
    return 0;
}

/* Ends the program unless the condition holds. Works on any thread, unlike cmocka's assertions. */
static void must(bool holds, const char *what, long long status)
{
    if (holds)
        return;
    fprintf(stderr, "%s: %lld\n", what, status);
    abort();
}

static void check_read(struct efs *fs, unsigned f, uint64_t at, size_t n)
{
    uint8_t got[SMALL];
    ssize_t read = read_wait(fs, 0, NULL, at, got, n);
    must(read == (ssize_t)n, "a read", read);
    must(memcmp(got, raw[f] + at, n) == 0, "bytes at", (long long)at);
}

static void check_random(struct efs *fs, unsigned f, unsigned count, uint64_t *state)
{
    for (unsigned i = 0; i < count; i++) {
        size_t n = 1 + fixture_random(state) % (i % 2 ? SMALL : 5000);
        check_read(fs, f, fixture_random(state) % (bytes[f] - n), n);
    }
}

TEST(every_format)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = fixture_open(&models[f], (struct efs_options){.workers = 2, .no_state = true});
        struct efs_stats s;
        check_random(fs, f, 60, &seed);
        efs_stats(fs, &s);
        assert_true(s.reads_small > 0 && s.reads_past == 0);
        efs_close(fs);
    }
}

/* After a first read of each shard, which brings its head and page checksums, a read takes at most most_pages.
 * Repeated, it takes none. */
TEST(pages)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = fixture_open(&models[f], (struct efs_options){.workers = 2, .no_state = true});
        struct efs_stats before, after;
        size_t begin = bytes[f] - 3 * MIB, step = (64u << 10) * formats[f].width;
        for (size_t at = begin; at < bytes[f]; at += step)
            check_read(fs, f, at, 1);
        for (unsigned again = 0; again < 2; again++)
            for (unsigned i = 0; i < 12; i++) {
                uint64_t at = PAGE * (uint64_t)(1 + i * 61);
                before = fixture_drain(fs);
                check_read(fs, f, at, PAGE);
                after = fixture_drain(fs);
                assert_int_equal(after.reads_small - before.reads_small, 1);
                assert_true(after.disk_bytes - before.disk_bytes <= (again ? 0 : formats[f].most_pages * PAGE));
                assert_int_equal(after.reads_c - before.reads_c, after.disk_bytes == before.disk_bytes);
            }
        efs_close(fs);
    }
}

static void done_now(void *arg, errint_t error, size_t n)
{
    *(size_t *)arg = error < 0 ? 0 : n;
}

/* A stream that may block: the read is complete when the call returns, also when its pages come from the store. */
TEST(by_the_calling_thread)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = fixture_open(&models[f], (struct efs_options){.workers = 1, .no_state = true});
        struct efs_stream *stream;
        struct efs_stats before = fixture_drain(fs), after;
        uint8_t got[SMALL];
        assert_int_equal(efs_stream_new(fs, EFS_STREAM_NO_READAHEAD | EFS_STREAM_MAY_BLOCK, &stream), 0);
        for (unsigned i = 0; i < 40; i++) {
            size_t n = 1 + fixture_random(&seed) % 5000, done = 0;
            uint64_t at = bytes[f] - 2 * MIB + fixture_random(&seed) % (MIB - n);
            efs_read(fs, 0, stream, at, got, n, done_now, &done);
            assert_int_equal(done, n);
            assert_memory_equal(got, raw[f] + at, n);
        }
        after = fixture_drain(fs);
        assert_true(after.reads_small - before.reads_small >= 40);
        assert_true(after.disk_reads > before.disk_reads && after.disk_bytes > before.disk_bytes);
        efs_stream_free(stream);
        efs_close(fs);
    }
}

/* Readers that come back to half of an extent's pages get all of it. */
TEST(promotion)
{
    struct efs *fs = fixture_open(&models[0], (struct efs_options){.workers = 2, .no_state = true});
    struct efs_stats s = fixture_drain(fs);
    uint64_t small = 0;
    for (unsigned round = 0; round < 3; round++)
        for (uint64_t at = 0; at + PAGE < bytes[0]; at += 7 * PAGE) {
            uint64_t first = (at * 5) % (bytes[0] - PAGE);
            check_read(fs, 0, first - first % PAGE, PAGE);
        }
    for (unsigned i = 0; i < 2000; i++)
        check_read(fs, 0, fixture_random(&seed) % (bytes[0] - PAGE), PAGE);
    s = fixture_drain(fs);
    small = s.reads_small;
    assert_true(small > 64 && s.chunk_extents > 0);
    check_random(fs, 0, 50, &seed);
    efs_close(fs);
}

/* A sequential reader is served from extents. */
TEST(sequential)
{
    struct efs *fs = fixture_open(&models[0], (struct efs_options){.workers = 2, .no_state = true});
    struct efs_stream *stream;
    struct efs_stats s;
    uint8_t got[PAGE];
    assert_int_equal(efs_stream_new(fs, 0, &stream), 0);
    for (uint64_t at = 0; at + PAGE <= bytes[0]; at += PAGE) {
        assert_int_equal(read_wait(fs, 0, stream, at, got, PAGE), PAGE);
        assert_memory_equal(got, raw[0] + at, PAGE);
    }
    efs_stats(fs, &s);
    assert_true(s.reads_small < 20);
    efs_stream_free(stream);
    efs_close(fs);
}

TEST(version_2)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs_stats s;
        pack(f, UINT64_MAX);
        struct efs *fs = fixture_open(&models[f], (struct efs_options){.workers = 2, .no_state = true});
        check_random(fs, f, 40, &seed);
        efs_stats(fs, &s);
        assert_int_equal(s.reads_small, 0);
        efs_close(fs);
        pack(f, 0);
    }
}

struct crowd {
    struct efs *fs;
    unsigned f, count;
    uint64_t state;
};

static void *crowd_read(void *arg)
{
    struct crowd *c = arg;
    check_random(c->fs, c->f, c->count, &c->state);
    return NULL;
}

/* Opens a store with the smallest budget, in steps of a MiB. */
static struct efs *open_smallest(uint64_t *budget_bytes)
{
    struct efs_options options = {.workers = 2, .no_state = true};
    struct efs_error err = {""};
    struct efs *fs = NULL;
    for (uint64_t mib = 1; !fs && mib < 200; mib++) {
        options.budget_bytes = mib << 20;
        if (efs_open(models[0].store, &options, &fs, &err) < 0)
            fs = NULL;
    }
    assert_non_null(fs);
    *budget_bytes = options.budget_bytes;
    return fs;
}

/* Many threads, more than slots, at the smallest budget, which is raised and lowered meanwhile. */
TEST(crowd)
{
    enum { THREADS = 24 };
    struct efs_error err = {""};
    struct efs_stats s;
    uint64_t budget_bytes;
    struct efs *fs = open_smallest(&budget_bytes);
    pthread_t threads[THREADS];
    struct crowd crowd[THREADS];
    for (unsigned t = 0; t < THREADS; t++) {
        crowd[t] = (struct crowd){fs, 0, 200, seed + t};
        assert_int_equal(pthread_create(&threads[t], NULL, crowd_read, &crowd[t]), 0);
    }
    for (unsigned i = 0; i < 6; i++) {
        char text[32];
        snprintf(text, sizeof(text), "%llu", (unsigned long long)(budget_bytes + (i % 2 ? 0 : 24 * MIB)));
        assert_int_equal(efs_set(fs, "budget", text, NULL, &err), 0);
        check_random(fs, 0, 60, &seed);
    }
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    s = fixture_drain(fs);
    assert_true(s.reads_small > 0);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
    efs_close(fs);
}

static uint32_t fragments_of(const struct efs *fs)
{
    uint32_t count = 0;
    for (uint32_t x = 0; x < efs_extents(fs)->count; x++)
        count += efs_extent(fs, x)->fragments;
    return count;
}

/* Fragments of several slabs are evicted, and their bytes read again. */
TEST(eviction)
{
    struct efs *fs = fixture_open(&models[0], (struct efs_options){.workers = 2, .no_state = true});
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 90; i++)
            check_read(fs, 0, PAGE * (uint64_t)(1 + i * 8), 100);
        efs_lock(fs);
        uint32_t before = fragments_of(fs);
        efs_fragments_drop_retiring(fs); /* none */
        assert_true(before > 63 && fragments_of(fs) == before);
        assert_true(efs_fragments_evict(fs, false) && fragments_of(fs) < before);
        while (round > 0 && efs_cache_reclaim(fs, EFS_FOR_ADMISSION, 0) == 0)
            ;
        assert_true(round == 0 || (fragments_of(fs) == 0 && fs->arena.used_bytes == 0));
        efs_unlock(fs);
    }
    efs_close(fs);
}

/* With a budget for a few slabs, the oldest one is used again. Up to half of its fragments stay, if they were read,
 * where they are: no critical section copies more than EFS_LOCKED_COPY_MAX, which efs_copy_locked() asserts. */
TEST(second_chance)
{
    enum { PAGES = 4000, NEAR = 100 };
    uint64_t budget_bytes;
    struct efs *fs = open_smallest(&budget_bytes);
    uint8_t page[PAGE], got[PAGE];
    unsigned left = 0;
    for (unsigned i = 0; i < PAGES; i++) {
        memset(page, (int)(i * 7 % 251), PAGE);
        efs_lock(fs);
        efs_fragment_put(fs, (struct efs_fragment_key){i, 1}, EFS_NONE, page);
        for (unsigned k = i < NEAR ? 0 : i - NEAR; k < i; k++)
            efs_fragment_get(fs, (struct efs_fragment_key){k, 1}, 0, 1, got);
        efs_unlock(fs);
    }
    for (unsigned i = 0; i < PAGES; i++) {
        efs_lock(fs);
        bool here = efs_fragment_get(fs, (struct efs_fragment_key){i, 1}, 0, PAGE, got);
        efs_unlock(fs);
        memset(page, (int)(i * 7 % 251), PAGE);
        assert_true(!here || memcmp(got, page, PAGE) == 0);
        left += here;
    }
    assert_in_range(left, NEAR / 2, PAGES / 2);
    efs_close(fs);
}

/* Damage in one page: reads of it fail, small reads of others do not. A damaged page checksum costs the reader a whole
 * shard, not an error. */
TEST(damage)
{
    struct efs_error err = {""};
    struct efs_store *store;
    struct efs_stats s;
    uint8_t got[PAGE];
    assert_int_equal(efs_store_open(models[0].store, &store, &err), 0);
    const struct efs_disk_object *o = store->objects;
    while (o->tensor == EFS_NONE)
        o++;
    struct efs_disk_shard shard = store->shards[o->shard_first + 2];
    efs_store_close(store);
    uint64_t in = 40000, begin = bytes[0] - 3 * MIB - formats[0].width * 777 + 2 * (128u << 10); /* of the shard */
    fixture_damage(models[0].store, shard.sm_offset + in);
    struct efs *fs = fixture_open(&models[0], (struct efs_options){.workers = 2, .no_state = true});
    check_read(fs, 0, begin + 100, PAGE);
    assert_int_equal(read_wait(fs, 0, NULL, begin + 2 * in - PAGE / 2, got, PAGE), -EUCLEAN);
    check_read(fs, 0, begin + 90000 + 2 * PAGE, PAGE);
    efs_stats(fs, &s);
    assert_int_equal(s.reads_small, 2);
    assert_true(s.chunks_damaged > 0);
    efs_close(fs);
    fixture_damage(models[0].store, shard.sm_offset + in); /* restores it */
    for (unsigned i = 0; i < 100; i++)
        fixture_damage(models[0].store, shard.sm_offset + (uint64_t)shard.checks * 64 + i);
    fs = fixture_open(&models[0], (struct efs_options){.workers = 2, .no_state = true});
    check_read(fs, 0, begin + 100, PAGE);
    check_read(fs, 0, begin + 2 * in, PAGE);
    efs_stats(fs, &s);
    assert_int_equal(s.chunks_damaged, 0);
    efs_close(fs);
    pack(0, 0);
}

TEST_MAIN(setup, teardown)
