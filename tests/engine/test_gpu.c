/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts in memory of a graphics processor, over a driver that has none (fake_cuda.h): every byte of every format, of
 * a store and of a mount; what stays in pool G, what goes for it and when; each call of the driver that fails, a lost
 * device, damage; many threads.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
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
#include "expertfs-compute.h"
#include "expertfs-gpu.h"
#include "fake_cuda.h"
#include "fixture_mount.h"
#include "image.h"

#define LAYERS 2
#define EXPERTS 8
#define MIB (1ull << 20)
#define SLOTS (32 * MIB)     /* of a budget, what is not pool G */
#define EXPERT_BYTES 131072u /* of pool G */
#define POOL_EXPERTS 8       /* that the smallest pool has room for */
#define LEAST (SLOTS + POOL_EXPERTS * EXPERT_BYTES)

/* In place of the library's own, so that tests need no nvcc: the fake looks at its begin alone. */
const unsigned char efs_gpu_image[] = {0x50, 0xed, 0x55, 0xba};
const uint64_t efs_gpu_image_bytes = sizeof(efs_gpu_image);

static struct fixture model;
static struct fixture_mount mount; /* expert e of layer l is its number l * EXPERTS + e */
static void *fake;
static const char *policy; /* of the next device */
static size_t (*registered)(void);
static unsigned (*left)(void);
static void (*fails)(unsigned, int, bool), (*slow)(unsigned), (*damage)(unsigned);
static bool (*owns)(const void *, size_t);

static void *fake_symbol(const char *name)
{
    void *symbol = dlsym(fake, name);
    assert_non_null(symbol);
    return symbol;
}

static int setup(void **state)
{
    char path[512], driver[600];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    (void)state;
    assert_true(length > 0);
    path[length] = '\0';
    *strrchr(path, '/') = '\0';
    snprintf(driver, sizeof(driver), "%s/libcuda-fake.so", path);
    setenv("EXPERTFS_CUDA", driver, 1);
    fake = dlopen(driver, RTLD_NOW);
    if (!fake)
        fail_msg("%s", dlerror());
    *(void **)&registered = fake_symbol("fake_cuda_registered");
    *(void **)&left = fake_symbol("fake_cuda_left");
    *(void **)&fails = fake_symbol("fake_cuda_fail");
    *(void **)&slow = fake_symbol("fake_cuda_slow");
    *(void **)&damage = fake_symbol("fake_cuda_damage");
    *(void **)&owns = fake_symbol("fake_cuda_owns");
    fixture_mount_begin_moe(&mount, &model, LAYERS, EXPERTS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&mount, &model);
    dlclose(fake);
    return 0;
}

/* After each test nothing of the driver is left, and it works again. */
static int after(void **state)
{
    (void)state;
    policy = NULL;
    fails(0, 0, false);
    slow(0);
    damage(0);
    return left() == 0 ? 0 : -1;
}

static struct efs_client *open_client(const char *path, bool full_pool)
{
    const struct efs_options store = {.size = sizeof(struct efs_options),
                                      .budget_bytes = 128 * MIB,
                                      .workers = 2,
                                      .full_pool = full_pool,
                                      .lease_wait = true,
                                      .no_state = true};
    const struct efs_client_options options = {
        .size = sizeof(struct efs_client_options), .store = &store, .threads = 4};
    return fixture_client(path, &options);
}

static errint_t add_gpu(struct efs_client *client, uint64_t budget_bytes, struct efs_error *err)
{
    const struct efs_gpu_options options = {
        .size = sizeof(struct efs_gpu_options), .budget_bytes = budget_bytes, .policy = policy};
    return efs_client_gpu(client, &options, err);
}

static struct efs_client *open_gpu(const char *path, uint64_t budget_bytes)
{
    struct efs_error err = {""};
    struct efs_client *client = open_client(path, true);
    if (add_gpu(client, budget_bytes, &err) < 0)
        fail_msg("%s", err.text);
    return client;
}

