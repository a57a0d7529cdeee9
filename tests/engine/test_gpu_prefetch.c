/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch to pool G of experts named in hints: counters of used, late and wasted ones; which experts a prefetch
 * evicts; priority of requests; what cancels a prefetch; failures.
 */
#include <pthread.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "test.h"
#include "gpu_fixture.h"

#define MIB (1ull << 20)
#define LEAST (GPU_MIN_BUDGET + 8 * MIB)
#define LARGE_BYTES (18 * MIB)
#define LARGE_BUDGET (GPU_SLOTS + 8 * MIB + 2 * LARGE_BYTES)
enum { COPYING = 1, COMPUTING = 2, AHEAD = 8 }; /* streams, for gpu_fake.hold() */

/* Waits up to a minute for the condition. */
#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        for (unsigned waited = 0; !(condition) && waited < 60000; waited++)                                            \
            usleep(1000);                                                                                              \
        assert_true(condition);                                                                                        \
    } while (0)

static errint_t hint_of(struct efs_client *client, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t count,
                        const float *weights)
{
    uint32_t experts[GPU_EXPERTS];
    for (uint32_t i = 0; i < count; i++)
        experts[i] = first + i;
    const struct efs_routing routing = {
        .sequence = sequence, .layer = layer, .count = count, .experts = experts, .weights = weights};
    return efs_hint(client, &routing, NULL);
}

static void hint(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    assert_int_equal(hint_of(client, 0, layer, first, count, NULL), 0);
}

/* Loads a layer's experts into memory of the store or the mount. */
static void warm(struct efs_client *client, uint32_t layer, uint32_t count, enum efs_form form)
{
    struct efs_need needs[GPU_EXPERTS];
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){i, 1};
    struct efs_client_request *request = fixture_request(client, layer, needs, count, form);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
}

/* A client whose store has all experts in memory, with room in pool G for this number of prefetched experts. */
static struct efs_client *ahead_client(uint32_t experts)
{
    gpu_fake.ahead_bytes = experts * GPU_EXPERT_BYTES;
    struct efs_client *client = gpu_client(gpu_model.store, LEAST);
    for (uint32_t layer = 0; layer < GPU_LAYERS; layer++)
        warm(client, layer, GPU_EXPERTS, EFS_FORM_CODED);
    return client;
}

static bool sums(struct efs_client *client, uint64_t issued, uint64_t used, uint64_t late, uint64_t wasted)
{
    const struct efs_gpu_stats s = gpu_stats(client);
    return s.g_ahead_issued == issued && s.g_ahead_used == used && s.g_ahead_late == late && s.g_ahead_wasted == wasted;
}

static bool is_ahead(struct efs_client *client, uint32_t experts)
{
    return gpu_stats(client).g_ahead_bytes == experts * GPU_EXPERT_BYTES;
}

/* Waits until this number of experts is prefetched. The copy of the last one may still be in flight. */
static void settle(struct efs_client *client, uint32_t experts)
{
    UNTIL(is_ahead(client, experts) &&
          gpu_stats(client).g_experts * GPU_EXPERT_BYTES == gpu_stats(client).g_used_bytes);
}

TEST_WITH(used_prefetch, NULL, gpu_test_teardown)
{
    struct efs_client *client = ahead_client(4);
    hint(client, 1, 0, 3);
    settle(client, 3);
    gpu_request_check(client, 1, 0, 4);
    struct efs_gpu_stats s = gpu_stats(client);
    assert_int_equal(s.g_hits + s.g_joined, 3);
    assert_int_equal(s.g_brought, 1);
    assert_true(sums(client, 3, 3, 0, 0) || sums(client, 3, 2, 1, 0)); /* late, if its copy is in flight */
    assert_int_equal(s.g_ahead_bytes, 0);
    assert_int_equal(s.g_plain_bytes, 4 * 3 * 32768);
    gpu_request_check(client, 1, 0, 4); /* now ordinary experts of the pool */
    assert_int_equal(gpu_stats(client).g_hits + gpu_stats(client).g_joined, 7);
    hint(client, 1, 0, 4); /* all in the pool: no effect */
    hint(client, 0, 7, 1);
    settle(client, 1);
    assert_int_equal(gpu_stats(client).g_ahead_issued, 4);
    efs_client_close(client);
}

