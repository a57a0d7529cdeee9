/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts that are run on a graphics processor, beside the same on this one; with no room, with damage, and with each
 * call of the driver that fails.
 */

#include "test.h"
#include "device_core.h"
#include "expertfs-compute.h"
#include "gpu_fixture.h"

#define HIDDEN 256u
#define TOKENS 5u

/* Of layer 1, tokens that choose several, one or none of its experts. */
static errint_t mix(struct efs_client *client, struct efs_team *team, enum efs_form form, float y[TOKENS][HIDDEN + 3],
                    struct efs_error *err)
{
    static float x[TOKENS][HIDDEN];
    static const uint32_t all[] = {4, 0, 1, 3}, one[] = {3};
    static const float weights[] = {0.5f, 0.25f, 1, 2};
    struct efs_route_to routes[GPU_EXPERTS];
    uint64_t random = 9;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[t][i] = (float)(int64_t)(fixture_random(&random) % 2001) / 1000 - 1;
    for (uint32_t e = 0; e < GPU_EXPERTS; e++)
        routes[e] = (struct efs_route_to){e, e % 2 ? 4 : 1, e % 2 ? all : one, weights};
    const struct efs_mixture mixture = {.expert_count = GPU_EXPERTS,
                                        .experts = routes,
                                        .x = x,
                                        .tokens = TOKENS,
                                        .hidden = HIDDEN,
                                        .x_stride = HIDDEN,
                                        .y_stride = HIDDEN + 3,
                                        .y = &y[0][0],
                                        .form = form};
    return efs_client_ffn(client, team, "", 1, &mixture, err);
}

/* gate and up are [64][256], as down is to be [256][64]: so down is the other way round here. */
static void runnable_model(struct fixture *runnable)
{
    static char names[GPU_LAYERS * GPU_EXPERTS * 3][80];
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    struct fixture_tensor tensors[GPU_LAYERS * GPU_EXPERTS * 3];
    unsigned n = 0;
    for (unsigned l = 0; l < GPU_LAYERS; l++)
        for (unsigned e = 0; e < GPU_EXPERTS; e++)
            for (unsigned p = 0; p < 3; p++, n++) {
                snprintf(names[n], sizeof(names[n]), "model.layers.%u.mlp.experts.%u.%s.weight", l, e, parts[p]);
                tensors[n] = (struct fixture_tensor){
                    names[n], "BF16", 2, {p < 2 ? 64 : HIDDEN, p < 2 ? HIDDEN : 64}, 2 * 64 * HIDDEN};
            }
    fixture_begin(runnable);
    fixture_safetensors(runnable, "model.safetensors", tensors, n, 11);
    fixture_pack(runnable, NULL);
}

TEST_WITH(run_there, NULL, gpu_after)
{
    static float here[TOKENS][HIDDEN + 3], there[TOKENS][HIDDEN + 3];
    struct efs_error err = {""};
    struct fixture runnable;
    struct efs_team *team;
    runnable_model(&runnable);
    struct efs_client *client = gpu_client(runnable.store, GPU_LEAST);
    assert_int_equal(efs_team_new(2, &team), 0);
    assert_int_equal(mix(client, team, EFS_FORM_FULL, here, &err), 0);
    struct efs_client_request *held;
    for (unsigned round = 0; round < 3; round++) { /* the last time with room for two of the eight */
        if (round == 2) {
            assert_int_equal(gpu_begin(client, 0, 0, 6, &held), 0);
            assert_int_equal(efs_client_wait(held), 0);
        }
        memset(there, 0x7f, sizeof(there));
        gpu_fake.slow(200);
        if (mix(client, team, EFS_FORM_DEVICE, there, &err) < 0)
            fail_msg("%s", err.text);
        for (uint32_t t = 0; t < TOKENS; t++) {
            float most = 0;
            for (uint32_t i = 0; i < HIDDEN; i++)
                most = here[t][i] > most ? here[t][i] : -here[t][i] > most ? -here[t][i] : most;
            assert_true((most > 0) == (t != 2));
            for (uint32_t i = 0; i < HIDDEN; i++) {
                float difference = here[t][i] - there[t][i];
                assert_true(difference <= 1e-5f * most && -difference <= 1e-5f * most);
            }
        }
    }
    efs_client_release(held);
    assert_int_equal(gpu_begin(client, 0, 0, GPU_EXPERTS, &held), 0);
    assert_int_equal(efs_client_wait(held), 0);
    assert_int_equal(mix(client, team, EFS_FORM_DEVICE, there, &err), -ENOMEM); /* all is held */
    assert_non_null(strstr(err.text, "no room"));
    efs_client_release(held);
    gpu_fake.damage(2); /* the first is the mixture's x */
    assert_int_equal(mix(client, team, EFS_FORM_DEVICE, there, &err), -EUCLEAN);
    for (unsigned number = 1; number < 90; number += 3) {
        gpu_fake.fails(number, 700, true);
        errint_t rc = mix(client, team, EFS_FORM_DEVICE, there, &err);
        assert_true(rc == 0 || (rc == -EIO && err.text[0]));
        efs_client_close(client);
        gpu_fake.fails(0, 0, false);
        client = gpu_client(runnable.store, GPU_LEAST);
    }
    efs_team_free(team);
    efs_client_close(client);
    fixture_end(&runnable);
}

