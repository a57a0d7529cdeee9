/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving engine without a mount: bytes, budget, leases, damage, close. The checkpoint's files are the reference.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "sync_calls.h"

#include <pthread.h>
#include <sys/stat.h>

#define MIB (1ull << 20)

static struct fixture model; /* 2 layers of 6 experts, 3 tensors of 384 x 512: 1.1 MiB per expert */

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, 2, 6, 384, 512);
    return 0;
}

static struct efs *open_model(uint64_t budget, bool full_pool, bool wait)
{
    struct efs_options options = {.budget_bytes = budget, .workers = 2, .full_pool = full_pool, .lease_wait = wait};
    return fixture_open(&model, options);
}

TEST(test_every_file)
{
    struct efs *fs = open_model(256 * MIB, false, false);
    assert_int_equal(fixture_check_files(&model, fs), 3);
    fixture_within_budget(fs);
    efs_close(fs);
}

/* Address and size of a tensor in the safetensors file `data`; NULL: its header does not have the tensor. */
static const unsigned char *tensor_in(const unsigned char *data, const char *name, uint64_t *bytes)
{
    uint64_t length, begin, end;
    char key[200];
    memcpy(&length, data, 8);
    char *header = strndup((const char *)data + 8, length);
    snprintf(key, sizeof(key), "\"%s\":{", name);
    char *at = strstr(header, key);
    if (!at) {
        free(header);
        return NULL;
    }
    at = strstr(at, "\"data_offsets\":[");
    assert_int_equal(sscanf(at, "\"data_offsets\":[%lu,%lu]", &begin, &end), 2);
    free(header);
    *bytes = end - begin;
    return data + 8 + length + begin;
}

TEST(test_expert_files)
{
    char path[400];
    size_t bytes;
    unsigned char *whole = fixture_weights(&model, &bytes);
    for (int full = 0; full < 2; full++) {
        struct efs *fs = open_model(256 * MIB, full, false);
        for (unsigned l = 0; l < 2; l++)
            for (unsigned e = 0; e < 6; e++) {
                struct efs_lease *lease = NULL;
                snprintf(path, sizeof(path), "experts/L%02u/E%03u.safetensors", l, e);
                uint32_t file = fixture_file_named(fs, path);
                const struct efs_file_info info = fixture_file_info(fs, file);
                assert_int_equal(info.kind, EFS_FILE_EXPERT);
                unsigned char *got = malloc(info.bytes);
                if (full) {
                    assert_int_equal(lease_wait(fs, file, &lease), 0);
                    memcpy(got, lease_data(lease), info.bytes);
                    struct stat st;
                    assert_int_equal(fstat(efs_lease_fd(lease), &st), 0);
                    assert_int_equal(st.st_size, info.bytes);
                } else {
                    assert_int_equal(read_wait(fs, file, NULL, 0, got, info.bytes), info.bytes);
                }
                static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
                for (int p = 0; p < 3; p++) {
                    char name[200];
                    uint64_t a, b;
                    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight", l, e, parts[p]);
                    const unsigned char *mine = tensor_in(got, name, &a), *theirs = tensor_in(whole, name, &b);
                    assert_non_null(mine);
                    assert_int_equal(a, b);
                    assert_memory_equal(mine, theirs, a);
                    assert_int_equal((mine - got) % 4096, 0);
                }
                free(got);
                if (lease)
                    efs_lease_release(lease);
            }
        fixture_within_budget(fs);
        efs_close(fs);
    }
    free(whole);
}

/* Six threads read random ranges and lease experts, with budgets down to the floor. */
struct soak {
    struct efs *fs;
    unsigned char *whole;
    size_t bytes;
    uint32_t file, expert_file;
    uint64_t seed;
    unsigned failures;
};

