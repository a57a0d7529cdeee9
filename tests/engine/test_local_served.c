/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local copy of a served store (engine/serve/served_local.c): its tables are copied at once, local_fill reads the
 * rest, and experts are ranked by requests that memory does not answer.
 */
#include "test.h"
#include "cache.h"
#include "fixture.h"
#include "wrapped.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define SMALL_BYTES (9 * MIB) /* less than the store */

static struct fixture model;

static struct efs *open_with(const char *folder)
{
    const struct efs_options options = {
        .budget_bytes = 96 * MIB, .no_state = true, .local = folder, .local_bytes = 64 * MIB};
    return fixture_open(&model, options);
}

static void request_once(struct efs *fs, uint32_t expert)
{
    const struct efs_need need = {expert, 1};
    struct efs_client_request *r = fixture_submit(fs, &need, 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(r), 0);
    efs_client_release(r);
    fixture_drain(fs);
}

/* Expert 0 is requested often, and memory has it; expert 1 was read later: the next read of the copy is for expert 1.
 */
TEST(experts_are_ranked_by_what_memory_lacks)
{
    char folder[400];
    double worth[64];
    snprintf(folder, sizeof(folder), "%s/ranked", model.directory);
    struct efs *fs = open_with(folder);
    assert_true(efs_cache(fs)->layers == 2 && fs->store->expert_count == 8);
    efs_lock(fs);
    assert_false(efs_cache_local_worth(fs, worth));
    efs_unlock(fs);
    request_once(fs, 0);
    for (unsigned i = 0; i < 20; i++)
        request_once(fs, 0);
    request_once(fs, 1);
    efs_lock(fs);
    assert_true(efs_cache_local_worth(fs, worth));
    assert_true(efs_policy_worth(efs_cache(fs)->policy, 0, 0) > efs_policy_worth(efs_cache(fs)->policy, 0, 1));
    assert_true(worth[1] > worth[0] && worth[0] > worth[2]);
    efs_unlock(fs);
    efs_close(fs);
}

TEST(a_filled_copy_is_the_store)
{
    char folder[400], path[500], value[16];
    size_t bytes, copied;
    struct efs_stats stats = {0};
    struct efs_store_info info;
    snprintf(folder, sizeof(folder), "%s/filled", model.directory);
    struct efs *fs = open_with(folder);
    efs_store_info(efs_get_store(fs), &info);
    for (unsigned i = 0; i < 100 * PATIENCE_SECONDS && stats.local_held_bytes == 0; i++, usleep(10000))
        efs_stats(fs, &stats);
    assert_true(stats.local_held_bytes > 0 && stats.local_held_bytes < info.store_bytes); /* the tables */
    assert_int_equal(efs_set(fs, "local_fill", "on", NULL, NULL), 0);
    do
        assert_int_equal(efs_get(fs, "local_fill", value, sizeof(value)), 0);
    while (strcmp(value, "off") != 0 && usleep(1000) == 0);
    efs_stats(fs, &stats);
    assert_int_equal(stats.local_held_bytes, info.store_bytes);
    efs_close(fs);
    snprintf(path, sizeof(path), "%s/%016llx", folder, (unsigned long long)info.content_hash);
    unsigned char *want = fixture_read(model.store, &bytes), *copy = fixture_read(path, &copied);
    assert_int_equal(copied, bytes);
    assert_memory_equal(copy, want, bytes);
    /* It is the store that is served: it has no copy, and stays. */
    const struct efs_options options = {
        .budget_bytes = 96 * MIB, .no_state = true, .local = folder, .local_bytes = 64 * MIB};
    struct efs_error err = {""};
    assert_int_equal(efs_open(path, &options, &fs, &err), 0);
    assert_null(fs->local);
    efs_close(fs);
    free(copy);
    copy = fixture_read(path, &copied);
    assert_int_equal(copied, bytes);
    assert_memory_equal(copy, want, bytes);
    free(copy);
    free(want);
}

/* The thread of a copy asks for the worth of experts at its start, if the copy is above its size. */
static bool planned, started_last;

WRAPPED(errint_t, efs_plan_thread_start, (struct efs * fs, struct efs_error *err))
{
    planned = true;
    return __real_efs_plan_thread_start(fs, err);
}

WRAPPED(errint_t, efs_local_start, (struct efs_local * local))
{
    started_last = planned;
    return __real_efs_local_start(local);
}

TEST(a_copy_above_its_size_is_cut_when_all_rooms_are_built)
{
    char folder[400];
    struct efs_stats stats = {0};
    snprintf(folder, sizeof(folder), "%s/filled", model.directory); /* by the test before */
    const struct efs_options options = {
        .budget_bytes = 96 * MIB, .no_state = true, .local = folder, .local_bytes = SMALL_BYTES};
    planned = started_last = false;
    struct efs *fs = fixture_open(&model, options);
    assert_true(started_last);
    while (stats.local_evicted_bytes == 0) {
        usleep(1000);
        efs_stats(fs, &stats);
    }
    efs_close(fs);
}

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, 2, 4, 512, 768);
    return 0;
}

TEST_MAIN(setup, fixture_teardown)