/* ---- shared with the processor ---- */

#define MANY_TOKENS 70u
#define ALL_TOKENS 2600u /* for two experts h does not fit into the memory for running, for more nothing does */

/* Of layer 1, the first experts, each with every third token at least, and the one alone. */
static errint_t mix_of(struct efs_client *client, struct efs_team *team, enum efs_form form, uint32_t experts,
                       uint32_t tokens, float *y, struct efs_error *err)
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
        for (uint32_t t = 0; t < tokens; t++)
            if (tokens == 1 || (t + e) % 3 < 1 + e % 2)
                token[e][routes[e].count++] = t;
    }
    const struct efs_mixture mixture = {.expert_count = experts,
                                        .experts = routes,
                                        .x = x,
                                        .tokens = tokens,
                                        .hidden = HIDDEN,
                                        .x_stride = HIDDEN,
                                        .y_stride = HIDDEN,
                                        .y = y,
                                        .form = form};
    return efs_client_ffn(client, team, "", 1, &mixture, err);
}

struct shared {
    struct fixture runnable;
    struct efs_team *team;
    struct efs_client *client;
};

static void shared_begin(struct shared *s)
{
    runnable_model(&s->runnable);
    assert_int_equal(efs_team_new(2, &s->team), 0);
    s->client = gpu_client(s->runnable.store, GPU_LEAST);
}

static void shared_end(struct shared *s)
{
    efs_team_free(s->team);
    efs_client_close(s->client);
    fixture_end(&s->runnable);
}

/* As if running and bringing an expert had taken so long; nothing is due to be tried. */
static void costs_are(struct efs_client *client, uint64_t cpu_ns, uint64_t gpu_ns, uint64_t link_ns)
{
    struct efs_device *device = efs_client_device(client);
    pthread_mutex_lock(&device->lock);
    device->costs = (struct efs_assign_costs){.rest = {EFS_ASSIGN_TRY, EFS_ASSIGN_TRY, EFS_ASSIGN_TRY}};
    efs_assign_costs_took(&device->costs, EFS_ASSIGN_COST_CPU, 1, cpu_ns);
    efs_assign_costs_took(&device->costs, EFS_ASSIGN_COST_GPU, 1, gpu_ns);
    efs_assign_costs_took(&device->costs, EFS_ASSIGN_COST_LINK, 1, link_ns);
    device->learnt_brought = device->stats.g_brought;
    device->bring_ns = 0;
    pthread_mutex_unlock(&device->lock);
}

static const uint64_t long_ns = EFS_ASSIGN_NS_MAX / 1024;

/* Runs the mixture shared, and by the processor alone; returns how many experts the device has run. */
static uint32_t share(struct shared *s, uint32_t experts, uint32_t tokens)
{
    static float here[ALL_TOKENS * HIDDEN], both[ALL_TOKENS * HIDDEN];
    struct efs_error err = {""};
    const struct efs_gpu_stats before = gpu_stats(s->client);
    memset(both, 0x7f, sizeof(both));
    if (mix_of(s->client, s->team, EFS_FORM_SHARED, experts, tokens, both, &err) < 0)
        fail_msg("%s", err.text);
    const struct efs_gpu_stats after = gpu_stats(s->client);
    assert_int_equal(after.g_held, before.g_held);
    assert_int_equal(after.g_ran - before.g_ran + after.g_shared - before.g_shared, experts);
    assert_int_equal(mix_of(s->client, s->team, EFS_FORM_FULL, experts, tokens, here, &err), 0);
    for (uint32_t t = 0; t < tokens; t++) {
        float most = 0;
        for (uint32_t i = t * HIDDEN; i < (t + 1) * HIDDEN; i++)
            most = here[i] > most ? here[i] : -here[i] > most ? -here[i] : most;
        for (uint32_t i = t * HIDDEN; i < (t + 1) * HIDDEN; i++) {
            float difference = here[i] - both[i];
            assert_true(difference <= 1e-5f * most && -difference <= 1e-5f * most);
        }
    }
    return (uint32_t)(after.g_ran - before.g_ran);
}

