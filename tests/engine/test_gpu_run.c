/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts computed on the device, compared with the CPU; without room, with damage, and with each driver call failing.
 */

#include "test.h"
#include "device_internal.h"
#include "expertfs-compute.h"
#include "gpu_fixture.h"

#define HIDDEN 256u
#define Y_STRIDE (HIDDEN + 3)
#define TOKENS 7u
#define MANY_TOKENS 70u
#define ALL_TOKENS 2600u /* h of two experts exceeds the scratch memory; with more experts, the rest does, too */

struct both {
    struct efs_team *team;
    struct efs_client *client;
};

static void both_begin(struct both *s)
{
    assert_int_equal(efs_team_new(2, &s->team), 0);
    s->client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
}

static void both_end(struct both *s)
{
    efs_team_free(s->team);
    efs_client_close(s->client);
}

/* Computes a mixture of the first experts of layer 1. Each expert has at least every third token, in ascending or
 * descending order; no expert has token 2. A single token has all experts. */
static errint_t mix(struct both *s, enum efs_form form, uint32_t experts, uint32_t tokens, float *y,
                    struct efs_error *err)
{
    static float x[ALL_TOKENS][HIDDEN], weight[ALL_TOKENS];
    static uint32_t token[GPU_EXPERTS][ALL_TOKENS];
    struct efs_route_to routes[GPU_EXPERTS];
    uint64_t random = 19;
    for (uint32_t t = 0; t < tokens; t++) {
        weight[t] = 0.25f + (float)t / 100;
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[t][i] = (float)(int64_t)(fixture_random(&random) % 2001) / 1000 - 1;
    }
    for (uint32_t e = 0; e < experts; e++) {
        routes[e] = (struct efs_route_to){e, 0, token[e], weight};
        for (uint32_t n = 0; n < tokens; n++) {
            const uint32_t t = e % 2 ? tokens - 1 - n : n;
            if (tokens == 1 || (t != 2 && (t + e) % 3 < 1 + e % 2))
                token[e][routes[e].count++] = t;
        }
    }
    const struct efs_mixture mixture = {.expert_count = experts,
                                        .experts = routes,
                                        .x = x,
                                        .tokens = tokens,
                                        .hidden = HIDDEN,
                                        .x_stride = HIDDEN,
                                        .y_stride = Y_STRIDE,
                                        .y = y,
                                        .form = form};
    return efs_client_ffn(s->client, s->team, "", 1, &mixture, err);
}

/* Fails unless the results are equal up to the order of sums. Returns the number of tokens without an expert. */
static unsigned compare(const float *here, const float *there, uint32_t tokens)
{
    unsigned none = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        const float *a = here + t * Y_STRIDE, *b = there + t * Y_STRIDE;
        float most = 0;
        for (uint32_t i = 0; i < HIDDEN; i++)
            most = a[i] > most ? a[i] : -a[i] > most ? -a[i] : most;
        for (uint32_t i = 0; i < HIDDEN; i++)
            assert_true(a[i] - b[i] <= 1e-5f * most && b[i] - a[i] <= 1e-5f * most);
        none += most == 0;
    }
    return none;
}

/* Computes the mixture in `form` and on the CPU only, and compares. Returns the number of tokens without an expert. */
static unsigned mix_compared(struct both *s, enum efs_form form, uint32_t experts, uint32_t tokens)
{
    static float here[ALL_TOKENS * Y_STRIDE], there[ALL_TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    memset(there, 0x7f, sizeof(there));
    if (mix(s, form, experts, tokens, there, &err) < 0)
        fail_msg("%s", err.text);
    const struct efs_gpu_stats after = gpu_stats(s->client);
    assert_int_equal(mix(s, EFS_FORM_FULL, experts, tokens, here, &err), 0);
    assert_int_equal(gpu_stats(s->client).g_ran, after.g_ran);
    return compare(here, there, tokens);
}

TEST_WITH(run_on_device, NULL, gpu_test_teardown)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs_client_request *held = NULL;
    struct both s;
    both_begin(&s);
    for (unsigned round = 0; round < 3; round++) { /* the last round has room for two of the eight */
        if (round == 2)
            held = gpu_request_wait(s.client, 0, 0, 6);
        gpu_fake.slow(200);
        assert_int_equal(mix_compared(&s, EFS_FORM_DEVICE, GPU_EXPERTS, TOKENS), 1);
    }
    efs_client_release(held);
    held = gpu_request_wait(s.client, 0, 0, GPU_EXPERTS);
    assert_int_equal(mix(&s, EFS_FORM_DEVICE, GPU_EXPERTS, TOKENS, y, &err), -ENOMEM); /* every place is held */
    assert_non_null(strstr(err.text, "no room"));
    efs_client_release(held);
    gpu_fake.damage(2); /* the first copy is x */
    assert_int_equal(mix(&s, EFS_FORM_DEVICE, GPU_EXPERTS, TOKENS, y, &err), -EUCLEAN);
    both_end(&s);
}

