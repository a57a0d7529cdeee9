/* SPDX-License-Identifier: Apache-2.0 */
/* mount_watch.c - see mount.h: requests with an event for poll(2). */
#include "mount_request.h"

bool efs_mount_item_is_pending(const struct efs_mount_item *item)
{
    return item->file && (item->file->state == EFS_FILE_QUEUED || item->file->state == EFS_FILE_OPENING);
}

struct efs_mount_item *efs_mount_next_unreported(struct efs_mount_request *request, bool *pending)
{
    *pending = false;
    for (uint32_t i = 0; i < request->count; i++) {
        struct efs_mount_item *item = &request->items[i];
        *pending = *pending || efs_mount_item_is_pending(item);
        if (item->file && !item->reported && !efs_mount_item_is_pending(item))
            return item;
    }
    return NULL;
}

void efs_mount_update_event(struct efs_mount_request *request)
{
    bool pending;
    if (request->event.fd >= 0)
        efs_event_set(&request->event, efs_mount_next_unreported(request, &pending) || !pending);
}

void efs_mount_update_events(struct efs_mount *m)
{
    for (struct efs_mount_request *r = m->watched; r; r = r->next_watched)
        efs_mount_update_event(r);
}

bool efs_mount_has_watched_pending(const struct efs_mount *m)
{
    for (const struct efs_mount_request *r = m->watched; r; r = r->next_watched)
        for (uint32_t i = 0; i < r->count; i++)
            if (efs_mount_item_is_pending(&r->items[i]))
                return true;
    return false;
}

int efs_mount_event(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    bool there = request->event.fd >= 0;
    int fd = there ? request->event.fd : efs_event_open(&request->event);
    if (!there && fd >= 0) {
        request->next_watched = m->watched;
        m->watched = request;
        efs_mount_update_event(request);
        efs_mount_wake_maintenance(m);
    }
    pthread_mutex_unlock(&m->lock);
    return fd;
}

void efs_mount_unwatch(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    struct efs_mount_request **p = &m->watched;
    if (request->event.fd < 0)
        return;
    while (*p != request)
        p = &(*p)->next_watched;
    *p = request->next_watched;
    efs_event_close(&request->event);
}
