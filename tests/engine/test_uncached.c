/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and leases while clients hold coded experts, at a budget with hardly room for both: they succeed however long
 * the experts are held, and coded requests succeed once experts are dropped.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "test.h"
#include "efs.h"
#include "extent.h"
#include "fixture.h"
#include "sync_calls.h"
#include "wrapped.h"

#define LAYERS 2
#define EXPERTS 4
#define SEGMENT (8ull << 20)
#define SECONDS 4 /* of test_crowd, or EFS_TEST_SECONDS */

static struct fixture model;
static uint8_t *raw[LAYERS * EXPERTS]; /* contents of the experts' files */
static uint32_t files[LAYERS * EXPERTS];
static size_t bytes[LAYERS * EXPERTS];

/* 11 MiB per expert; its coded form takes almost a segment. */
static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 1920, 1024);
    struct efs *fs = fixture_open(&model, (struct efs_options){.no_state = true});
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
        raw[e] = fixture_expert(fs, e, &files[e], &bytes[e]);
    efs_close(fs);
    return 0;
}

static int teardown(void **state)
{
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
        free(raw[e]);
    return fixture_teardown(state);
}

/* The budget is the fixed memory, this number of segments, and more_bytes. */
static struct efs *open_small(uint64_t segments, uint64_t more_bytes, bool full)
{
    struct efs_options options = {.workers = 2, .no_state = true, .full_pool = full, .lease_wait = true};
    struct efs_stats s;
    uint64_t fixed = 0;
    for (;;) { /* fixed_bytes depends on the budget */
        struct efs *fs = fixture_open(&model, options);
        efs_stats(fs, &s);
        if (s.fixed_bytes == fixed)
            return fs;
        efs_close(fs);
        fixed = s.fixed_bytes;
        options.budget_bytes = fixed + segments * SEGMENT + more_bytes;
    }
}

static struct efs_client_request *begin(struct efs *fs, uint32_t expert, enum efs_form form)
{
    return fixture_submit(fs, &(struct efs_need){expert, 1}, 1, form);
}

/* Ends the program unless the condition holds. Works on any thread, unlike cmocka's assertions. */
static void must(bool holds, const char *what, long long status)
{
    if (holds)
        return;
    fprintf(stderr, "%s: %lld\n", what, status);
    abort();
}

static void check_read(struct efs *fs, uint32_t expert, uint64_t at, size_t n)
{
    uint8_t *got = malloc(n);
    ssize_t read = read_wait(fs, files[expert], NULL, at, got, n);
    must(read == (ssize_t)n, "a read", read);
    must(memcmp(got, raw[expert] + at, n) == 0, "bytes of expert", expert);
    free(got);
}

/* A client holds a coded expert that takes all memory for chunks. */
TEST(test_held)
{
    struct efs *fs = open_small(1, 0, false);
    struct efs_client_request *held = begin(fs, 0, EFS_FORM_CODED), *next;
    struct efs_stats s;
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait(held), 0);
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
        check_read(fs, e, 0, bytes[e]);
    check_read(fs, 5, 1234567, 3456789); /* starts and ends inside elements and shards */
    next = begin(fs, 7, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait_any(next, 300, &index, &status), -ETIMEDOUT);
    check_read(fs, 7, 4096, 1 << 20);
    efs_stats(fs, &s);
    assert_true(s.reads_past > 0);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(next), 0);
    efs_client_release(next);
    efs_close(fs);
}

/* Held chunks are in every segment, so none can be released for a full expert. A lease does not wait for that. */
TEST(test_open)
{
    struct efs *fs = open_small(1, bytes[0] + (1u << 20), true);
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
        check_read(fs, e, 0, bytes[e]);
    struct efs_client_request *held = begin(fs, 0, EFS_FORM_CODED), *waits;
    struct efs_lease *lease;
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait(held), 0);
    waits = begin(fs, 2, EFS_FORM_FULL);
    assert_int_equal(lease_wait(fs, files[1], &lease), -ENOMEM);
    check_read(fs, 1, 0, bytes[1]);
    efs_client_release(held);
    assert_int_equal(efs_client_wait_any(waits, -1, &index, &status), 1);
    assert_int_equal(status, 0);
    efs_client_release(waits);
    fixture_lease_once(fs, files[1]);
    efs_close(fs);
}

