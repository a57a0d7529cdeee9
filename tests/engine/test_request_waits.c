/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that hold memory or wait for it: their order, how often a later one may pass, -EDEADLK, progress of all, and
 * pins at the end. test_request.c has the experts that a request returns.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "test.h"
#include "budget.h"
#include "fetch.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "plan_thread.h"
#include "sync_calls.h"

#define LAYERS 3
#define EXPERTS 8
#define MIB (1ull << 20)
#define PASSES_MOST 64
#define TURNS 600u

#define WIDE_EXPERTS 96u /* more than are dropped in one critical section */

static struct fixture model, wide;
static struct efs_need needs[LAYERS][EXPERTS], wide_needs[WIDE_EXPERTS];

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    fixture_store(&wide, 1, WIDE_EXPERTS, 256, 256);
    for (uint32_t i = 0; i < WIDE_EXPERTS; i++)
        wide_needs[i] = (struct efs_need){i, 1};
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
        needs[i / EXPERTS][i % EXPERTS] = (struct efs_need){i, 1};
    return 0;
}

static int teardown(void **state)
{
    fixture_end(&wide);
    return fixture_teardown(state);
}

static struct efs *open_with(uint64_t budget_bytes, bool full)
{
    return fixture_open(
        &model,
        (struct efs_options){
            .workers = 2, .no_state = true, .budget_bytes = budget_bytes, .full_pool = full, .lease_wait = full});
}

static void close_within_budget(struct efs *fs)
{
    fixture_within_budget(fs);
    efs_close(fs);
}

static void check_timeout(struct efs_client_request *r, int ms)
{
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait_any(r, ms, &index, &status), -ETIMEDOUT);
}

static void take_one(struct efs_client_request *r)
{
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait_any(r, PATIENCE_MS, &index, &status), 1);
    assert_int_equal(status, 0);
}

/* Takes experts until none comes for ms (-1: until the wait fails), dropping each if `drop`; the number of them, and
 * the result of the last call. */
static uint32_t take_all(struct efs_client_request *r, int ms, bool drop, int *rc)
{
    uint32_t index, taken = 0;
    errint_t status;
    for (; (*rc = efs_client_wait_any(r, ms, &index, &status)) == 1; taken++) {
        assert_int_equal(status, 0);
        if (drop)
            efs_client_drop(r, index);
    }
    return taken;
}

/* Takes experts of a request until it holds all that fit: the rest waits, and nothing is in flight. Returns their
 * number. */
static uint32_t take_all_that_come(struct efs *fs, struct efs_client_request *r)
{
    const struct efs_request *request = efs_request_of(r);
    uint32_t taken = 0;
    int rc;
    for (bool at_rest = false, ended = false; !ended;) {
        const uint32_t more = take_all(r, at_rest ? 0 : 5, false, &rc);
        taken += more;
        ended = rc == 0 || (at_rest && more == 0);
        efs_grow(fs, false); /* as the plan thread does: the queue is tried again */
        efs_lock(fs);
        pthread_mutex_lock(r->lock);
        at_rest = r->loading == request->waiting && efs_extents_only_long_refs(fs);
        pthread_mutex_unlock(r->lock);
        efs_unlock(fs);
    }
    return taken;
}

static pthread_t started(void *(*run)(void *), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, arg), 0);
    return thread;
}

static void check_joined(pthread_t thread)
{
    void *rc;
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_int_equal((intptr_t)rc, 0);
}

static void *wait_for_all(void *request)
{
    return (void *)(intptr_t)efs_client_wait(request);
}

static void *wait_for_next(void *request)
{
    uint32_t index;
    errint_t status = 0;
    const int rc = efs_client_wait_any(request, -1, &index, &status);
    return (void *)(intptr_t)(rc == 1 ? status : -EINVAL);
}

struct begun {
    struct efs *fs;
    const struct efs_need *needs;
    uint32_t count;
    struct efs_client_request *request;
};

static void *begin(void *arg)
{
    struct begun *b = arg;
    b->request = fixture_submit(b->fs, b->needs, b->count, EFS_FORM_CODED);
    return NULL;
}

/* A request of another program: a thread that has ended. */
static struct efs_client_request *begun_elsewhere(struct efs *fs, const struct efs_need *of, uint32_t count)
{
    struct begun b = {.fs = fs, .needs = of, .count = count};
    check_joined(started(begin, &b));
    return b.request;
}