static errint_t begin(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count,
                      struct efs_client_request **request)
{
    struct efs_need needs[EXPERTS + 1];
    struct efs_error err = {""};
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){first + i, 1};
    errint_t rc = efs_client_begin(client, "", layer, needs, sizeof(needs[0]), count, EFS_FORM_DEVICE, request, &err);
    if (rc < 0 && !err.text[0])
        fail_msg("an error without words: %d", rc);
    return rc;
}

static void check(struct efs_client_request *request, uint32_t index, uint32_t layer, uint32_t expert)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    char words[64];
    assert_int_equal(efs_client_tensors(request, index, &tensors, &count), 0);
    fixture_mount_check(&mount, layer * EXPERTS + expert, tensors, count);
    snprintf(words, sizeof(words), "layers.%u.mlp.experts.%u.", layer, expert);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(owns(tensors[i].data, tensors[i].bytes));
        assert_int_equal((uintptr_t)tensors[i].data % 256, 0);
        assert_non_null(strstr(tensors[i].name, words));
    }
}

static struct efs_gpu_stats stats_of(struct efs_client *client)
{
    struct efs_gpu_stats stats;
    assert_int_equal(efs_client_gpu_stats(client, &stats, sizeof(stats)), 0);
    return stats;
}

/* Experts of a layer come, are right, and are let go. */
static void bring(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    struct efs_client_request *request;
    assert_int_equal(begin(client, layer, first, count, &request), 0);
    assert_int_equal(efs_client_wait(request), 0);
    for (uint32_t i = 0; i < count; i++)
        check(request, i, layer, first + i);
    efs_client_release(request);
}

static void both(struct efs_client *client)
{
    struct efs_client_request *request;
    uint32_t index, told = 0;
    errint_t status;
    slow(300);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            bring(client, layer, 0, EXPERTS);
            bring(client, layer, round, 3);
        }
    struct efs_gpu_stats s = stats_of(client);
    assert_int_equal(s.g_hits + s.g_joined + s.g_brought + s.g_errors, 3 * LAYERS * (EXPERTS + 3));
    assert_int_equal(s.g_errors, 0);
    assert_int_equal(s.g_plain_bytes, s.g_brought * 3 * 32768);
    assert_true(s.g_evicted > 0 && s.g_used_bytes <= s.g_pool_bytes);
    assert_int_equal(s.g_held, 0);
    assert_int_equal(begin(client, 1, 2, 3, &request), 0);
    int fd = efs_client_event(request);
    assert_true(fd >= 0);
    assert_int_equal(efs_client_event(request), fd);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (; told < 3; told++) {
        assert_int_equal(poll(&p, 1, 60000), 1);
        assert_int_equal(efs_client_wait_any(request, 0, &index, &status), 1);
        assert_int_equal(status, 0);
        check(request, index, 1, 2 + index);
        efs_client_drop(request, index);
        efs_client_drop(request, index);
    }
    assert_int_equal(efs_client_wait_any(request, 0, &index, &status), 0);
    efs_client_release(request);
    assert_int_equal(begin(client, 0, 0, EXPERTS, &request), 0);
    efs_client_release(request); /* nobody waited */
}

static void of_a_store(void **state)
{
    (void)state;
    static const char *const policies[] = {"value", "lru", "dali", NULL};
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        policy = policies[p];
        struct efs_client *client = open_gpu(model.store, LEAST);
        both(client);
        assert_true(stats_of(client).g_decodes > 0);
        assert_true(stats_of(client).g_link_bytes < stats_of(client).g_plain_bytes * 3 / 4);
        efs_client_close(client);
    }
}

static void of_a_mount(void **state)
{
    (void)state;
    struct efs_client *client = open_gpu(mount.directory, LEAST);
    both(client); /* this one hands out none coded: they are copied in full */
    assert_int_equal(stats_of(client).g_decodes, 0);
    assert_int_equal(registered(), 0);
    efs_client_close(client);
}

