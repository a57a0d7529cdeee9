/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A smaller budget is settled when the memory above it is freed, or when only clients hold it: the call that sets it
 * returns then, not earlier and not later.
 */
#include "test.h"
#include "budget.h"
#include "fixture.h"
#include "full.h"
#include "sync_calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define LAYERS 2u
#define EXPERTS 8u
#define ALL (LAYERS * EXPERTS)
#define READERS 8u
#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* an expert: 3 MiB full, 2 MiB coded */
    return 0;
}

static struct efs *open_model(const char *plan)
{
    return fixture_open(&model, (struct efs_options){.budget_bytes = 128 * MIB,
                                                     .full_pool = true,
                                                     .lease_wait = true,
                                                     .workers = 2,
                                                     .no_state = true,
                                                     .plan = plan,
                                                     .policy = "lru"});
}

static void lease_expert(struct efs *fs, uint32_t expert, struct efs_lease **lease)
{
    assert_int_equal(lease_wait(fs, fixture_expert_info(fs, expert).file, lease), 0);
}

/* Returns the bytes above the budget. */
static uint64_t set_budget(struct efs *fs, uint64_t bytes)
{
    char text[32];
    struct efs_error err = {""};
    uint64_t over = 0;
    snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    if (efs_set(fs, "budget", text, &over, &err) < 0)
        fail_msg("budget=%s: %s", text, err.text);
    return over;
}

/* ---- 8 readers ---- */

static _Atomic bool reading;

struct reader {
    struct efs *fs;
    uint64_t seed;
    unsigned failed;
};

static void *read_on(void *arg)
{
    struct reader *r = arg;
    unsigned char *buffer = malloc(MIB);
    while (reading) {
        uint32_t file = fixture_expert_info(r->fs, (uint32_t)(fixture_random(&r->seed) % ALL)).file;
        r->failed += read_wait(r->fs, file, NULL, fixture_random(&r->seed) % MIB, buffer, MIB) != (int64_t)MIB;
    }
    free(buffer);
    return NULL;
}

TEST(test_halved_under_readers)
{
    struct efs *fs = open_model(NULL);
    struct reader readers[READERS];
    pthread_t threads[READERS];
    uint64_t fixed = fixture_drain(fs).fixed_bytes;
    reading = true;
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] = (struct reader){fs, i + 1, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
    }
    for (unsigned round = 0; round < 30; round++) {
        struct efs_lease *lease;
        lease_expert(fs, round % ALL, &lease);
        efs_lease_release(lease);
        assert_int_equal(set_budget(fs, round % 2 ? fixed + 96 * MIB : fixed + 24 * MIB), 0);
    }
    reading = false;
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].failed, 0);
    }
    fixture_within_budget(fs);
    efs_close(fs);
}

/* ---- what it waits for ---- */

struct setter {
    struct efs *fs;
    uint64_t bytes, over;
    pthread_t thread;
};

static void *setter_run(void *arg)
{
    struct setter *s = arg;
    s->over = set_budget(s->fs, s->bytes);
    return NULL;
}

/* Returns when the thread waits. */
static void setter_start(struct setter *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, setter_run, s), 0);
    for (bool waits = false; !waits; usleep(100)) {
        efs_lock(s->fs);
        waits = s->fs->budget->settling == 1;
        efs_unlock(s->fs);
    }
}

/* Waits for the copies from experts that no client holds. */
TEST(test_waits_for_copies)
{
    struct efs *fs = open_model("F=100");
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_lease *lease;
        lease_expert(fs, e, &lease);
        efs_lease_release(lease);
    }
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.full_experts, ALL);
    efs_lock(fs);
    for (uint32_t e = 0; e < ALL; e++)
        assert_non_null(efs_full_pin(fs, e));
    efs_unlock(fs);
    struct setter setter = {.fs = fs, .bytes = s.fixed_bytes + 16 * MIB, .over = 1};
    setter_start(&setter);
    for (uint32_t e = 0; e < ALL; e++) {
        efs_lock(fs);
        uint64_t used = fs->account.used_bytes, returning = fs->account.bytes[EFS_ACCOUNT_RETURNING];
        assert_true(used - returning <= fs->account.budget_bytes || fs->budget->settling == 1);
        efs_full_copy_end(fs, e);
        efs_unlock(fs);
    }
    pthread_join(setter.thread, NULL);
    assert_int_equal(setter.over, 0);
    fixture_within_budget(fs);
    efs_close(fs);
}

/* A copy from an expert that a client has leased meanwhile is not waited for. */
TEST(test_lease_ends_the_wait)
{
    struct efs *fs = open_model("F=100");
    struct efs_lease *leases[ALL];
    for (uint32_t e = 0; e < ALL; e++) {
        lease_expert(fs, e, &leases[e]);
        efs_lease_release(leases[e]);
    }
    struct efs_stats s = fixture_drain(fs);
    efs_lock(fs);
    for (uint32_t e = 0; e < ALL; e++)
        assert_non_null(efs_full_pin(fs, e));
    efs_unlock(fs);
    struct setter setter = {.fs = fs, .bytes = s.fixed_bytes + 16 * MIB};
    setter_start(&setter);
    for (uint32_t e = 0; e < ALL; e++)
        lease_expert(fs, e, &leases[e]);
    pthread_join(setter.thread, NULL);
    assert_true(setter.over > 0);
    efs_lock(fs);
    for (uint32_t e = 0; e < ALL; e++)
        efs_full_copy_end(fs, e);
    efs_unlock(fs);
    for (uint32_t e = 0; e < ALL; e++)
        efs_lease_release(leases[e]);
    fixture_within_budget(fs);
    efs_close(fs);
}

/* ---- what clients hold ---- */

/* Segments with coded experts that a client holds are reported, not waited for, and other segments are released first.
 */
TEST(test_coded_experts_are_reported)
{
    struct efs *fs = open_model("C=100");
    const struct efs_need needs[] = {{.expert = 0, .tokens = 1}, {.expert = 1, .tokens = 1}};
    struct efs_client_request *request = fixture_submit(fs, needs, 2, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(request), 0);
    fixture_check_files(&model, fs);
    struct efs_stats s = fixture_drain(fs);
    uint32_t segments = fs->arena.segment_count;
    assert_true(segments >= 4);
    assert_int_equal(set_budget(fs, s.fixed_bytes + 2 * fs->arena.segment_bytes), 0);
    efs_lock(fs);
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        assert_true(!fs->arena.segments[i].retiring || !fs->arena.segments[i].long_refs);
    efs_unlock(fs);
    efs_client_release(request);
    fixture_within_budget(fs);
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
