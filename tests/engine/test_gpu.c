/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts in GPU memory, with the fake driver (fake_cuda.h): from a store and from a mount; eviction from pool G;
 * refused calls; damage during a copy; each driver call failing once, or from then on as on a lost device; many
 * threads. test_gpu_formats.c tests formats, test_gpu_run.c computes experts.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"
#include "driver.h"
#include "expertfs-gpu.h"
#include "fake_cuda.h"
#include "gpu_fixture.h"

#define MIB (1ull << 20)

static void both(struct efs_client *client)
{
    struct efs_client_request *request;
    uint32_t index, told = 0;
    errint_t status;
    gpu_fake.slow(300);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t layer = 0; layer < GPU_LAYERS; layer++) {
            gpu_request_check(client, layer, 0, GPU_EXPERTS);
            gpu_request_check(client, layer, round, 3);
        }
    struct efs_gpu_stats s = gpu_stats(client);
    assert_int_equal(s.g_hits + s.g_joined + s.g_brought + s.g_errors, 3 * GPU_LAYERS * (GPU_EXPERTS + 3));
    assert_int_equal(s.g_errors, 0);
    assert_int_equal(s.g_plain_bytes, s.g_brought * 3 * 32768);
    assert_true(s.g_evicted > 0 && s.g_used_bytes <= s.g_budget_bytes);
    assert_int_equal(s.g_held, 0);
    assert_int_equal(gpu_request(client, 1, 2, 3, &request), 0);
    int fd = efs_client_event(request);
    assert_true(fd >= 0);
    assert_int_equal(efs_client_event(request), fd);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (; told < 3; told++) {
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        assert_int_equal(efs_client_wait_any(request, 0, &index, &status), 1);
        assert_int_equal(status, 0);
        gpu_check(request, index, 1, 2 + index);
        efs_client_drop(request, index);
        efs_client_drop(request, index);
    }
    assert_int_equal(efs_client_wait_any(request, 0, &index, &status), 0);
    efs_client_release(request);
    assert_int_equal(gpu_request(client, 0, 0, GPU_EXPERTS, &request), 0);
    efs_client_release(request); /* released without a wait */
}

TEST_WITH(store_client, NULL, gpu_test_teardown)
{
    static const char *const policies[] = {"value", "lru", "dali", NULL};
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        gpu_fake.policy = policies[p];
        struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
        both(client);
        assert_true(gpu_stats(client).g_decodes > 0);
        assert_true(gpu_stats(client).g_link_bytes < gpu_stats(client).g_plain_bytes * 3 / 4);
        efs_client_close(client);
    }
}

TEST_WITH(mount_client, NULL, gpu_test_teardown)
{
    struct efs_client *client = gpu_client(gpu_mount.directory, GPU_MIN_BUDGET);
    both(client); /* the chunks of this mount are not compressed */
    assert_int_equal(gpu_stats(client).g_decodes, 0);
    assert_int_equal(gpu_fake.registered(), 0);
    efs_client_close(client);
}

/* Memory of the chunk pool is registered with the driver only while the pool owns it. */
TEST_WITH(registered_memory, NULL, gpu_test_teardown)
{
    struct efs_stats stats;
    struct efs_error err = {""};
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    struct efs *fs = efs_client_fs(client);
    assert_int_equal(gpu_fake.registered(), 0);
    gpu_request_check(client, 0, 0, GPU_EXPERTS);
    gpu_request_check(client, 1, 0, GPU_EXPERTS);
    efs_stats(fs, &stats);
    assert_true(gpu_fake.registered() > 0 && gpu_fake.registered() <= stats.chunk_pool_bytes);
    for (unsigned round = 0; round < 4; round++) {
        if (efs_set(fs, "budget", round % 2 ? "128M" : "24M", NULL, &err) < 0)
            fail_msg("%s", err.text);
        for (unsigned waited = 0; waited < 100 * PATIENCE_SECONDS; waited++) {
            efs_stats(fs, &stats);
            if (gpu_fake.registered() <= stats.chunk_pool_bytes &&
                stats.chunk_pool_bytes <= (round % 2 ? 128 : 24) * MIB)
                break;
            usleep(10000);
        }
        assert_true(gpu_fake.registered() <= stats.chunk_pool_bytes);
        gpu_request_check(client, 0, 0, GPU_EXPERTS);
        gpu_request_check(client, 1, 0, GPU_EXPERTS);
    }
    efs_client_close(client);
    assert_int_equal(gpu_fake.registered(), 0);
}

