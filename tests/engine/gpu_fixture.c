/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_fixture.c - see gpu_fixture.h. */
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "driver.h"
#include "gpu_fixture.h"
#include "patience.h"

#define MIB (1ull << 20)

/* Replaces the library's image, so that tests do not need nvcc. The fake checks only these first 4 bytes. */
const unsigned char efs_gpu_image[] = {0x50, 0xed, 0x55, 0xba};
const uint64_t efs_gpu_image_bytes = sizeof(efs_gpu_image);

struct fixture gpu_model;
struct fixture_mount gpu_mount;
struct gpu_fake gpu_fake;
static void *fake;

static void *fake_symbol(const char *name)
{
    void *symbol = dlsym(fake, name);
    assert_non_null(symbol);
    return symbol;
}

static int setup(const char *library)
{
    char path[512], driver[600];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    assert_true(length > 0);
    path[length] = '\0';
    *strrchr(path, '/') = '\0';
    snprintf(driver, sizeof(driver), "%s/%s", path, library);
    setenv("EXPERTFS_CUDA", driver, 1);
    fake = dlopen(driver, RTLD_NOW);
    if (!fake)
        fail_msg("%s", dlerror());
    *(void **)&gpu_fake.registered = fake_symbol("fake_cuda_registered");
    *(void **)&gpu_fake.left = fake_symbol("fake_cuda_left");
    *(void **)&gpu_fake.fails = fake_symbol("fake_cuda_fail");
    *(void **)&gpu_fake.slow = fake_symbol("fake_cuda_slow");
    *(void **)&gpu_fake.damage = fake_symbol("fake_cuda_damage");
    *(void **)&gpu_fake.owns = fake_symbol("fake_cuda_owns");
    *(void **)&gpu_fake.device_of = fake_symbol("fake_cuda_device_of");
    *(void **)&gpu_fake.lose = fake_symbol("fake_cuda_lose");
    fixture_mount_begin_moe(&gpu_mount, &gpu_model, GPU_LAYERS, GPU_EXPERTS);
    return 0;
}

int gpu_setup(void **state)
{
    (void)state;
    return setup("libcuda-fake.so");
}

int gpu_setup_old(void **state)
{
    (void)state;
    return setup("libcuda-fake-old.so");
}

int gpu_teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&gpu_mount, &gpu_model);
    dlclose(fake);
    return 0;
}

int gpu_test_teardown(void **state)
{
    (void)state;
    gpu_fake.policy = NULL;
    gpu_fake.device = 0;
    gpu_fake.fails(0, 0, false);
    gpu_fake.slow(0);
    gpu_fake.damage(0);
    return gpu_fake.left() == 0 ? 0 : -1;
}

struct efs_client *gpu_client_no_device(const char *path, bool full_pool)
{
    const struct efs_client_options options = {
        .budget_bytes = 128 * MIB, .workers = 2, .coded_only = !full_pool, .no_state = true};
    return fixture_client(path, &options);
}

errint_t gpu_add_device(struct efs_client *client, uint64_t budget_bytes, struct efs_error *err)
{
    const struct efs_gpu_options options = {
        .device = gpu_fake.device, .budget_bytes = budget_bytes, .policy = gpu_fake.policy};
    return efs_client_gpu(client, &options, err);
}

struct efs_client *gpu_client(const char *path, uint64_t budget_bytes)
{
    struct efs_error err = {""};
    struct efs_client *client = gpu_client_no_device(path, true);
    if (gpu_add_device(client, budget_bytes, &err) < 0)
        fail_msg("%s", err.text);
    return client;
}

errint_t gpu_request(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count,
                     struct efs_client_request **request)
{
    struct efs_need needs[GPU_EXPERTS + 1];
    struct efs_error err = {""};
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){first + i, 1};
    errint_t rc = efs_client_begin(client, "", layer, needs, count, EFS_FORM_DEVICE, request, &err);
    if (rc < 0 && !err.text[0])
        fail_msg("an error without words: %d", rc);
    return rc;
}

struct efs_client_request *gpu_request_wait(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    struct efs_client_request *request;
    assert_int_equal(gpu_request(client, layer, first, count, &request), 0);
    assert_int_equal(efs_client_wait(request), 0);
    return request;
}

void gpu_fail_each_call(bool (*life)(void), unsigned least)
{
    static const struct {
        int result;
        bool for_ever;
    } ways[] = {{EFS_CU_OUT_OF_MEMORY, false}, {700, true}};
    for (unsigned w = 0; w < 2; w++) {
        unsigned failed = 0, fine = 0;
        for (unsigned number = 1; fine < 3 && number<1000; number += failed> 40 ? 4 : 1) { /* later ones repeat */
            gpu_fake.fails(number, ways[w].result, ways[w].for_ever);
            bool one = life();
            assert_int_equal(gpu_fake.left(), 0);
            failed += one;
            fine = one ? 0 : fine + 1; /* the failed call was part of the close, or none failed */
        }
        gpu_fake.fails(0, 0, false);
        assert_true(failed > least);
        assert_false(life());
    }
}

bool gpu_wait_check(struct efs_client_request *request, uint32_t layer, uint32_t first)
{
    bool failed = false;
    uint32_t index;
    errint_t status;
    while (efs_client_wait_any(request, PATIENCE_MS, &index, &status) == 1) {
        assert_true(status == 0 || status == -EIO || status == -ENOMEM);
        failed |= status < 0;
        if (status == 0)
            gpu_check(request, index, layer, first + index);
        if (status == 0 && efs_client_drop_after(request, index, NULL) < 0)
            failed = true;
    }
    efs_client_release(request);
    return failed;
}

void gpu_check(struct efs_client_request *request, uint32_t index, uint32_t layer, uint32_t expert)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    char words[64];
    assert_int_equal(efs_client_tensors(request, index, &tensors, &count), 0);
    fixture_mount_check(&gpu_mount, layer * GPU_EXPERTS + expert, tensors, count);
    snprintf(words, sizeof(words), "layers.%u.mlp.experts.%u.", layer, expert);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(gpu_fake.owns(tensors[i].data, tensors[i].bytes));
        assert_int_equal((uintptr_t)tensors[i].data % 256, 0);
        assert_non_null(strstr(tensors[i].name, words));
    }
}

struct efs_gpu_stats gpu_stats(struct efs_client *client)
{
    struct efs_gpu_stats stats;
    assert_int_equal(efs_client_gpu_stats(client, &stats), 0);
    return stats;
}

void gpu_request_check(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    struct efs_client_request *request = gpu_request_wait(client, layer, first, count);
    for (uint32_t i = 0; i < count; i++)
        gpu_check(request, i, layer, first + i);
    efs_client_release(request);
}
