/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts that are run on a graphics processor, beside the same on this one; with no room, with damage, and with each
 * call of the driver that fails.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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
        routes[e] = (struct efs_route_to){efs_id(e), e % 2 ? 4 : 1, e % 2 ? all : one, weights};
    const struct efs_mixture mixture = {.size = sizeof(mixture),
                                        .expert_count = GPU_EXPERTS,
                                        .experts = routes,
                                        .expert_bytes = sizeof(routes[0]),
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

static void run_there(void **state)
{
    static float here[TOKENS][HIDDEN + 3], there[TOKENS][HIDDEN + 3];
    struct efs_error err = {""};
    struct fixture runnable;
    struct efs_team *team;
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(run_there, gpu_after),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