/* Memory that chunks come from is registered as long as it is the pool's, and no longer. */
static void registered_memory(void **state)
{
    struct efs_stats stats;
    struct efs_error err = {""};
    (void)state;
    struct efs_client *client = open_gpu(model.store, LEAST);
    struct efs *fs = efs_client_fs(client);
    assert_int_equal(registered(), 0);
    bring(client, 0, 0, EXPERTS);
    bring(client, 1, 0, EXPERTS);
    efs_stats(fs, &stats, sizeof(stats));
    assert_true(registered() > 0 && registered() <= stats.chunk_pool_bytes);
    assert_int_equal(stats_of(client).g_pinned_bytes, registered());
    for (unsigned round = 0; round < 4; round++) {
        if (efs_set(fs, "budget", round % 2 ? "128M" : "24M", NULL, &err) < 0)
            fail_msg("%s", err.text);
        for (unsigned waited = 0; waited < 3000; waited++) {
            efs_stats(fs, &stats, sizeof(stats));
            if (registered() <= stats.chunk_pool_bytes && stats.chunk_pool_bytes <= (round % 2 ? 128 : 24) * MIB)
                break;
            usleep(10000);
        }
        assert_true(registered() <= stats.chunk_pool_bytes);
        bring(client, 0, 0, EXPERTS);
        bring(client, 1, 0, EXPERTS);
    }
    efs_client_close(client);
    assert_int_equal(registered(), 0);
}

/* Beside requests in other forms, of the same client. */
static void what_is_there_stays(void **state)
{
    struct efs_client_request *request;
    (void)state;
    policy = "lru";
    struct efs_client *client = open_gpu(model.store, LEAST);
    bring(client, 0, 0, 6);
    bring(client, 0, 2, 4); /* 0 and 1 are the oldest now */
    bring(client, 1, 0, 3);
    struct efs_gpu_stats before = stats_of(client);
    assert_int_equal(before.g_evicted, 1);
    bring(client, 0, 1, 5);
    assert_int_equal(stats_of(client).g_hits, before.g_hits + 5);
    bring(client, 0, 0, 1);
    assert_int_equal(stats_of(client).g_brought, before.g_brought + 1);
    const struct efs_need need = {3, 1};
    assert_int_equal(efs_client_begin(client, "", 0, &need, sizeof(need), 1, EFS_FORM_CODED, &request, NULL), 0);
    assert_int_equal(efs_client_wait(request), 0);
    assert_int_equal(efs_client_drop_after(request, 0, NULL), -EINVAL);
    efs_client_release(request);
    efs_client_close(client);
}