/* The same for the first experts of a layer; waits for those that fit: *came of them. */
static struct efs_client_request *take_what_fits(struct efs *fs, uint32_t layer, uint32_t count, uint32_t *came)
{
    struct efs_client_request *r = begun_elsewhere(fs, needs[layer], count);
    *came = take_all_that_come(fs, r);
    return r;
}

/* Opens a store with room for *fit coded experts, which are fewer than a layer has. */
static struct efs *open_small(uint32_t *fit)
{
    struct efs *fs = open_with(40 * MIB, false);
    efs_plan_thread_wait(fs);
    efs_client_release(take_what_fits(fs, 0, EXPERTS, fit));
    assert_in_range(*fit, 3, EXPERTS - 2);
    return fs;
}

/* A program at a socket: a holder whose experts come by a callback. */
struct program {
    struct efs_holder *holder;
    sem_t came;
    uint32_t count;
    struct asked {
        struct program *program;
        struct efs_client_request *_Atomic request; /* set last */
        uint32_t index;
        errint_t error;
        bool dropped;
    } asked[EXPERTS];
};

static void asked_arrived(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    struct asked *a = arg;
    sem_t *came = &a->program->came;
    a->error = error;
    a->index = index;
    a->request = request;
    sem_post(came);
}

static void program_begin(struct program *p)
{
    p->holder = efs_holder_new();
    sem_init(&p->came, 0, 0);
}

static void program_end(struct program *p)
{
    efs_holder_unref(p->holder);
    sem_destroy(&p->came);
}

static void program_ask(struct program *p, struct efs *fs, enum efs_form form, uint32_t layer, uint32_t count)
{
    struct efs_client_request *none;
    void *args[EXPERTS];
    p->count = count;
    for (uint32_t i = 0; i < count; i++) {
        p->asked[i] = (struct asked){.program = p};
        args[i] = &p->asked[i];
    }
    const struct efs_request_how how = {.form = form, .arrived = asked_arrived, .args = args, .holder = p->holder};
    assert_int_equal(efs_request_submit(fs, needs[layer], count, &how, &none, NULL), 0);
}

/* Waits until all have come, with this error. */
static void program_check(struct program *p, errint_t error)
{
    for (uint32_t i = 0; i < p->count; i++)
        sem_wait(&p->came);
    for (uint32_t i = 0; i < p->count; i++)
        assert_int_equal(p->asked[i].error, error);
}

static void program_drop(struct program *p)
{
    for (uint32_t i = 0; i < p->count; i++)
        efs_client_drop(p->asked[i].request, p->asked[i].index);
}

/* Items of a request that wait for memory are cancelled before those that hold memory are released: nothing is read
 * after the release. */
TEST(test_release_waiting)
{
    struct efs *fs =
        fixture_open(&wide, (struct efs_options){.workers = 2, .no_state = true, .budget_bytes = 32 * MIB});
    struct efs_client_request *request = fixture_submit(fs, wide_needs, WIDE_EXPERTS, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(request), -EDEADLK);
    struct efs_stats before, after;
    uint32_t came = 0;
    do {
        take_one(request);
        efs_stats(fs, &before);
    } while (++came < before.coded_experts);
    assert_in_range(came, 1, WIDE_EXPERTS - 1);
    efs_client_release(request);
    after = fixture_drain(fs);
    assert_int_equal(after.coded_m + after.coded_c, before.coded_m + before.coded_c);
    assert_int_equal(after.coded_errors - before.coded_errors, WIDE_EXPERTS - before.coded_experts);
    assert_int_equal(after.coded_experts, 0);
    efs_close(fs);
}

static bool is_any(const void *arg)
{
    return arg != NULL;
}

/* A request that waits for memory of another program can be refused: its experts get -EDEADLK, and are not read. One
 * that was admitted in part cannot: it waits for its own caller. */
TEST(test_refused_while_held)
{
    enum { WAITING = 4 };
    struct efs *fs = open_with(40 * MIB, false);
    struct program large, other;
    program_begin(&large);
    program_begin(&other);
    program_ask(&large, fs, EFS_FORM_CODED, 0, EXPERTS); /* too large: admitted expert by expert */
    sem_wait(&large.came);
    program_ask(&other, fs, EFS_FORM_CODED, 1, WAITING);
    assert_int_equal(efs_requests_refuse(fs, is_any), WAITING);
    program_check(&other, -EDEADLK);
    assert_int_equal(efs_requests_refuse(fs, is_any), 0);
    for (uint32_t dropped = 0; dropped < EXPERTS; dropped++) { /* one has come that was not dropped yet */
        struct asked *a = large.asked;
        while (!a->request || a->dropped)
            a++;
        a->dropped = true;
        assert_int_equal(a->error, 0);
        efs_client_drop(a->request, a->index);
        if (dropped + 1 < EXPERTS)
            sem_wait(&large.came);
    }
    const struct efs_stats stats = fixture_drain(fs);
    assert_int_equal(stats.coded_m + stats.coded_c, EXPERTS);
    assert_int_equal(stats.coded_errors, WAITING);
    assert_int_equal(stats.coded_experts, 0);
    efs_close(fs);
    program_end(&large);
    program_end(&other);
}

