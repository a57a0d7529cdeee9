/* SPDX-License-Identifier: Apache-2.0 */
/* ffn_device.h - experts of a mixture on a client's device, one by one: for mixtures that run there, wholly or in part.
 */
#ifndef EFS_FFN_DEVICE_H
#define EFS_FFN_DEVICE_H

#include "device_run.h"

/* The client's device, which the mixture may run on: -EINVAL: there is none; -EOPNOTSUPP: not with its activations. */
errint_t efs_ffn_device_of(const struct efs_client *client, const struct efs_mixture *m, struct efs_device **device,
                           struct efs_error *err);
/* An expert of a request that is there begins. What efs_device_run_expert() tells: nothing of it was begun with
 * -ENOMEM; -EOPNOTSUPP: not of gate, up and down. */
errint_t efs_ffn_device_launch(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                               uint32_t of_mixture, uint32_t hidden, struct efs_error *err);
/* Drop it after that, or with an error: it may go with its request then. error, or that of efs_client_drop_after(). */
errint_t efs_ffn_device_drop(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                             errint_t error);

#endif
