/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Option warm: if all experts fit, free memory is filled without a request and without evictions; the data read are the
 * packed bytes.
 */
#include <time.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"

#define LAYERS 3u
#define EXPERTS 16u
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)
#define WAIT_TRIES (500 * PATIENCE_SECONDS)
#define CALM_TRIES 50 /* samples without a change */

static struct fixture model;

static int setup(void **state)
{
    char path[400];
    (void)state;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* about 2 MiB per coded expert */
    snprintf(path, sizeof(path), "%s/state", model.directory);
    setenv("EXPERTFS_STATE", path, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unsetenv("EXPERTFS_STATE");
    fixture_end(&model);
    return 0;
}

static void pause_shortly(void)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
}

/* Waits until CALM_TRIES samples (2 ms each) show no new read and nothing in flight. */
static struct efs_stats when_calm(struct efs *fs)
{
    struct efs_stats s;
    uint64_t before = UINT64_MAX;
    for (unsigned tries = 0, calm = 0; tries < WAIT_TRIES && calm < CALM_TRIES; tries++) {
        efs_stats(fs, &s);
        calm = s.plans > 0 && s.inflight == 0 && s.disk_reads == before ? calm + 1 : 0;
        before = s.disk_reads;
        pause_shortly();
    }
    assert_int_equal(s.inflight, 0);
    assert_true(s.plans > 0);
    return s;
}

static uint32_t count_in_memory(struct efs *fs)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < ALL; e++)
        count += fixture_expert_info(fs, e).state == 'C';
    return count;
}

TEST(test_off)
{
    struct efs *fs =
        fixture_open(&model, (struct efs_options){.budget_bytes = 512 * MIB, .workers = 2, .no_state = true});
    struct efs_stats s = when_calm(fs);
    assert_int_equal(s.warmed_extents, 0);
    assert_int_equal(count_in_memory(fs), 0);
    efs_close(fs);
}

TEST(test_all)
{
    struct efs *fs = fixture_open(
        &model, (struct efs_options){.budget_bytes = 512 * MIB, .workers = 2, .no_state = true, .warm = "always"});
    WAIT_FOR(count_in_memory(fs) == ALL);
    struct efs_stats s = when_calm(fs), after;
    assert_true(s.warmed_extents >= ALL);
    assert_int_equal(s.readahead_extents, 0);
    assert_int_equal(s.requests_m + s.requests_c, 0);
    assert_true(fixture_check_files(&model, fs) > 0);
    efs_stats(fs, &after);
    assert_true(after.disk_bytes - s.disk_bytes < 4 * MIB); /* dense tensors */
    efs_close(fs);
}

/* Not all experts fit: none is read. After the budget has grown, all are. */
TEST(test_fits)
{
    struct efs *probe =
        fixture_open(&model, (struct efs_options){.budget_bytes = 512 * MIB, .no_state = true, .workers = 2});
    struct efs_stats s;
    struct efs_error err = {""};
    efs_stats(probe, &s);
    efs_close(probe);
    struct efs *fs = fixture_open(&model, (struct efs_options){.budget_bytes = s.fixed_bytes + 40 * MIB,
                                                               .workers = 2,
                                                               .no_state = true,
                                                               .warm = "always",
                                                               .plan = "C=100"});
    s = when_calm(fs);
    assert_int_equal(s.warmed_extents, 0);
    assert_int_equal(count_in_memory(fs), 0);
    if (efs_set(fs, "budget", "512M", NULL, &err) < 0)
        fail_msg("%s", err.text);
    WAIT_FOR(count_in_memory(fs) == ALL);
    s = when_calm(fs);
    assert_int_equal(s.evictions_c, 0);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
    efs_close(fs);
}

/* Close during the warm-up: reads in flight complete, and no further ones start. */
TEST(test_closed)
{
    for (unsigned round = 0; round < 20; round++) {
        struct efs *fs = fixture_open(
            &model, (struct efs_options){.budget_bytes = 512 * MIB, .workers = 2, .no_state = true, .warm = "always"});
        for (unsigned i = 0; i < round % 4; i++)
            pause_shortly();
        efs_close(fs);
    }
}

TEST_MAIN(setup, teardown)