/* A wait for all experts of a request fails with -EDEADLK if they have no room at once; the caller can take and drop
 * them one by one. A wait for room that another request holds goes on. */
TEST(test_deadlock)
{
    struct efs *fs = open_with(40 * MIB, true);
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_CODED; form++) {
        int rc;
        struct efs_client_request *r = fixture_submit(fs, needs[0], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        assert_int_equal(take_all(r, -1, true, &rc), EXPERTS);
        assert_int_equal(rc, 0);
        assert_int_equal(efs_client_wait(r), 0);
        efs_client_release(r);
        r = fixture_submit(fs, needs[0], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        for (uint32_t i = 2; i < EXPERTS; i++)
            efs_client_drop(r, i);
        assert_int_equal(efs_client_wait(r), 0); /* the rest fits */
        efs_client_release(r);
        r = fixture_submit(fs, needs[1], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        take_all_that_come(fs, r);
        struct efs_client_request *other = fixture_submit(fs, needs[2], 1, form);
        pthread_t thread = started(wait_for_all, other);
        check_timeout(other, 500);
        efs_client_release(r);
        check_joined(thread);
        efs_client_release(other);
    }
    close_within_budget(fs);
}

/* An oversize request whose caller keeps an expert gets the next one before requests that came after it. */
TEST(test_not_overtaken)
{
    uint32_t fit, came;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *first = take_what_fits(fs, 0, fit - 1, &came);
    struct efs_client_request *oversize = take_what_fits(fs, 1, EXPERTS, &came);
    assert_int_equal(came, 1);
    struct efs_client_request *later = take_what_fits(fs, 2, 1, &came);
    assert_int_equal(came, 0);
    efs_client_drop(first, 0);
    take_one(oversize);
    check_timeout(later, 0);
    efs_client_drop(oversize, 0); /* its next one now comes after requests that wait already */
    assert_int_equal(efs_client_wait(later), 0);
    efs_client_release(first);
    efs_client_release(oversize);
    efs_client_release(later);
    close_within_budget(fs);
}

/* Only its own caller can free memory for the next expert of a request that holds all that fit: other requests do not
 * wait for it. */
TEST(test_holds_up_nobody)
{
    uint32_t fit, came;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *oversize = take_what_fits(fs, 0, EXPERTS, &came);
    assert_int_equal(came, fit);
    struct efs_client_request *later = take_what_fits(fs, 1, 1, &came);
    assert_int_equal(came, 0);
    efs_client_drop(oversize, 0);
    assert_int_equal(efs_client_wait(later), 0);
    struct efs_client_request *last = take_what_fits(fs, 2, 1, &came);
    assert_int_equal(came, 0);
    efs_client_release(later);
    take_one(oversize); /* was in the queue before the last */
    check_timeout(last, 0);
    efs_client_release(oversize);
    assert_int_equal(efs_client_wait(last), 0);
    efs_client_release(last);
    close_within_budget(fs);
}

/* Programs that pin the same experts in turns, so that they stay pinned, pass the first request that waits for that
 * memory a bounded number of times. */
TEST(test_passed_a_bounded_number_of_times)
{
    enum { ROUNDS = 200 };
    uint32_t fit, passes = 0;
    struct efs *fs = open_small(&fit);
    struct program turn[2], first;
    program_begin(&turn[0]);
    program_begin(&turn[1]);
    program_begin(&first);
    program_ask(&turn[0], fs, EFS_FORM_CODED, 0, --fit);
    program_check(&turn[0], 0);
    program_ask(&first, fs, EFS_FORM_CODED, 1, fit);
    for (; passes < ROUNDS; passes++) {
        struct program *before = &turn[passes % 2], *now = &turn[1 - passes % 2];
        program_ask(now, fs, EFS_FORM_CODED, 0, fit);
        bool passed = now->asked[fit - 1].request; /* experts in memory are answered in the call */
        program_drop(before);
        if (!passed)
            break;
        program_check(now, 0);
    }
    assert_in_range(passes, 1, PASSES_MOST);
    program_check(&first, 0);
    program_drop(&first);
    struct program *last = &turn[1 - passes % 2]; /* its turn */
    program_check(last, 0);
    program_drop(last);
    close_within_budget(fs);
    program_end(&turn[0]);
    program_end(&turn[1]);
    program_end(&first);
}

/* The same for opens of files, which take memory: then they get no lease. */
TEST(test_opens_pass_a_bounded_number_of_times)
{
    struct efs_stats stats;
    uint32_t fit = 0, leased = 0;
    struct efs *fs = fixture_open(
        &wide, (struct efs_options){
                   .workers = 2, .no_state = true, .full_pool = true, .budget_bytes = 64 * MIB, .plan = "C=20"});
    struct efs_client_request *all = fixture_submit(fs, wide_needs, WIDE_EXPERTS, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(all), -EDEADLK);
    do {
        take_one(all);
        efs_stats(fs, &stats);
    } while (++fit < stats.coded_experts);
    efs_client_release(all);
    fixture_drain(fs);
    struct efs_client_request *held = fixture_submit(fs, wide_needs, fit / 2, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *first = begun_elsewhere(fs, wide_needs + fit / 2, fit);
    for (uint32_t i = 0; i < WIDE_EXPERTS; i++) {
        struct efs_lease *lease;
        errint_t rc = lease_wait(fs, fixture_expert_info(fs, i).file, &lease);
        assert_int_equal(rc, leased < PASSES_MOST ? 0 : -ENOMEM);
        leased += rc == 0;
        if (rc == 0)
            efs_lease_release(lease);
    }
    assert_int_equal(leased, PASSES_MOST);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(first), 0);
    efs_client_release(first);
    fixture_lease_once(fs, fixture_expert_info(fs, WIDE_EXPERTS - 1).file);
    close_within_budget(fs);
}

/* A wait for memory that other requests of the thread hold ends with -EDEADLK; one of another thread for the same
 * request goes on. Experts that both requests have count once. */
TEST(test_waits_for_itself)
{
    uint32_t fit, index;
    errint_t status;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *held = fixture_submit(fs, needs[0], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *more = fixture_submit(fs, needs[0], fit, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(more), 0);
    efs_client_release(more);
    struct efs_client_request *next = fixture_submit(fs, needs[1], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(next), -EDEADLK);
    assert_int_equal(efs_client_wait_any(next, -1, &index, &status), -EDEADLK);
    check_timeout(next, 100);
    pthread_t thread = started(wait_for_all, next);
    check_timeout(next, 100);
    efs_client_release(held);
    check_joined(thread);
    assert_int_equal(efs_client_wait(next), 0);

    struct efs_client_request *first = begun_elsewhere(fs, needs[0], fit); /* waits for next */
    struct efs_client_request *last = fixture_submit(fs, needs[2], 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(last), -EDEADLK); /* has room next to it, but comes after the first */
    efs_client_release(next);
    assert_int_equal(efs_client_wait(first), 0);
    efs_client_release(first);
    assert_int_equal(efs_client_wait(last), 0);
    efs_client_release(last);
    close_within_budget(fs);
}

/* A thread that keeps all experts of a request that do not fit at once would wait for its own drops: without a limit
 * that ends with -EDEADLK, also where it holds others by another request; a wait of another thread goes on. */
TEST(test_waits_for_its_own_request)
{
    struct efs *fs = open_with(40 * MIB, true);
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_CODED; form++) {
        uint32_t index;
        errint_t status;
        int rc;
        struct efs_client_request *r = fixture_submit(fs, needs[0], EXPERTS, form);
        uint32_t came = take_all(r, -1, false, &rc);
        assert_int_equal(rc, -EDEADLK);
        assert_in_range(came, 2, EXPERTS - 1);
        check_timeout(r, 100);
        pthread_t thread = started(wait_for_next, r);
        check_timeout(r, 100);
        efs_client_drop(r, 0);
        check_joined(thread);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), came + 1 < EXPERTS ? -EDEADLK : 0);
        efs_client_release(r);
        struct efs_client_request *held = fixture_submit(fs, needs[1], came - 1, form);
        assert_int_equal(efs_client_wait(held), 0);
        r = fixture_submit(fs, needs[0], EXPERTS, form);
        take_one(r);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), -EDEADLK);
        efs_client_release(held);
        take_one(r);
        efs_client_release(r);
    }
    close_within_budget(fs);
}

