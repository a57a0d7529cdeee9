/* SPDX-License-Identifier: Apache-2.0 */
/* mount_request.h - a request of a mount (base/request.h), shared by mount_request.c and the files that load its
 * experts. */
#ifndef EFS_CLIENT_MOUNT_REQUEST_H
#define EFS_CLIENT_MOUNT_REQUEST_H

#include "mount.h"

#include "request.h"

struct efs_mount_item {
    struct efs_client_item base;
    struct efs_mount_request *request;
    struct efs_expert *expert;          /* NULL: not in the table before the request */
    struct efs_expert_file *file;       /* while LOADING or READY, else NULL */
    LIST_ENTRY(efs_mount_item) waiting; /* LOADING: in file->waiting */
};

struct efs_mount_request {
    struct efs_client_request base;
    struct efs_mount *mount;
    struct efs_mount_item *oversize_item; /* by which the mount reported base.oversize; NULL: not oversize */
    struct efs_mount_item items[];
};

/* ---- files.c: with lock held ---- */
/* Changes the state of an item, with the error of FAILED. The caller removes it from file->waiting. */
void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error);
/* The mount has reported that the experts of the item's request do not fit into its memory at once, or that they do. */
void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize);

#endif
