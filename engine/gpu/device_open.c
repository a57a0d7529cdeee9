/* SPDX-License-Identifier: Apache-2.0 */
/* device_open.c - opens a device for a client, allocates all of its memory, closes it. */
#include "device_internal.h"

#include "deadline.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define POOL_MIN_BYTES ((uint64_t)1 << 20)

/* ---- opening; device_close() undoes completed steps ---- */

/* Makes a driver call; on failure returns its error from the function. */
#define DEVICE_CALL(name, made)                                                                                        \
    do {                                                                                                               \
        efs_cu_result made_result = (made);                                                                            \
        if (made_result != 0)                                                                                          \
            return efs_driver_fail(cu, name, made_result, err);                                                        \
    } while (0)

static errint_t device_find(struct efs_device *device, uint32_t number, struct efs_error *err)
{
    const struct efs_driver *cu = &device->driver;
    int count = 0;
    efs_cu_result result = cu->init(0);
    if (result != 0)
        return efs_fail(err, -ENODEV, "no graphics processor: cuInit: %s (%d)", efs_driver_error(cu, result), result);
    DEVICE_CALL("cuDeviceGetCount", cu->device_count(&count));
    if (count <= 0 || number >= (uint32_t)count)
        return efs_fail(err, -ENODEV, "there is no graphics processor %u: the driver has %d", number, count);
    DEVICE_CALL("cuDeviceGet", cu->device_get(&device->device, (int)number));
    DEVICE_CALL("cuDeviceGetName", cu->device_name(device->name, (int)sizeof(device->name) - 1, device->device));
    efs_cu_context context;
    DEVICE_CALL("cuDevicePrimaryCtxRetain", cu->context_retain(&context, device->device));
    device->context = context;
    return 0;
}

