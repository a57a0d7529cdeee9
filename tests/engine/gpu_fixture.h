/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_fixture.h - clients whose graphics processor is a driver that has none (fake_cuda.h): what tests of it share.
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
#define GPU_SLOTS (32ull << 20)  /* of a budget, what is not pool G */
#define GPU_EXPERT_BYTES 131072u /* of pool G */
#define GPU_POOL_EXPERTS 8       /* that the smallest pool has room for */
#define GPU_LEAST (GPU_SLOTS + GPU_POOL_EXPERTS * GPU_EXPERT_BYTES)

extern struct fixture gpu_model;
extern struct fixture_mount gpu_mount; /* expert e of layer l is its number l * GPU_EXPERTS + e */
extern struct gpu_fake {
    const char *policy; /* of the next client's device */
    uint32_t device;    /* its number */
    uint64_t ahead_bytes;
    /* fake_cuda.h says what these do: */
    size_t (*registered)(void);
    unsigned (*left)(void);
    void (*fails)(unsigned number, int result, bool for_ever), (*slow)(unsigned us), (*damage)(unsigned number),
        (*hold)(unsigned streams);
    bool (*owns)(const void *at, size_t bytes);
    int (*device_of)(const void *at, size_t bytes);
    void (*lose)(int device, int result);
} gpu_fake;

/* A group's setup and teardown. */
int gpu_setup(void **state);
int gpu_teardown(void **state);
/* After each test nothing of the driver is left, and it works again. */
int gpu_after(void **state);

/* A client of a store or a mount, and one that has the device. */
struct efs_client *gpu_client_without(const char *path, bool full_pool);
errint_t gpu_add(struct efs_client *client, uint64_t budget_bytes, struct efs_error *err);
struct efs_client *gpu_client(const char *path, uint64_t budget_bytes);
/* Ask for experts of a layer; an error has words. */
errint_t gpu_begin(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count,
                   struct efs_client_request **request);
/* The same, until all are there. */
struct efs_client_request *gpu_hold(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count);
/* A client's life, which tells whether a call of the driver failed: with each call of it that fails, once or from then
 * on; so many must. Afterwards all works. */
void gpu_each_call_fails(bool (*life)(void), unsigned least);
/* One of them is in the device's memory, and right. */
void gpu_check(struct efs_client_request *request, uint32_t index, uint32_t layer, uint32_t expert);
/* Experts of a layer come, are right, and are let go. */
void gpu_bring(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count);
struct efs_gpu_stats gpu_stats(struct efs_client *client);

#endif
