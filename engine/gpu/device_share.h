/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_share.h - who runs which expert of a mixture, processor or device, by what both have taken so far
 * (sched/assign/assign_costs.h). The device's own times, and those of the link, it takes by itself.
 */
#ifndef EFS_DEVICE_SHARE_H
#define EFS_DEVICE_SHARE_H

#include "expertfs-compute.h"

#include <stdbool.h>

struct efs_device;

/* on_device[experts], by what is in pool G now: nothing is held, and it is no use. -EIO: the device is lost; -EINVAL:
 * more than EFS_ROUTING_EXPERTS; -ENOENT, -ENOMEM. */
errint_t efs_device_deal(struct efs_device *device, const char *stack, uint32_t layer,
                         const struct efs_mixture *mixture, bool *on_device, struct efs_error *err);
/* The processor has run an expert with so many tokens, of one. */
void efs_device_ran_here(struct efs_device *device, uint32_t tokens, uint64_t ns);

#endif
