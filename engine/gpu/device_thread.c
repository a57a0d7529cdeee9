/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_thread.c - the thread efs-gpu: takes experts from the client when they are reported, copies and decodes them
 * slot by slot, and wakes the requests that wait. After a failed driver call the device is lost: the thread waits for
 * its streams, so that no memory is released that the device still reads, and fails all requests.
 */
#include "device_internal.h"

#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define LOST_AFTER_MS 200 /* poll timeout with slots in flight: a lost device may not call slot_told() */
#define POLLED 64u        /* sources in one poll(); with more, the timeout bounds the wait for the rest */

static bool device_is_lost(struct efs_device *device)
{
    pthread_mutex_lock(&device->lock);
    bool lost = device->lost != 0;
    pthread_mutex_unlock(&device->lock);
    return lost;
}

/* Adds the time with slots in flight to bring_ns. Called before the number of slots changes. */
static void device_count_time(struct efs_device *device)
{
    const uint64_t now = efs_now_ns();
    pthread_mutex_lock(&device->lock);
    device->bring_ns += device->busy ? now - device->counted_at : 0;
    pthread_mutex_unlock(&device->lock);
    device->counted_at = now;
}

/* Completes finished slots, oldest first. gone: the streams were synchronized, all are finished. */
static void device_reap(struct efs_device *device, bool gone)
{
    while (device->busy) {
        struct efs_slot *slot = &device->slot[device->oldest];
        struct efs_bring *bring = slot->bring;
        if (!efs_slot_done(device, slot, gone))
            return;
        device_count_time(device);
        device->oldest = (device->oldest + 1) % EFS_SLOTS;
        device->busy--;
        if (bring->slots == 0 && (bring->filled || gone))
            efs_bring_end(device, bring, gone ? -EIO : bring->error);
    }
}

/* ---- experts from the client ---- */

static void device_take_fresh(struct efs_device *device, bool *closing)
{
    pthread_mutex_lock(&device->lock);
    while (device->fresh) {
        struct efs_bring_source *source = device->fresh;
        device->fresh = source->next;
        source->next = device->sources;
        device->sources = source;
    }
    *closing = device->closing;
    pthread_mutex_unlock(&device->lock);
}

/* Takes an expert that the client reports, of any source. false: none. */
static bool device_next(struct efs_device *device)
{
    for (struct efs_bring_source *source = device->sources, *next; source; source = next) {
        uint32_t index;
        errint_t status;
        next = source->next;
        if (!source->ahead && source->told < source->count &&
            efs_client_wait_any(source->request, 0, &index, &status) == 1) {
            source->told++;
            efs_device_take(device, source, index, status);
            return true;
        }
    }
    return false;
}

/* Fills free slots until none is free or no expert is ready. */
static void device_feed(struct efs_device *device)
{
    while (device->busy < EFS_SLOTS && !device_is_lost(device)) {
        struct efs_bring *bring = device->bring;
        if (!bring) {
            if (!device_next(device))
                return;
            continue;
        }
        errint_t rc = bring->placed ? 0 : efs_device_place(device, bring);
        if (rc == -EAGAIN)
            return;
        if (rc < 0) {
            efs_bring_end(device, bring, rc);
            continue;
        }
        const char *call;
        efs_cu_result result;
        device_count_time(device);
        struct efs_slot *slot = &device->slot[(device->oldest + device->busy++) % EFS_SLOTS];
        if (!efs_bring_slot(device, slot, bring, &call, &result))
            efs_device_lose(device, call, result);
        if (bring->filled)
            device->bring = NULL;
    }
}

/* ---- the thread ---- */

/* Blocks until efs_device_wake() is called or the client reports an expert for a free slot; at most LOST_AFTER_MS with
 * slots in flight. */
static void device_sleep(struct efs_device *device)
{
    struct pollfd fds[1 + POLLED] = {{.fd = device->wake, .events = POLLIN}};
    nfds_t count = 1;
    bool all = true;
    uint64_t number;
    const bool takes = !device->bring && device->busy < EFS_SLOTS;
    for (struct efs_bring_source *source = device->sources; source; source = source->next) {
        if (source->told == source->count) /* all reported: its event stays readable */
            continue;
        if (!(source->ahead ? efs_device_ahead_waits(device, source) : takes))
            continue;
        int fd = count <= POLLED ? efs_client_event(source->request) : -1;
        all &= fd >= 0;
        if (fd >= 0)
            fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    poll(fds, count, all && !device->busy && !device->ahead_busy ? -1 : LOST_AFTER_MS);
    if (fds[0].revents)
        (void)!read(device->wake, &number, sizeof(number));
}

/* Waits for the streams, then fails all experts in flight and all sources with error. */
static void device_abandon(struct efs_device *device, errint_t error)
{
    bool closing;
    (void)device->driver.stream_synchronize(device->copying);
    (void)device->driver.stream_synchronize(device->computing);
    if (device->ahead)
        (void)device->driver.stream_synchronize(device->ahead);
    device_reap(device, true);
    if (device->bring)
        efs_bring_end(device, device->bring, error);
    device->ahead_busy = false;
    if (device->ahead_bring)
        efs_bring_end(device, device->ahead_bring, error);
    device_take_fresh(device, &closing);
    while (device->sources) {
        struct efs_bring_source *source = device->sources;
        device->sources = source->next;
        for (uint32_t i = 0; i < source->count; i++)
            if (source->expert[i])
                efs_bring_tell(device, source, source->expert[i], error);
        efs_client_release(source->request);
        free(source);
    }
}

void *efs_device_run(void *arg)
{
    struct efs_device *device = arg;
    bool closing = false, more;
    efs_cu_result result = efs_device_enter(device);
    if (result != 0)
        efs_device_lose(device, "cuCtxPushCurrent", result);
    while (!closing) {
        device_take_fresh(device, &closing);
        more = false;
        if (!device_is_lost(device)) {
            device_reap(device, false);
            device_feed(device);
            more = efs_device_go_ahead(device);
        }
        if (device_is_lost(device))
            device_abandon(device, -EIO);
        if (!closing && !more)
            device_sleep(device);
    }
    device_abandon(device, -ECANCELED);
    if (result == 0)
        efs_device_leave(device);
    return NULL;
}