/* The buffers of a demotion are fixed memory while the store is open, and must leave room for the largest expert. */
TEST(test_demoted)
{
    struct efs *fs = open_small(1, bytes[0] + (1u << 20), true);
    fixture_set_and_plan(fs, "plan", "F=100");
    for (unsigned turn = 0; turn < 4; turn++)
        fixture_lease_once(fs, files[0]);
    for (uint32_t e = 1; e < LAYERS * EXPERTS; e++)
        check_read(fs, e, 0, bytes[e]);
    fixture_set_and_plan(fs, "plan", "C=100");
    const struct efs_stats after = fixture_drain(fs);
    assert_true(after.fixed_bytes + SEGMENT + bytes[0] <= after.budget_bytes);
    fixture_lease_once(fs, files[1]);
    efs_close(fs);
}

/* ---- the end of a store whose worker is in a call with the queue of reads ---- */

/* A worker that has submitted reads past the pool stops before it wakes the I/O thread, until the workers end. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool on, stands, go;
    bool ended;    /* the read */
    bool was_open; /* the queue's descriptor, when the worker went on */
} late = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local bool submits_past_the_pool;
static pthread_t main_thread;

static void late_set(bool *what)
{
    pthread_mutex_lock(&late.lock);
    *what = true;
    pthread_cond_broadcast(&late.changed);
    pthread_mutex_unlock(&late.lock);
}

WRAPPED(void, efs_io_submit, (struct efs_io_queue * queue, struct efs_io *requests))
{
    submits_past_the_pool = requests->segment == EFS_NONE && !pthread_equal(pthread_self(), main_thread);
    __real_efs_io_submit(queue, requests);
    submits_past_the_pool = false;
}

WRAPPED(ssize_t, write, (int fd, const void *data, size_t n))
{
    pthread_mutex_lock(&late.lock);
    if (late.on && submits_past_the_pool) {
        late.on = false;
        late.stands = true;
        pthread_cond_broadcast(&late.changed);
        while (!late.go)
            pthread_cond_wait(&late.changed, &late.lock);
        late.was_open = fcntl(fd, F_GETFD) >= 0;
    }
    pthread_mutex_unlock(&late.lock);
    return __real_write(fd, data, n);
}

WRAPPED(void, efs_workers_stop, (struct efs_workers * workers))
{
    late_set(&late.go);
    __real_efs_workers_stop(workers);
}

static void late_read_ended(void *arg, errint_t error, size_t n)
{
    (void)arg;
    must(error == 0 && n == bytes[1], "a read", error);
    late_set(&late.ended);
}

TEST(test_closes_before_a_worker_wakes_the_io_thread)
{
    struct efs *fs = open_small(1, 0, false);
    struct efs_client_request *held = begin(fs, 0, EFS_FORM_CODED);
    uint8_t *got = malloc(bytes[1]);
    assert_int_equal(efs_client_wait(held), 0);
    main_thread = pthread_self();
    pthread_mutex_lock(&late.lock);
    late.on = true;
    late.go = false;
    while (!late.stands) { /* the I/O thread was awake at each piece: again */
        late.ended = false;
        pthread_mutex_unlock(&late.lock);
        efs_read(fs, files[1], NULL, 0, got, bytes[1], late_read_ended, NULL);
        pthread_mutex_lock(&late.lock);
        while (!late.ended && !late.stands)
            pthread_cond_wait(&late.changed, &late.lock);
    }
    pthread_mutex_unlock(&late.lock);
    efs_io_wake(fs->io); /* as the end of another read would */
    pthread_mutex_lock(&late.lock);
    while (!late.ended)
        pthread_cond_wait(&late.changed, &late.lock);
    pthread_mutex_unlock(&late.lock);
    assert_memory_equal(got, raw[1], bytes[1]);
    free(got);
    efs_client_release(held);
    efs_close(fs);
    assert_true(late.was_open);
}

struct crowd {
    struct efs *fs;
    uint64_t seed;
    struct timespec until;
    _Atomic uint64_t *done;
};

static bool crowd_goes_on(const struct crowd *c)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec < c->until.tv_sec;
}

static void *crowd_read(void *arg)
{
    struct crowd *c = arg;
    do {
        uint32_t e = (uint32_t)(fixture_random(&c->seed) % (LAYERS * EXPERTS));
        uint64_t at = fixture_random(&c->seed) % (bytes[e] - 1);
        size_t n = fixture_random(&c->seed) % (4u << 20) + 1;
        check_read(c->fs, e, at, n < bytes[e] - at ? n : bytes[e] - at);
        atomic_fetch_add(c->done, 1);
    } while (crowd_goes_on(c));
    return NULL;
}