/* ---- shared between device and CPU ---- */

/* Sets the measured times of computing an expert on either side and of copying one. No cost is due to be measured. */
static void costs_are(struct efs_client *client, uint64_t cpu_ns, uint64_t gpu_ns, uint64_t link_ns)
{
    struct efs_device *device = efs_client_device(client);
    pthread_mutex_lock(&device->lock);
    device->costs = (struct efs_assign_costs){
        .layers_until_due = {EFS_ASSIGN_MEASURE_INTERVAL, EFS_ASSIGN_MEASURE_INTERVAL, EFS_ASSIGN_MEASURE_INTERVAL}};
    efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_CPU, 1, cpu_ns);
    efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_GPU, 1, gpu_ns);
    efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_LINK, 1, link_ns);
    device->measured_loads = device->stats.g_brought;
    device->load_ns = 0;
    pthread_mutex_unlock(&device->lock);
}

static const uint64_t long_ns = EFS_ASSIGN_NS_MAX / 1024;

/* Computes the mixture in shared form. Returns the number of experts that the device computed. */
static uint32_t share(struct both *s, uint32_t experts, uint32_t tokens)
{
    const struct efs_gpu_stats before = gpu_stats(s->client);
    mix_compared(s, EFS_FORM_SHARED, experts, tokens);
    const struct efs_gpu_stats after = gpu_stats(s->client);
    assert_int_equal(after.g_held, before.g_held);
    assert_int_equal(after.g_ran - before.g_ran + after.g_shared - before.g_shared, experts);
    return (uint32_t)(after.g_ran - before.g_ran);
}

TEST_WITH(shared_equals_cpu, NULL, gpu_test_teardown)
{
    static const uint32_t token_counts[] = {1, TOKENS, MANY_TOKENS};
    struct both s;
    both_begin(&s);
    gpu_fake.slow(200);
    for (unsigned n = 0; n < sizeof(token_counts) / sizeof(token_counts[0]); n++)
        for (uint32_t experts = 1; experts <= GPU_EXPERTS; experts += GPU_EXPERTS - 1) {
            const uint32_t tokens = token_counts[n];
            for (unsigned round = 0; round < 4; round++) /* with measured costs */
                share(&s, experts, tokens);
            gpu_request_check(s.client, 0, 0, GPU_EXPERTS); /* evicts layer 1 */
            costs_are(s.client, long_ns, 1, 1);
            assert_int_equal(share(&s, experts, tokens), experts);
            gpu_request_check(s.client, 1, 0, GPU_EXPERTS); /* all of layer 1 */
            const uint64_t brought = gpu_stats(s.client).g_brought;
            costs_are(s.client, long_ns, 1, long_ns);
            assert_int_equal(share(&s, experts, tokens), experts);
            assert_int_equal(gpu_stats(s.client).g_brought, brought);
            costs_are(s.client, 1, long_ns, 1);
            assert_int_equal(share(&s, experts, tokens), 0);
        }
    struct efs_client_request *some;
    gpu_request_check(s.client, 0, 0, GPU_EXPERTS);
    some = gpu_request_wait(s.client, 1, 0, 3);
    costs_are(s.client, 1000, 1, long_ns);
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), 3); /* only the experts in pool G */
    efs_client_release(some);
    both_end(&s);
}

/* The first mixture of a new client runs on both sides, which measures both. */
TEST_WITH(shared_is_measured, NULL, gpu_test_teardown)
{
    struct both s;
    both_begin(&s);
    const uint32_t there = share(&s, GPU_EXPERTS, TOKENS);
    assert_true(there > 0 && there < GPU_EXPERTS);
    share(&s, GPU_EXPERTS, TOKENS);
    struct efs_device *device = efs_client_device(s.client);
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_MEASURED; what++)
        assert_true(efs_assign_costs_ns(&device->costs, what, TOKENS) > 0);
    both_end(&s);
}

/* The CPU computes the experts that the device has no room for. */
TEST_WITH(shared_without_device_memory, NULL, gpu_test_teardown)
{
    struct efs_client_request *held;
    struct both s;
    both_begin(&s);
    for (uint32_t left = 0; left < 3; left++) {
        held = gpu_request_wait(s.client, 0, 0, GPU_POOL_EXPERTS - left);
        costs_are(s.client, long_ns, 1, 1);
        assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), left);
        struct efs_device *device = efs_client_device(s.client); /* all costs are due: a copy is tried */
        costs_are(s.client, long_ns, 1, 1);
        memset(device->costs.layers_until_due, 0, sizeof(device->costs.layers_until_due));
        assert_true(share(&s, GPU_EXPERTS, TOKENS) <= (left ? left + 1 : 0)); /* in the place of one already computed */
        efs_client_release(held);
        gpu_request_check(s.client, 0, 0, GPU_EXPERTS);
    }
    struct efs_client_request *two;
    held = gpu_request_wait(s.client, 0, 0, GPU_POOL_EXPERTS - 2);
    two = gpu_request_wait(s.client, 1, 0, 2);
    costs_are(s.client, long_ns, 1, 1);
    efs_client_device(s.client)->costs.layers_until_due[EFS_ASSIGN_COST_LINK] = 0;
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), 2); /* one more was tried without room */
    efs_client_release(two);
    efs_client_release(held);
    both_end(&s);
}