struct holder {
    struct efs *fs;
    pthread_barrier_t *all_hold;
    uint32_t layer, count, next; /* holds count experts of its layer, and waits for expert `next` of the last one */
    enum efs_form form;
    bool one_by_one;
    _Atomic uint32_t *deadlocks;
};

static errint_t wait_for_one(struct efs_client_request *request, bool one_by_one)
{
    uint32_t index;
    errint_t status = 0;
    int rc = one_by_one ? efs_client_wait_any(request, -1, &index, &status) : efs_client_wait(request);
    return rc < 0 ? rc : status;
}

static void *hold_and_wait(void *arg)
{
    struct holder *h = arg;
    struct efs_client_request *held = NULL;
    if (h->count) {
        held = fixture_submit(h->fs, needs[h->layer], h->count, h->form);
        assert_int_equal(efs_client_wait(held), 0);
    }
    pthread_barrier_wait(h->all_hold);
    struct efs_client_request *next = fixture_submit(h->fs, &needs[LAYERS - 1][h->next], 1, h->form);
    errint_t rc = wait_for_one(next, h->one_by_one);
    if (rc == -EDEADLK) {
        ++*h->deadlocks;
        efs_client_release(held);
        held = NULL;
        rc = wait_for_one(next, h->one_by_one);
    }
    efs_client_release(next);
    efs_client_release(held);
    return (void *)(intptr_t)rc;
}