/* LRU eviction from pool G, and a request in another form by the same client. */
TEST_WITH(lru_eviction, NULL, gpu_test_teardown)
{
    struct efs_client_request *request;
    gpu_fake.policy = "lru";
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    gpu_request_check(client, 0, 0, 6);
    gpu_request_check(client, 0, 2, 4); /* 0 and 1 are now the least recently used */
    gpu_request_check(client, 1, 0, 3);
    struct efs_gpu_stats before = gpu_stats(client);
    assert_int_equal(before.g_evicted, 1);
    gpu_request_check(client, 0, 1, 5);
    assert_int_equal(gpu_stats(client).g_hits, before.g_hits + 5);
    gpu_request_check(client, 0, 0, 1);
    assert_int_equal(gpu_stats(client).g_brought, before.g_brought + 1);
    request = fixture_request_one(client, 0, 3, EFS_FORM_CODED);
    assert_int_equal(efs_client_drop_after(request, 0, NULL), -EINVAL);
    efs_client_release(request);
    efs_client_close(client);
}

TEST_WITH(refused, NULL, gpu_test_teardown)
{
    struct efs_client_request *request;
    struct efs_error err = {""};
    struct efs_gpu_stats stats;
    const struct efs_need twice[] = {{1, 1}, {1, 1}}, none[] = {{1, 0}}, beyond[] = {{1, 1}, {GPU_EXPERTS, 1}};
    struct efs_client *client = gpu_client_no_device(gpu_model.store, true);
    assert_int_equal(gpu_request(client, 0, 0, 1, &request), -EINVAL);
    assert_int_equal(efs_client_gpu_stats(client, &stats), -ENODEV);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET - 65536, &err), -EINVAL);
    assert_non_null(strstr(err.text, "at least"));
    assert_int_equal(gpu_add_device(client, FAKE_CUDA_BYTES + 65536, &err), -ENOMEM);
    gpu_fake.policy = "fifo";
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, &err), -EINVAL);
    assert_non_null(strstr(err.text, "value, lru, dali"));
    gpu_fake.policy = NULL;
    const struct efs_gpu_options second = {.device = FAKE_CUDA_DEVICES};
    assert_int_equal(efs_client_gpu(client, &second, &err), -ENODEV);
    char *driver = strdup(getenv("EXPERTFS_CUDA"));
    setenv("EXPERTFS_CUDA", "off", 1);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, &err), -ENODEV);
    setenv("EXPERTFS_CUDA", "libc.so.6", 1);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, &err), -ENODEV);
    assert_non_null(strstr(err.text, "cuInit"));
    setenv("EXPERTFS_CUDA", "/nowhere/libcuda.so.1", 1);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, &err), -ENODEV);
    setenv("EXPERTFS_CUDA", driver, 1);
    free(driver);
    assert_int_equal(efs_client_gpu(client, NULL, &err), 0);
    assert_int_equal(gpu_stats(client).g_budget_bytes, FAKE_CUDA_BYTES / 2);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, &err), -EEXIST);
    assert_int_equal(efs_client_begin(client, "", 0, twice, 2, EFS_FORM_DEVICE, &request, &err), -EINVAL);
    assert_int_equal(efs_client_begin(client, "", 0, none, 1, EFS_FORM_DEVICE, &request, &err), -EINVAL);
    assert_int_equal(efs_client_begin(client, "", 0, twice, 0, EFS_FORM_DEVICE, &request, &err), -EINVAL);
    assert_int_equal(gpu_request(client, GPU_LAYERS, 0, 1, &request), -ENOENT);
    assert_int_equal(efs_client_begin(client, "", 0, beyond, 2, EFS_FORM_DEVICE, &request, &err), -ENOENT);
    assert_int_equal(efs_client_begin(client, "a stack of a name that is longer than any", 0, none, 1, EFS_FORM_DEVICE,
                                      &request, &err),
                     -ENOENT);
    gpu_request_check(client, 0, 1, 1); /* expert 1 was part of a refused request */
    request = gpu_request_wait(client, 0, 0, 1);
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

/* Held experts are not evicted: a request without room gets -ENOMEM, and succeeds after the release. */
TEST_WITH(enomem_while_pinned, NULL, gpu_test_teardown)
{
    struct efs_client_request *held, *more;
    uint32_t index, here = 0;
    errint_t status;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    held = gpu_request_wait(client, 0, 0, 6);
    assert_int_equal(gpu_request(client, 1, 0, 5, &more), 0);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(efs_client_wait_any(more, PATIENCE_MS, &index, &status), 1);
        assert_true(status == 0 || status == -ENOMEM);
        here += status == 0;
    }
    assert_int_equal(here, 2);
    assert_int_equal(gpu_stats(client).g_held, 8);
    assert_int_equal(efs_client_wait(more), -ENOMEM);
    for (uint32_t i = 0; i < 6; i++)
        gpu_check(held, i, 0, i);
    efs_client_release(held);
    efs_client_release(more);
    gpu_request_check(client, 1, 0, 5);
    assert_int_equal(gpu_stats(client).g_errors, 3);
    efs_client_close(client);
}