TEST_WITH(shared_with_many_tokens, NULL, gpu_test_teardown)
{
    struct both s;
    both_begin(&s);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, ALL_TOKENS), 0); /* the width of h is not known yet */
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, 1), GPU_EXPERTS);
    costs_are(s.client, long_ns, 1, 1);
    const uint64_t brought = gpu_stats(s.client).g_brought;
    assert_int_equal(share(&s, GPU_EXPERTS, ALL_TOKENS), 1);
    assert_true(gpu_stats(s.client).g_brought <= brought + 1);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, 1, ALL_TOKENS), 1);
    both_end(&s);
}

TEST_WITH(shared_refuses_invalid_arguments, NULL, gpu_test_teardown)
{
    float y[Y_STRIDE];
    struct efs_error err = {""};
    struct efs_client_request *request;
    struct efs_need need = {0, 1};
    struct both s;
    both_begin(&s);
    assert_int_equal(efs_client_begin(s.client, "", 1, &need, 1, EFS_FORM_SHARED, &request, &err), -EINVAL);
    struct efs_client *without = gpu_client_no_device(gpu_model.store, true);
    assert_int_equal(mix(&(struct both){s.team, without}, EFS_FORM_SHARED, 1, 1, y, &err), -EINVAL);
    assert_non_null(strstr(err.text, "efs_client_gpu()"));
    efs_client_close(without);
    both_end(&s);
}

static void damage_store(void)
{
    size_t bytes;
    free(fixture_read(gpu_model.store, &bytes));
    for (uint64_t at = bytes / 2; at < bytes - bytes / 8; at += 4096)
        fixture_damage(gpu_model.store, at);
}

TEST_WITH(shared_with_damage, NULL, gpu_test_teardown)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct both s;
    both_begin(&s);
    costs_are(s.client, long_ns, 1, 1);
    gpu_fake.damage(2); /* in the copy to the device; the first copy is x */
    assert_int_equal(mix(&s, EFS_FORM_SHARED, GPU_EXPERTS, TOKENS, y, &err), -EUCLEAN);
    assert_true(err.text[0]);
    gpu_fake.damage(0);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), GPU_EXPERTS);
    efs_client_close(s.client);
    damage_store();
    for (unsigned side = 0; side < 3; side++) { /* in the store: found by the device, the CPU, or both */
        s.client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
        if (side < 2)
            costs_are(s.client, side ? 1 : long_ns, side ? long_ns : 1, 1);
        assert_int_equal(mix(&s, EFS_FORM_SHARED, GPU_EXPERTS, TOKENS, y, &err), -EUCLEAN);
        assert_true(err.text[0]);
        assert_int_equal(gpu_stats(s.client).g_held, 0);
        if (side < 2)
            efs_client_close(s.client);
    }
    damage_store(); /* a second flip restores the bytes */
    both_end(&s);
}

/* Form of life()'s mixture, and the expected result: that of the CPU. */
static enum efs_form form_of_life;
static float wanted_of_life[TOKENS * Y_STRIDE];

static bool life(void)
{
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct both s = {.client = gpu_client_no_device(gpu_model.store, true)};
    bool failed = gpu_add_device(s.client, GPU_MIN_BUDGET, &err) < 0;
    assert_int_equal(efs_team_new(2, &s.team), 0);
    if (!failed) {
        errint_t rc = mix(&s, form_of_life, GPU_EXPERTS, TOKENS, y, &err);
        assert_true(rc == 0 || (rc == -EIO && err.text[0]));
        failed = rc < 0;
        if (!failed)
            compare(wanted_of_life, y, TOKENS);
    }
    both_end(&s);
    return failed;
}

TEST_WITH(each_call_fails, NULL, gpu_test_teardown)
{
    struct efs_error err = {""};
    struct both s;
    both_begin(&s);
    assert_int_equal(mix(&s, EFS_FORM_FULL, GPU_EXPERTS, TOKENS, wanted_of_life, &err), 0);
    both_end(&s);
    form_of_life = EFS_FORM_DEVICE;
    gpu_fail_each_call(life, 30);
    form_of_life = EFS_FORM_SHARED;
    gpu_fail_each_call(life, 30);
}

TEST_MAIN(gpu_setup, gpu_teardown)