static void refused(void **state)
{
    struct efs_client_request *request;
    struct efs_error err = {""};
    struct efs_gpu_stats stats;
    const struct efs_need twice[] = {{1, 1}, {1, 1}}, none[] = {{1, 0}}, beyond[] = {{1, 1}, {EXPERTS, 1}};
    (void)state;
    struct efs_client *client = open_client(model.store, true);
    assert_int_equal(begin(client, 0, 0, 1, &request), -EINVAL);
    assert_int_equal(efs_client_gpu_stats(client, &stats, sizeof(stats)), -ENODEV);
    assert_int_equal(add_gpu(client, LEAST - 65536, &err), -EINVAL);
    assert_non_null(strstr(err.text, "at least"));
    assert_int_equal(add_gpu(client, FAKE_CUDA_BYTES + 65536, &err), -ENOMEM);
    policy = "fifo";
    assert_int_equal(add_gpu(client, LEAST, &err), -EINVAL);
    assert_non_null(strstr(err.text, "value, lru, dali"));
    policy = NULL;
    const struct efs_gpu_options second = {.size = sizeof(second), .device = 1};
    assert_int_equal(efs_client_gpu(client, &second, &err), -ENODEV);
    char *driver = strdup(getenv("EXPERTFS_CUDA"));
    setenv("EXPERTFS_CUDA", "off", 1);
    assert_int_equal(add_gpu(client, LEAST, &err), -ENODEV);
    setenv("EXPERTFS_CUDA", "libc.so.6", 1);
    assert_int_equal(add_gpu(client, LEAST, &err), -ENODEV);
    assert_non_null(strstr(err.text, "cuInit"));
    setenv("EXPERTFS_CUDA", "/nowhere/libcuda.so.1", 1);
    assert_int_equal(add_gpu(client, LEAST, &err), -ENODEV);
    setenv("EXPERTFS_CUDA", driver, 1);
    free(driver);
    assert_int_equal(efs_client_gpu(client, NULL, &err), 0);
    assert_int_equal(stats_of(client).g_budget_bytes, FAKE_CUDA_BYTES / 2);
    assert_int_equal(add_gpu(client, LEAST, &err), -EEXIST);
    assert_int_equal(efs_client_begin(client, "", 0, twice, sizeof(twice[0]), 2, EFS_FORM_DEVICE, &request, &err),
                     -EINVAL);
    assert_int_equal(efs_client_begin(client, "", 0, none, sizeof(none[0]), 1, EFS_FORM_DEVICE, &request, &err),
                     -EINVAL);
    assert_int_equal(efs_client_begin(client, "", 0, twice, sizeof(twice[0]), 0, EFS_FORM_DEVICE, &request, &err),
                     -EINVAL);
    assert_int_equal(begin(client, LAYERS, 0, 1, &request), -ENOENT);
    assert_int_equal(efs_client_begin(client, "", 0, beyond, sizeof(beyond[0]), 2, EFS_FORM_DEVICE, &request, &err),
                     -ENOENT);
    assert_int_equal(efs_client_begin(client, "a stack of a name that is longer than any", 0, none, sizeof(none[0]), 1,
                                      EFS_FORM_DEVICE, &request, &err),
                     -ENOENT);
    bring(client, 0, 1, 1); /* what was named with one that is not is asked for anew */
    assert_int_equal(begin(client, 0, 0, 1, &request), 0);
    assert_int_equal(efs_client_wait(request), 0);
    const struct efs_tensor *tensors;
    uint32_t count;
    assert_int_equal(efs_client_tensors(request, 1, &tensors, &count), -EINVAL);
    assert_int_equal(efs_client_drop_after(request, 1, NULL), -EINVAL);
    efs_client_drop(request, 1);
    efs_client_drop(request, 0);
    assert_int_equal(efs_client_tensors(request, 0, &tensors, &count), -EINVAL);
    assert_int_equal(efs_client_drop_after(request, 0, NULL), -EINVAL);
    efs_client_release(request);
    efs_client_close(client);
}

/* What is held is not taken: who finds no room is told, and finds some when it was dropped. */
static void no_room(void **state)
{
    struct efs_client_request *held, *more;
    uint32_t index, here = 0;
    errint_t status;
    (void)state;
    struct efs_client *client = open_gpu(model.store, LEAST);
    assert_int_equal(begin(client, 0, 0, 6, &held), 0);
    assert_int_equal(efs_client_wait(held), 0);
    assert_int_equal(begin(client, 1, 0, 5, &more), 0);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(efs_client_wait_any(more, 60000, &index, &status), 1);
        assert_true(status == 0 || status == -ENOMEM);
        here += status == 0;
    }
    assert_int_equal(here, 2);
    assert_int_equal(stats_of(client).g_held, 8);
    assert_int_equal(efs_client_wait(more), -ENOMEM);
    for (uint32_t i = 0; i < 6; i++)
        check(held, i, 0, i);
    efs_client_release(held);
    efs_client_release(more);
    bring(client, 1, 0, 5);
    assert_int_equal(stats_of(client).g_errors, 3);
    efs_client_close(client);
}