/* One client per device: experts are in memory of the client's device, and the loss of a device does not affect the
 * client of another one. */
TEST_WITH(several_devices, NULL, gpu_test_teardown)
{
    const char *const paths[] = {gpu_mount.directory, gpu_model.store};
    for (unsigned p = 0; p < 2; p++) {
        struct efs_client *client[FAKE_CUDA_DEVICES];
        struct efs_client_request *request[FAKE_CUDA_DEVICES], *more;
        const struct efs_tensor *tensors;
        uint32_t count;
        for (uint32_t d = 0; d < FAKE_CUDA_DEVICES; d++) {
            gpu_fake.device = d;
            client[d] = gpu_client(paths[p], GPU_MIN_BUDGET);
        }
        for (uint32_t d = 0; d < FAKE_CUDA_DEVICES; d++)
            assert_int_equal(gpu_request(client[d], 0, d, 3, &request[d]), 0);
        for (uint32_t d = 0; d < FAKE_CUDA_DEVICES; d++) {
            assert_int_equal(efs_client_wait(request[d]), 0);
            for (uint32_t i = 0; i < 3; i++) {
                gpu_check(request[d], i, 0, d + i);
                assert_int_equal(efs_client_tensors(request[d], i, &tensors, &count), 0);
                assert_int_equal(gpu_fake.device_of(tensors[0].data, tensors[0].bytes), d);
            }
            assert_int_equal(gpu_stats(client[d]).g_experts, 3);
        }
        gpu_fake.lose(1, 700);
        assert_int_equal(gpu_request(client[1], 1, 0, 2, &more), 0);
        assert_int_equal(efs_client_wait(more), -EIO);
        efs_client_release(more);
        gpu_request_check(client[0], 1, 0, 4);
        for (uint32_t d = 0; d < FAKE_CUDA_DEVICES; d++) {
            efs_client_release(request[d]);
            efs_client_close(client[d]);
        }
        gpu_fake.fails(0, 0, false);
    }
}

/* Work in a user's stream, which reads an expert after `may` is posted. */
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

