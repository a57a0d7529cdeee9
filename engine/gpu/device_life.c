/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_life.c - the life of an expert on its way, for what was asked for and for what is brought ahead: it is taken
 * from the client, gets its place, and is told of.
 */
#include "device_core.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* What is to be written over waits for those who still read it; their events are free then. */
static void device_wait_for(struct efs_device *device, struct efs_vram_after *after)
{
    while (after) {
        struct efs_vram_after *one = after;
        after = one->next;
        efs_cu_result result = device->driver.stream_wait(device->copying, one->event, 0);
        if (result == 0)
            result = device->driver.stream_wait(device->computing, one->event, 0);
        if (result == 0 && device->ahead)
            result = device->driver.stream_wait(device->ahead, one->event, 0);
        if (result != 0)
            efs_device_lose(device, "cuStreamWaitEvent", result);
        pthread_mutex_lock(&device->lock);
        one->next = device->free_after;
        device->free_after = one;
        pthread_mutex_unlock(&device->lock);
    }
}

void efs_source_end_one(struct efs_device *device, struct efs_bring_source *source, uint32_t index)
{
    source->expert[index] = NULL;
    if (--source->left)
        return;
    struct efs_bring_source **at = &device->sources;
    while (*at != source)
        at = &(*at)->next;
    *at = source->next;
    pthread_mutex_lock(&device->lock);
    efs_ahead_again(&device->names); /* what is named may be in memory by now */
    pthread_mutex_unlock(&device->lock);
    efs_client_release(source->request);
    free(source);
}

void efs_bring_tell(struct efs_device *device, const struct efs_bring_source *source, struct efs_vram_expert *expert,
                    errint_t error)
{
    struct efs_vram_after *after = NULL;
    pthread_mutex_lock(&device->lock);
    if (error == 0)
        for (uint32_t i = 0; i < expert->tensor_count; i++)
            device->stats.g_plain_bytes += expert->tensors[i].bytes;
    device->stats.g_brought += error == 0 && !source->ahead;
    device->stats.g_errors += error < 0 && !source->ahead; /* who asked for it has joined */
    efs_device_told(device, expert, error, &after);
    pthread_mutex_unlock(&device->lock);
    device_wait_for(device, after);
}

void efs_bring_free(struct efs_device *device, struct efs_bring *bring)
{
    if (device->bring == bring)
        device->bring = NULL;
    if (device->ahead_bring == bring)
        device->ahead_bring = NULL;
    efs_source_end_one(device, bring->source, bring->index);
    free(bring);
}

void efs_bring_end(struct efs_device *device, struct efs_bring *bring, errint_t error)
{
    efs_client_drop(bring->source->request, bring->index);
    efs_bring_tell(device, bring->source, bring->expert, error);
    efs_bring_free(device, bring);
}

bool efs_slot_done(struct efs_device *device, struct efs_slot *slot, bool gone)
{
    efs_cu_result result = gone ? 0 : device->driver.event_query(slot->done);
    if (result == EFS_CU_NOT_READY)
        return false;
    if (result != 0) {
        efs_device_lose(device, "cuEventQuery", result);
        return false;
    }
    for (uint32_t i = 0; i < slot->shards && slot->bring->error == 0 && !gone; i++)
        if (slot->table->status[i] != EFS_GPU_FINE)
            slot->bring->error = -EUCLEAN;
    slot->bring->slots--;
    return true;
}

/* The device cannot decode its chunks: the same expert in full, in place of them. */
static errint_t bring_again(struct efs_device *device, struct efs_vram_expert *expert, bool ahead)
{
    struct efs_bring_source *source = efs_sys_calloc(1, sizeof(*source) + sizeof(source->expert[0]));
    const struct efs_need need = {expert->key.expert, 1};
    if (!source)
        return -ENOMEM;
    *source = (struct efs_bring_source){.form = EFS_FORM_FULL, .ahead = ahead, .count = 1, .left = 1};
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

void efs_device_take(struct efs_device *device, struct efs_bring_source *source, uint32_t index, errint_t status)
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
        *(source->ahead ? &device->ahead_bring : &device->bring) = bring;
        return;
    }
    if (status == -EOPNOTSUPP && source->form != EFS_FORM_FULL)
        status = bring_again(device, expert, source->ahead);
    if (status < 0)
        efs_bring_tell(device, source, expert, status);
    free(bring);
    efs_client_drop(source->request, index);
    efs_source_end_one(device, source, index);
}

/* Does what is brought ahead have a place in pool G that it leaves, or will have used, soon? What nobody has asked for
 * is given up. */
static bool ahead_yields(struct efs_device *device)
{
    const struct efs_bring *bring = device->ahead_bring;
    if (!bring || !bring->placed)
        return false;
    pthread_mutex_lock(&device->lock);
    bring->expert->named = false; /* it means something only as long as nobody has asked for it */
    pthread_mutex_unlock(&device->lock);
    return true;
}

errint_t efs_device_place(struct efs_device *device, struct efs_bring *bring)
{
    struct efs_vram_after *after = NULL;
    pthread_mutex_lock(&device->lock);
    errint_t rc = efs_vram_place(&device->vram, bring->expert, bring->tensors, bring->count, &after);
    pthread_mutex_unlock(&device->lock);
    device_wait_for(device, after);
    bring->placed = rc == 0;
    if (rc == -EAGAIN && (device->busy || ahead_yields(device)))
        return rc;
    return rc == -EFBIG || rc == -EAGAIN ? -ENOMEM : rc;
}