static errint_t device_load_module(struct efs_device *device, struct efs_error *err)
{
    const struct efs_driver *cu = &device->driver;
    DEVICE_CALL("cuModuleLoadData", cu->module_load(&device->module, efs_gpu_image));
    DEVICE_CALL("cuModuleGetFunction", cu->function_get(&device->decode, device->module, "efs_gpu_decode"));
    DEVICE_CALL("cuFuncSetAttribute",
                cu->function_set(device->decode, EFS_CU_FUNCTION_SHARED_BYTES, EFS_GPU_DECODE_SHARED));
    DEVICE_CALL("cuModuleGetFunction", cu->function_get(&device->up, device->module, "efs_gpu_ffn_up"));
    DEVICE_CALL("cuModuleGetFunction", cu->function_get(&device->down, device->module, "efs_gpu_ffn_down"));
    DEVICE_CALL("cuModuleGetFunction", cu->function_get(&device->sum, device->module, "efs_gpu_ffn_sum"));
    DEVICE_CALL("cuStreamCreate", cu->stream_create(&device->copying, EFS_CU_STREAM_NON_BLOCKING));
    DEVICE_CALL("cuStreamCreate", cu->stream_create(&device->computing, EFS_CU_STREAM_NON_BLOCKING));
    DEVICE_CALL("cuStreamCreate", cu->stream_create(&device->running, EFS_CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 2; i++)
        DEVICE_CALL("cuEventCreate", cu->event_create(&device->timed[i], EFS_CU_EVENT_TIMING));
    return 0;
}

static errint_t device_make_slot(struct efs_device *device, uint32_t number, struct efs_error *err)
{
    const struct efs_driver *cu = &device->driver;
    struct efs_slot *slot = &device->slot[number];
    void *table;
    slot->memory = device->memory + device->budget_bytes - (number + 1) * EFS_SLOT_BYTES;
    DEVICE_CALL("cuMemHostAlloc", cu->host_alloc(&table, EFS_SLOT_SHARDS * sizeof(*slot->table), 0));
    slot->table = table;
    DEVICE_CALL("cuEventCreate", cu->event_create(&slot->copied, EFS_CU_EVENT_NO_TIMING));
    DEVICE_CALL("cuEventCreate", cu->event_create(&slot->done, EFS_CU_EVENT_NO_TIMING));
    return 0;
}

/* Allocates the whole budget now, so that no other process can take that memory. */
static errint_t device_alloc_memory(struct efs_device *device, uint64_t budget_bytes, enum efs_vram_order_kind policy,
                                    struct efs_error *err)
{
    const struct efs_driver *cu = &device->driver;
    const uint64_t fixed = EFS_SLOTS * EFS_SLOT_BYTES + EFS_SCRATCH_BYTES, least = fixed + POOL_MIN_BYTES;
    size_t free_bytes, bytes;
    DEVICE_CALL("cuMemGetInfo", cu->memory_info(&free_bytes, &bytes));
    if (budget_bytes == 0)
        budget_bytes = free_bytes / 2;
    budget_bytes = budget_bytes / EFS_VRAM_GRANULE * EFS_VRAM_GRANULE;
    if (budget_bytes < least)
        return efs_fail(err, -EINVAL, "a budget of %llu bytes for %s: it takes %llu at least",
                        (unsigned long long)budget_bytes, device->name, (unsigned long long)least);
    if (budget_bytes > free_bytes)
        return efs_fail(err, -ENOMEM, "a budget of %llu bytes for %s: %zu are free there",
                        (unsigned long long)budget_bytes, device->name, free_bytes);
    DEVICE_CALL("cuMemAlloc", cu->memory_alloc(&device->memory, (size_t)budget_bytes));
    device->budget_bytes = budget_bytes;
    device->scratch = device->memory + budget_bytes - fixed;
    for (uint32_t i = 0; i < EFS_SLOTS; i++) {
        errint_t made = device_make_slot(device, i, err);
        if (made < 0)
            return made;
    }
    errint_t rc = efs_vram_init(&device->vram, device->memory, budget_bytes - fixed, policy);
    return rc < 0 ? efs_fail(err, rc, "no memory for a device's tables") : 0;
}

static errint_t device_open(struct efs_device *device, const struct efs_gpu_options *options, struct efs_error *err)
{
    if (efs_gpu_image_bytes == 0)
        return efs_fail(err, -EOPNOTSUPP, "this library was built without kernels for graphics processors (make gpu)");
    const enum efs_vram_order_kind policy = efs_vram_order_by_name(options->policy);
    if (policy == EFS_VRAM_ORDERS)
        return efs_fail(err, -EINVAL, "there is no policy %.40s of pool G: value, lru, dali", options->policy);
    errint_t rc = efs_driver_open(&device->driver, err);
    if (rc == 0)
        rc = device_find(device, options->device, err);
    if (rc < 0)
        return rc;
    efs_cu_result result = efs_device_push_context(device);
    if (result != 0)
        return efs_driver_fail(&device->driver, "cuCtxPushCurrent", result, err);
    rc = device_load_module(device, err);
    if (rc == 0)
        rc = device_alloc_memory(device, options->budget_bytes, policy, err);
    efs_device_pop_context(device);
    if (rc < 0)
        return rc;
    efs_segment_registry_init(&device->registry, &device->driver, device->context, efs_client_fs(device->client));
    device->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (device->wake < 0)
        return efs_fail(err, -errno, "no event for a device: %s", strerror(errno));
    rc = efs_thread_start(efs_device_run, device, "efs-gpu", &device->thread);
    device->started = rc == 0;
    return rc < 0 ? efs_fail(err, rc, "no thread for a device: %s", strerror(-rc)) : 0;
}

static void device_free_readers(struct efs_device *device, struct efs_vram_reader *readers)
{
    while (readers) {
        struct efs_vram_reader *one = readers;
        readers = one->next;
        (void)device->driver.event_destroy(one->event);
        free(one);
    }
}

/* Releases the driver's objects. Errors, as of a lost device, are ignored. */
static void device_free(struct efs_device *device)
{
    const struct efs_driver *cu = &device->driver;
    bool entered = efs_device_push_context(device) == 0;
    for (uint32_t i = 0; i < EFS_SLOTS; i++) {
        if (device->slot[i].copied)
            (void)cu->event_destroy(device->slot[i].copied);
        if (device->slot[i].done)
            (void)cu->event_destroy(device->slot[i].done);
        if (device->slot[i].table)
            (void)cu->host_free(device->slot[i].table);
    }
    for (uint32_t i = 0; i < 2; i++)
        if (device->timed[i])
            (void)cu->event_destroy(device->timed[i]);
    for (uint32_t b = 0; b < EFS_VRAM_BUCKETS; b++)
        for (struct efs_vram_expert *expert = device->vram.bucket[b]; expert; expert = expert->next)
            device_free_readers(device, expert->readers);
    device_free_readers(device, device->free_readers);
    if (device->memory)
        (void)cu->memory_free(device->memory);
    if (device->copying)
        (void)cu->stream_destroy(device->copying);
    if (device->computing)
        (void)cu->stream_destroy(device->computing);
    if (device->running)
        (void)cu->stream_destroy(device->running);
    if (device->module)
        (void)cu->module_unload(device->module);
    if (entered)
        efs_device_pop_context(device);
    (void)cu->context_release(device->device);
}

static void device_close(struct efs_device *device)
{
    if (efs_client_check(device->client, NULL) < 0) { /* a forked child: CUDA does not work there */
        efs_sys_close(device->wake);
        free(device);
        return;
    }
    if (device->started) {
        pthread_mutex_lock(&device->lock);
        device->closing = true;
        pthread_mutex_unlock(&device->lock);
        efs_device_wake(device);
        pthread_join(device->thread, NULL);
    }
    efs_segment_registry_free(&device->registry);
    if (device->context)
        device_free(device);
    efs_vram_destroy(&device->vram);
    if (device->wake >= 0)
        efs_sys_close(device->wake);
    efs_driver_close(&device->driver);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->run_lock);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* ---- the public calls ---- */

errint_t efs_client_gpu(struct efs_client *client, const struct efs_gpu_options *options, struct efs_error *err)
{
    static const struct efs_device_ops ops = {efs_device_begin, device_close};
    const struct efs_gpu_options defaults = {0};
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (efs_client_device(client))
        return efs_fail(err, -EEXIST, "the client has a graphics processor");
    struct efs_device *device = efs_sys_calloc(1, sizeof(*device));
    if (!device)
        return efs_fail(err, -ENOMEM, "no memory for a device");
    device->client = client;
    device->wake = -1;
    device->form = EFS_FORM_CODED;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->run_lock, NULL);
    efs_cond_init(&device->changed);
    rc = device_open(device, options ? options : &defaults, err);
    if (rc == 0)
        rc = efs_client_attach(client, device, &ops);
    if (rc < 0)
        device_close(device);
    return rc;
}

errint_t efs_client_gpu_stats(struct efs_client *client, struct efs_gpu_stats *out)
{
    struct efs_device *device = efs_client_device(client);
    if (!device)
        return -ENODEV;
    errint_t rc = efs_client_check(client, NULL);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&device->lock);
    struct efs_gpu_stats stats = device->stats;
    stats.g_evicted = device->vram.evicted;
    stats.g_budget_bytes = device->budget_bytes;
    stats.g_used_bytes = (uint64_t)device->vram.used_granules * EFS_VRAM_GRANULE;
    stats.g_experts = device->vram.experts;
    stats.g_held = device->vram.pinned;
    pthread_mutex_unlock(&device->lock);
    *out = stats;
    return 0;
}
