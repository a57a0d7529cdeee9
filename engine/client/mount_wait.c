/* SPDX-License-Identifier: Apache-2.0 */
/* mount_wait.c - see mount_request.h: waits for a request's experts, returns their tensors, drops them. */
#include "mount_request.h"

#include "deadline.h"

_Static_assert(EFS_MOUNT_EXPERTS <= EFS_EXPORT_ROUTED, "a request fits into its packets");

static struct efs_mount_request *mount_request_of(const struct efs_client_request *of)
{
    return (struct efs_mount_request *)(uintptr_t)of; /* base is its first member */
}

static errint_t mount_block(struct efs_client_request *of, const struct timespec *until)
{
    struct efs_mount *m = mount_request_of(of)->mount;
    if (m->receiving || !efs_export_works(m->export))
        return efs_cond_wait_until(&m->arrived, &m->lock, until);
    errint_t rc = efs_export_receive(m, until); /* for all waiting threads */
    if (m->polled)
        efs_mount_wake_maintenance(m); /* maintenance continues to receive */
    if (efs_mount_has_unsent(m)) {
        pthread_mutex_unlock(&m->lock);
        efs_mount_flush(m, false);
        pthread_mutex_lock(&m->lock);
    }
    return rc;
}

/* Requests from the mount whether the rest of the request fits, after the drops that are queued. */
static void mount_refresh(struct efs_client_request *of)
{
    struct efs_mount_item *item = mount_request_of(of)->oversize_item;
    struct efs_mount *m = item->request->mount;
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_OVERSIZE);
    ask.item[ask.head.count++].tag = item->file->exported.tag;
    efs_mount_item_set_oversize(item, false);
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_lock(&m->send_lock);
    efs_export_send_ask(m, &ask); /* meanwhile the item may have been answered: then this is not answered */
    pthread_mutex_unlock(&m->send_lock);
    pthread_mutex_lock(&m->lock);
}

static void mount_event_opened(struct efs_client_request *of)
{
    struct efs_mount *m = mount_request_of(of)->mount;
    m->polled += of->loading;
    efs_mount_wake_maintenance(m);
}

static errint_t mount_tensors(struct efs_client_request *of, uint32_t index, const struct efs_tensor **tensors,
                              uint32_t *count)
{
    const struct efs_mapped_file *mapped = &mount_request_of(of)->items[index].file->mapped;
    *tensors = mapped->tensors;
    *count = mapped->tensor_count;
    return 0;
}

/* Lock held. */
static void item_drop(struct efs_mount *m, struct efs_mount_item *item)
{
    struct efs_expert_file *file = item->file;
    if (item->base.state == EFS_ITEM_LOADING)
        LIST_REMOVE(item, waiting);
    item->file = NULL;
    efs_mount_item_set(item, EFS_ITEM_DROPPED, 0);
    if (file)
        efs_file_unref(m, file);
}

static void mount_drop(struct efs_client_request *of, uint32_t first, uint32_t end)
{
    struct efs_mount_request *request = mount_request_of(of);
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = first; i < end; i++)
        item_drop(m, &request->items[i]);
    const bool unsent = efs_mount_has_unsent(m);
    pthread_mutex_unlock(&m->lock);
    if (unsent)
        efs_mount_flush(m, false);
}

const struct efs_request_ops efs_mount_request_ops = {.block = mount_block,
                                                      .refresh = mount_refresh,
                                                      .event_opened = mount_event_opened,
                                                      .tensors = mount_tensors,
                                                      .drop = mount_drop,
                                                      .free = efs_client_request_free};
