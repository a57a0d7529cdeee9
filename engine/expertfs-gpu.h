/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-gpu.h - experts in GPU memory (CUDA), decoded there. See expertfs.h and expertfs-gpu(7).
 *
 * With a device a client's requests accept EFS_FORM_DEVICE: tensors then have device addresses, in the device's primary
 * context, which CUDA's runtime also uses. Chunks are copied coded and decoded by kernels. Decoded experts stay in pool
 * G, under a separate hard budget, until they are evicted.
 */
#ifndef EXPERTFS_GPU_H
#define EXPERTFS_GPU_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efs_gpu_options {
    uint32_t device;       /* number, from 0 */
    uint64_t budget_bytes; /* limit of all device memory, allocated at once; 0: half of what is free now */
    const char *policy;    /* eviction from pool G: "value" (NULL), "lru", "dali" */
};

/*
 * Attach a device to a client until the client is closed; once, before its first request in that form. options may be
 * NULL. -ENODEV: no driver, or no device of that number; -EOPNOTSUPP: the library was built without kernels; -EINVAL:
 * the budget is too small, or no such policy; -EEXIST: the client has a device; -ENOMEM, -EIO.
 *
 * efs_client_wait_any() reports an expert of EFS_FORM_DEVICE when all of it is decoded on the device and was found
 * well-formed: no stream has to wait for it. Its errors: -EIO: the device or a call of its driver failed, and all later
 * calls fail; -ENOMEM: requests hold too much of pool G: drop some and request the expert again (no request waits for
 * room, so no request can deadlock); -EOPNOTSUPP: no kernel decodes its codec, and the full form is not available. The
 * mount or store does not count the use of experts that are in pool G already.
 */
EFS_API errint_t efs_client_gpu(struct efs_client *client, const struct efs_gpu_options *options,
                                struct efs_error *err);
/*
 * efs_client_drop() of an expert that a stream (CUstream, cudaStream_t; NULL: the default stream) still reads: its
 * memory is reused only after the work that is in the stream now. efs_client_drop() and efs_client_release() require
 * that such work has completed. -EINVAL: not a request in EFS_FORM_DEVICE, or the expert is not loaded; -ENOMEM, -EIO:
 * it stays held.
 */
EFS_API errint_t efs_client_drop_after(struct efs_client_request *request, uint32_t index, void *stream);

/* name, kind (counter or gauge), unit, help. Requested experts are g_hits + g_joined + g_brought + g_errors after all
 * were reported. */
#define EFS_GPU_STATS(X)                                                                                               \
    X(g_hits, counter, "", "experts asked for that were in pool G")                                                    \
    X(g_joined, counter, "", "experts asked for that were on the way there")                                           \
    X(g_brought, counter, "", "experts brought there when they were asked for")                                        \
    X(g_errors, counter, "", "experts that were to be brought and could not be")                                       \
    X(g_evicted, counter, "", "experts whose place others took")                                                       \
    X(g_link_bytes, counter, "bytes", "copied from memory to the device, of chunks and of experts in full")            \
    X(g_plain_bytes, counter, "bytes", "of the experts brought, plain")                                                \
    X(g_decodes, counter, "", "kernels launched to decode")                                                            \
    X(g_budget_bytes, gauge, "bytes", "memory of the device that may be taken, all of it taken at once")               \
    X(g_used_bytes, gauge, "bytes", "of pool G, in use")                                                               \
    X(g_experts, gauge, "", "experts in pool G or on the way")                                                         \
    X(g_held, gauge, "", "of them, those that requests hold")                                                          \
    X(g_ran, counter, "", "experts run on the device, by efs_client_ffn()")                                            \
    X(g_shared, counter, "", "experts run on the processor, of mixtures in EFS_FORM_SHARED")

struct efs_gpu_stats {
#define EFS_GPU_STATS_FIELD(name, kind, unit, help) uint64_t name;
    EFS_GPU_STATS(EFS_GPU_STATS_FIELD)
#undef EFS_GPU_STATS_FIELD
};
/* -ENODEV: the client has no device. */
EFS_API errint_t efs_client_gpu_stats(struct efs_client *client, struct efs_gpu_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