static void *soak_reader(void *arg)
{
    struct soak *s = arg;
    unsigned char *buffer = malloc(300000);
    struct efs_stream *stream;
    assert_int_equal(efs_stream_new(s->fs, EFS_STREAM_SEQUENTIAL, &stream), 0);
    uint64_t next = 0;
    for (int i = 0; i < 400; i++) {
        uint64_t offset = fixture_random(&s->seed) % (s->bytes + 1000);
        size_t want = (size_t)(fixture_random(&s->seed) % 300000);
        if (i % 3) /* sequential reads start read-ahead */
            offset = next % s->bytes;
        size_t expect = offset >= s->bytes ? 0 : s->bytes - offset < want ? s->bytes - offset : want;
        ssize_t got = read_wait(s->fs, s->file, stream, offset, buffer, want);
        next = offset + want;
        if (got != (ssize_t)expect || memcmp(buffer, s->whole + offset, expect) != 0)
            s->failures++;
        if (i % 16 == 0) {
            struct efs_lease *lease;
            errint_t rc = lease_wait(s->fs, s->expert_file + (uint32_t)(fixture_random(&s->seed) % 12), &lease);
            if (rc == 0)
                efs_lease_release(lease);
            else if (rc != -ENOMEM)
                s->failures++;
        }
    }
    efs_stream_free(stream);
    free(buffer);
    return NULL;
}

static void soak(uint64_t budget, bool wait)
{
    struct efs *fs = open_model(budget, true, wait);
    struct soak soaks[6];
    pthread_t threads[6];
    size_t bytes;
    unsigned char *whole = fixture_weights(&model, &bytes);
    for (unsigned i = 0; i < 6; i++) {
        soaks[i] = (struct soak){.fs = fs,
                                 .whole = whole,
                                 .bytes = bytes,
                                 .file = fixture_file_named(fs, "model.safetensors"),
                                 .expert_file = fixture_file_named(fs, "experts/L00/E000.safetensors"),
                                 .seed = i + 1};
        pthread_create(&threads[i], NULL, soak_reader, &soaks[i]);
    }
    for (unsigned i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(soaks[i].failures, 0);
    }
    fixture_within_budget(fs);
    free(whole);
    efs_close(fs);
}

static uint64_t floor_budget(void)
{
    struct efs_options options = {.budget_bytes = 1, .workers = 2, .full_pool = true};
    struct efs_error err = {""};
    struct efs *fs = NULL;
    assert_int_equal(efs_open(model.store, &options, &fs, &err), -ENOMEM);
    const char *at = strstr(err.text, "minimum of ");
    assert_non_null(at);
    return strtoull(at + strlen("minimum of "), NULL, 10) * MIB;
}

TEST(test_soak_wide)
{
    soak(256 * MIB, false);
}

TEST(test_soak_floor)
{
    soak(floor_budget(), false);
}

TEST(test_soak_narrow_waiting)
{
    soak(floor_budget() + 3 * MIB, true); /* room for two experts: leases wait for each other */
}

TEST(test_leases_are_stable)
{
    struct efs *fs = open_model(floor_budget() + 3 * MIB, true, false);
    uint32_t first = fixture_file_named(fs, "experts/L00/E000.safetensors");
    struct efs_lease *leases[12];
    unsigned held = 0;
    errint_t rc = 0;
    while (held < 12 && (rc = lease_wait(fs, first + held, &leases[held])) == 0)
        held++;
    assert_true(held >= 1 && held < 12);
    assert_int_equal(rc, -ENOMEM);
    struct efs_stats s;
    efs_stats(fs, &s);
    assert_int_equal(s.leased_experts, held);
    struct efs_lease *again;
    assert_int_equal(lease_wait(fs, first, &again), 0); /* shares the first one's memory */
    assert_ptr_equal(lease_data(again), lease_data(leases[0]));
    efs_lease_release(again);
    for (unsigned i = 0; i < held; i++)
        efs_lease_release(leases[i]);
    fixture_lease_once(fs, first + 11); /* has room again */
    efs_stats(fs, &s);
    assert_int_equal(s.leased_experts, 0);
    assert_int_equal(s.leased_bytes, 0);
    assert_true(s.evictions_f > 0);
    fixture_within_budget(fs);
    efs_close(fs);
}

struct flood {
    pthread_mutex_t lock;
    pthread_cond_t over;
    unsigned left, failed;
};

static void flooded(void *arg, errint_t error, struct efs_lease *lease)
{
    struct flood *f = arg;
    if (lease)
        efs_lease_release(lease);
    pthread_mutex_lock(&f->lock);
    f->failed += error < 0;
    f->left--;
    pthread_cond_signal(&f->over);
    pthread_mutex_unlock(&f->lock);
}