static void bring_all(struct efs_client *client, uint32_t layer)
{
    struct efs_client_request *request;
    assert_int_equal(gpu_begin(client, layer, 0, GPU_EXPERTS, &request), 0);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
}

TEST_WITH(shared_as_by_the_processor, NULL, gpu_after)
{
    static const uint32_t token_counts[] = {1, TOKENS, MANY_TOKENS};
    struct shared s;
    shared_begin(&s);
    gpu_fake.slow(200);
    for (unsigned n = 0; n < sizeof(token_counts) / sizeof(token_counts[0]); n++)
        for (uint32_t experts = 1; experts <= GPU_EXPERTS; experts += GPU_EXPERTS - 1) {
            const uint32_t tokens = token_counts[n];
            for (unsigned round = 0; round < 4; round++) /* as it is measured */
                share(&s, experts, tokens);
            bring_all(s.client, 0); /* none of layer 1 is there */
            costs_are(s.client, long_ns, 1, 1);
            assert_int_equal(share(&s, experts, tokens), experts);
            bring_all(s.client, 1); /* all are */
            const uint64_t brought = gpu_stats(s.client).g_brought;
            costs_are(s.client, long_ns, 1, long_ns);
            assert_int_equal(share(&s, experts, tokens), experts);
            assert_int_equal(gpu_stats(s.client).g_brought, brought);
            costs_are(s.client, 1, long_ns, 1);
            assert_int_equal(share(&s, experts, tokens), 0);
        }
    struct efs_client_request *some;
    bring_all(s.client, 0);
    assert_int_equal(gpu_begin(s.client, 1, 0, 3, &some), 0);
    assert_int_equal(efs_client_wait(some), 0);
    costs_are(s.client, 1000, 1, long_ns);
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), 3); /* what is there, and nothing else */
    efs_client_release(some);
    shared_end(&s);
}

/* A new client's first mixture goes to both, and each is measured by it. */
TEST_WITH(shared_is_measured, NULL, gpu_after)
{
    struct shared s;
    shared_begin(&s);
    const uint32_t there = share(&s, GPU_EXPERTS, TOKENS);
    assert_true(there > 0 && there < GPU_EXPERTS);
    share(&s, GPU_EXPERTS, TOKENS);
    struct efs_device *device = efs_client_device(s.client);
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_COSTS; what++)
        assert_true(efs_assign_costs_ns(&device->costs, what, TOKENS) > 0);
    shared_end(&s);
}

/* What the device has no room for the processor runs. */
TEST_WITH(shared_without_room, NULL, gpu_after)
{
    struct efs_client_request *held;
    struct shared s;
    shared_begin(&s);
    for (uint32_t left = 0; left < 3; left++) {
        assert_int_equal(gpu_begin(s.client, 0, 0, GPU_POOL_EXPERTS - left, &held), 0);
        assert_int_equal(efs_client_wait(held), 0);
        costs_are(s.client, long_ns, 1, 1);
        assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), left);
        struct efs_device *device = efs_client_device(s.client); /* all is due: bringing is tried */
        costs_are(s.client, long_ns, 1, 1);
        memset(device->costs.rest, 0, sizeof(device->costs.rest));
        assert_true(share(&s, GPU_EXPERTS, TOKENS) <= (left ? left + 1 : 0)); /* in the place of one that was run */
        efs_client_release(held);
        bring_all(s.client, 0);
    }
    struct efs_client_request *two;
    assert_int_equal(gpu_begin(s.client, 0, 0, GPU_POOL_EXPERTS - 2, &held), 0);
    assert_int_equal(efs_client_wait(held), 0);
    assert_int_equal(gpu_begin(s.client, 1, 0, 2, &two), 0);
    assert_int_equal(efs_client_wait(two), 0);
    costs_are(s.client, long_ns, 1, 1);
    efs_client_device(s.client)->costs.rest[EFS_ASSIGN_COST_LINK] = 0;
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), 2); /* and one was tried in vain */
    efs_client_release(two);
    efs_client_release(held);
    shared_end(&s);
}