TEST_WITH(wasted_prefetch, NULL, gpu_test_teardown)
{
    struct efs_client *client = ahead_client(4);
    hint(client, 1, 0, 2);
    settle(client, 2);
    gpu_request_check(client, 0, 0, 2); /* a request for another layer does not affect them */
    assert_true(is_ahead(client, 2));
    gpu_request_check(client, 1, 4, 2);
    UNTIL(sums(client, 2, 0, 0, 2)); /* if the second is still in flight, it is cancelled */
    assert_true(is_ahead(client, 0));
    hint(client, 0, 3, 2);
    settle(client, 2);
    hint(client, 0, 4, 2); /* expert 3 is no longer predicted */
    settle(client, 2);
    UNTIL(sums(client, 5, 0, 0, 3));
    assert_int_equal(hint_of(client, 9, 0, 6, 2, NULL), 0); /* another sequence: in addition to these */
    settle(client, 4);
    hint(client, 0, 0, 0); /* end of the sequence */
    UNTIL(sums(client, 7, 0, 0, 5) && is_ahead(client, 2));
    gpu_request_check(client, 0, 6, 2);
    assert_int_equal(gpu_stats(client).g_ahead_used + gpu_stats(client).g_ahead_late, 2);
    efs_client_close(client);
}

TEST_WITH(prefetch_not_started, NULL, gpu_test_teardown)
{
    const float unlikely[] = {0.4f, 0.6f};
    struct efs_stats stats;
    struct efs_error err = {""};
    struct efs_client *client = gpu_client_no_device(gpu_model.store, true);
    gpu_fake.ahead_bytes = GPU_POOL_EXPERTS / 2 * GPU_EXPERT_BYTES + 1;
    assert_int_equal(gpu_add_device(client, LEAST, &err), -EINVAL);
    assert_non_null(strstr(err.text, "half of pool G"));
    gpu_fake.ahead_bytes -= 1;
    assert_int_equal(gpu_add_device(client, LEAST - 65536, &err), -EINVAL);
    assert_int_equal(gpu_add_device(client, LEAST, &err), 0);
    warm(client, 1, 2, EFS_FORM_CODED);
    efs_stats(efs_client_fs(client), &stats);
    const uint64_t read = stats.read_bytes;
    hint(client, 0, 0, GPU_EXPERTS); /* only on disk */
    assert_int_equal(hint_of(client, 0, 1, 0, 2, unlikely), 0);
    settle(client, 1);
    assert_int_equal(gpu_stats(client).g_ahead_issued, 1);
    efs_stats(efs_client_fs(client), &stats);
    assert_int_equal(stats.read_bytes, read);
    gpu_request_check(client, 1, 1, 1);
    assert_int_equal(gpu_stats(client).g_ahead_used + gpu_stats(client).g_ahead_late, 1);
    assert_int_equal(hint_of(client, 0, GPU_LAYERS, 0, 1, NULL), -ENOENT);
    efs_client_close(client);

    gpu_fake.ahead_bytes = 0;
    client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    warm(client, 1, 2, EFS_FORM_CODED);
    hint(client, 1, 0, 2);
    gpu_request_check(client, 1, 0, 2);
    assert_true(sums(client, 0, 0, 0, 0));
    efs_client_close(client);
}

/* A prefetch takes free places and evicts other experts, but none that is held or named in a hint, and it takes at most
 * ahead_bytes. */
TEST_WITH(prefetch_victims, NULL, gpu_test_teardown)
{
    struct efs_client_request *held;
    gpu_fake.policy = "lru";
    struct efs_client *client = ahead_client(3);
    held = gpu_request_wait(client, 0, 0, 6);
    hint(client, 1, 0, 3);
    UNTIL(gpu_stats(client).g_ahead_wasted == 1); /* no place for the third */
    settle(client, 2);
    assert_int_equal(gpu_stats(client).g_evicted, 0);
    assert_int_equal(gpu_stats(client).g_held, 6);
    for (uint32_t i = 0; i < 6; i++)
        gpu_check(held, i, 0, i);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(efs_client_drop_after(held, i, NULL), 0); /* no stream reads it any more */
    efs_client_release(held);
    hint(client, 0, 0, 1); /* least recently used, but named in the hint */
    hint(client, 1, 0, 6); /* the third evicts expert 1; ahead_bytes has no room for more */
    settle(client, 3);
    assert_int_equal(gpu_stats(client).g_evicted, 1);
    const uint64_t hits = gpu_stats(client).g_hits;
    gpu_request_check(client, 0, 0, 1);
    assert_int_equal(gpu_stats(client).g_hits, hits + 1);
    gpu_request_check(client, 0, 0, GPU_EXPERTS); /* a request evicts all prefetched experts */
    UNTIL(is_ahead(client, 0));
    assert_int_equal(gpu_stats(client).g_ahead_issued, gpu_stats(client).g_ahead_wasted);
    efs_client_close(client);
}

