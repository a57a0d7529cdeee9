/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run.h - experts run where they are: a mixture's tokens go to the device, each expert is computed when it has
 * come, and the sums come back. All of it in one stream, in memory of the device that is kept for it.
 *
 * One mixture at a time: who begins another waits for the first to end.
 */
#ifndef EFS_DEVICE_RUN_H
#define EFS_DEVICE_RUN_H

#include "expertfs-compute.h"

struct efs_device;
struct efs_device_run;

/* An expert that stands there: gate and up [inner][hidden], down [hidden][inner]; h = silu(gate x) * (up x). */
struct efs_device_matrices {
    const void *gate, *up, *down; /* addresses of the device */
    uint32_t inner;
    bool f16; /* else BF16 */
};

/* The mixture was checked, has F32 activations, and stays as it is. To be ended by this thread. -ENOMEM, -EIO. */
errint_t efs_device_run_begin(struct efs_device *device, const struct efs_mixture *mixture, struct efs_device_run **run,
                              struct efs_error *err);
/* The expert of that index in the mixture. It may be dropped after what is in the stream now. -ENOMEM: there is no room
 * for so many tokens at once; -EINVAL: not of the size of those before; -EIO. */
errint_t efs_device_run_expert(struct efs_device_run *run, uint32_t index, const struct efs_device_matrices *matrices,
                               struct efs_error *err);
void *efs_device_run_stream(const struct efs_device_run *run);
/* What was launched has ended. */
void efs_device_run_wait(const struct efs_device_run *run);
/* Sums into the mixture's y, if all went well so far (error: 0). Blocks. error, or -EIO. */
errint_t efs_device_run_end(struct efs_device_run *run, errint_t error, struct efs_error *err);

/* Who runs which expert of a mixture, processor or device, by what both have taken so far
 * (sched/assign/assign_costs.h). The device's own times, and those of the link, it takes by itself. */

/* on_device[experts], by what is in pool G now: nothing is held, and it is no use. -EIO: the device is lost; -EINVAL:
 * more than EFS_ROUTING_EXPERTS; -ENOENT, -ENOMEM. */
errint_t efs_device_deal(struct efs_device *device, const char *stack, uint32_t layer,
                         const struct efs_mixture *mixture, bool *on_device, struct efs_error *err);
/* The processor has run an expert with so many tokens, of one. */
void efs_device_ran_here(struct efs_device *device, uint32_t tokens, uint64_t ns);

#endif
