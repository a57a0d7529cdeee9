/* SPDX-License-Identifier: Apache-2.0 */
/* mount_wait.c - see mount.h: waits for a request's experts, returns their tensors, drops them. */
#include "mount_request.h"

#include "clock.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

_Static_assert(EFS_MOUNT_EXPERTS <= EFS_EXPORT_ROUTED, "a request fits into its packets");

static bool time_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* Lock held. Waits until a file arrives, or until. Evicts idle files after EFS_TRIM_DELAY_NS. -ETIMEDOUT. */
static errint_t mount_wait_more(struct efs_mount *m, const struct timespec *until)
{
    struct timespec now, end;
    bool forever = !until;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (until && !time_before(now, *until))
        return -ETIMEDOUT;
    end = efs_later(now, EFS_TRIM_DELAY_NS);
    bool may_trim = m->oldest && (!until || time_before(end, *until));
    if (!may_trim && until)
        end = *until;
    if (!m->receiving && efs_export_works(m->export)) { /* this thread receives for all waiting threads */
        errint_t received = efs_export_receive(m, !may_trim && forever ? NULL : &end);
        if (m->watched)
            efs_mount_wake_maintenance(m); /* maintenance continues to receive */
        if (received == -ETIMEDOUT && may_trim)
            efs_files_trim(m, 0);
        return received == -ETIMEDOUT && !may_trim ? -ETIMEDOUT : 0;
    }
    m->waiting++;
    int rc = !may_trim && forever ? pthread_cond_wait(&m->arrived, &m->lock)
                                  : pthread_cond_timedwait(&m->arrived, &m->lock, &end);
    m->waiting--;
    if (rc == ETIMEDOUT && may_trim)
        efs_files_trim(m, 0);
    return rc == ETIMEDOUT && !may_trim ? -ETIMEDOUT : 0;
}

int efs_mount_wait_any(struct efs_mount_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    struct efs_mount *m = request->mount;
    const struct timespec until = efs_from_now((int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000);
    struct efs_mount_item *item;
    bool pending;
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    while (!(item = efs_mount_next_unreported(request, &pending)) && pending && rc == 0)
        rc = mount_wait_more(m, timeout_ms < 0 ? NULL : &until);
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
    bool pending = false, reported = request->oversize;
    for (uint32_t i = 0; i < request->count; i++)
        if (efs_mount_item_is_pending(&request->items[i])) {
            pending = true;
            reported |= request->items[i].file->oversize;
        }
    *oversize = pending && reported;
    return pending;
}

errint_t efs_mount_wait(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    errint_t rc = 0;
    bool oversize;
    pthread_mutex_lock(&m->lock);
    while (request_is_pending(request, &oversize) && !oversize)
        mount_wait_more(m, NULL);
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
    request->oversize |= efs_mount_item_is_pending(&request->items[index]) && request->items[index].file->oversize;
    item_drop(m, &request->items[index]);
    efs_mount_wake_waiters(m); /* the last item of a waiter may have been dropped */
    pthread_mutex_unlock(&m->lock);
}

void efs_mount_release(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    efs_mount_unwatch(request);
    for (uint32_t i = 0; i < request->count; i++)
        item_drop(m, &request->items[i]);
    pthread_mutex_unlock(&m->lock);
    free(request);
}

void efs_mount_request_free_forked(struct efs_mount_request *request)
{
    efs_event_close(&request->event);
    free(request);
}