/* Threads that hold all memory and wait for each other: one of them gets -EDEADLK, and the other threads what they wait
 * for when that one drops its own; also where a thread that holds nothing waits for the same memory. */
TEST(test_threads_wait_for_each_other)
{
    uint32_t fit;
    struct efs *fs = open_small(&fit);
    for (uint32_t turn = 0; turn < 8; turn++) {
        pthread_barrier_t all_hold;
        pthread_t thread[3];
        _Atomic uint32_t deadlocks = 0;
        const uint32_t count = 2 + turn % 2, half = fit / 2;
        struct holder h[3];
        pthread_barrier_init(&all_hold, NULL, count);
        for (uint32_t i = 0; i < count; i++) {
            h[i] = (struct holder){.fs = fs,
                                   .all_hold = &all_hold,
                                   .layer = i,
                                   .count = i == 2 ? 0
                                            : i    ? fit - half
                                                   : half,
                                   .next = i,
                                   .form = EFS_FORM_CODED,
                                   .one_by_one = turn & 2,
                                   .deadlocks = &deadlocks};
            assert_int_equal(pthread_create(&thread[i], NULL, hold_and_wait, &h[i]), 0);
        }
        for (uint32_t i = 0; i < count; i++) {
            void *rc;
            pthread_join(thread[i], &rc);
            assert_int_equal((intptr_t)rc, 0);
        }
        pthread_barrier_destroy(&all_hold);
        assert_int_equal(deadlocks, 1);
    }
    fixture_within_budget(fs);
    efs_close(fs);
}

/* A thread that holds full and coded experts of any number, and waits for more without a limit: it gets them, or
 * -EDEADLK, also where the memory that is left is scattered, or in a segment of which it holds a part. */
TEST(test_never_waits_for_itself)
{
    struct efs *fs = open_with(40 * MIB, true);
    struct efs_client_request *held[4] = {NULL};
    uint32_t random = 1, deadlocks = 0;
    efs_plan_thread_wait(fs);
    for (uint32_t n = 0; n < TURNS; n++) {
        random = random * 1103515245u + 12345u;
        const uint32_t layer = (random >> 8) % LAYERS, first = (random >> 12) % EXPERTS;
        const uint32_t count = 1 + (random >> 16) % (EXPERTS - first), slot = (random >> 20) % 4;
        int rc;
        efs_client_release(held[slot]);
        held[slot] = fixture_submit(fs, &needs[layer][first], count, random >> 24 & 1 ? EFS_FORM_FULL : EFS_FORM_CODED);
        take_all(held[slot], -1, random >> 25 & 1, &rc);
        deadlocks += rc == -EDEADLK;
    }
    assert_in_range(deadlocks, 1, TURNS - 1);
    for (uint32_t i = 0; i < 4; i++)
        efs_client_release(held[i]);
    close_within_budget(fs);
}

