/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - see request.h: the calls of expertfs.h on a request of any kind. */
#include "request.h"

#include "deadline.h"
#include "expertfs-private.h"
#include "thread.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

errint_t efs_request_check(const struct efs_need *needs, uint32_t count, uint32_t most, struct efs_error *err)
{
    if (count == 0 || count > most)
        return efs_fail(err, -EINVAL, "%u experts in a request: 1 to %u are taken", count, most);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].tokens == 0)
            return efs_fail(err, -EINVAL, "expert %u gets no token", needs[i].expert);
        for (uint32_t n = 0; n < i; n++)
            if (needs[n].expert == needs[i].expert)
                return efs_fail(err, -EINVAL, "expert %u twice in a request", needs[i].expert);
    }
    return 0;
}

static bool request_is_here(const struct efs_client_request *request)
{
    return efs_owner_is_this_process(request->owner);
}

static struct efs_client_item *item_at(struct efs_client_request *request, uint32_t index)
{
    return (void *)((char *)request + request->first_item_at + (size_t)index * request->item_bytes);
}

/* ---- with the lock of the request held ---- */

/* The index of an item that is READY or FAILED and was not reported yet; count: none. */
static uint32_t next_unreported(struct efs_client_request *request)
{
    for (uint32_t i = 0; i < request->count; i++) {
        const struct efs_client_item *item = item_at(request, i);
        if (!item->reported && (item->state == EFS_ITEM_READY || item->state == EFS_ITEM_FAILED))
            return i;
    }
    return request->count;
}

/* The event is readable when efs_client_wait_any() would return at once. Neither call blocks. */
static void update_event(struct efs_client_request *request)
{
    if (request->event < 0)
        return;
    bool readable = !request->loading || next_unreported(request) < request->count;
    uint64_t one = 1;
    ssize_t n = 0;
    if (readable && !request->event_readable)
        n = write(request->event, &one, sizeof(one));
    else if (!readable && request->event_readable)
        n = read(request->event, &one, sizeof(one));
    request->event_readable = readable;
    (void)n;
}

/* Whether this thread must not wait for the request without a limit: it would wait for its own drops. */
static bool request_waits_for_itself(const struct efs_client_request *request)
{
    if (request->any_thread || request->thread != efs_thread_number())
        return request->any_thread && request->stuck;
    return request->stuck || (request->own_drops && request->own_drops == request->loading);
}

static errint_t request_block(struct efs_client_request *request, const struct timespec *until)
{
    return request->ops->block ? request->ops->block(request, until)
                               : efs_cond_wait_until(request->changed, request->lock, until);
}

void efs_client_item_set(struct efs_client_request *request, struct efs_client_item *item, enum efs_item_state state,
                         errint_t error)
{
    request->loading -= item->state == EFS_ITEM_LOADING;
    request->blocked = EFS_BLOCKED_NONE;
    item->state = state;
    item->error = error;
    pthread_cond_broadcast(request->changed);
    update_event(request);
}

bool efs_client_blocks(struct efs_client_request *request)
{
    request->blocked = request->any_thread                      ? EFS_BLOCKED_TEAM
                       : request->thread == efs_thread_number() ? EFS_BLOCKED_MAKER
                                                                : EFS_BLOCKED_NONE;
    return request->blocked && request->ops->blocks && request->ops->blocks(request);
}

/* The wait of the calling thread has ended. */
static void request_unblock(struct efs_client_request *request)
{
    if (request->blocked && (request->any_thread || request->thread == efs_thread_number()))
        request->blocked = EFS_BLOCKED_NONE;
}

/* Waits until an item was not reported yet, or none is LOADING. limited: the thread does something else at the end of
 * the time, else it waits again. *next: the item's index, or count. */
static errint_t wait_unreported(struct efs_client_request *request, bool limited, const struct timespec *until,
                                uint32_t *next)
{
    bool may_refresh = !limited && !request->any_thread;
    errint_t rc = 0;
    while ((*next = next_unreported(request)) == request->count && request->loading && rc == 0) {
        if (may_refresh && request->oversize && request->ops->refresh) {
            request->ops->refresh(request);
            may_refresh = false;
            continue;
        }
        if (!limited && !request->blocked && efs_client_blocks(request))
            continue;
        rc = !limited && request_waits_for_itself(request) ? -EDEADLK : request_block(request, until);
    }
    if (!limited)
        request_unblock(request);
    return rc;
}

