/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_prefetch.c - prefetches hinted experts to pool G, one at a time, with its own slot and stream.
 *
 * A prefetch starts only while no request is in flight and copies only while no request uses the link, so a request
 * waits at most for the slot that is being copied. It continues while requests wait for the store or mount, because
 * they may wait for memory that the prefetched expert occupies there. Only experts in memory of the store or mount are
 * prefetched, so the disk is not used. They take free memory of pool G, or evict experts that are neither pinned nor
 * hinted and that no stream reads, so that a prefetch never makes a stream wait for readers. A request for an expert
 * whose prefetch is in flight turns it into a demand load.
 */
#include "device_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

static bool device_link_is_busy(const struct efs_device *device)
{
    return device->load || device->busy;
}

static bool device_has_demand(const struct efs_device *device)
{
    for (const struct efs_load_source *source = device->sources; source; source = source->next)
        if (!source->prefetch)
            return true;
    return device_link_is_busy(device);
}

enum prefetch_state { PREFETCH_HINTED, PREFETCH_UNWANTED, PREFETCH_REQUESTED };

static enum prefetch_state prefetch_state(struct efs_device *device, const struct efs_vram_expert *expert)
{
    pthread_mutex_lock(&device->lock);
    enum prefetch_state state = !expert->prefetched ? PREFETCH_REQUESTED
                                : expert->hinted    ? PREFETCH_HINTED
                                                    : PREFETCH_UNWANTED;
    pthread_mutex_unlock(&device->lock);
    return state;
}

/* Removes a prefetched expert. false: it was requested meanwhile and stays. */
static bool prefetch_remove(struct efs_device *device, struct efs_vram_expert *expert)
{
    struct efs_vram_reader *readers = NULL; /* stays empty: no stream could read it yet */
    pthread_mutex_lock(&device->lock);
    bool removed = expert->prefetched;
    if (removed)
        efs_vram_remove(&device->vram, expert, &readers);
    pthread_mutex_unlock(&device->lock);
    return removed;
}

static void prefetch_cancel(struct efs_device *device, struct efs_device_load *load)
{
    if (!prefetch_remove(device, load->expert))
        return;
    efs_client_drop(load->source->request, load->index);
    efs_device_load_free(device, load);
}

/* ---- the next hint ---- */

/* Lock held. Adds the expert if it is still hinted and not in pool G. NULL: it is not, or no memory. */
static struct efs_vram_expert *prefetch_add(struct efs_device *device, const struct efs_expert_key *key)
{
    struct efs_hinted_expert *hint = efs_hint_list_find(&device->hints, key);
    if (!hint || efs_vram_find(&device->vram, key))
        return NULL;
    struct efs_vram_expert *expert = efs_vram_add(&device->vram, key);
    if (!expert)
        return NULL;
    hint->issued = expert->hinted = expert->prefetched = true;
    expert->used_at = ++device->vram.clock;
    device->stats.g_ahead_issued++;
    return expert;
}

static errint_t prefetch_submit(struct efs_device *device, const struct efs_expert_key *key,
                                struct efs_load_source *source)
{
    const struct efs_need need = {key->expert, 1};
    pthread_mutex_lock(&device->lock);
    struct efs_vram_expert *expert = device->lost ? NULL : prefetch_add(device, key);
    pthread_mutex_unlock(&device->lock);
    if (!expert)
        return -ENOENT;
    source->expert[0] = expert;
    errint_t rc = efs_load_source_submit(device, key->stack, key->layer, &need, source, NULL);
    if (rc < 0 && !prefetch_remove(device, expert))
        efs_device_load_complete(device, source, expert, rc); /* a request has joined */
    return rc;
}

/* Starts the prefetch of the next hint, if the store or mount has it in memory. true: call again; false: no hint, or no
 * memory. */
static bool prefetch_begin(struct efs_device *device)
{
    struct efs_expert_key key;
    pthread_mutex_lock(&device->lock);
    const struct efs_hinted_expert *hint = efs_hint_list_next(&device->hints, &device->vram);
    if (hint)
        key = hint->key;
    pthread_mutex_unlock(&device->lock);
    if (!hint)
        return false;
    const char pool = efs_client_state(device->client, &key);
    const bool coded = device->form == EFS_FORM_CODED;
    if (pool != 'F' && !(coded && pool == 'C'))
        return true;
    struct efs_load_source *source = efs_sys_calloc(1, sizeof(*source) + sizeof(source->expert[0]));
    if (!source)
        return false;
    source->prefetch = true;
    source->form = coded ? EFS_FORM_ANY : EFS_FORM_FULL;
    source->count = source->left = 1;
    if (prefetch_submit(device, &key, source) < 0) {
        free(source);
    } else {
        source->next = device->sources;
        device->sources = source;
    }
    return true;
}