/* A thread that holds all memory gets experts again that it holds, also while another thread waits for memory. */
TEST(test_held_again)
{
    uint32_t fit;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *held = fixture_submit(fs, needs[0], fit, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *other = begun_elsewhere(fs, needs[1], 1);
    check_timeout(other, 0);
    for (uint32_t count = 1; count <= fit; count++) {
        struct efs_client_request *again = fixture_submit(fs, needs[0], count, EFS_FORM_CODED);
        assert_int_equal(efs_client_wait(again), 0);
        efs_client_release(again);
    }
    check_timeout(other, 0);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(other), 0);
    efs_client_release(other);
    close_within_budget(fs);
}

/* A thread that holds experts and waits for more of another program's memory waits behind requests that hold nothing,
 * also those that came later. */
TEST(test_stands_behind)
{
    uint32_t fit, came;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *other = take_what_fits(fs, 1, 1, &came);
    struct efs_client_request *held = fixture_submit(fs, needs[0], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *next =
        fixture_submit(fs, needs[2], fit, EFS_FORM_CODED);               /* never next to what is held */
    struct efs_client_request *later = begun_elsewhere(fs, needs[1], 2); /* one of them is pinned */
    check_timeout(later, 0);
    efs_client_drop(held, 0);
    assert_int_equal(efs_client_wait(later), 0);
    check_timeout(next, 0);
    efs_client_release(later);
    efs_client_release(other);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(next), 0);
    efs_client_release(next);
    close_within_budget(fs);
}

/* After drops the rest of a request fits: a wait for all of it waits for memory, and does not fail with -EDEADLK. */
TEST(test_fits_after_drops)
{
    uint32_t fit, came;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *first = take_what_fits(fs, 0, fit - 1, &came);
    struct efs_client_request *r = take_what_fits(fs, 1, EXPERTS, &came);
    assert_int_equal(came, 1);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    for (uint32_t i = 0; i + 2 < EXPERTS; i++)
        efs_client_drop(r, i);
    pthread_t thread = started(wait_for_all, r);
    check_timeout(r, 500);
    efs_client_release(first);
    check_joined(thread);
    efs_client_release(r);
    close_within_budget(fs);
}

/* Experts that callers hold stay valid when the store is closed. All memory is freed in the end (sanitizers check). */
TEST(test_pins_at_close)
{
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        struct efs *fs = open_with(128 * MIB, true);
        struct program p;
        program_begin(&p);
        program_ask(&p, fs, form, 0, 3);
        program_check(&p, 0);
        efs_client_drop(p.asked[1].request, p.asked[1].index);
        efs_close(fs);
        efs_request_detach(p.asked[0].request, p.asked[0].index);
        efs_request_detach(p.asked[2].request, p.asked[2].index);
        program_end(&p);
    }
}

struct requester {
    struct efs *fs;
    uint64_t seed;
    uint32_t count; /* experts of a request */
    enum efs_form form;
    _Atomic uint32_t *done;
};

/* Requests experts again and again, and waits for all of them. */
static void *request_and_wait(void *arg)
{
    struct requester *of = arg;
    for (unsigned round = 0; round < 50; round++) {
        struct efs_client_request *r;
        const struct efs_request_how how = {.form = of->form};
        const struct efs_need *layer = needs[fixture_random(&of->seed) % LAYERS];
        const uint64_t first = fixture_random(&of->seed) % (EXPERTS - of->count + 1);
        if (efs_request_submit(of->fs, layer + first, of->count, &how, &r, NULL) < 0 || efs_client_wait(r) < 0)
            abort();
        efs_client_release(r);
        atomic_fetch_add(of->done, 1);
    }
    return NULL;
}

/* Threads whose requests fit into memory one at a time, but not all at once, wait for each other and for nothing else:
 * a request that got a part of its memory and waited for the rest would wait for ever. */
TEST(test_requesters)
{
    static const uint32_t counts[] = {[EFS_FORM_FULL] = 6, [EFS_FORM_CODED] = 4, [EFS_FORM_ANY] = 4};
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        struct efs *fs = open_with(60 * MIB, true);
        struct requester of[8];
        pthread_t threads[8];
        _Atomic uint32_t done = 0;
        for (unsigned i = 0; i < 8; i++) {
            of[i] = (struct requester){.fs = fs, .seed = i + 1, .count = counts[form], .form = form, .done = &done};
            threads[i] = started(request_and_wait, &of[i]);
        }
        for (unsigned i = 0; i < 8; i++)
            check_joined(threads[i]);
        assert_int_equal(done, 400);
        close_within_budget(fs);
    }
}

TEST_MAIN(setup, teardown)