/* Work of a user's stream: it reads an expert only when it is let. */
struct reader {
    sem_t may;
    const uint8_t *from;
    uint8_t copy[32768];
};

static void read_late(void *arg)
{
    struct reader *r = arg;
    sem_wait(&r->may);
    memcpy(r->copy, r->from, sizeof(r->copy));
}

static void who_still_reads(void **state)
{
    static struct reader reader;
    struct efs_driver cu;
    struct efs_client_request *request, *others;
    const struct efs_tensor *tensors;
    efs_cu_context context;
    efs_cu_stream stream;
    uint32_t count, index;
    errint_t status;
    (void)state;
    struct efs_client *client = open_gpu(model.store, LEAST);
    sem_init(&reader.may, 0, 0);
    assert_int_equal(efs_driver_open(&cu, NULL), 0);
    assert_int_equal(cu.context_retain(&context, 0), 0);
    assert_int_equal(cu.context_push(context), 0);
    assert_int_equal(cu.stream_create(&stream, 0), 0);
    for (unsigned round = 0; round < 3; round++) { /* the first time, and with events that were used before */
        assert_int_equal(begin(client, 0, 0, 1, &request), 0);
        assert_int_equal(efs_client_wait(request), 0);
        assert_int_equal(efs_client_tensors(request, 0, &tensors, &count), 0);
        reader.from = tensors[0].data;
        uint8_t expected[sizeof(reader.copy)];
        memcpy(expected, tensors[0].data, sizeof(expected));
        memset(reader.copy, 0, sizeof(reader.copy));
        assert_int_equal(cu.launch_host(stream, read_late, &reader), 0);
        assert_int_equal(efs_client_drop_after(request, 0, stream), 0);
        assert_int_equal(efs_client_drop_after(request, 0, stream), -EINVAL);
        efs_client_release(request);
        assert_int_equal(begin(client, 1, 0, EXPERTS, &others), 0); /* need all of the pool */
        for (unsigned i = 0; i < 2; i++)                            /* some come, but none to where it is */
            if (efs_client_wait_any(others, 20, &index, &status) == 1)
                assert_int_equal(status, 0);
        sem_post(&reader.may);
        assert_int_equal(efs_client_wait(others), 0);
        for (uint32_t i = 0; i < EXPERTS; i++)
            check(others, i, 1, i);
        efs_client_release(others);
        assert_int_equal(cu.stream_synchronize(stream), 0);
        assert_memory_equal(reader.copy, expected, sizeof(expected));
    }
    assert_int_equal(cu.stream_destroy(stream), 0);
    assert_int_equal(cu.context_pop(&context), 0);
    assert_int_equal(cu.context_release(0), 0);
    efs_driver_close(&cu);
    sem_destroy(&reader.may);
    efs_client_close(client);
}

/* ---- formats, codecs, sizes ---- */

/* Every expert of a layer is on the device what it is in full. */
static void same_as_full(const char *store, uint32_t experts, uint64_t budget_bytes, uint64_t *decodes)
{
    struct efs_client *client = open_gpu(store, budget_bytes);
    for (uint32_t e = 0; e < experts; e++) {
        struct efs_client_request *full, *device;
        const struct efs_tensor *a, *b;
        uint32_t a_count, b_count;
        const struct efs_need need = {e, 1};
        assert_int_equal(efs_client_begin(client, "", 0, &need, sizeof(need), 1, EFS_FORM_FULL, &full, NULL), 0);
        assert_int_equal(efs_client_wait(full), 0);
        assert_int_equal(efs_client_tensors(full, 0, &a, &a_count), 0);
        assert_int_equal(begin(client, 0, e, 1, &device), 0);
        assert_int_equal(efs_client_wait(device), 0);
        assert_int_equal(efs_client_tensors(device, 0, &b, &b_count), 0);
        assert_int_equal(a_count, b_count);
        for (uint32_t i = 0; i < a_count; i++) {
            assert_string_equal(a[i].name, b[i].name);
            assert_int_equal(a[i].dtype, b[i].dtype);
            assert_int_equal(a[i].dims, b[i].dims);
            assert_memory_equal(a[i].shape, b[i].shape, sizeof(a[i].shape));
            assert_int_equal(a[i].bytes, b[i].bytes);
            assert_memory_equal(a[i].data, b[i].data, a[i].bytes);
        }
        efs_client_release(full);
        efs_client_release(device);
    }
    *decodes = stats_of(client).g_decodes;
    efs_client_close(client);
}