/* While most predictions are wrong, hints start no prefetch. */
TEST_WITH(mispredictions_stop_prefetch, NULL, gpu_test_teardown)
{
    gpu_fake.policy = "lru";
    struct efs_client *client = ahead_client(4);
    for (uint32_t round = 0; round < 20; round++) {
        hint(client, round % 2, 0, 2);
        gpu_request_check(client, round % 2, 4, 4);
    }
    const uint64_t issued = gpu_stats(client).g_ahead_issued;
    assert_true(issued < 20);
    hint(client, 0, 0, 2);
    gpu_request_check(client, 1, 4, 4);
    assert_int_equal(gpu_stats(client).g_ahead_issued, issued);
    for (uint32_t round = 0; round < 40; round++) { /* correct predictions enable the prefetch again */
        hint(client, round % 2, 0, 4);
        gpu_request_check(client, round % 2, 0, 4);
        gpu_request_check(client, round % 2, 4, 4);
    }
    hint(client, 0, 0, 4);
    UNTIL(gpu_stats(client).g_ahead_issued > issued);
    efs_client_close(client);
}

/* ---- experts larger than a slot: copied in steps ---- */

struct large {
    struct fixture model;
    struct efs_client *client;
};

/* The driver has the first half of a prefetch of expert 0 of layer 1, and its stream is held. */
static struct efs_client *large_begin(struct large *large)
{
    struct efs_error err = {""};
    fixture_store(&large->model, 2, 2, 1536, 2048);
    large->client = gpu_client_no_device(large->model.store, true);
    gpu_fake.ahead_bytes = LARGE_BYTES;
    if (gpu_add_device(large->client, LARGE_BUDGET, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t layer = 0; layer < 2; layer++)
        warm(large->client, layer, 2, EFS_FORM_CODED);
    gpu_fake.hold(AHEAD);
    hint(large->client, 1, 0, 1);
    UNTIL(gpu_stats(large->client).g_link_bytes > 0);
    assert_int_equal(gpu_stats(large->client).g_ahead_issued, 1);
    return large->client;
}

static void large_end(struct large *large)
{
    gpu_fake.hold(0);
    efs_client_close(large->client);
    fixture_end(&large->model);
}

/* Checks that nothing is copied within 30 ms. This can miss a bug, but cannot fail without one. */
static void link_rests(struct efs_client *client, uint64_t link_bytes)
{
    usleep(30000);
    assert_int_equal(gpu_stats(client).g_link_bytes, link_bytes);
}

TEST_WITH(demand_before_prefetch, NULL, gpu_test_teardown)
{
    struct large large;
    struct efs_client_request *asked, *joined;
    uint32_t index;
    errint_t status;
    struct efs_client *client = large_begin(&large);
    const uint64_t half = gpu_stats(client).g_link_bytes;
    gpu_fake.hold(COPYING | AHEAD);
    assert_int_equal(gpu_request(client, 0, 0, 1, &asked), 0);
    UNTIL(gpu_stats(client).g_link_bytes > half + LARGE_BYTES / 2); /* all of the request, and half the prefetch */
    const uint64_t link_bytes = gpu_stats(client).g_link_bytes;
    gpu_fake.hold(COPYING);
    link_rests(client, link_bytes); /* the second half of the prefetch waits */
    hint(client, 0, 1, 1);
    link_rests(client, link_bytes);
    assert_int_equal(gpu_stats(client).g_ahead_issued, 1);
    assert_int_equal(gpu_request(client, 1, 0, 1, &joined), 0); /* now a request joins the prefetch */
    assert_int_equal(efs_client_wait_any(joined, 60000, &index, &status), 1);
    assert_int_equal(status, 0);
    assert_true(sums(client, 1, 0, 1, 0));
    assert_int_equal(efs_client_wait_any(asked, 0, &index, &status), -ETIMEDOUT);
    efs_client_release(joined);
    gpu_fake.hold(0);
    assert_int_equal(efs_client_wait(asked), 0);
    efs_client_release(asked);
    assert_int_equal(gpu_stats(client).g_joined, 1);
    assert_int_equal(gpu_stats(client).g_brought, 1);
    large_end(&large);
}

TEST_WITH(cancelled_in_flight, NULL, gpu_test_teardown)
{
    struct large large;
    struct efs_client *client = large_begin(&large);
    const uint64_t half = gpu_stats(client).g_link_bytes;
    hint(client, 0, 0, 0);
    assert_int_equal(gpu_stats(client).g_ahead_wasted, 0);
    gpu_fake.hold(0);
    UNTIL(sums(client, 1, 0, 0, 1));
    assert_int_equal(gpu_stats(client).g_link_bytes, half); /* the rest was not copied */
    assert_int_equal(gpu_stats(client).g_used_bytes, 0);
    large_end(&large);
}

/* A request needs the place of a prefetch in flight. */
TEST_WITH(demand_takes_slot, NULL, gpu_test_teardown)
{
    struct large large;
    struct efs_client_request *held, *asked;
    struct efs_client *client = large_begin(&large);
    held = gpu_request_wait(client, 0, 0, 1);
    assert_int_equal(gpu_stats(client).g_used_bytes, 2 * LARGE_BYTES);
    assert_int_equal(gpu_request(client, 0, 1, 1, &asked), 0);
    gpu_fake.hold(0);
    assert_int_equal(efs_client_wait(asked), 0);
    efs_client_release(asked);
    efs_client_release(held);
    assert_true(sums(client, 1, 0, 0, 1));
    large_end(&large);
}

/* A request waits for memory of the store that a prefetch in flight holds. */
TEST_WITH(demand_takes_store_memory, NULL, gpu_test_teardown)
{
    struct large large;
    struct efs_client_request *asked;
    struct efs_client *client = large_begin(&large);
    assert_int_equal(gpu_request(client, 0, 0, 2, &asked), 0);
    gpu_fake.hold(0);
    assert_int_equal(efs_client_wait(asked), 0);
    efs_client_release(asked);
    assert_int_equal(gpu_stats(client).g_brought, 2);
    large_end(&large);
}

/* A request joins a prefetch and is released. */
TEST_WITH(joined_request_released, NULL, gpu_test_teardown)
{
    struct large large;
    struct efs_client_request *asked;
    struct efs_client *client = large_begin(&large);
    assert_int_equal(gpu_request(client, 1, 0, 1, &asked), 0);
    efs_client_release(asked);
    gpu_fake.hold(0);
    asked = gpu_request_wait(client, 1, 0, 2);
    efs_client_release(asked);
    assert_true(sums(client, 1, 0, 1, 0));
    large_end(&large);
}

static void *let_go_soon(void *arg)
{
    (void)arg;
    usleep(20000);
    gpu_fake.hold(0);
    return NULL;
}

TEST_WITH(closed_during_prefetch, NULL, gpu_test_teardown)
{
    struct large large;
    pthread_t thread;
    (void)large_begin(&large);
    assert_int_equal(pthread_create(&thread, NULL, let_go_soon, NULL), 0);
    efs_client_close(large.client);
    assert_int_equal(gpu_fake.left(), 0);
    pthread_join(thread, NULL);
    fixture_end(&large.model);
    for (unsigned round = 0; round < 20; round++) {
        struct efs_client *client = ahead_client(4);
        gpu_fake.slow(500);
        hint(client, 1, 0, 4);
        usleep(round * 100);
        efs_client_close(client);
        assert_int_equal(gpu_fake.left(), 0);
        gpu_fake.slow(0);
    }
}

/* ---- failures ---- */

TEST_WITH(damaged_chunks, NULL, gpu_test_teardown)
{
    struct efs_client *client = ahead_client(4);
    gpu_fake.damage(1);
    hint(client, 1, 0, 2);
    UNTIL(sums(client, 2, 0, 0, 1) && is_ahead(client, 1));
    gpu_request_check(client, 1, 0, 2);
    assert_int_equal(gpu_stats(client).g_errors, 0);
    efs_client_close(client);
}

/* Opens a client, prefetches, requests and closes it, while driver calls may fail. Returns whether one failed. */
static bool life(void)
{
    struct efs_error err = {""};
    struct efs_client_request *request;
    bool failed = false;
    struct efs_client *client = gpu_client_no_device(gpu_model.store, true);
    gpu_fake.ahead_bytes = 4 * GPU_EXPERT_BYTES;
    if (gpu_add_device(client, LEAST, &err) < 0) {
        assert_non_null(strstr(err.text, "cu"));
        failed = true;
    }
    warm(client, 1, GPU_EXPERTS, EFS_FORM_CODED);
    for (uint32_t round = 0; round < 2 && !failed; round++) {
        hint(client, 1, round, 4);
        usleep(2000);
        failed = gpu_request(client, 1, 2, 6, &request) < 0;
        if (failed)
            break;
        failed = gpu_wait_check(request, 1, 2);
    }
    efs_client_close(client);
    return failed;
}

TEST_WITH(each_call_fails, NULL, gpu_test_teardown)
{
    gpu_fail_each_call(life, 30);
}

/* ---- a mount, and many threads ---- */

TEST_WITH(mount_client, NULL, gpu_test_teardown)
{
    char path[512];
    gpu_fake.ahead_bytes = 4 * GPU_EXPERT_BYTES;
    struct efs_client *client = gpu_client(gpu_mount.directory, LEAST);
    gpu_request_check(client, 0, 0, 1);
    for (uint32_t e = 0; e < 3; e++) {
        snprintf(path, sizeof(path), "%s/experts/L01/E%03u.safetensors", gpu_mount.directory, e);
        if (setxattr(path, "user.expertfs.state", e == 1 ? "C" : "F", 1, 0) < 0) {
            assert_int_equal(errno, EOPNOTSUPP);
            print_message("no user xattrs at %s: not tested\n", gpu_mount.directory);
            efs_client_close(client);
            return;
        }
    }
    hint(client, 1, 0, 4);
    settle(client, 3);
    gpu_request_check(client, 1, 0, 4);
    assert_int_equal(gpu_stats(client).g_brought, 2);
    assert_int_equal(gpu_stats(client).g_ahead_used + gpu_stats(client).g_ahead_late, 3);
    efs_client_close(client);
}

struct user {
    struct efs_client *client;
    uint32_t number;
};

static void *use(void *arg)
{
    const struct user *u = arg;
    uint64_t random = u->number;
    for (unsigned round = 0; round < 60; round++) {
        struct efs_client_request *request;
        uint32_t layer = (uint32_t)fixture_random(&random) % GPU_LAYERS, index;
        uint32_t first = (uint32_t)fixture_random(&random) % 6;
        errint_t status;
        (void)hint_of(u->client, u->number, layer, first, (uint32_t)fixture_random(&random) % 3, NULL);
        if (fixture_random(&random) % 2)
            usleep((useconds_t)(fixture_random(&random) % 1000));
        assert_int_equal(gpu_request(u->client, layer, first, 2, &request), 0);
        for (unsigned i = 0; i < 2 && fixture_random(&random) % 8; i++) {
            assert_int_equal(efs_client_wait_any(request, 60000, &index, &status), 1);
            assert_int_equal(status, 0);
            gpu_check(request, index, layer, first + index);
        }
        efs_client_release(request);
    }
    return NULL;
}

static uint64_t asked_for(struct efs_client *client)
{
    const struct efs_gpu_stats s = gpu_stats(client);
    return s.g_hits + s.g_joined + s.g_brought + s.g_errors;
}

TEST_WITH(many_threads, NULL, gpu_test_teardown)
{
    pthread_t threads[3]; /* they hold at most 6 of 8 experts: each finds room */
    struct user users[3];
    struct efs_client *client = ahead_client(2);
    gpu_fake.slow(100);
    for (unsigned i = 0; i < 3; i++) {
        users[i] = (struct user){client, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 3; i++)
        (void)hint_of(client, i + 1, 0, 0, 0, NULL);
    UNTIL(is_ahead(client, 0) && gpu_stats(client).g_experts * GPU_EXPERT_BYTES == gpu_stats(client).g_used_bytes);
    UNTIL(asked_for(client) == 3 * 60 * 2); /* experts dropped in flight count on completion */
    const struct efs_gpu_stats s = gpu_stats(client);
    assert_int_equal(s.g_ahead_issued, s.g_ahead_used + s.g_ahead_late + s.g_ahead_wasted);
    assert_int_equal(s.g_held, 0);
    efs_client_close(client);
}

TEST_MAIN(gpu_setup, gpu_teardown)