/* Waits until no item is LOADING; -EDEADLK: also if that will not happen before this thread drops some. */
static errint_t wait_all(struct efs_client_request *request, const struct timespec *until)
{
    errint_t rc = 0;
    if (request->oversize && request->ops->refresh)
        request->ops->refresh(request);
    while (request->loading && !request->oversize && rc == 0) {
        if (!request->blocked && efs_client_blocks(request))
            continue;
        rc = request_waits_for_itself(request) ? -EDEADLK : request_block(request, until);
    }
    request_unblock(request);
    return request->loading && rc == 0 ? -EDEADLK : rc;
}

/* ---- the calls ---- */

errint_t efs_client_wait_step(struct efs_client_request *request, bool all, int step_ms)
{
    struct timespec time;
    const struct timespec *until = efs_deadline(step_ms, &time);
    uint32_t next;
    if (!request_is_here(request))
        return -ECHILD;
    pthread_mutex_lock(request->lock);
    errint_t rc = all ? wait_all(request, until) : wait_unreported(request, false, until, &next);
    pthread_mutex_unlock(request->lock);
    return rc == -ETIMEDOUT ? -EINTR : rc;
}

int efs_client_wait_any(struct efs_client_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    struct timespec time;
    const struct timespec *until = efs_deadline(timeout_ms, &time);
    uint32_t next;
    if (!request_is_here(request))
        return -ECHILD;
    pthread_mutex_lock(request->lock);
    int rc = wait_unreported(request, until != NULL, until, &next);
    if (next < request->count) {
        struct efs_client_item *item = item_at(request, next);
        item->reported = true;
        *index = next;
        *status = item->error;
        rc = 1;
        update_event(request);
    }
    pthread_mutex_unlock(request->lock);
    return rc;
}

int efs_client_event(struct efs_client_request *request)
{
    if (!request_is_here(request))
        return -ECHILD;
    pthread_mutex_lock(request->lock);
    bool is_new = request->event < 0;
    int fd = is_new ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : request->event;
    if (fd < 0)
        fd = -errno;
    if (is_new && fd >= 0) {
        request->event = fd;
        update_event(request);
        if (request->ops->event_opened)
            request->ops->event_opened(request);
    }
    pthread_mutex_unlock(request->lock);
    return fd;
}

errint_t efs_client_wait(struct efs_client_request *request)
{
    if (!request_is_here(request))
        return -ECHILD;
    pthread_mutex_lock(request->lock);
    errint_t rc = wait_all(request, NULL);
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = item_at(request, i)->error;
    pthread_mutex_unlock(request->lock);
    return rc;
}

bool efs_client_is_oversize(struct efs_client_request *request)
{
    pthread_mutex_lock(request->lock);
    bool oversize = request->oversize;
    pthread_mutex_unlock(request->lock);
    return oversize;
}

errint_t efs_client_tensors(struct efs_client_request *request, uint32_t index, const struct efs_tensor **tensors,
                            uint32_t *count)
{
    if (!request_is_here(request))
        return -ECHILD;
    if (index >= request->count)
        return -EINVAL;
    pthread_mutex_lock(request->lock);
    const struct efs_client_item *item = item_at(request, index);
    errint_t rc = item->state == EFS_ITEM_LOADING   ? -EAGAIN
                  : item->state == EFS_ITEM_DROPPED ? -EINVAL
                  : item->state == EFS_ITEM_FAILED  ? item->error
                                                    : request->ops->tensors(request, index, tensors, count);
    pthread_mutex_unlock(request->lock);
    return rc;
}

void efs_client_drop(struct efs_client_request *request, uint32_t index)
{
    if (index < request->count && request_is_here(request))
        request->ops->drop(request, index, index + 1);
}

void efs_client_release(struct efs_client_request *request)
{
    if (!request)
        return;
    if (!request_is_here(request)) {
        efs_client_request_free(request);
        return;
    }
    request->ops->drop(request, 0, request->count);
    request->ops->free(request);
}

void efs_client_request_free(struct efs_client_request *request)
{
    if (request->event >= 0)
        close(request->event);
    free(request);
}
