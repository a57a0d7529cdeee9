/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-gpu.h - experts in memory of a graphics processor (CUDA), decoded there. See expertfs.h and expertfs-gpu(7).
 *
 * A client of a mount or a store gets one device; then its requests take EFS_FORM_DEVICE, and the tensors of an expert
 * that is there have addresses of the device, in the device's primary context, which is that of CUDA's runtime and of
 * who builds on it. Chunks go over the link as they are coded, and kernels make plain tensors of them. They stay there,
 * in pool G, under a hard budget of their own, until their place is needed.
 */
#ifndef EXPERTFS_GPU_H
#define EXPERTFS_GPU_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efs_gpu_options {
    uint32_t device;       /* its number, from 0 */
    uint64_t budget_bytes; /* of its memory, all that is taken there; 0: half of what is free now */
    const char *policy;    /* who goes first from pool G: "value" (NULL), "lru", "dali" */
    /*
     * Of pool G, what experts may take that were named ahead by efs_hint() and not asked for yet: at most half of it.
     * 0: none is brought ahead. Takes 8 MiB more of the budget beside pool G.
     */
    uint64_t ahead_bytes;
};

/*
 * Give the client a device, until it is closed. Once, before its first request of that form. -ENODEV: no driver, or no
 * device of that number; -EOPNOTSUPP: this library was built without kernels; -EINVAL: the budget is too
 * small, or there is no such policy; -EEXIST: it has one; -ENOMEM, -EIO. options may be NULL.
 *
 * Of a request in EFS_FORM_DEVICE (efs_client_begin()) efs_client_wait_any() tells of an expert when all of it stands
 * in memory of the device and was found well-formed: no stream has to wait for it. -EIO there: the device, or a call of
 * its driver, has failed; so will all to come. -ENOMEM: what requests hold leaves it no room; others came, and it does
 * when some are dropped and it is asked for again. Nothing waits for room, so that no two requests wait for each other.
 * -EOPNOTSUPP: its chunks have a codec that no kernel decodes, and it cannot be had in full (efs_options.full_pool).
 * Experts that are there already cost nothing, and their mount or store does not hear of their use.
 *
 * With ahead_bytes, what efs_hint() names is brought to pool G while nothing that was asked for is under way, one
 * expert at a time, if it stands in memory of the mount or store then: nothing is read from the disk for it. To these
 * it is a request like others. Who asks waits for at most the slot that is being copied ahead, 8 MiB, and for an expert
 * that is on its way so no longer than for another. A place is taken for it that is free, or that of an expert which is
 * neither held nor named, by the policy. A name stands until experts of its layer are asked for, or its sequence ends
 * (count 0), or 512 others were named since; while more names are wrong than right nothing is begun. Names that are
 * less likely than not are left out.
 */
EFS_API errint_t efs_client_gpu(struct efs_client *client, const struct efs_gpu_options *options,
                                struct efs_error *err);
/*
 * efs_client_drop() of an expert that work of this stream (CUstream, cudaStream_t; NULL: the default stream) still
 * reads: its memory is taken by another only after what is in the stream by now. With efs_client_drop(), and for
 * experts of a request that is released, that work has ended already. -EINVAL: not a request in EFS_FORM_DEVICE, or not
 * an expert that is there; -ENOMEM, -EIO: it is held on.
 */
EFS_API errint_t efs_client_drop_after(struct efs_client_request *request, uint32_t index, void *stream);

/* name, kind (counter or gauge), unit, help. Experts asked for are g_hits + g_joined + g_brought + g_errors once all
 * that was asked for was told of. New ones come at the end. */
#define EFS_GPU_STATS(X)                                                                                               \
    X(g_hits, counter, "", "experts asked for that were in pool G")                                                    \
    X(g_joined, counter, "", "experts asked for that were on the way there")                                           \
    X(g_brought, counter, "", "experts brought there when they were asked for")                                        \
    X(g_errors, counter, "", "experts that were to be brought and could not be")                                       \
    X(g_evicted, counter, "", "experts whose place others took")                                                       \
    X(g_link_bytes, counter, "bytes", "copied from memory to the device, of chunks and of experts in full")            \
    X(g_plain_bytes, counter, "bytes", "of the experts brought, ahead, too, plain")                                    \
    X(g_decodes, counter, "", "kernels launched to decode")                                                            \
    X(g_budget_bytes, gauge, "bytes", "memory of the device that may be taken, all of it taken at once")               \
    X(g_used_bytes, gauge, "bytes", "of pool G, in use")                                                               \
    X(g_experts, gauge, "", "experts in pool G or on the way")                                                         \
    X(g_held, gauge, "", "of them, those that requests hold")                                                          \
    X(g_ran, counter, "", "experts run on the device, by efs_client_ffn()")                                            \
    X(g_shared, counter, "", "experts run on the processor, of mixtures in EFS_FORM_SHARED")                           \
    X(g_ahead_issued, counter, "", "experts that were named ahead and begun to be brought")                            \
    X(g_ahead_used, counter, "", "of them, those asked for when they were there: hits, too")                           \
    X(g_ahead_late, counter, "", "of them, those asked for on the way there: joined, too")                             \
    X(g_ahead_wasted, counter, "", "of them, those that were given up, evicted, or not asked for by their layer")      \
    X(g_ahead_bytes, gauge, "bytes", "of pool G, of those that nobody has asked for yet")

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
