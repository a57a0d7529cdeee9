/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_thread.c - the thread efs-gpu: takes experts from the client as they come, has them copied and decoded slot by
 * slot, and tells who waits. A call of the driver that fails ends all of it: what was begun is waited for, so that no
 * memory is given back that the device still reads, and everybody is told.
 */
#include "device_core.h"

#include "clock.h"
#include "sys.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define LOST_AFTER_MS 200 /* a lost device calls nobody: so often it is asked */
#define POLLED 64u        /* sources that are listened to at once: the others' turn comes */

static bool device_is_lost(struct efs_device *device)
{
    pthread_mutex_lock(&device->lock);
    bool lost = device->lost != 0;
    pthread_mutex_unlock(&device->lock);
    return lost;
}

/* What is to be written over waits for those who still read it; their events are free then. */
static void device_wait_for(struct efs_device *device, struct efs_vram_after *after)
{
    while (after) {
        struct efs_vram_after *one = after;
        after = one->next;
        efs_cu_result result = device->driver.stream_wait(device->copying, one->event, 0);
        if (result == 0)
            result = device->driver.stream_wait(device->computing, one->event, 0);
        if (result != 0)
            efs_device_lose(device, "cuStreamWaitEvent", result);
        pthread_mutex_lock(&device->lock);
        one->next = device->free_after;
        device->free_after = one;
        pthread_mutex_unlock(&device->lock);
    }
}

/* ---- the life of an expert on its way ---- */

/* All of a source is over when its last expert is. */
static void source_end_one(struct efs_device *device, struct efs_bring_source *source, uint32_t index)
{
    source->expert[index] = NULL;
    if (--source->left)
        return;
    struct efs_bring_source **at = &device->sources;
    while (*at != source)
        at = &(*at)->next;
    *at = source->next;
    efs_client_release(source->request);
    free(source);
}

static void bring_tell(struct efs_device *device, struct efs_vram_expert *expert, errint_t error)
{
    struct efs_vram_after *after = NULL;
    pthread_mutex_lock(&device->lock);
    if (error == 0)
        for (uint32_t i = 0; i < expert->tensor_count; i++)
            device->stats.g_plain_bytes += expert->tensors[i].bytes;
    device->stats.g_brought += error == 0;
    device->stats.g_errors += error < 0;
    efs_device_told(device, expert, error, &after);
    pthread_mutex_unlock(&device->lock);
    device_wait_for(device, after);
}

/* No slot has anything of it. */
static void bring_end(struct efs_device *device, struct efs_bring *bring, errint_t error)
{
    if (device->bring == bring)
        device->bring = NULL;
    efs_client_drop(bring->source->request, bring->index);
    bring_tell(device, bring->expert, error);
    source_end_one(device, bring->source, bring->index);
    free(bring);
}

/* The time in which slots were under way, before their number changes. */
static void device_count_time(struct efs_device *device)
{
    const uint64_t now = efs_now_ns();
    pthread_mutex_lock(&device->lock);
    device->stats.g_bring_ns += device->busy ? now - device->counted_at : 0;
    pthread_mutex_unlock(&device->lock);
    device->counted_at = now;
}

/* Slots that are done, oldest first. gone: whatever the device says, they are. */
static void device_reap(struct efs_device *device, bool gone)
{
    while (device->busy) {
        struct efs_slot *slot = &device->slot[device->oldest];
        struct efs_bring *bring = slot->bring;
        efs_cu_result result = gone ? 0 : device->driver.event_query(slot->done);
        if (result == EFS_CU_NOT_READY)
            return;
        if (result != 0) {
            efs_device_lose(device, "cuEventQuery", result);
            return;
        }
        for (uint32_t i = 0; i < slot->shards && bring->error == 0 && !gone; i++)
            if (slot->table->status[i] != EFS_GPU_FINE)
                bring->error = -EUCLEAN;
        device_count_time(device);
        device->oldest = (device->oldest + 1) % EFS_SLOTS;
        device->busy--;
        bring->slots--;
        if (bring->slots == 0 && (bring->filled || gone))
            bring_end(device, bring, gone ? -EIO : bring->error);
    }
}

/* ---- what comes from the client ---- */

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

/* The device cannot decode its chunks: the same expert in full, in place of them. */
static errint_t bring_again(struct efs_device *device, struct efs_vram_expert *expert)
{
    struct efs_bring_source *source = efs_sys_calloc(1, sizeof(*source) + sizeof(source->expert[0]));
    const struct efs_need need = {expert->key.expert, 1};
    if (!source)
        return -ENOMEM;
    *source = (struct efs_bring_source){.form = EFS_FORM_FULL, .count = 1, .left = 1};
    source->expert[0] = expert;
    errint_t rc = efs_device_ask(device, expert->key.stack, expert->key.layer, &need, source, NULL);
    if (rc < 0) {
        free(source);
        return rc == -EINVAL ? -EOPNOTSUPP : rc; /* there is no full pool */
    }
    source->next = device->sources;
    device->sources = source;
    return 0;
}

