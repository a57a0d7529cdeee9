/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuning under load: some threads change and read every setting, more threads request experts, and plans are made. The
 * files have the packed bytes; ThreadSanitizer detects accesses without a lock.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "policy.h"
#include "sync_calls.h"

#define LAYERS 3u
#define EXPERTS 8u
#define OPENS 4u
#define ROUNDS 20u
#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 64, 256);
    return 0;
}

struct tune_load {
    struct efs *fs;
    atomic_uint refused; /* calls that failed */
    atomic_uint busy;    /* threads with rounds left */
};

/* Each thread continues until all have finished their rounds, so that none runs alone. */
static bool load_runs(struct tune_load *c, unsigned round)
{
    if (round == ROUNDS)
        c->busy--;
    return c->busy > 0;
}

static void expect(struct tune_load *c, errint_t rc)
{
    c->refused += rc != 0;
}

static void *set_budget(void *arg)
{
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++)
        expect(c, efs_set(c->fs, "budget", n % 2 ? "96M" : "128M", NULL, NULL));
    return NULL;
}

static void *set_policy(void *arg)
{
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++)
        expect(c, efs_set(c->fs, "policy", efs_policy_name(n % EFS_POLICY_KINDS), NULL, NULL));
    return NULL;
}

static void *set_the_rest(void *arg)
{
    static const char *const pairs[][2] = {{"plan", "F=10,C=70,S=10,E=10"},
                                           {"pools", "CS"},
                                           {"plan", "auto"},
                                           {"pools", "FCSE"},
                                           {"goal", "io"},
                                           {"goal", "makespan"}};
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++) {
        expect(c, efs_set(c->fs, pairs[n % 6][0], pairs[n % 6][1], NULL, NULL));
        expect(c, efs_pin(c->fs, efs_id(n % (LAYERS * EXPERTS)), n % 3 == 0, n % 2 ? 'C' : '-', NULL));
    }
    return NULL;
}

static void *look(void *arg)
{
    static const char *const told[] = {"plan", "profile", "memory", "trace"};
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++) {
        char value[256], *text;
        size_t bytes;
        struct efs_stats stats;
        struct efs_pool_info pool;
        struct efs_expert_info info;
        expect(c, efs_get(c->fs, efs_tunables[n % EFS_TUNABLES].name, value, sizeof(value)));
        if (efs_describe(c->fs, told[n % 4], &text, &bytes) == 0)
            free(text);
        efs_stats(c->fs, &stats);
        expect(c, efs_pool_info(c->fs, "FCSEM"[n % 5], &pool));
        expect(c, efs_expert_info(c->fs, efs_id(n % (LAYERS * EXPERTS)), &info));
    }
    return NULL;
}

static void *want(void *arg)
{
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++) {
        const struct efs_need needs[] = {{n % EXPERTS, 2}, {(n + 3) % EXPERTS, 1}};
        expect(c, fixture_prefetch(c->fs, n % LAYERS, needs, 2, NULL));
    }
    return NULL;
}

static void *request(void *arg)
{
    struct tune_load *c = arg;
    for (unsigned n = 0; load_runs(c, n); n++) {
        const uint32_t first = n % LAYERS * EXPERTS;
        const struct efs_need needs[] = {{first + n % EXPERTS, 1}, {first + (n + 1) % EXPERTS, 3}};
        const struct efs_tensor *tensors;
        struct efs_client_request *r;
        uint32_t count;
        expect(c,
               efs_request_submit(c->fs, needs, 2,
                                  &(struct efs_request_how){.form = n % 2 ? EFS_FORM_ANY : EFS_FORM_CODED}, &r, NULL));
        expect(c, efs_client_wait(r));
        expect(c, efs_client_tensors(r, n % 2, &tensors, &count));
        efs_client_release(r);
    }
    return NULL;
}

static void *read_files(void *arg)
{
    struct tune_load *c = arg;
    uint8_t *data = malloc(MIB);
    for (unsigned n = 0; load_runs(c, n); n++) {
        struct efs_expert_info info;
        expect(c, efs_expert_info(c->fs, efs_id(n * 7 % (LAYERS * EXPERTS)), &info));
        c->refused += !data || read_wait(c->fs, info.file, NULL, n % 3 * 4096, data, MIB) <= 0;
    }
    free(data);
    return NULL;
}

static void tune_and_ask(const struct efs_options *options)
{
    void *(*const work[])(void *) = {set_budget, set_budget, set_policy, set_the_rest, look,
                                     want,       want,       request,    request,      read_files};
    enum { THREADS = sizeof(work) / sizeof(work[0]) };
    for (unsigned n = 0; n < OPENS; n++) {
        pthread_t threads[THREADS];
        struct tune_load c = {.fs = fixture_open(&model, *options), .busy = THREADS};
        for (unsigned t = 0; t < THREADS; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, work[t], &c), 0);
        for (unsigned t = 0; t < THREADS; t++)
            pthread_join(threads[t], NULL);
        assert_int_equal(c.refused, 0);
        assert_true(fixture_check_files(&model, c.fs) > 0);
        efs_close(c.fs);
    }
}

TEST(test_coded)
{
    tune_and_ask(&(struct efs_options){.budget_bytes = 128 * MIB, .workers = 2, .no_state = true, .warm = "always"});
}

TEST(test_full)
{
    tune_and_ask(&(struct efs_options){
        .budget_bytes = 128 * MIB, .workers = 2, .no_state = true, .full_pool = true, .lease_wait = true});
}

TEST_MAIN(setup, fixture_teardown)
