/* SPDX-License-Identifier: Apache-2.0 */
/* mount_wait.c - see mount.h: waits for a request's experts, returns their tensors, drops them. */
#include "mount_request.h"

#include "deadline.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(EFS_MOUNT_EXPERTS <= EFS_EXPORT_ROUTED, "a request fits into its packets");

/* Lock held, released while it waits. Waits until a file arrives, or until. *flushed: packets that were queued before
 * this wait were sent. -ETIMEDOUT. */
static errint_t mount_wait_more(struct efs_mount *m, const struct timespec *until, bool *flushed)
{
    errint_t rc;
    if (!*flushed && efs_mount_has_unsent(m)) {
        pthread_mutex_unlock(&m->lock);
        efs_mount_flush(m);
        pthread_mutex_lock(&m->lock);
        *flushed = true;
        return 0;
    }
    *flushed = false;
    if (!m->receiving && efs_export_works(m->export)) { /* this thread receives for all waiting threads */
        rc = efs_export_receive(m, until);
        if (m->watched)
            efs_mount_wake_maintenance(m); /* maintenance continues to receive */
        return rc;
    }
    m->waiting++;
    rc = efs_cond_wait_until(&m->arrived, &m->lock, until);
    m->waiting--;
    return rc;
}

int efs_mount_wait_any(struct efs_mount_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    struct efs_mount *m = request->mount;
    struct timespec time;
    const struct timespec *until = efs_deadline(timeout_ms, &time);
    struct efs_mount_item *item;
    bool pending, flushed = false;
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    while (!(item = efs_mount_next_unreported(request, &pending)) && pending && rc == 0)
        rc = mount_wait_more(m, until, &flushed);
    if (item) {
        item->reported = true;
        *index = (uint32_t)(item - request->items);
        *status = item->file->error;
        rc = 1;
        efs_mount_update_event(request);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Lock held. Whether items of the request are in flight. *oversize: and not all of them fit into memory at once. */
static bool request_is_pending(const struct efs_mount_request *request, bool *oversize)
{
    bool pending = false;
    *oversize = false;
    for (uint32_t i = 0; i < request->count; i++)
        if (efs_mount_item_is_pending(&request->items[i])) {
            pending = true;
            *oversize |= request->items[i].file->oversize;
        }
    return pending;
}

errint_t efs_mount_wait(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    errint_t rc = 0;
    bool oversize, flushed = false, looked = false;
    pthread_mutex_lock(&m->lock);
    while (request_is_pending(request, &oversize) && !(oversize && looked)) {
        looked = oversize;
        if (!oversize)
            mount_wait_more(m, NULL, &flushed);
        else if (!m->receiving && efs_export_works(m->export))
            efs_export_receive_ready(m); /* the mount may have sent that the rest fits now */
    }
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].file ? request->items[i].file->error : 0;
    pthread_mutex_unlock(&m->lock);
    return oversize ? -EDEADLK : rc;
}

errint_t efs_mount_tensors(struct efs_mount_request *request, uint32_t index, const struct efs_tensor **tensors,
                           uint32_t *count)
{
    struct efs_mount *m = request->mount;
    if (index >= request->count)
        return -EINVAL;
    pthread_mutex_lock(&m->lock);
    const struct efs_mount_item *item = &request->items[index];
    errint_t rc = !item->file ? -EINVAL : efs_mount_item_is_pending(item) ? -EAGAIN : item->file->error;
    if (rc == 0) {
        *tensors = item->file->mapped.tensors;
        *count = item->file->mapped.tensor_count;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static void item_drop(struct efs_mount *m, struct efs_mount_item *item)
{
    struct efs_expert_file *file = item->file;
    item->file = NULL;
    if (file)
        efs_file_unref(m, file);
}

void efs_mount_drop(struct efs_mount_request *request, uint32_t index)
{
    struct efs_mount *m = request->mount;
    if (index >= request->count)
        return;
    pthread_mutex_lock(&m->lock);
    item_drop(m, &request->items[index]);
    efs_mount_wake_waiters(m); /* the last item of a waiter may have been dropped */
    const bool unsent = efs_mount_has_unsent(m);
    pthread_mutex_unlock(&m->lock);
    if (unsent)
        efs_mount_flush(m);
}

void efs_mount_release(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    efs_mount_unwatch(request);
    for (uint32_t i = 0; i < request->count; i++)
        item_drop(m, &request->items[i]);
    const bool unsent = efs_mount_has_unsent(m);
    pthread_mutex_unlock(&m->lock);
    if (unsent)
        efs_mount_flush(m);
    free(request);
}

void efs_mount_request_free_forked(struct efs_mount_request *request)
{
    efs_event_close(&request->event);
    free(request);
}
