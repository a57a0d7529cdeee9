/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures that wait for memory: they leave the team to other threads, and end when their caller says so. Waits in
 * steps, as callers make them that look for signals.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "test.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "plan_thread.h"

#define LAYERS 2
#define EXPERTS 8u
#define HIDDEN 1024u
#define MIB (1ull << 20)

static struct fixture model;
static float x[HIDDEN];

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, HIDDEN);
    for (uint32_t i = 0; i < HIDDEN; i++)
        x[i] = (float)(i % 7) - 3;
    return 0;
}

struct served {
    struct efs *fs;
    struct efs_client *client;
    struct efs_team *team;
    uint32_t fit; /* coded experts for which there was memory */
};

static struct efs_client_request *begun(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    struct efs_need needs[EXPERTS];
    struct efs_client_request *request;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){first + i, 1};
    assert_int_equal(efs_client_begin(client, "", layer, needs, count, EFS_FORM_CODED, &request, NULL), 0);
    return request;
}

static struct served serve(unsigned threads)
{
    struct served s = {
        .fs = fixture_open(&model, (struct efs_options){.workers = 2, .no_state = true, .budget_bytes = 40 * MIB})};
    uint32_t index;
    errint_t status;
    efs_plan_thread_wait(s.fs);
    assert_int_equal(efs_client_new(s.fs, &s.client, NULL), 0);
    assert_int_equal(efs_team_new(threads, &s.team), 0);
    struct efs_client_request *all = begun(s.client, 0, 0, EXPERTS);
    while (efs_client_wait_any(all, -1, &index, &status) == 1)
        s.fit++;
    efs_client_release(all);
    assert_in_range(s.fit, 3, EXPERTS - 2);
    return s;
}

static void serve_end(struct served *s)
{
    efs_team_free(s->team);
    efs_client_close(s->client);
    efs_close(s->fs);
}

/* One token, at all experts from the first on. */
static struct efs_mixture mixture_of(struct efs_route_to *routes, uint32_t first, uint32_t count, float *y)
{
    static const uint32_t token = 0;
    static const float weight = 1;
    for (uint32_t i = 0; i < count; i++)
        routes[i] = (struct efs_route_to){.expert = first + i, .count = 1, .token = &token, .weight = &weight};
    return (struct efs_mixture){.experts = routes,
                                .expert_count = count,
                                .x = x,
                                .tokens = 1,
                                .hidden = HIDDEN,
                                .x_stride = HIDDEN,
                                .y_stride = HIDDEN,
                                .y = y,
                                .form = EFS_FORM_CODED};
}

/* ---- threads that hold experts and run mixtures ---- */

#define TURNS 30u
#define HELD 6u

struct runner {
    const struct served *s;
    const float (*want)[HIDDEN]; /* by layer */
    uint64_t random;
    uint32_t ran;
};

static uint32_t drawn(struct runner *r, uint32_t below)
{
    return (uint32_t)(fixture_random(&r->random) >> 20) % below;
}

/* Holds experts of its choice, one request each. -EDEADLK: there is no memory for one. */
static errint_t hold_some(struct runner *r, struct efs_client_request **held, uint32_t *count)
{
    errint_t rc = 0;
    for (uint32_t end = drawn(r, HELD + 1); rc == 0 && *count < end; ++*count) {
        held[*count] = begun(r->s->client, drawn(r, LAYERS), drawn(r, EXPERTS), 1);
        rc = efs_client_wait(held[*count]);
    }
    return rc;
}

static void *hold_and_run(void *arg)
{
    struct runner *r = arg;
    struct efs_client_request *held[HELD];
    struct efs_route_to routes[EXPERTS];
    float y[HIDDEN];
    uint32_t count = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        errint_t rc = hold_some(r, held, &count);
        const uint32_t layer = drawn(r, LAYERS);
        const struct efs_mixture m = mixture_of(routes, 0, EXPERTS, y);
        if (rc == 0)
            rc = efs_client_ffn(r->s->client, r->s->team, "", layer, &m, NULL);
        r->ran += rc == 0;
        if (rc == 0 && memcmp(y, r->want[layer], sizeof(y)) != 0)
            rc = -EILSEQ;
        for (; count > 0 && (rc < 0 || drawn(r, 2)); count--)
            efs_client_release(held[count - 1]);
        if (rc < 0 && rc != -EDEADLK)
            return (void *)(intptr_t)rc;
    }
    for (; count > 0; count--)
        efs_client_release(held[count - 1]);
    return NULL;
}