/* All leases at once, with room for two: they wait, also while none is granted yet. */
TEST(test_leases_over_budget_wait)
{
    struct efs *fs = open_model(floor_budget() + 3 * MIB, true, true);
    uint32_t first = fixture_file_named(fs, "experts/L00/E000.safetensors");
    struct flood f = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER, .left = 12 * 20};
    for (unsigned round = 0; round < 20; round++)
        for (uint32_t i = 0; i < 12; i++)
            efs_lease(fs, first + i, flooded, &f);
    pthread_mutex_lock(&f.lock);
    while (f.left)
        pthread_cond_wait(&f.over, &f.lock);
    pthread_mutex_unlock(&f.lock);
    assert_int_equal(f.failed, 0);
    efs_close(fs);
}

TEST(test_second_read_from_memory)
{
    struct efs *fs = open_model(256 * MIB, false, false);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    unsigned char *buffer = malloc(3 * MIB);
    assert_int_equal(read_wait(fs, file, NULL, 0, buffer, 3 * MIB), 3 * MIB);
    const struct efs_stats a = fixture_drain(fs); /* the rest of the touched experts is read afterwards */
    assert_true(a.disk_bytes > 0 && a.reads_m > 0);
    assert_int_equal(read_wait(fs, file, NULL, 0, buffer, 3 * MIB), 3 * MIB);
    const struct efs_stats b = fixture_drain(fs);
    assert_int_equal(a.disk_bytes, b.disk_bytes);
    assert_int_equal(a.reads_m, b.reads_m);
    assert_true(b.reads_c > a.reads_c);
    free(buffer);
    efs_close(fs);
}

TEST(test_first_read_loads_expert)
{
    struct efs *fs = open_model(512 * MIB, false, false);
    uint32_t file = fixture_file_named(fs, "experts/L01/E003.safetensors");
    const struct efs_file_info info = fixture_file_info(fs, file);
    char buffer[16];
    assert_int_equal(fixture_expert_info(fs, info.expert.number).state, 'M');
    assert_int_equal(read_wait(fs, file, NULL, info.bytes - 16, buffer, 16), 16);
    fixture_drain(fs); /* the rest of the expert is still in flight */
    const struct efs_expert_info expert = fixture_expert_info(fs, info.expert.number);
    assert_int_equal(expert.state, 'C');
    assert_true(expert.resident_bytes >= expert.coded_bytes);
    efs_close(fs);
}

/* Reading a whole large file in order neither fills the pool nor evicts the expert that was in it. */
TEST(test_scan_evicts_nothing)
{
    struct fixture big;
    fixture_store(&big, 3, 32, 512, 512); /* 144 MiB */
    struct efs *fs = fixture_open(&big, (struct efs_options){.budget_bytes = 112 * MIB, .workers = 2});
    struct efs_stats s;
    uint32_t kept = fixture_file_named(fs, "experts/L01/E005.safetensors"),
             file = fixture_file_named(fs, "model.safetensors");
    unsigned char *buffer = malloc(4 * MIB);
    size_t bytes = fixture_file_info(fs, kept).bytes;
    assert_int_equal(read_wait(fs, kept, NULL, 0, buffer, bytes), bytes);
    struct efs_stream *stream;
    assert_int_equal(efs_stream_new(fs, EFS_STREAM_SEQUENTIAL, &stream), 0);
    bytes = fixture_file_info(fs, file).bytes;
    for (uint64_t at = 0; at < bytes; at += MIB)
        assert_true(read_wait(fs, file, stream, at, buffer, MIB) > 0);
    efs_stream_free(stream);
    fixture_within_budget(fs);
    efs_stats(fs, &s);
    assert_true(s.evictions_c > 50);
    assert_true(s.chunk_used_bytes < 64 * MIB);
    assert_int_equal(fixture_expert_info(fs, 37).state, 'C'); /* L01/E005 */
    free(buffer);
    efs_close(fs);
    fixture_end(&big);
}

