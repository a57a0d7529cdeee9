/* SPDX-License-Identifier: Apache-2.0 */
/* mount_wait.c - see mount.h: waits for a request's experts, returns their tensors, drops them. */
#include "mount_request.h"

#include "clock.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#define DEADLOCK_CHECK_NS (2 * EFS_TRIM_DELAY_NS) /* interval of waiter_check_deadlock() */
_Static_assert(EFS_MOUNT_EXPERTS <= EFS_EXPORT_ROUTED, "a wait names all of a request");

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

static void waiter_end(struct efs_mount *m, struct efs_mount_waiter *waiter)
{
    struct efs_mount_waiter **p = &m->waiters;
    while (*p != waiter)
        p = &(*p)->next;
    *p = waiter->next;
}

/* Without lock. Sends the tags of a request, so that the mount checks whether it can complete. The mount answers only
 * if it cannot. */
static void waiter_check_deadlock(const struct efs_mount_waiter *waiter, struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    struct efs_export_wait packet = {.head = {.version = EFS_EXPORT_VERSION, .kind = EFS_EXPORT_WAIT},
                                     .number = waiter->number};
    pthread_mutex_lock(&m->send_lock); /* requests and drops keep their order */
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->count && efs_export_works(m->export); i++) {
        const struct efs_expert_file *file = request->items[i].file;
        if (file && file->exported.tag != EFS_NO_TAG)
            packet.tag[packet.head.count++] = file->exported.tag;
    }
    pthread_mutex_unlock(&m->lock);
    packet.head.bytes = (uint32_t)(offsetof(struct efs_export_wait, tag) + packet.head.count * sizeof(packet.tag[0]));
    if (packet.head.count)
        efs_export_send_all(m, &packet.head);
    pthread_mutex_unlock(&m->send_lock);
}

errint_t efs_mount_wait(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    struct efs_mount_waiter waiter = {.next = m->waiters, .number = ++m->waiter_number};
    struct timespec until = efs_from_now(DEADLOCK_CHECK_NS);
    m->waiters = &waiter;
    for (uint32_t i = 0; i < request->count; i++)
        while (efs_mount_item_is_pending(&request->items[i]) && !waiter.deadlocked) {
            if (mount_wait_more(m, &until) != -ETIMEDOUT)
                continue;
            pthread_mutex_unlock(&m->lock);
            waiter_check_deadlock(&waiter, request);
            until = efs_from_now(DEADLOCK_CHECK_NS);
            pthread_mutex_lock(&m->lock);
        }
    waiter_end(m, &waiter);
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].file ? request->items[i].file->error : 0;
    pthread_mutex_unlock(&m->lock);
    return waiter.deadlocked ? -EDEADLK : rc;
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
