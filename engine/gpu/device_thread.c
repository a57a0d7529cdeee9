/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_thread.c - the thread efs-gpu: takes experts from the client when they are reported, copies and decodes them
 * slot by slot, and wakes the requests that wait. After a failed driver call the device is lost: the thread waits for
 * its streams, so that no memory is released that the device still reads, and fails all requests.
 */
#include "device_internal.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define LOST_AFTER_MS 200 /* poll timeout with slots in flight: a lost device may not call slot_ended() */
#define POLLED 64u        /* sources in one poll(); with more, the timeout bounds the wait for the rest */

static bool device_is_lost(struct efs_device *device)
{
    pthread_mutex_lock(&device->lock);
    bool lost = device->lost != 0;
    pthread_mutex_unlock(&device->lock);
    return lost;
}

/* Adds the time with slots in flight to load_ns. Called before the number of slots changes. */
static void device_count_time(struct efs_device *device)
{
    const uint64_t now = efs_now_ns();
    pthread_mutex_lock(&device->lock);
    device->load_ns += device->busy ? now - device->counted_at : 0;
    pthread_mutex_unlock(&device->lock);
    device->counted_at = now;
}

/* Completes finished slots, oldest first. ended: the streams were synchronized, all are finished. */
static void device_complete_slots(struct efs_device *device, bool ended)
{
    while (device->busy) {
        struct efs_slot *slot = &device->slot[device->oldest];
        struct efs_device_load *load = slot->load;
        if (!efs_slot_done(device, slot, ended))
            return;
        device_count_time(device);
        device->oldest = (device->oldest + 1) % EFS_SLOTS;
        device->busy--;
        if (load->slots == 0 && (load->filled || ended))
            efs_device_load_end(device, load, ended ? -EIO : load->error);
    }
}

/* ---- experts from the client ---- */

static void device_accept_sources(struct efs_device *device, bool *closing)
{
    pthread_mutex_lock(&device->lock);
    while (device->submitted) {
        struct efs_load_source *source = device->submitted;
        device->submitted = source->next;
        source->next = device->sources;
        device->sources = source;
    }
    *closing = device->closing;
    pthread_mutex_unlock(&device->lock);
}

/* Takes an expert that the client reports, of any source. false: none. */
static bool device_begin_next(struct efs_device *device)
{
    for (struct efs_load_source *source = device->sources, *next; source; source = next) {
        uint32_t index;
        errint_t status;
        next = source->next;
        if (source->reported < source->count && efs_client_wait_any(source->request, 0, &index, &status) == 1) {
            source->reported++;
            efs_device_load_begin(device, source, index, status);
            return true;
        }
    }
    return false;
}

/* Fills free slots until none is free or no expert is ready. */
static void device_fill_slots(struct efs_device *device)
{
    while (device->busy < EFS_SLOTS && !device_is_lost(device)) {
        struct efs_device_load *load = device->load;
        if (!load) {
            if (!device_begin_next(device))
                return;
            continue;
        }
        errint_t rc = load->allocated ? 0 : efs_device_load_alloc(device, load);
        if (rc == -EAGAIN)
            return;
        if (rc < 0) {
            efs_device_load_end(device, load, rc);
            continue;
        }
        const char *call;
        efs_cu_result result;
        device_count_time(device);
        struct efs_slot *slot = &device->slot[(device->oldest + device->busy++) % EFS_SLOTS];
        if (!efs_device_load_fill_slot(device, slot, load, &call, &result))
            efs_device_lose(device, call, result);
        if (load->filled)
            device->load = NULL;
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
    const bool can_begin = !device->load && device->busy < EFS_SLOTS;
    for (struct efs_load_source *source = device->sources; source; source = source->next) {
        if (!can_begin || source->reported == source->count) /* all reported: its event stays readable */
            continue;
        int fd = count <= POLLED ? efs_client_event(source->request) : -1;
        all &= fd >= 0;
        if (fd >= 0)
            fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    poll(fds, count, all && !device->busy ? -1 : LOST_AFTER_MS);
    if (fds[0].revents)
        (void)!read(device->wake, &number, sizeof(number));
}

/* Waits for the streams, then fails all experts in flight and all sources with error. */
static void device_fail_all(struct efs_device *device, errint_t error)
{
    bool closing;
    (void)device->driver.stream_synchronize(device->copying);
    (void)device->driver.stream_synchronize(device->computing);
    device_complete_slots(device, true);
    if (device->load)
        efs_device_load_end(device, device->load, error);
    device_accept_sources(device, &closing);
    while (device->sources) {
        struct efs_load_source *source = device->sources;
        device->sources = source->next;
        for (uint32_t i = 0; i < source->count; i++)
            if (source->expert[i])
                efs_device_load_complete(device, source->expert[i], error);
        efs_client_release(source->request);
        free(source);
    }
}

void *efs_device_run(void *arg)
{
    struct efs_device *device = arg;
    bool closing = false;
    efs_cu_result result = efs_device_push_context(device);
    if (result != 0)
        efs_device_lose(device, "cuCtxPushCurrent", result);
    while (!closing) {
        device_accept_sources(device, &closing);
        if (!device_is_lost(device)) {
            device_complete_slots(device, false);
            device_fill_slots(device);
        }
        if (device_is_lost(device))
            device_fail_all(device, -EIO);
        if (!closing)
            device_sleep(device);
    }
    device_fail_all(device, -ECANCELED);
    if (result == 0)
        efs_device_pop_context(device);
    return NULL;
}