/* Mixtures that do not fit into memory at once, while their threads hold experts, too: each ends, or with -EDEADLK. */
TEST(threads_with_one_team)
{
    struct served s = serve(2);
    float want[LAYERS][HIDDEN];
    struct runner r[3];
    pthread_t thread[3];
    struct efs_route_to routes[EXPERTS];
    uint32_t ran = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct efs_mixture m = mixture_of(routes, 0, EXPERTS, want[layer]);
        assert_int_equal(efs_client_ffn(s.client, s.team, "", layer, &m, NULL), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        r[i] = (struct runner){.s = &s, .want = want, .random = i + 1};
        assert_int_equal(pthread_create(&thread[i], NULL, hold_and_run, &r[i]), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        void *rc;
        pthread_join(thread[i], &rc);
        assert_int_equal((intptr_t)rc, 0);
        ran += r[i].ran;
    }
    assert_true(ran > 0);
    serve_end(&s);
}

/* ---- callers that look for signals ---- */

static bool third_call(void *arg)
{
    _Atomic uint32_t *calls = arg;
    return ++*calls == 3;
}

static void *hold(void *arg)
{
    const struct served *s = arg;
    struct efs_client_request *held = begun(s->client, 1, 0, s->fit);
    assert_int_equal(efs_client_wait(held), 0);
    return held;
}

TEST(a_mixture_is_interrupted)
{
    struct served s = serve(2);
    struct efs_route_to routes[EXPERTS];
    float y[HIDDEN];
    pthread_t thread;
    void *held;
    struct efs_error err = {""};
    _Atomic uint32_t calls = 0;
    struct efs_mixture m = mixture_of(routes, 0, EXPERTS, y);
    m.interrupted = third_call;
    m.interrupted_arg = &calls;
    assert_int_equal(pthread_create(&thread, NULL, hold, &s), 0);
    pthread_join(thread, &held);
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), -EINTR);
    assert_int_equal(calls, 3);
    efs_client_release(held);
    assert_int_equal(efs_client_ffn(s.client, s.team, "", 0, &m, &err), 0);
    serve_end(&s);
}

struct waiter {
    const struct served *s;
    uint32_t layer, count, steps;
    bool all;
    pthread_barrier_t *hold;
    _Atomic uint32_t *deadlocks;
};

static errint_t wait_in_steps(struct waiter *w, struct efs_client_request *request)
{
    errint_t rc;
    while ((rc = efs_client_wait_step(request, w->all, 1)) == -EINTR)
        w->steps++;
    return rc;
}

static void *hold_and_wait_in_steps(void *arg)
{
    struct waiter *w = arg;
    struct efs_client_request *held = begun(w->s->client, w->layer, 0, w->count);
    assert_int_equal(efs_client_wait(held), 0);
    pthread_barrier_wait(w->hold);
    struct efs_client_request *next = begun(w->s->client, w->layer, EXPERTS - 1, 1);
    errint_t rc = wait_in_steps(w, next);
    if (rc == -EDEADLK) {
        ++*w->deadlocks;
        efs_client_release(held);
        held = NULL;
        rc = wait_in_steps(w, next);
    }
    uint32_t index;
    errint_t status = -EINVAL;
    if (rc == 0)
        rc = efs_client_wait_any(next, 0, &index, &status) == 1 ? status : -EINVAL; /* the step has not taken it */
    efs_client_release(next);
    efs_client_release(held);
    return (void *)(intptr_t)rc;
}

/* Threads that wait in steps wait for each other as those that wait without a limit: one of them gets -EDEADLK. */
TEST(threads_that_wait_in_steps)
{
    struct served s = serve(1);
    for (uint32_t turn = 0; turn < 4; turn++) {
        pthread_barrier_t all_hold;
        pthread_t thread[2];
        _Atomic uint32_t deadlocks = 0;
        struct waiter w[2];
        pthread_barrier_init(&all_hold, NULL, 2);
        for (uint32_t i = 0; i < 2; i++) {
            w[i] = (struct waiter){.s = &s,
                                   .layer = i,
                                   .count = i ? s.fit - s.fit / 2 : s.fit / 2,
                                   .all = turn & 1,
                                   .hold = &all_hold,
                                   .deadlocks = &deadlocks};
            assert_int_equal(pthread_create(&thread[i], NULL, hold_and_wait_in_steps, &w[i]), 0);
        }
        for (uint32_t i = 0; i < 2; i++) {
            void *rc;
            pthread_join(thread[i], &rc);
            assert_int_equal((intptr_t)rc, 0);
        }
        pthread_barrier_destroy(&all_hold);
        assert_int_equal(deadlocks, 1);
    }
    serve_end(&s);
}

/* A step ends while another thread holds the memory, and then returns at once where all fits or cannot. */
TEST(steps)
{
    struct served s = serve(1);
    pthread_t thread;
    void *held;
    assert_int_equal(pthread_create(&thread, NULL, hold, &s), 0);
    pthread_join(thread, &held);
    struct efs_client_request *request = begun(s.client, 0, 0, 1), *wide = begun(s.client, 0, 0, EXPERTS);
    assert_int_equal(efs_client_wait_step(request, false, 1), -EINTR);
    assert_int_equal(efs_client_wait_step(request, true, 1), -EINTR);
    assert_int_equal(efs_client_wait_step(wide, true, 60000), -EDEADLK);
    efs_client_release(held);
    assert_int_equal(efs_client_wait_step(request, true, 60000), 0);
    efs_client_release(request);
    efs_client_release(wide);
    serve_end(&s);
}

TEST_MAIN(setup, fixture_teardown)