static void every_format(void **state)
{
    static const struct {
        const char *dtype;
        unsigned bytes;
    } formats[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1}, {"I64", 8}};
    static const enum efs_codec_choice codecs[] = {EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_RAW,
                                                   EFS_CHOOSE_ZSTD};
    (void)state;
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        struct fixture one;
        struct fixture_tensor tensors[3];
        static const char *const names[] = {"model.layers.0.mlp.experts.0.gate_proj.weight",
                                            "model.layers.0.mlp.experts.0.up_proj.weight",
                                            "model.layers.0.mlp.experts.0.down_proj.weight"};
        const uint64_t rows[] = {120, 1, 77};
        for (unsigned i = 0; i < 3; i++)
            tensors[i] = (struct fixture_tensor){
                names[i], formats[f].dtype, 2, {rows[i], 333}, rows[i] * 333 * formats[f].bytes};
        fixture_begin(&one);
        fixture_safetensors(&one, "model.safetensors", tensors, 3, (unsigned)f + 3);
        for (size_t c = 0; c < sizeof(codecs) / sizeof(codecs[0]); c++) {
            const struct efs_pack_options options = {.size = sizeof(struct efs_pack_options),
                                                     .threads = 2,
                                                     .shard_elements = 8192,
                                                     .force = true,
                                                     .codec = codecs[c]};
            uint64_t decodes;
            fixture_pack(&one, &options);
            same_as_full(one.store, 1, LEAST, &decodes);
            assert_true(codecs[c] != EFS_CHOOSE_CASCADE || f > 4 || decodes > 0);
            assert_true(codecs[c] < EFS_CHOOSE_ZSTD || decodes == 0);
        }
        fixture_end(&one);
    }
}

/* More than goes into the slots at once; and more than goes into the pool. */
static void large_experts(void **state)
{
    struct fixture large;
    struct efs_client_request *request;
    uint64_t decodes;
    (void)state;
    fixture_store(&large, 1, 2, 1536, 2048);
    same_as_full(large.store, 2, SLOTS + 20 * MIB, &decodes);
    assert_true(decodes >= 4);
    struct efs_client *client = open_gpu(large.store, LEAST);
    assert_int_equal(begin(client, 0, 0, 1, &request), 0);
    assert_int_equal(efs_client_wait(request), -ENOMEM);
    efs_client_release(request);
    efs_client_close(client);
    fixture_end(&large);
}

/* No kernel decodes it, and there is no full pool. */
static void foreign_codec(void **state)
{
    struct fixture zstd;
    struct efs_client_request *request;
    const struct efs_pack_options options = {.size = sizeof(struct efs_pack_options),
                                             .threads = 2,
                                             .shard_elements = 8192,
                                             .force = true,
                                             .codec = EFS_CHOOSE_ZSTD};
    (void)state;
    fixture_begin(&zstd);
    fixture_moe(&zstd, 1, 2, 64, 256);
    fixture_pack(&zstd, &options);
    struct efs_client *client = open_client(zstd.store, false);
    assert_int_equal(add_gpu(client, LEAST, NULL), 0);
    assert_int_equal(begin(client, 0, 0, 2, &request), 0);
    assert_int_equal(efs_client_wait(request), -EOPNOTSUPP);
    efs_client_release(request);
    efs_client_close(client);
    fixture_end(&zstd);
}

/* ---- experts that are run ---- */

#define HIDDEN 256u
#define TOKENS 5u

