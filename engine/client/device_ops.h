/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_ops.h - the functions of engine/gpu/ that the client calls through a table, because gpu/ is above it.
 */
#ifndef EFS_DEVICE_OPS_H
#define EFS_DEVICE_OPS_H

#include "expert_key.h"
#include "expertfs.h"

struct efs_device;

struct efs_device_ops {
    /* efs_client_begin() in EFS_FORM_DEVICE; the caller sets the request's owner. */
    errint_t (*begin)(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_need *needs,
                      uint32_t count, struct efs_client_request **request, struct efs_error *err);
    void (*close)(struct efs_device *device);
};

/* Attaches a device, which the client closes first when it is closed. Call it on one thread, before the client's first
 * request in that form. -EEXIST: the client has a device. */
errint_t efs_client_attach(struct efs_client *client, struct efs_device *device, const struct efs_device_ops *ops);
/* -ECHILD: the client was opened by the process from which this one was forked. */
errint_t efs_client_check(const struct efs_client *client, struct efs_error *err);
/* The parts of an expert that are in memory of the store or mount, as efs_expert_info.state; 'M' if not known. The
 * state may be out of date at return. For a mount this is a getxattr(2). */
char efs_client_state(struct efs_client *client, const struct efs_expert_key *key);
struct efs_device *efs_client_device(const struct efs_client *client); /* NULL: none */

#endif
