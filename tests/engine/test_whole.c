/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files whole in memory: gathered after one reading, counted in the budget, evicted when they are not open
 * and other memory is needed; never gathered where they do not fit, or while experts are requested.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fixture.h"
#include "test.h"

#define MIB (1ull << 20)
#define EXPERTS 64u
#define WAIT_TRIES 5000

static struct fixture model;
static size_t weights_bytes;
static unsigned char *weights;

static int setup(void **state)
{
    (void)state;
    fixture_store(&model, 2, EXPERTS, 256, 512);
    weights = fixture_weights(&model, &weights_bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(weights);
    fixture_end(&model);
    return 0;
}

static void count_ready(void *arg, uint32_t file)
{
    (void)file;
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

static _Atomic uint32_t ready;

/* Opens the store with this budget above its fixed memory; skips the test without a private tmpfs. */
static struct efs *open_keeping(uint64_t pools_bytes)
{
    if (geteuid() != 0)
        skip();
    struct efs *fs = fixture_open(
        &model, (struct efs_options){.budget_bytes = 512 * MIB, .workers = 2, .no_state = true, .full_pool = true});
    struct efs_stats s;
    char budget[32];
    efs_stats(fs, &s);
    snprintf(budget, sizeof(budget), "%lluM", (unsigned long long)((s.fixed_bytes + pools_bytes) / MIB));
    assert_int_equal(efs_set(fs, "budget", budget, NULL, NULL), 0);
    ready = 0;
    efs_keep_files(fs, count_ready, &ready);
    return fs;
}

/* Waits until this number of files are whole; false: a time has passed. */
static bool wait_whole(struct efs *fs, uint64_t files)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    struct efs_stats s = {.inflight = 1};
    for (unsigned tries = 0; tries < WAIT_TRIES && (s.whole_files != files || s.inflight); tries++) {
        efs_stats(fs, &s);
        nanosleep(&pause, NULL);
    }
    fixture_within_budget(fs);
    return s.whole_files == files;
}

static struct efs_stats gather(struct efs *fs)
{
    struct efs_stats s;
    fixture_check_files(&model, fs);
    assert_true(wait_whole(fs, 1));
    efs_stats(fs, &s);
    return s;
}

TEST(test_gathered)
{
    struct efs *fs = open_keeping(400 * MIB);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    assert_int_equal(efs_file_open(fs, file), -EAGAIN);
    struct efs_stats s = gather(fs), after;
    assert_int_equal(s.whole_bytes, (weights_bytes + 4095) / 4096 * 4096);
    assert_true(s.full_pool_bytes >= s.whole_bytes);
    assert_int_equal(s.whole_open_bytes, 0);
    assert_int_equal(ready, 1);
    int fd = efs_file_open(fs, file);
    assert_true(fd >= 0);
    void *data = mmap(NULL, weights_bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    assert_memory_equal(data, weights, weights_bytes);
    munmap(data, weights_bytes);
    assert_int_equal(lseek(fd, 0, SEEK_END), (off_t)weights_bytes);
    fixture_check_files(&model, fs); /* reads are copies of it */
    efs_stats(fs, &after);
    assert_int_equal(after.disk_bytes, s.disk_bytes);
    assert_int_equal(after.whole_open_bytes, s.whole_bytes);
    efs_file_close(fs, file);
    efs_close(fs);
}

TEST(test_budget)
{
    struct efs *fs = open_keeping(400 * MIB);
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    struct efs_stats s = gather(fs);
    char small[32], large[32];
    uint64_t held = 0;
    snprintf(small, sizeof(small), "%lluM", (unsigned long long)(s.fixed_bytes / MIB + 40));
    snprintf(large, sizeof(large), "%lluM", (unsigned long long)(s.budget_bytes / MIB));
    assert_true(efs_file_open(fs, file) >= 0);
    assert_int_equal(efs_set(fs, "budget", small, &held, NULL), 0);
    assert_true(held > 0);
    efs_stats(fs, &s);
    assert_int_equal(s.whole_files, 1);
    efs_file_close(fs, file);
    assert_true(wait_whole(fs, 0));
    efs_stats(fs, &s);
    assert_int_equal(s.evictions_files, 1);
    assert_int_equal(s.whole_bytes + s.whole_open_bytes, 0);
    assert_int_equal(efs_set(fs, "budget", large, NULL, NULL), 0);
    gather(fs);
    assert_int_equal(efs_set(fs, "budget", small, &held, NULL), 0); /* it is not open: nothing is held */
    assert_int_equal(held, 0);
    efs_stats(fs, &s);
    assert_int_equal(s.whole_bytes, 0);
    fixture_check_files(&model, fs);
    efs_close(fs);
}

/* Closed while a file is being gathered, or open. */
TEST(test_closed)
{
    for (unsigned round = 0; round < 8; round++) {
        struct efs *fs = open_keeping(400 * MIB);
        fixture_check_files(&model, fs);
        const struct timespec pause = {.tv_nsec = round * 3000000};
        nanosleep(&pause, NULL);
        efs_file_open(fs, fixture_file_named(fs, "model.safetensors"));
        efs_close(fs);
    }
}

TEST(test_does_not_fit)
{
    struct efs *fs = open_keeping(weights_bytes / MIB * MIB);
    fixture_check_files(&model, fs);
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.gathered_files + s.whole_bytes, 0);
    efs_close(fs);
}

/* Experts that are requested while the file is read are not evicted for it; one that is requested later is loaded. */
TEST(test_requests)
{
    struct efs *fs = open_keeping(weights_bytes + 48 * MIB);
    const struct efs_need need = {.expert = 0, .tokens = 1};
    struct efs_client_request *request = fixture_submit(fs, &need, 1, EFS_FORM_FULL);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
    fixture_check_files(&model, fs);
    assert_true(wait_whole(fs, 1)); /* no request during this pass */
    request = fixture_submit(fs, &need, 1, EFS_FORM_FULL);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
    assert_true(wait_whole(fs, 0)); /* the pools have no room for the store */
    efs_close(fs);
}

TEST_MAIN(setup, teardown)
