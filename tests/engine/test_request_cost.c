/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request of eight experts costs: how often efs.lock is taken, memory is allocated and a job is pushed, cold and
 * from memory, full and coded. The limits are those of today with some room, so that they only fall.
 */
#include <limits.h>

#include "test.h"
#include "efs.h"
#include "expertfs-pack.h"
#include "fixture.h"

#define LAYERS 6
#define EXPERTS 8
#define MIB (1ull << 20)

struct cost {
    unsigned locks, allocations, jobs;
};

static pthread_mutex_t *counted_lock; /* NULL: nothing is counted */
static _Atomic unsigned locks, allocations, jobs;

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    locks += counted_lock && lock == counted_lock;
    return __real_pthread_mutex_lock(lock);
}

#define COUNTED(type, name, counter, parameters, arguments)                                                            \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        counter += counted_lock != NULL;                                                                               \
        return __real_##name arguments;                                                                                \
    }
COUNTED(void *, malloc, allocations, (size_t bytes), (bytes))
COUNTED(void *, calloc, allocations, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, allocations, (void *old, size_t bytes), (old, bytes))
COUNTED(void, efs_workers_push, jobs, (struct efs_workers * workers, struct efs_job *job, enum efs_job_order order),
        (workers, job, order))

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    const struct efs_pack_options options = {.threads = 2,
                                             .force = true}; /* shards as large as mkexpertfs makes them */
    fixture_begin(&model);
    fixture_moe(&model, LAYERS, EXPERTS, 768, 1024);
    fixture_pack(&model, &options);
    return 0;
}

/* Requests a layer, waits, and releases it. */
static struct cost request(struct efs *fs, uint32_t layer, enum efs_form form)
{
    struct efs_need needs[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++)
        needs[i] = (struct efs_need){layer * EXPERTS + i, 1};
    fixture_drain(fs);
    locks = allocations = jobs = 0;
    counted_lock = &fs->lock;
    struct efs_client_request *r = fixture_submit(fs, needs, EXPERTS, form);
    assert_int_equal(efs_client_wait(r), 0);
    efs_client_release(r);
    counted_lock = NULL;
    return (struct cost){locks, allocations, jobs};
}

static unsigned lower(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The cheapest of the layers, each count by itself: other threads of the file system take the lock and allocate, too,
 * and in some layers the structs of loads are allocated, 64 at a time. */
static void expect_at_most(struct efs *fs, const char *what, enum efs_form form, struct cost most)
{
    struct cost least = {UINT_MAX, UINT_MAX, UINT_MAX};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct cost cost = request(fs, layer, form);
        least.locks = lower(least.locks, cost.locks);
        least.allocations = lower(least.allocations, cost.allocations);
        least.jobs = lower(least.jobs, cost.jobs);
    }
    print_message("%s: lock taken %u times, %u allocations, %u jobs\n", what, least.locks, least.allocations,
                  least.jobs);
    assert_in_range(least.locks, 1, most.locks);
    assert_in_range(least.allocations, 0, most.allocations);
    assert_in_range(least.jobs, 0, most.jobs);
}

static struct efs *open_model(void)
{
    return fixture_open(
        &model, (struct efs_options){.workers = 2, .no_state = true, .full_pool = true, .budget_bytes = 256 * MIB});
}

TEST(full)
{
    struct efs *fs = open_model();
    expect_at_most(fs, "full, cold", EFS_FORM_FULL, (struct cost){80, 20, 80});
    expect_at_most(fs, "full, in memory", EFS_FORM_FULL, (struct cost){60, 12, 70});
    efs_close(fs);
}

TEST(coded)
{
    struct efs *fs = open_model();
    expect_at_most(fs, "coded, cold", EFS_FORM_CODED, (struct cost){45, 12, 80});
    expect_at_most(fs, "coded, in memory", EFS_FORM_CODED, (struct cost){15, 8, 10});
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