/* ---- the prefetch in flight ---- */

/* Lock held. Whether work of a stream that may read the expert has not ended. */
static bool expert_is_read(struct efs_device *device, const struct efs_vram_expert *expert)
{
    for (const struct efs_vram_reader *one = expert->readers; one; one = one->next)
        if (device->driver.event_query(one->event) != 0)
            return true;
    return false;
}

static errint_t prefetch_alloc(struct efs_device *device, struct efs_device_load *load)
{
    struct efs_vram *vram = &device->vram;
    struct efs_vram_expert *victim;
    errint_t rc;
    pthread_mutex_lock(&device->lock);
    if (!load->expert->prefetched) {
        pthread_mutex_unlock(&device->lock);
        return efs_device_load_alloc(device, load);
    }
    while ((rc = efs_vram_alloc_prefetch(vram, load->expert, load->tensors, load->count, &victim)) == -EAGAIN &&
           victim && !expert_is_read(device, victim)) {
        efs_vram_remove(vram, victim, &device->free_readers);
        vram->evicted++;
    }
    pthread_mutex_unlock(&device->lock);
    load->allocated = rc == 0;
    return rc;
}

/* The slot is free: puts the next part of the expert into it, or finishes or cancels the prefetch. */
static bool prefetch_continue(struct efs_device *device, struct efs_device_load *load)
{
    const enum prefetch_state state = prefetch_state(device, load->expert);
    struct efs_slot *slot = &device->slot[EFS_SLOTS];
    const char *call;
    efs_cu_result result;
    errint_t rc = 0;
    if (load->error < 0 || load->filled) {
        efs_device_load_end(device, load, load->error);
        return true;
    }
    if (state == PREFETCH_HINTED && device_link_is_busy(device))
        return false;
    if (state == PREFETCH_UNWANTED || (!load->allocated && (rc = prefetch_alloc(device, load)) < 0)) {
        if (state != PREFETCH_REQUESTED)
            prefetch_cancel(device, load);
        else if (rc == -EAGAIN)
            return false;
        else
            efs_device_load_end(device, load, rc);
        return true;
    }
    device->prefetch_busy = true;
    if (!efs_device_load_fill_slot(device, slot, load, &call, &result))
        efs_device_lose(device, call, result);
    return false;
}

bool efs_device_prefetch_waits(struct efs_device *device, const struct efs_load_source *source)
{
    return !device->prefetch_load &&
           (prefetch_state(device, source->expert[0]) != PREFETCH_HINTED || !device_link_is_busy(device));
}

/* The source is submitted to the client: takes the expert if it is reported, or cancels the prefetch if the
 * expert is no longer hinted. */
static bool prefetch_receive(struct efs_device *device, struct efs_load_source *source)
{
    uint32_t index;
    errint_t status;
    if (prefetch_state(device, source->expert[0]) == PREFETCH_UNWANTED && prefetch_remove(device, source->expert[0])) {
        efs_client_drop(source->request, 0);
        efs_load_source_finish_one(device, source, 0);
        return true;
    }
    if (!efs_device_prefetch_waits(device, source) || efs_client_wait_any(source->request, 0, &index, &status) != 1)
        return false;
    source->reported++;
    efs_device_load_begin(device, source, index, status);
    return true;
}

bool efs_device_prefetch_step(struct efs_device *device)
{
    struct efs_load_source *source = device->sources;
    if (device->prefetch_busy && !efs_slot_done(device, &device->slot[EFS_SLOTS], false))
        return false;
    device->prefetch_busy = false;
    if (device->prefetch_load)
        return prefetch_continue(device, device->prefetch_load);
    while (source && !source->prefetch)
        source = source->next;
    return source ? prefetch_receive(device, source)
                  : device->prefetch_stream && !device_has_demand(device) && prefetch_begin(device);
}
