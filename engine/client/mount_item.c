/* SPDX-License-Identifier: Apache-2.0 */
/* mount_item.c - see mount_request.h: changes of a request's items, which wake those that wait for it. */
#include "mount_request.h"

void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error)
{
    struct efs_mount_request *request = item->request;
    struct efs_mount *m = request->mount;
    bool was_loading = item->base.state == EFS_ITEM_LOADING;
    efs_mount_item_set_oversize(item, false);
    efs_client_item_set(&request->base, &item->base, state, error);
    if (!was_loading)
        return;
    m->polled -= request->base.event >= 0;
    if (m->receiving && !m->maintenance_receives)
        efs_export_kick(m->export); /* the thread may wait for this item */
}

void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize)
{
    struct efs_mount_request *request = item->request;
    if (!oversize && request->oversize_item != item)
        return;
    request->oversize_item = oversize ? item : NULL;
    request->base.oversize = oversize;
    pthread_cond_broadcast(request->base.changed);
}
