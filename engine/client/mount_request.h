/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_request.h - a request of a mount, shared by the files that start it (mount_begin.c), wait for it (mount_wait.c)
 * and signal its event (mount_watch.c).
 */
#ifndef EFS_CLIENT_MOUNT_REQUEST_H
#define EFS_CLIENT_MOUNT_REQUEST_H

#include "mount.h"

#include "event.h"

struct efs_mount_item {
    struct efs_expert_file *file; /* NULL: dropped */
    bool reported;
};

struct efs_mount_request {
    struct efs_mount *mount;
    struct efs_mount_request *next_watched;
    struct efs_event event; /* for efs_mount_event() */
    uint32_t count;
    struct efs_mount_item items[];
};

/* ---- mount_watch.c: with lock held ---- */
bool efs_mount_item_is_pending(const struct efs_mount_item *item);
/* The first item that is loaded or failed and was not reported yet; NULL: none, and *pending is whether items are in
 * flight. */
struct efs_mount_item *efs_mount_next_unreported(struct efs_mount_request *request, bool *pending);
/* Makes the event, if the request has one, readable when efs_mount_wait_any() would not block. */
void efs_mount_update_event(struct efs_mount_request *request);
/* Closes the event, if the request has one. */
void efs_mount_unwatch(struct efs_mount_request *request);

#endif
