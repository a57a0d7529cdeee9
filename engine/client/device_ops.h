/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_ops.h - requests in EFS_FORM_DEVICE are those of engine/gpu/, which stands above the client: it says here who
 * serves them. Each function is what the call of expertfs.h of that name promises.
 */
#ifndef EFS_DEVICE_OPS_H
#define EFS_DEVICE_OPS_H

#include "expert_key.h"
#include "expertfs.h"

struct efs_device;
struct efs_device_request;

struct efs_device_ops {
    errint_t (*begin)(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_need *needs,
                      uint32_t count, struct efs_device_request **request, struct efs_error *err);
    int (*wait_any)(struct efs_device_request *request, int timeout_ms, uint32_t *index, errint_t *status);
    int (*event)(struct efs_device_request *request);
    errint_t (*wait)(struct efs_device_request *request);
    errint_t (*tensors)(struct efs_device_request *request, uint32_t index, const struct efs_tensor **tensors,
                        uint32_t *count);
    void (*drop)(struct efs_device_request *request, uint32_t index);
    void (*release)(struct efs_device_request *request);
    void (*leave)(struct efs_device_request *request); /* the same in a forked process, which closes its descriptors */
    void (*hint)(struct efs_device *device, const struct efs_routing *routing); /* checked, but for whether it exists */
};

/* The client closes the device before anything else. -EEXIST: it has one. Before its first request of that form, by one
 * thread. */
errint_t efs_client_attach(struct efs_client *client, struct efs_device *device, const struct efs_device_ops *ops,
                           void (*close)(struct efs_device *device));
/* -ECHILD: it was opened in the process from which this one was forked. */
errint_t efs_client_check(const struct efs_client *client, struct efs_error *err);
/* How much of an expert is in memory of the store or mount, as efs_expert_info.state; 'M' where it does not tell. It
 * may have changed by now. Of a mount it is asked for, by the kernel. */
char efs_client_state(struct efs_client *client, const struct efs_expert_key *key);
struct efs_device *efs_client_device(const struct efs_client *client);                          /* NULL: none */
struct efs_device_request *efs_client_device_request(const struct efs_client_request *request); /* NULL: not one */

#endif