TEST_WITH(shared_with_many_tokens, NULL, gpu_after)
{
    struct shared s;
    shared_begin(&s);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, ALL_TOKENS), 0); /* how wide h is, is not known yet */
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, 1), GPU_EXPERTS);
    costs_are(s.client, long_ns, 1, 1);
    const uint64_t brought = gpu_stats(s.client).g_brought;
    assert_int_equal(share(&s, GPU_EXPERTS, ALL_TOKENS), 1);
    assert_true(gpu_stats(s.client).g_brought <= brought + 1);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, 1, ALL_TOKENS), 1);
    shared_end(&s);
}

TEST_WITH(shared_refuses, NULL, gpu_after)
{
    float y[HIDDEN];
    struct efs_error err = {""};
    struct efs_client_request *request;
    struct efs_need need = {0, 1};
    struct shared s;
    shared_begin(&s);
    assert_int_equal(efs_client_begin(s.client, "", 1, &need, 1, EFS_FORM_SHARED, &request, &err), -EINVAL);
    struct efs_client *without = gpu_client_without(s.runnable.store, true);
    assert_int_equal(mix_of(without, s.team, EFS_FORM_SHARED, 1, 1, y, &err), -EINVAL);
    assert_non_null(strstr(err.text, "efs_client_gpu()"));
    efs_client_close(without);
    shared_end(&s);
}

TEST_WITH(shared_with_damage, NULL, gpu_after)
{
    static float y[TOKENS * HIDDEN];
    struct efs_error err = {""};
    struct shared s;
    size_t bytes;
    shared_begin(&s);
    costs_are(s.client, long_ns, 1, 1);
    gpu_fake.damage(2); /* on the way to the device; the first is the mixture's x */
    assert_int_equal(mix_of(s.client, s.team, EFS_FORM_SHARED, GPU_EXPERTS, TOKENS, y, &err), -EUCLEAN);
    assert_true(err.text[0]);
    gpu_fake.damage(0);
    costs_are(s.client, long_ns, 1, 1);
    assert_int_equal(share(&s, GPU_EXPERTS, TOKENS), GPU_EXPERTS);
    efs_client_close(s.client);
    free(fixture_read(s.runnable.store, &bytes));
    for (uint64_t at = bytes / 2; at < bytes - bytes / 8; at += 4096)
        fixture_damage(s.runnable.store, at);
    for (unsigned side = 0; side < 3; side++) { /* in the store: met by the device, the processor, or both */
        s.client = gpu_client(s.runnable.store, GPU_LEAST);
        if (side < 2)
            costs_are(s.client, side ? 1 : long_ns, side ? long_ns : 1, 1);
        assert_int_equal(mix_of(s.client, s.team, EFS_FORM_SHARED, GPU_EXPERTS, TOKENS, y, &err), -EUCLEAN);
        assert_true(err.text[0]);
        assert_int_equal(gpu_stats(s.client).g_held, 0);
        if (side < 2)
            efs_client_close(s.client);
    }
    shared_end(&s);
}

/* Each call of the driver that a mixture on both sides makes fails: once, or from then on. */
TEST_WITH(shared_with_failures, NULL, gpu_after)
{
    static const struct {
        int result;
        bool for_ever;
    } ways[] = {{2, false}, {700, true}};
    static float y[TOKENS * HIDDEN];
    struct shared s;
    shared_begin(&s);
    for (unsigned w = 0; w < 2; w++) {
        unsigned failed = 0, fine = 0;
        for (unsigned number = 1; fine < 3 && number<1000; number += failed> 40 ? 4 : 1) {
            struct efs_error err = {""};
            gpu_fake.fails(number, ways[w].result, ways[w].for_ever);
            errint_t rc = mix_of(s.client, s.team, EFS_FORM_SHARED, GPU_EXPERTS, TOKENS, y, &err);
            assert_true(rc == 0 || (rc == -EIO && err.text[0]));
            efs_client_close(s.client);
            gpu_fake.fails(0, 0, false);
            assert_int_equal(gpu_fake.left(), 0);
            s.client = gpu_client(s.runnable.store, GPU_LEAST);
            failed += rc < 0;
            fine = rc < 0 ? 0 : fine + 1;
        }
        assert_true(failed > 20);
    }
    share(&s, GPU_EXPERTS, TOKENS);
    shared_end(&s);
}

TEST_MAIN(gpu_setup, gpu_teardown)