/* Flips a bit in every step-th byte of the range. A second call restores them. */
static void damage(uint64_t begin, uint64_t end, uint64_t step)
{
    for (uint64_t at = begin; at < end; at += step)
        fixture_damage(model.store, at);
}

static uint64_t store_bytes(void)
{
    size_t bytes;
    free(fixture_read(model.store, &bytes));
    return bytes;
}

TEST(test_damage)
{
    size_t bytes;
    uint64_t place = store_bytes() / 3 / 4096 * 4096 + 5; /* in the middle of the chunks */
    unsigned char *whole = fixture_weights(&model, &bytes), *got = malloc(65536);
    damage(place, place + 1, 1);
    struct efs *fs = open_model(256 * MIB, true, false);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    unsigned bad = 0, good = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t at = 0; at < bytes; at += 65536) {
            size_t n = bytes - at < 65536 ? bytes - at : 65536;
            ssize_t rc = read_wait(fs, file, NULL, at, got, n);
            if (rc == -EUCLEAN) {
                bad++;
            } else {
                assert_int_equal(rc, n);
                assert_memory_equal(got, whole + at, n);
                good++;
            }
        }
    assert_true(bad > 0 && good > 10 * bad);
    uint32_t first = fixture_file_named(fs, "experts/L00/E000.safetensors");
    unsigned refused = 0;
    for (uint32_t i = 0; i < 12; i++) {
        struct efs_lease *lease;
        errint_t rc = lease_wait(fs, first + i, &lease);
        assert_true(rc == 0 || rc == -EUCLEAN);
        refused += rc != 0;
        if (rc == 0)
            efs_lease_release(lease);
    }
    struct efs_stats s;
    efs_stats(fs, &s);
    assert_true(s.chunks_damaged >= bad);
    assert_true(refused <= 1);
    fixture_within_budget(fs);
    efs_close(fs);
    damage(place, place + 1, 1);
    free(whole);
    free(got);
}

/* Reads across the start of each tensor of an expert. Such a read decodes only a shard of the neighbouring expert, and
 * does not change its residency. */
#define AROUND_BEFORE 4096u
#define AROUND_BYTES (32u * 1024)
static void read_around_experts(struct efs *fs, const unsigned char *whole, unsigned *good, unsigned *bad)
{
    static const char *const ends[] = {"gate_proj", "up_proj", "down_proj"};
    unsigned char got[AROUND_BYTES];
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    for (unsigned l = 0; l < 2; l++)
        for (unsigned e = 6; e-- > 0;)
            for (unsigned i = 0; i < 3; i++) {
                char name[200];
                uint64_t bytes;
                snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s.weight", l, e, ends[i]);
                const unsigned char *at = tensor_in(whole, name, &bytes) - AROUND_BEFORE;
                ssize_t rc = read_wait(fs, file, NULL, (uint64_t)(at - whole), got, AROUND_BYTES);
                if (rc == AROUND_BYTES) {
                    assert_memory_equal(got, at, AROUND_BYTES);
                    ++*good;
                } else {
                    assert_int_equal(rc, -EUCLEAN);
                    ++*bad;
                }
            }
}

TEST(test_partial_extents)
{
    size_t bytes;
    unsigned char *whole = fixture_weights(&model, &bytes);
    unsigned good = 0, bad = 0;
    struct efs_stats s;
    struct efs *fs = open_model(20 * MIB, false, false);
    read_around_experts(fs, whole, &good, &bad);
    assert_int_equal(good, 36);
    assert_int_equal(bad, 0);
    fixture_within_budget(fs);
    efs_stats(fs, &s);
    assert_true(s.reads_edge > 5);
    assert_true(s.reads_edge < s.reads_m);
    efs_close(fs);
    const uint64_t end = store_bytes(); /* every chunk damaged: no damaged byte is returned */
    damage(end / 16, end * 3 / 4, 1024);
    fs = open_model(20 * MIB, false, false);
    good = bad = 0;
    read_around_experts(fs, whole, &good, &bad);
    efs_stats(fs, &s);
    assert_true(bad > 18);
    assert_true(s.reads_edge > 5 && s.chunks_damaged >= bad);
    fixture_within_budget(fs);
    efs_close(fs);
    damage(end / 16, end * 3 / 4, 1024);
    free(whole);
}

