/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run.h - runs experts of a mixture on the device: copies the tokens there, computes each expert when it is in
 * pool G, copies the sums back. All work is in one stream and in scratch memory allocated with the device.
 *
 * One mixture at a time: efs_device_run_begin() takes device.run_lock, efs_device_run_end() releases it.
 */
#ifndef EFS_DEVICE_RUN_H
#define EFS_DEVICE_RUN_H

#include "assign_costs.h"
#include "expertfs-compute.h"

struct efs_device;
struct efs_device_run;

/* An expert in pool G: gate and up [inner][hidden], down [hidden][inner]; h = silu(gate x) * (up x). */
struct efs_device_matrices {
    const void *gate, *up, *down; /* device addresses */
    uint32_t inner;
    bool f16; /* else BF16 */
};

/* Waits for the mixture of another thread, then copies the tokens. The caller has checked the mixture, which has F32
 * activations, and keeps it unchanged until efs_device_run_end(), called on the same thread. -ENOMEM (also: too many
 * tokens for the scratch memory), -EIO. */
errint_t efs_device_run_begin(struct efs_device *device, const struct efs_mixture *mixture, struct efs_device_run **run,
                              struct efs_error *err);
/* Launches the expert with that index in the mixture. The caller may drop it after the work that is then in the stream.
 * -ENOMEM: too many tokens for the scratch memory; -EINVAL: its size or dtype differs from the earlier experts'; -EIO.
 */
errint_t efs_device_run_expert(struct efs_device_run *run, uint32_t index, const struct efs_device_matrices *matrices,
                               struct efs_error *err);
void *efs_device_run_stream(const struct efs_device_run *run);
/* Blocks until all launched work has ended. */
void efs_device_run_wait(const struct efs_device_run *run);
/* Adds up the outputs of the experts that were run and writes the sums to the mixture's y, unless error is < 0. Waits
 * for the stream and frees run. Returns error, or -EIO. */
errint_t efs_device_run_end(struct efs_device_run *run, errint_t error, struct efs_error *err);

/* Division of a mixture between processor and device by measured costs (sched/assign/assign_costs.h). Times of the
 * device and of the link are measured in engine/gpu/. */

/* Sets on_device[expert_count] and *choice, by the experts in pool G now. Holds none of them and does not count as a
 * use. -EIO: the device is lost; -EINVAL: more than EFS_ROUTING_EXPERTS experts; -ENOENT: the stack's name is too long;
 * -ENOMEM. */
errint_t efs_device_assign(struct efs_device *device, const char *stack, uint32_t layer,
                           const struct efs_mixture *mixture, bool *on_device, struct efs_assign_choice *choice,
                           struct efs_error *err);
/* Reports that the processor ran an expert with that many tokens in ns nanoseconds. */
void efs_device_report_cpu(struct efs_device *device, uint32_t tokens, uint64_t ns);
/* Reports that the mixture took ns nanoseconds, run as chosen. */
void efs_device_report_layer(struct efs_device *device, const struct efs_assign_choice *choice, uint64_t ns);

#endif
