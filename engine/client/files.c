/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see mount.h: the files of experts and their items. */
#include "mount.h"

#include <errno.h>
#include <stdlib.h>

void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error)
{
    struct efs_mount_request *request = item->request;
    struct efs_mount *m = request->mount;
    bool was_loading = item->base.state == EFS_ITEM_LOADING;
    efs_mount_item_set_oversize(item, false, 0);
    efs_client_item_set(&request->base, &item->base, state, error);
    if (!was_loading)
        return;
    m->polled -= request->base.event >= 0;
    if (m->receiving && !m->maintenance_receives)
        efs_mount_signal(m->export->kick); /* the thread may wait for this item */
}

void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize, uint32_t own_drops)
{
    struct efs_mount_request *request = item->request;
    if (!oversize && request->oversize_item != item)
        return;
    request->oversize_item = oversize ? item : NULL;
    request->base.oversize = oversize;
    request->base.own_drops = own_drops;
    pthread_cond_broadcast(request->base.changed);
}

void efs_file_received(struct efs_expert_file *file)
{
    file->ready = true;
    efs_mount_item_set(file->item, EFS_ITEM_READY, 0);
}

void efs_file_failed(struct efs_expert_file *file, errint_t error)
{
    file->item->file = NULL;
    efs_mount_item_set(file->item, EFS_ITEM_FAILED, error == -EAGAIN ? -EIO : error);
    efs_export_free_coded(&file->exported);
    efs_mapped_free(&file->mapped);
    free(file); /* the next request retries */
}

void efs_file_drop(struct efs_mount *m, struct efs_expert_file *file)
{
    file->item = NULL;
    if (!file->ready) {
        efs_export_cancel(m->export, file);
        return;
    }
    efs_export_drop(m->export, file);
    efs_mapped_free(&file->mapped);
    free(file);
}