/* Of layer 1, tokens that choose several, one or none of its experts. */
static errint_t mix(struct efs_client *client, struct efs_team *team, enum efs_form form, float y[TOKENS][HIDDEN + 3],
                    struct efs_error *err)
{
    static float x[TOKENS][HIDDEN];
    static const uint32_t all[] = {4, 0, 1, 3}, one[] = {3};
    static const float weights[] = {0.5f, 0.25f, 1, 2};
    struct efs_route_to routes[EXPERTS];
    uint64_t random = 9;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[t][i] = (float)(int64_t)(fixture_random(&random) % 2001) / 1000 - 1;
    for (uint32_t e = 0; e < EXPERTS; e++)
        routes[e] = (struct efs_route_to){efs_id(e), e % 2 ? 4 : 1, e % 2 ? all : one, weights};
    const struct efs_mixture mixture = {.size = sizeof(mixture),
                                        .expert_count = EXPERTS,
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
    static char names[LAYERS * EXPERTS * 3][80];
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    struct fixture_tensor tensors[LAYERS * EXPERTS * 3];
    unsigned n = 0;
    for (unsigned l = 0; l < LAYERS; l++)
        for (unsigned e = 0; e < EXPERTS; e++)
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
    struct efs_client *client = open_gpu(runnable.store, LEAST);
    assert_int_equal(efs_team_new(2, &team), 0);
    assert_int_equal(mix(client, team, EFS_FORM_FULL, here, &err), 0);
    struct efs_client_request *held;
    for (unsigned round = 0; round < 3; round++) { /* the last time with room for two of the eight */
        if (round == 2) {
            assert_int_equal(begin(client, 0, 0, 6, &held), 0);
            assert_int_equal(efs_client_wait(held), 0);
        }
        memset(there, 0x7f, sizeof(there));
        slow(200);
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
    assert_int_equal(begin(client, 0, 0, EXPERTS, &held), 0);
    assert_int_equal(efs_client_wait(held), 0);
    assert_int_equal(mix(client, team, EFS_FORM_DEVICE, there, &err), -ENOMEM); /* all is held */
    assert_non_null(strstr(err.text, "no room"));
    efs_client_release(held);
    damage(2); /* the first is the mixture's x */
    assert_int_equal(mix(client, team, EFS_FORM_DEVICE, there, &err), -EUCLEAN);
    for (unsigned number = 1; number < 90; number += 3) {
        fails(number, 700, true);
        errint_t rc = mix(client, team, EFS_FORM_DEVICE, there, &err);
        assert_true(rc == 0 || (rc == -EIO && err.text[0]));
        efs_client_close(client);
        fails(0, 0, false);
        client = open_gpu(runnable.store, LEAST);
    }
    efs_team_free(team);
    efs_client_close(client);
    fixture_end(&runnable);
}

/* ---- what goes wrong ---- */

static void damaged_on_the_way(void **state)
{
    struct efs_client_request *request;
    uint32_t index, bad = 0;
    errint_t status;
    (void)state;
    struct efs_client *client = open_gpu(model.store, LEAST);
    damage(1);
    assert_int_equal(begin(client, 0, 0, 3, &request), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(efs_client_wait_any(request, 60000, &index, &status), 1);
        assert_true(status == 0 || status == -EUCLEAN);
        bad += status < 0;
        if (status == 0)
            check(request, index, 0, index);
    }
    assert_int_equal(bad, 1);
    efs_client_release(request);
    bring(client, 0, 0, 3);
    efs_client_close(client);
}

/* A client's life, in which some call of the driver fails. Returns whether one did. */
static bool life(const char *path)
{
    struct efs_error err = {""};
    struct efs_client *client = open_client(path, true);
    bool failed = false;
    errint_t rc = add_gpu(client, LEAST, &err);
    if (rc < 0) {
        assert_true(rc == -EIO || rc == -ENOMEM || rc == -ENODEV);
        assert_non_null(strstr(err.text, "cu"));
        failed = true;
    }
    for (uint32_t layer = 0; layer < LAYERS && !failed; layer++) {
        struct efs_client_request *request;
        uint32_t index;
        errint_t status;
        rc = begin(client, layer, 0, EXPERTS - 2, &request);
        if (rc < 0) {
            assert_int_equal(rc, -EIO);
            failed = true;
            break;
        }
        while (efs_client_wait_any(request, 60000, &index, &status) == 1) {
            assert_true(status == 0 || status == -EIO || status == -ENOMEM);
            failed |= status < 0;
            if (status == 0)
                check(request, index, layer, index);
            if (status == 0 && efs_client_drop_after(request, index, NULL) < 0)
                failed = true;
        }
        efs_client_release(request);
    }
    efs_client_close(client);
    assert_int_equal(left(), 0);
    return failed;
}

static void each_call_fails(void **state)
{
    static const struct {
        int result;
        bool for_ever;
    } ways[] = {{EFS_CU_OUT_OF_MEMORY, false}, {700, true}};
    (void)state;
    for (unsigned w = 0; w < 2; w++) {
        unsigned failed = 0, fine = 0;
        for (unsigned number = 1; fine < 3 && number < 1000; number++) {
            fails(number, ways[w].result, ways[w].for_ever);
            if (life(model.store))
                failed++, fine = 0;
            else
                fine++; /* a call of the end, or of none any more */
            if (failed > 40)
                number += 6; /* the same calls again and again */
        }
        fails(0, 0, false);
        assert_true(failed > 30);
        assert_false(life(model.store));
    }
}

/* ---- many ---- */

#define THREADS 4

struct user {
    struct efs_client *client;
    uint64_t random;
    unsigned served, without_room;
};

static void *use(void *arg)
{
    struct user *u = arg;
    for (unsigned round = 0; round < 40; round++) {
        struct efs_client_request *request;
        uint32_t index, layer = (uint32_t)fixture_random(&u->random) % LAYERS;
        uint32_t first = (uint32_t)fixture_random(&u->random) % 6;
        errint_t status;
        assert_int_equal(begin(u->client, layer, first, 3, &request), 0);
        for (unsigned i = 0; i < 3 && fixture_random(&u->random) % 8; i++) {
            assert_int_equal(efs_client_wait_any(request, 60000, &index, &status), 1);
            assert_true(status == 0 || status == -ENOMEM);
            u->served += status == 0;
            u->without_room += status < 0;
            if (status == 0)
                check(request, index, layer, first + index);
            if (fixture_random(&u->random) % 2)
                efs_client_drop(request, index);
        }
        efs_client_release(request);
    }
    return NULL;
}

static void many_threads(void **state)
{
    pthread_t threads[THREADS];
    struct user users[THREADS];
    unsigned served = 0;
    (void)state;
    struct efs_client *client = open_gpu(model.store, LEAST);
    slow(100);
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct user){.client = client, .random = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        served += users[i].served;
    }
    assert_true(served > THREADS * 20);
    assert_int_equal(stats_of(client).g_held, 0);
    efs_client_close(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(of_a_store, after),        cmocka_unit_test_teardown(of_a_mount, after),
        cmocka_unit_test_teardown(registered_memory, after), cmocka_unit_test_teardown(what_is_there_stays, after),
        cmocka_unit_test_teardown(refused, after),           cmocka_unit_test_teardown(no_room, after),
        cmocka_unit_test_teardown(who_still_reads, after),   cmocka_unit_test_teardown(every_format, after),
        cmocka_unit_test_teardown(large_experts, after),     cmocka_unit_test_teardown(foreign_codec, after),
        cmocka_unit_test_teardown(run_there, after),         cmocka_unit_test_teardown(damaged_on_the_way, after),
        cmocka_unit_test_teardown(each_call_fails, after),   cmocka_unit_test_teardown(many_threads, after),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
