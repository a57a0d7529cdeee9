/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_fixture.h - clients with a device of the fake driver (fake_cuda.h), shared by the tests of the GPU code.
 */
#ifndef EFS_GPU_FIXTURE_H
#define EFS_GPU_FIXTURE_H

#include "expertfs-gpu.h"
#include "fixture_mount.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_LAYERS 2
#define GPU_EXPERTS 8
#define GPU_SLOTS (32ull << 20)  /* part of the budget that is not pool G */
#define GPU_EXPERT_BYTES 131072u /* bytes of an expert in pool G */
#define GPU_POOL_EXPERTS 8       /* capacity of the smallest pool */
#define GPU_MIN_BUDGET (GPU_SLOTS + GPU_POOL_EXPERTS * GPU_EXPERT_BYTES)

extern struct fixture gpu_model;
extern struct fixture_mount gpu_mount; /* expert e of layer l has index l * GPU_EXPERTS + e */
extern struct gpu_fake {
    const char *policy; /* options of the next client's device */
    uint32_t device;    /* device number */
    /* functions of fake_cuda.h */
    size_t (*registered)(void);
    unsigned (*left)(void);
    void (*fails)(unsigned number, int result, bool for_ever), (*slow)(unsigned us), (*damage)(unsigned number);
    bool (*owns)(const void *at, size_t bytes);
    int (*device_of)(const void *at, size_t bytes);
    void (*lose)(int device, int result);
} gpu_fake;

/* Setup and teardown of a group. old: the driver lacks the calls that older drivers lack. */
int gpu_setup(void **state);
int gpu_setup_old(void **state);
int gpu_teardown(void **state);
/* Teardown of a test: restores the driver's defaults; fails if a resource of the driver was not released. */
int gpu_test_teardown(void **state);

/* gpu_client_no_device() opens a client of a store or a mount, gpu_add_device() adds a device to it; gpu_client() does
 * both. */
struct efs_client *gpu_client_no_device(const char *path, bool full_pool);
errint_t gpu_add_device(struct efs_client *client, uint64_t budget_bytes, struct efs_error *err);
struct efs_client *gpu_client(const char *path, uint64_t budget_bytes);
/* Request experts of a layer on the device. An error must have a message. */
errint_t gpu_request(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count,
                     struct efs_client_request **request);
/* The same, and wait until all are on the device. */
struct efs_client_request *gpu_request_wait(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count);
/* Calls life() repeatedly, with another driver call failing each time, once or from then on. life() opens and closes a
 * client and returns whether a driver call failed. More than `least` runs must fail. Each run must release all
 * resources, and a final run without an injected failure must succeed. */
void gpu_fail_each_call(bool (*life)(void), unsigned least);
/* Fail unless expert `index` of the request is in device memory with the right bytes. */
void gpu_check(struct efs_client_request *request, uint32_t index, uint32_t layer, uint32_t expert);
/* Wait for all experts of a request for `first` and the next of a layer, check the bytes of those on the device, and
 * release the request. Returns whether one failed, which may be with -EIO or -ENOMEM only. */
bool gpu_wait_check(struct efs_client_request *request, uint32_t layer, uint32_t first);
/* Request experts of a layer, check their bytes, and release them. */
void gpu_request_check(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count);
struct efs_gpu_stats gpu_stats(struct efs_client *client);

#endif
