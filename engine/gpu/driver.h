/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h - the calls of CUDA's driver API that are used. libcuda.so.1, which is part of the GPU driver, is loaded at
 * run time, so that one build runs on machines with and without it.
 *
 * The types are those of the driver's ABI, which is stable: handles are pointers, device addresses have 64 bits. The
 * environment variable EXPERTFS_CUDA names another library, or "off".
 */
#ifndef EFS_DRIVER_H
#define EFS_DRIVER_H

#include "expertfs.h"

typedef int efs_cu_result; /* 0 or a CUDA error number */
typedef int efs_cu_device;
typedef uint64_t efs_cu_address;
typedef void *efs_cu_context, *efs_cu_module, *efs_cu_function, *efs_cu_stream, *efs_cu_event;
typedef void efs_cu_host_fn(void *arg);

#define EFS_CU_OUT_OF_MEMORY 2
#define EFS_CU_NOT_READY 600
#define EFS_CU_STREAM_NON_BLOCKING 1u  /* not ordered with the default stream */
#define EFS_CU_HOST_PORTABLE 1u        /* the registration is valid in all contexts */
#define EFS_CU_FUNCTION_SHARED_BYTES 8 /* attribute: the most dynamic shared memory of a launch */
#define EFS_CU_EVENT_TIMING 0u
#define EFS_CU_EVENT_NO_TIMING 2u /* an event for ordering only */

/* Name of the field, name of the symbol, arguments. */
#define EFS_CU_CALLS(X)                                                                                                \
    X(init, "cuInit", (unsigned flags))                                                                                \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    X(device_get, "cuDeviceGet", (efs_cu_device * device, int ordinal))                                                \
    X(device_name, "cuDeviceGetName", (char *name, int room, efs_cu_device device))                                    \
    X(context_retain, "cuDevicePrimaryCtxRetain", (efs_cu_context * context, efs_cu_device device))                    \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (efs_cu_device device))                                         \
    X(context_push, "cuCtxPushCurrent_v2", (efs_cu_context context))                                                   \
    X(context_pop, "cuCtxPopCurrent_v2", (efs_cu_context * context))                                                   \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * bytes))                                           \
    X(memory_alloc, "cuMemAlloc_v2", (efs_cu_address * address, size_t bytes))                                         \
    X(memory_free, "cuMemFree_v2", (efs_cu_address address))                                                           \
    X(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                     \
    X(host_free, "cuMemFreeHost", (void *memory))                                                                      \
    X(host_register, "cuMemHostRegister_v2", (void *memory, size_t bytes, unsigned flags))                             \
    X(host_unregister, "cuMemHostUnregister", (void *memory))                                                          \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (efs_cu_address to, const void *from, size_t bytes, efs_cu_stream stream))      \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, efs_cu_address from, size_t bytes, efs_cu_stream stream))           \
    X(stream_create, "cuStreamCreate", (efs_cu_stream * stream, unsigned flags))                                       \
    X(stream_destroy, "cuStreamDestroy_v2", (efs_cu_stream stream))                                                    \
    X(stream_synchronize, "cuStreamSynchronize", (efs_cu_stream stream))                                               \
    X(stream_wait, "cuStreamWaitEvent", (efs_cu_stream stream, efs_cu_event event, unsigned flags))                    \
    X(event_create, "cuEventCreate", (efs_cu_event * event, unsigned flags))                                           \
    X(event_destroy, "cuEventDestroy_v2", (efs_cu_event event))                                                        \
    X(event_record, "cuEventRecord", (efs_cu_event event, efs_cu_stream stream))                                       \
    X(event_query, "cuEventQuery", (efs_cu_event event))                                                               \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, efs_cu_event begin, efs_cu_event end))                          \
    X(module_load, "cuModuleLoadData", (efs_cu_module * module, const void *image))                                    \
    X(module_unload, "cuModuleUnload", (efs_cu_module module))                                                         \
    X(function_get, "cuModuleGetFunction", (efs_cu_function * function, efs_cu_module module, const char *name))       \
    X(function_set, "cuFuncSetAttribute", (efs_cu_function function, int attribute, int value))                        \
    X(launch, "cuLaunchKernel",                                                                                        \
      (efs_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                  \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, efs_cu_stream stream, void **arguments,              \
       void **extra))                                                                                                  \
    X(launch_host, "cuLaunchHostFunc", (efs_cu_stream stream, efs_cu_host_fn * function, void *arg))                   \
    X(error_name, "cuGetErrorName", (efs_cu_result result, const char **name))

/* Attributes of the copies of a batch: CUmemcpyAttributes. */
struct efs_cu_copy_attributes {
    int source_order;
    struct {
        int type, number;
    } source_location, target_location; /* used for managed memory only */
    unsigned flags;
};
#define EFS_CU_SOURCE_ANY_ORDER 3 /* the sources are not written by work in the stream */
#define EFS_CU_COPY_OVERLAP 1u    /* flag: leave the multiprocessors to kernels */

/* Calls that only newer drivers have; else NULL. */
#define EFS_CU_OPTIONAL_CALLS(X)                                                                                       \
    X(copy_batch, "cuMemcpyBatchAsync", /* CUDA 12.8 */                                                                \
      (efs_cu_address * to, efs_cu_address * from, size_t * bytes, size_t count,                                       \
       struct efs_cu_copy_attributes * attributes, size_t * attribute_of, size_t attribute_count, size_t * failed,     \
       efs_cu_stream stream))

struct efs_driver {
    void *library; /* NULL: not open */
#define EFS_CU_FIELD(name, symbol, arguments) efs_cu_result(*name) arguments;
    EFS_CU_CALLS(EFS_CU_FIELD)
    EFS_CU_OPTIONAL_CALLS(EFS_CU_FIELD)
#undef EFS_CU_FIELD
};

/* Loads the library and all symbols. -ENODEV, with err: no driver, or a symbol is missing (an older driver). */
errint_t efs_driver_open(struct efs_driver *driver, struct efs_error *err);
void efs_driver_close(struct efs_driver *driver); /* no effect if it is not open */
/* The name of an error, never NULL. */
const char *efs_driver_error(const struct efs_driver *driver, efs_cu_result result);
/* Puts call and result into err. -ENOMEM for EFS_CU_OUT_OF_MEMORY, else -EIO. */
errint_t efs_driver_fail(const struct efs_driver *driver, const char *call, efs_cu_result result,
                         struct efs_error *err);

/* Launches efs_gpu_decode or efs_gpu_recover on shards of at most that many elements. table: an array of struct
 * efs_gpu_shard on the device. */
efs_cu_result efs_driver_launch_shards(const struct efs_driver *driver, efs_cu_function function, bool decode,
                                       efs_cu_address table, uint32_t shards, uint32_t elements, efs_cu_stream stream);

/* The kernels of kernels/cuda/ as built by nvcc (a fatbin, with PTX of the oldest architecture), linked into the
 * library by image.c. Empty if it was built without nvcc. */
extern const unsigned char efs_gpu_image[];
extern const uint64_t efs_gpu_image_bytes;

#endif
