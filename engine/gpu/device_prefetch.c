/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_prefetch.c - prefetches hinted experts to pool G, one at a time, with its own slot and stream.
 *
 * A prefetch starts only while no request is in flight and copies only while no request uses the link, so a request
 * waits at most for the slot that is being copied. It continues while requests wait for the store or mount, because
 * they may wait for memory that the prefetched expert occupies there. Only experts in memory of the store or mount are
 * prefetched, so the disk is not used. They take free memory of pool G, or evict experts that are neither held nor
 * named and that no stream reads, so that a prefetch never makes a stream wait for readers. A request for an expert
 * whose prefetch is in flight turns it into a demand load.
 */
#include "device_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

static bool device_link_is_busy(const struct efs_device *device)
{
    return device->bring || device->busy;
}

static bool device_has_demand(const struct efs_device *device)
{
    for (const struct efs_bring_source *source = device->sources; source; source = source->next)
        if (!source->ahead)
            return true;
    return device_link_is_busy(device);
}

enum ahead_wish { AHEAD_NAMED, AHEAD_IN_VAIN, AHEAD_ASKED };

static enum ahead_wish ahead_wish(struct efs_device *device, const struct efs_vram_expert *expert)
{
    pthread_mutex_lock(&device->lock);
    enum ahead_wish wish = !expert->ahead ? AHEAD_ASKED : expert->named ? AHEAD_NAMED : AHEAD_IN_VAIN;
    pthread_mutex_unlock(&device->lock);
    return wish;
}

/* Removes a prefetched expert. false: it was requested meanwhile and stays. */
static bool ahead_remove(struct efs_device *device, struct efs_vram_expert *expert)
{
    struct efs_vram_after *after = NULL; /* stays empty: no stream could read it yet */
    pthread_mutex_lock(&device->lock);
    bool gone = expert->ahead;
    if (gone)
        efs_vram_remove(&device->vram, expert, &after);
    pthread_mutex_unlock(&device->lock);
    return gone;
}

static void ahead_leave(struct efs_device *device, struct efs_bring *bring)
{
    if (!ahead_remove(device, bring->expert))
        return;
    efs_client_drop(bring->source->request, bring->index);
    efs_bring_free(device, bring);
}

/* ---- the next name ---- */

/* Lock held. Adds the expert if it is still named and not in pool G. NULL: it is not, or no memory. */
static struct efs_vram_expert *ahead_add(struct efs_device *device, const struct efs_expert_key *key)
{
    struct efs_ahead_name *name = efs_ahead_find(&device->names, key);
    if (!name || efs_vram_find(&device->vram, key))
        return NULL;
    struct efs_vram_expert *expert = efs_vram_add(&device->vram, key);
    if (!expert)
        return NULL;
    name->begun = expert->named = expert->ahead = true;
    expert->used_at = ++device->vram.clock;
    device->stats.g_ahead_issued++;
    return expert;
}

static errint_t ahead_ask(struct efs_device *device, const struct efs_expert_key *key, struct efs_bring_source *source)
{
    const struct efs_need need = {key->expert, 1};
    pthread_mutex_lock(&device->lock);
    struct efs_vram_expert *expert = device->lost ? NULL : ahead_add(device, key);
    pthread_mutex_unlock(&device->lock);
    if (!expert)
        return -ENOENT;
    source->expert[0] = expert;
    errint_t rc = efs_device_ask(device, key->stack, key->layer, &need, source, NULL);
    if (rc < 0 && !ahead_remove(device, expert))
        efs_bring_tell(device, source, expert, rc); /* a request has joined */
    return rc;
}

/* Starts the prefetch of the next name, if the store or mount has it in memory. true: call again; false: no name, or no
 * memory. */