/* Close while reads are in flight: each read still completes, in full or with -ECANCELED. */
static void count_done(void *arg, errint_t error, size_t bytes)
{
    (void)bytes;
    assert_true(error == 0 || error == -ECANCELED);
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

TEST(test_close_under_load)
{
    for (int round = 0; round < 20; round++) {
        struct efs *fs = open_model(floor_budget(), false, false);
        uint32_t file = fixture_file_named(fs, "model.safetensors");
        unsigned char *buffer = malloc(64 * 200000);
        unsigned done = 0;
        for (unsigned i = 0; i < 64; i++)
            efs_read(fs, file, NULL, i * 200000ull, buffer + i * 200000, 200000, count_done, &done);
        efs_close(fs);
        assert_int_equal(done, 64);
        free(buffer);
    }
}

TEST(test_invalid_arguments)
{
    struct efs *fs = open_model(256 * MIB, false, false);
    struct efs_lease *lease;
    char byte;
    assert_int_equal(lease_wait(fs, fixture_file_named(fs, "experts/L00/E000.safetensors"), &lease),
                     -EINVAL); /* no full pool */
    assert_int_equal(read_wait(fs, 1000000, NULL, 0, &byte, 1), -EBADF);
    assert_int_equal(read_wait(fs, 0, NULL, UINT64_MAX, &byte, 1), 0);
    efs_close(fs);
}

/* efs_open() allocates all memory, within the budget; later leases need no more. */
TEST(test_prealloc)
{
    struct efs_options options = {.budget_bytes = 192 * MIB,
                                  .workers = 2,
                                  .full_pool = true,
                                  .prealloc = true,
                                  .no_state = true,
                                  .plan = "F=50,C=50"};
    struct efs_stats s, after;
    struct efs *fs = fixture_open(&model, options);
    efs_stats(fs, &s);
    assert_true(s.full_pool_bytes >= 192 * MIB / 4);
    assert_true(s.chunk_pool_bytes >= 192 * MIB / 4);
    assert_true(fixture_used_bytes(&s) <= 192 * MIB);
    fixture_lease_once(fs, fixture_file_named(fs, "experts/L00/E000.safetensors"));
    efs_stats(fs, &after);
    assert_int_equal(after.full_pool_bytes, s.full_pool_bytes);
    efs_close(fs);
}

/* Inode of the memory file mapped at that address; 0: none. */
static uint64_t file_mapped_at(const void *data)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint64_t found = 0;
    while (maps && fgets(line, sizeof(line), maps)) {
        uintptr_t begin, end;
        uint64_t inode;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64, &begin, &end, &inode) == 3 &&
            (uintptr_t)data >= begin && (uintptr_t)data < end)
            found = inode;
    }
    assert_non_null(maps);
    fclose(maps);
    return found;
}

static uint64_t file_bytes_in_memory(struct efs *fs, uint32_t file)
{
    return (fixture_file_info(fs, file).bytes + 4095) / 4096 * 4096;
}

/* When full experts use up the budget, the next one reuses the memory file of an evicted one. */
TEST(test_memory_file_reuse)
{
    struct efs_options options = {
        .budget_bytes = floor_budget() + 5 * MIB, .workers = 2, .full_pool = true, .no_state = true, .plan = "F=100"};
    struct efs *fs = fixture_open(&model, options);
    uint32_t first = fixture_file_named(fs, "experts/L00/E000.safetensors"), files = 0;
    uint64_t file[64];
    struct efs_stats s;
    for (uint32_t i = 0; i < 96; i++) {
        struct efs_lease *lease;
        assert_int_equal(lease_wait(fs, first + i % 12, &lease), 0);
        uint64_t inode = file_mapped_at(lease_data(lease));
        uint32_t at = 0;
        while (at < files && file[at] != inode)
            at++;
        if (at == files) {
            assert_true(files < 64);
            file[files++] = inode;
        }
        efs_lease_release(lease);
    }
    efs_stats(fs, &s);
    assert_true(s.evictions_f > 12);
    assert_int_equal(files, s.full_pool_bytes / file_bytes_in_memory(fs, first));
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