static void *crowd_ask(void *arg)
{
    struct crowd *c = arg;
    while (crowd_goes_on(c)) {
        uint32_t index, layer = (uint32_t)(fixture_random(&c->seed) % LAYERS), n = 0;
        uint64_t chosen = fixture_random(&c->seed) % ((1u << EXPERTS) - 1) + 1;
        const struct efs_request_how how = {.form = (enum efs_form)(fixture_random(&c->seed) % 3)};
        struct efs_need needs[EXPERTS];
        struct efs_client_request *r;
        struct efs_error err = {""};
        errint_t status;
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (chosen & 1u << e)
                needs[n++] = (struct efs_need){layer * EXPERTS + e, 1};
        must(efs_request_submit(c->fs, needs, n, &how, &r, &err) == 0, err.text, layer);
        while (efs_client_wait_any(r, -1, &index, &status) == 1) {
            must(status == 0,
                 how.form == EFS_FORM_FULL    ? "full"
                 : how.form == EFS_FORM_CODED ? "coded"
                                              : "any",
                 status);
            atomic_fetch_add(c->done, 1);
            efs_client_drop(r, index);
        }
        efs_client_release(r);
    }
    return NULL;
}

TEST(test_crowd)
{
    const char *seconds = getenv("EFS_TEST_SECONDS");
    const unsigned budgets = 3;
    for (unsigned b = 0; b < budgets; b++) {
        struct efs *fs =
            open_small(1, bytes[0] + (1u << 20) + b * (b + 1) * (1u << 20), true); /* 1, 3, 7 MiB above the minimum */
        struct crowd crowd[7];
        pthread_t threads[7];
        _Atomic uint64_t done = 0;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (seconds ? atoi(seconds) : SECONDS) / (time_t)budgets + 1;
        for (unsigned i = 0; i < 7; i++) {
            crowd[i] = (struct crowd){.fs = fs, .seed = 7 * b + i + 1, .until = until, .done = &done};
            assert_int_equal(pthread_create(&threads[i], NULL, i < 4 ? crowd_read : crowd_ask, &crowd[i]), 0);
        }
        for (unsigned i = 0; i < 7; i++)
            pthread_join(threads[i], NULL);
        assert_true(done > 0);
        const struct efs_stats s = fixture_drain(fs);
        assert_int_equal(s.coded_experts + s.leased_experts + s.coded_errors + s.read_errors, 0);
        assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
        print_message("budget %u: %llu reads and experts, %llu pieces past the pool\n", b, (unsigned long long)done,
                      (unsigned long long)s.reads_past);
        efs_close(fs);
    }
}

/* Experts that the user has pinned fill the pool, except for one that a client holds. */
static struct efs_client_request *hold_beside_kept(struct efs *fs)
{
    fixture_set_and_plan(fs, "plan", "C=100");
    for (uint32_t e = 0; e < 3; e++) {
        assert_int_equal(efs_pin(fs, efs_id(e), false, 'C', NULL), 0);
        struct efs_client_request *r = begin(fs, e, EFS_FORM_CODED);
        assert_int_equal(efs_client_wait(r), 0);
        efs_client_release(r);
    }
    struct efs_client_request *held = begin(fs, 4, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    return held;
}

/* A pinned one is evicted for the client's next request. */
TEST(test_kept_goes)
{
    struct efs *fs = open_small(4, 0, false);
    struct efs_client_request *held = hold_beside_kept(fs), *next = begin(fs, 5, EFS_FORM_CODED);
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait_any(next, -1, &index, &status), 1);
    assert_int_equal(status, 0);
    struct efs_stats s;
    efs_stats(fs, &s);
    assert_int_equal(s.coded_experts, 2);
    efs_client_release(next);
    efs_client_release(held);
    efs_close(fs);
}

/* And for a reader, while nothing is in flight: all except the expert that the client holds. */
TEST(test_kept_goes_for_a_reader)
{
    struct efs *fs = open_small(4, 0, false);
    struct efs_client_request *held = hold_beside_kept(fs);
    fixture_drain(fs);
    efs_lock(fs);
    while (efs_cache_reclaim(fs, EFS_LOAD_DEMAND, 0) == 0)
        ;
    efs_unlock(fs);
    for (uint32_t e = 0; e < 3; e++)
        assert_int_equal(fixture_expert_info(fs, e).state, 'M');
    assert_int_equal(fixture_expert_info(fs, 4).state, 'C');
    efs_client_release(held);
    efs_close(fs);
}

TEST_MAIN(setup, teardown)