static bool ahead_begin(struct efs_device *device)
{
    struct efs_expert_key key;
    pthread_mutex_lock(&device->lock);
    const struct efs_ahead_name *name = efs_ahead_next(&device->names, &device->vram);
    if (name)
        key = name->key;
    pthread_mutex_unlock(&device->lock);
    if (!name)
        return false;
    const char state = efs_client_state(device->client, &key);
    const bool coded = device->form == EFS_FORM_CODED;
    if (state != 'F' && !(coded && state == 'C'))
        return true;
    struct efs_bring_source *source = efs_sys_calloc(1, sizeof(*source) + sizeof(source->expert[0]));
    if (!source)
        return false;
    source->ahead = true;
    source->form = coded ? EFS_FORM_ANY : EFS_FORM_FULL;
    source->count = source->left = 1;
    if (ahead_ask(device, &key, source) < 0) {
        free(source);
    } else {
        source->next = device->sources;
        device->sources = source;
    }
    return true;
}

/* ---- the prefetch in flight ---- */

/* Lock held. Whether work of a stream that may read the expert has not ended. */
static bool ahead_is_read(struct efs_device *device, const struct efs_vram_expert *expert)
{
    for (const struct efs_vram_after *one = expert->after; one; one = one->next)
        if (device->driver.event_query(one->event) != 0)
            return true;
    return false;
}

static errint_t ahead_place(struct efs_device *device, struct efs_bring *bring)
{
    struct efs_vram *vram = &device->vram;
    struct efs_vram_expert *victim;
    errint_t rc;
    pthread_mutex_lock(&device->lock);
    if (!bring->expert->ahead) {
        pthread_mutex_unlock(&device->lock);
        return efs_device_place(device, bring);
    }
    while ((rc = efs_vram_place_ahead(vram, bring->expert, bring->tensors, bring->count, &victim)) == -EAGAIN &&
           victim && !ahead_is_read(device, victim)) {
        efs_vram_remove(vram, victim, &device->free_after);
        vram->evicted++;
    }
    pthread_mutex_unlock(&device->lock);
    bring->placed = rc == 0;
    return rc;
}

/* The slot is free: puts the next part of the expert into it, or finishes or gives up the prefetch. */
static bool ahead_go_on(struct efs_device *device, struct efs_bring *bring)
{
    const enum ahead_wish wish = ahead_wish(device, bring->expert);
    struct efs_slot *slot = &device->slot[EFS_SLOTS];
    const char *call;
    efs_cu_result result;
    errint_t rc = 0;
    if (bring->error < 0 || bring->filled) {
        efs_bring_end(device, bring, bring->error);
        return true;
    }
    if (wish == AHEAD_NAMED && device_link_is_busy(device))
        return false;
    if (wish == AHEAD_IN_VAIN || (!bring->placed && (rc = ahead_place(device, bring)) < 0)) {
        if (wish != AHEAD_ASKED)
            ahead_leave(device, bring);
        else if (rc == -EAGAIN)
            return false;
        else
            efs_bring_end(device, bring, rc);
        return true;
    }
    device->ahead_busy = true;
    if (!efs_bring_slot(device, slot, bring, &call, &result))
        efs_device_lose(device, call, result);
    return false;
}

bool efs_device_ahead_waits(struct efs_device *device, const struct efs_bring_source *source)
{
    return !device->ahead_bring &&
           (ahead_wish(device, source->expert[0]) != AHEAD_NAMED || !device_link_is_busy(device));
}

/* The source is submitted to the client: takes the expert if it is reported, or cancels an unnamed one. */
static bool ahead_take(struct efs_device *device, struct efs_bring_source *source)
{
    uint32_t index;
    errint_t status;
    if (ahead_wish(device, source->expert[0]) == AHEAD_IN_VAIN && ahead_remove(device, source->expert[0])) {
        efs_client_drop(source->request, 0);
        efs_source_end_one(device, source, 0);
        return true;
    }
    if (!efs_device_ahead_waits(device, source) || efs_client_wait_any(source->request, 0, &index, &status) != 1)
        return false;
    source->told++;
    efs_device_take(device, source, index, status);
    return true;
}

bool efs_device_go_ahead(struct efs_device *device)
{
    struct efs_bring_source *source = device->sources;
    if (device->ahead_busy && !efs_slot_done(device, &device->slot[EFS_SLOTS], false))
        return false;
    device->ahead_busy = false;
    if (device->ahead_bring)
        return ahead_go_on(device, device->ahead_bring);
    while (source && !source->ahead)
        source = source->next;
    return source ? ahead_take(device, source) : device->ahead && !device_has_demand(device) && ahead_begin(device);
}