TEST_WITH(eviction_waits_for_streams, NULL, gpu_test_teardown)
{
    static struct reader reader;
    struct efs_driver cu;
    struct efs_client_request *request, *others;
    const struct efs_tensor *tensors;
    efs_cu_context context;
    efs_cu_stream stream;
    uint32_t count, index;
    errint_t status;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    sem_init(&reader.may, 0, 0);
    assert_int_equal(efs_driver_open(&cu, NULL), 0);
    assert_int_equal(cu.context_retain(&context, 0), 0);
    assert_int_equal(cu.context_push(context), 0);
    assert_int_equal(cu.stream_create(&stream, 0), 0);
    for (unsigned round = 0; round < 3; round++) { /* later rounds reuse the events */
        request = gpu_request_wait(client, 0, 0, 1);
        assert_int_equal(efs_client_tensors(request, 0, &tensors, &count), 0);
        reader.from = tensors[0].data;
        uint8_t expected[sizeof(reader.copy)];
        memcpy(expected, tensors[0].data, sizeof(expected));
        memset(reader.copy, 0, sizeof(reader.copy));
        assert_int_equal(cu.launch_host(stream, read_late, &reader), 0);
        assert_int_equal(efs_client_drop_after(request, 0, stream), 0);
        assert_int_equal(efs_client_drop_after(request, 0, stream), -EINVAL);
        efs_client_release(request);
        assert_int_equal(gpu_request(client, 1, 0, GPU_EXPERTS, &others), 0); /* needs the whole pool */
        for (unsigned i = 0; i < 2; i++)                                      /* none may reuse the memory in use */
            if (efs_client_wait_any(others, 20, &index, &status) == 1)
                assert_int_equal(status, 0);
        sem_post(&reader.may);
        assert_int_equal(efs_client_wait(others), 0);
        for (uint32_t i = 0; i < GPU_EXPERTS; i++)
            gpu_check(others, i, 1, i);
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

/* ---- failures ---- */

TEST_WITH(damaged_chunks, NULL, gpu_test_teardown)
{
    struct efs_client_request *request;
    uint32_t index, bad = 0;
    errint_t status;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    gpu_fake.damage(1);
    assert_int_equal(gpu_request(client, 0, 0, 3, &request), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(efs_client_wait_any(request, PATIENCE_MS, &index, &status), 1);
        assert_true(status == 0 || status == -EUCLEAN);
        bad += status < 0;
        if (status == 0)
            gpu_check(request, index, 0, index);
    }
    assert_int_equal(bad, 1);
    efs_client_release(request);
    gpu_request_check(client, 0, 0, 3);
    efs_client_close(client);
}

/* Opens a client, requests experts and closes it, while driver calls may fail. Returns whether one failed. */
static bool life(void)
{
    struct efs_error err = {""};
    struct efs_client *client = gpu_client_no_device(gpu_model.store, true);
    bool failed = false;
    errint_t rc = gpu_add_device(client, GPU_MIN_BUDGET, &err);
    if (rc < 0) {
        assert_true(rc == -EIO || rc == -ENOMEM || rc == -ENODEV);
        assert_non_null(strstr(err.text, "cu"));
        failed = true;
    }
    for (uint32_t layer = 0; layer < GPU_LAYERS && !failed; layer++) {
        struct efs_client_request *request;
        rc = gpu_request(client, layer, 0, GPU_EXPERTS - 2, &request);
        if (rc < 0) {
            assert_int_equal(rc, -EIO);
            failed = true;
            break;
        }
        failed = gpu_wait_check(request, layer, 0);
    }
    efs_client_close(client);
    return failed;
}

TEST_WITH(each_call_fails, NULL, gpu_test_teardown)
{
    gpu_fail_each_call(life, 30);
}

/* ---- many threads ---- */

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
        uint32_t index, layer = (uint32_t)fixture_random(&u->random) % GPU_LAYERS;
        uint32_t first = (uint32_t)fixture_random(&u->random) % 6;
        errint_t status;
        assert_int_equal(gpu_request(u->client, layer, first, 3, &request), 0);
        for (unsigned i = 0; i < 3 && fixture_random(&u->random) % 8; i++) {
            assert_int_equal(efs_client_wait_any(request, PATIENCE_MS, &index, &status), 1);
            assert_true(status == 0 || status == -ENOMEM);
            u->served += status == 0;
            u->without_room += status < 0;
            if (status == 0)
                gpu_check(request, index, layer, first + index);
            if (fixture_random(&u->random) % 2)
                efs_client_drop(request, index);
        }
        efs_client_release(request);
    }
    return NULL;
}

TEST_WITH(many_threads, NULL, gpu_test_teardown)
{
    pthread_t threads[THREADS];
    struct user users[THREADS];
    unsigned served = 0;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    gpu_fake.slow(100);
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct user){.client = client, .random = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        served += users[i].served;
    }
    assert_true(served > THREADS * 20);
    assert_int_equal(gpu_stats(client).g_held, 0);
    efs_client_close(client);
}

/* In a forked process the driver does not work: every call fails with -ECHILD before it reaches the driver. The parent
 * is not affected. */
TEST_WITH(forked, NULL, gpu_test_teardown)
{
    if (SANITIZED)
        skip();
    struct efs_client_request *request, *other;
    const struct efs_need need = {1, 1};
    struct efs_gpu_stats stats;
    uint32_t index;
    errint_t status;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_MIN_BUDGET);
    request = gpu_request_wait(client, 1, 2, 3);
    assert_true(efs_client_event(request) >= 0);
    pid_t child = fork();
    if (child == 0) {
        unsigned left = gpu_fake.left();
        alarm(PATIENCE_SECONDS);
        bool refused = efs_client_begin(client, "", 0, &need, 1, EFS_FORM_DEVICE, &other, NULL) == -ECHILD &&
                       efs_client_wait_any(request, -1, &index, &status) == -ECHILD &&
                       efs_client_wait(request) == -ECHILD && efs_client_event(request) == -ECHILD &&
                       efs_client_drop_after(request, 0, NULL) == -ECHILD &&
                       efs_client_gpu_stats(client, &stats) == -ECHILD && efs_client_gpu(client, NULL, NULL) == -ECHILD;
        efs_client_drop(request, 1);
        efs_client_release(request);
        efs_client_close(client);
        _exit(!refused || gpu_fake.left() != left);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (index = 0; index < 3; index++)
        gpu_check(request, index, 1, 2 + index);
    efs_client_release(request);
    gpu_request_check(client, 0, 0, GPU_EXPERTS);
    efs_client_close(client);
}

TEST_MAIN(gpu_setup, gpu_teardown)