/* An expert that the client has is next. */
static void device_take(struct efs_device *device, struct efs_bring_source *source, uint32_t index, errint_t status)
{
    struct efs_vram_expert *expert = source->expert[index];
    struct efs_bring *bring = status == 0 ? efs_sys_calloc(1, sizeof(*bring)) : NULL;
    if (status == 0 && !bring)
        status = -ENOMEM;
    if (status == 0) {
        *bring = (struct efs_bring){.source = source, .index = index, .expert = expert};
        status = efs_client_tensors(source->request, index, &bring->tensors, &bring->count);
    }
    if (status == 0)
        status = efs_bring_check(bring->tensors, bring->count);
    if (status == 0) {
        device->bring = bring;
        return;
    }
    if (status == -EOPNOTSUPP && source->form == EFS_FORM_CODED)
        status = bring_again(device, expert);
    if (status < 0)
        bring_tell(device, expert, status);
    free(bring);
    efs_client_drop(source->request, index);
    source_end_one(device, source, index);
}

/* The next expert that is there, of any source. false: none is. */
static bool device_next(struct efs_device *device)
{
    for (struct efs_bring_source *source = device->sources, *next; source; source = next) {
        uint32_t index;
        errint_t status;
        next = source->next;
        if (source->told < source->count && efs_client_wait_any(source->request, 0, &index, &status) == 1) {
            source->told++;
            device_take(device, source, index, status);
            return true;
        }
    }
    return false;
}

/* Give the expert at hand its place. -EAGAIN: when some slot is done there may be one. */
static errint_t device_place(struct efs_device *device, struct efs_bring *bring)
{
    struct efs_vram_after *after = NULL;
    pthread_mutex_lock(&device->lock);
    errint_t rc = efs_vram_place(&device->vram, bring->expert, bring->tensors, bring->count, &after);
    pthread_mutex_unlock(&device->lock);
    device_wait_for(device, after);
    bring->placed = rc == 0;
    return rc == -EFBIG || (rc == -EAGAIN && device->busy == 0) ? -ENOMEM : rc;
}

/* Fill slots while there are free ones, and something to put there. */
static void device_feed(struct efs_device *device)
{
    while (device->busy < EFS_SLOTS && !device_is_lost(device)) {
        struct efs_bring *bring = device->bring;
        if (!bring) {
            if (!device_next(device))
                return;
            continue;
        }
        errint_t rc = bring->placed ? 0 : device_place(device, bring);
        if (rc == -EAGAIN)
            return;
        if (rc < 0) {
            bring_end(device, bring, rc);
            continue;
        }
        const char *call;
        efs_cu_result result;
        device_count_time(device);
        if (!efs_bring_slot(device, bring, &call, &result))
            efs_device_lose(device, call, result);
        if (bring->filled)
            device->bring = NULL;
    }
}

/* ---- the thread ---- */

/* Until something is fresh, a slot is done, or the client has an expert for a free slot. */
static void device_sleep(struct efs_device *device)
{
    struct pollfd fds[1 + POLLED] = {{.fd = device->wake, .events = POLLIN}};
    nfds_t count = 1;
    bool all = true;
    uint64_t number;
    if (!device->bring && device->busy < EFS_SLOTS)
        for (struct efs_bring_source *source = device->sources; source; source = source->next) {
            if (source->told == source->count) /* its event stays readable */
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

/* Nothing more goes to the device, and nothing that it reads is given back before it has ended. */
static void device_abandon(struct efs_device *device, errint_t error)
{
    bool closing;
    (void)device->driver.stream_synchronize(device->copying);
    (void)device->driver.stream_synchronize(device->computing);
    device_reap(device, true);
    if (device->bring)
        bring_end(device, device->bring, error);
    device_take_fresh(device, &closing);
    while (device->sources) {
        struct efs_bring_source *source = device->sources;
        device->sources = source->next;
        for (uint32_t i = 0; i < source->count; i++)
            if (source->expert[i])
                bring_tell(device, source->expert[i], error);
        efs_client_release(source->request);
        free(source);
    }
}

void *efs_device_run(void *arg)
{
    struct efs_device *device = arg;
    bool closing = false;
    efs_cu_result result = efs_device_enter(device);
    if (result != 0)
        efs_device_lose(device, "cuCtxPushCurrent", result);
    while (!closing) {
        device_take_fresh(device, &closing);
        if (!device_is_lost(device)) {
            device_reap(device, false);
            device_feed(device);
        }
        if (device_is_lost(device))
            device_abandon(device, -EIO);
        if (!closing)
            device_sleep(device);
    }
    device_abandon(device, -ECANCELED);
    if (result == 0)
        efs_device_leave(device);
    return NULL;
}
