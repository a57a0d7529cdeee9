/* SPDX-License-Identifier: Apache-2.0 */
/* device_request.c - requests in EFS_FORM_DEVICE (base/request.h). */
#include "device_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- items; lock held ---- */

void efs_device_complete(struct efs_device *device, struct efs_vram_expert *expert, errint_t error,
                         struct efs_vram_reader **readers)
{
    while (expert->waiting) {
        struct efs_device_item *item = expert->waiting;
        expert->waiting = item->next_waiting;
        if (error < 0) {
            efs_vram_unpin(&device->vram, expert);
            item->expert = NULL;
        }
        efs_client_item_set(&item->request->base, &item->base, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
    }
    if (error < 0)
        efs_vram_remove(&device->vram, expert, readers);
    else
        expert->state = EFS_VRAM_RESIDENT;
}

/* ---- starting a request ---- */

/* Lock held. Pins the experts of the request; adds missing ones to pool G, to source and to misses. -ENOMEM. */
static errint_t device_pin_experts(struct efs_device *device, struct efs_device_request *request, const char *stack,
                                   uint32_t layer, const struct efs_need *needs, struct efs_load_source *source,
                                   struct efs_need *misses)
{
    for (uint32_t i = 0; i < request->base.count; i++) {
        struct efs_device_item *item = &request->items[i];
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        struct efs_vram_expert *expert = efs_vram_find(&device->vram, &key);
        device->stats.g_hits += expert && expert->state == EFS_VRAM_RESIDENT;
        device->stats.g_joined += expert && expert->state == EFS_VRAM_LOADING;
        if (!expert) {
            expert = efs_vram_add(&device->vram, &key);
            if (!expert)
                return -ENOMEM;
            misses[source->count] = needs[i];
            source->expert[source->count++] = expert;
        }
        efs_vram_pin(&device->vram, expert);
        item->expert = expert;
        if (expert->state == EFS_VRAM_RESIDENT) {
            efs_client_item_set(&request->base, &item->base, EFS_ITEM_READY, 0);
        } else {
            item->next_waiting = expert->waiting;
            expert->waiting = item;
        }
    }
    return 0;
}

/* Lock held. Unpins the expert of an item, which is DROPPED afterwards. */
static void device_item_drop(struct efs_device *device, struct efs_device_item *item)
{
    struct efs_vram_expert *expert = item->expert;
    if (item->base.state == EFS_ITEM_LOADING && expert) {
        struct efs_device_item **at = &expert->waiting;
        while (*at != item)
            at = &(*at)->next_waiting;
        *at = item->next_waiting;
    }
    if (expert)
        efs_vram_unpin(&device->vram, expert);
    item->expert = NULL;
    efs_client_item_set(&item->request->base, &item->base, EFS_ITEM_DROPPED, 0);
}

/* Lock held. Fails all experts of the source, for every request that waits for them. */
static void device_fail_source(struct efs_device *device, struct efs_load_source *source, errint_t error)
{
    struct efs_vram_reader *reader = NULL; /* stays empty: none has memory in pool G */
    device->stats.g_errors += source->count;
    for (uint32_t i = 0; i < source->count; i++)
        efs_device_complete(device, source->expert[i], error, &reader);
}

errint_t efs_load_source_submit(struct efs_device *device, const char *stack, uint32_t layer,
                                const struct efs_need *needs, struct efs_load_source *source, struct efs_error *err)
{
    return efs_client_begin(device->client, stack, layer, needs, source->count, source->form, &source->request, err);
}

static struct efs_device_request *device_request_of(const struct efs_client_request *of)
{
    return (struct efs_device_request *)(uintptr_t)of; /* base is its first member */
}

static errint_t device_tensors(struct efs_client_request *of, uint32_t index, const struct efs_tensor **tensors,
                               uint32_t *count)
{
    const struct efs_vram_expert *expert = device_request_of(of)->items[index].expert;
    *tensors = expert->tensors;
    *count = expert->tensor_count;
    return 0;
}

static void device_drop(struct efs_client_request *of, uint32_t first, uint32_t end)
{
    struct efs_device_request *request = device_request_of(of);
    pthread_mutex_lock(of->lock);
    for (uint32_t i = first; i < end; i++)
        device_item_drop(request->device, &request->items[i]);
    pthread_mutex_unlock(of->lock);
}

static const struct efs_request_ops device_request_ops = {
    .tensors = device_tensors, .drop = device_drop, .free = efs_client_request_free};

static struct efs_device_request *device_request_new(struct efs_device *device, uint32_t count)
{
    struct efs_device_request *request = efs_sys_calloc(1, sizeof(*request) + count * sizeof(request->items[0]));
    if (!request)
        return NULL;
    efs_client_request_init(&request->base, &device_request_ops, &device->lock, &device->changed, count,
                            offsetof(struct efs_device_request, items), sizeof(request->items[0]));
    request->device = device;
    for (uint32_t i = 0; i < count; i++)
        request->items[i].request = request;
    return request;
}

/* Takes the experts in pool G and requests the missing ones from the client. Takes ownership of source. */
static errint_t device_start(struct efs_device *device, struct efs_device_request *request, const char *stack,
                             uint32_t layer, const struct efs_need *needs, struct efs_load_source *source,
                             struct efs_need *misses, struct efs_error *err)
{
    pthread_mutex_lock(&device->lock);
    errint_t rc = device->lost ? efs_fail(err, device->lost, "%s", device->lost_error.text) : 0;
    if (rc == 0)
        rc = device_pin_experts(device, request, stack, layer, needs, source, misses);
    if (rc == -ENOMEM) {
        device_fail_source(device, source, rc);
        efs_fail(err, rc, "no memory for a request");
    }
    pthread_mutex_unlock(&device->lock);
    if (rc < 0 || source->count == 0) {
        free(source);
        return rc;
    }
    source->left = source->count;
    rc = efs_load_source_submit(device, stack, layer, misses, source, err);
    pthread_mutex_lock(&device->lock);
    if (rc < 0) {
        device_fail_source(device, source, rc);
        free(source);
    } else {
        source->next = device->submitted;
        device->submitted = source;
        efs_device_wake(device);
    }
    pthread_mutex_unlock(&device->lock);
    return rc;
}

errint_t efs_device_begin(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_need *needs,
                          uint32_t count, struct efs_client_request **out, struct efs_error *err)
{
    if (strlen(stack) >= EFS_STACK_NAME_BYTES)
        return efs_fail(err, -ENOENT, "there is no stack %.40s", stack);
    errint_t rc = efs_request_check(needs, count, EFS_ROUTING_EXPERTS, err);
    if (rc < 0)
        return rc;
    struct efs_device_request *request = device_request_new(device, count);
    struct efs_load_source *source = efs_sys_calloc(1, sizeof(*source) + count * sizeof(source->expert[0]));
    struct efs_need *misses = efs_sys_calloc(count, sizeof(*misses));
    if (request && source && misses) {
        source->form = device->form;
        rc = device_start(device, request, stack, layer, needs, source, misses, err); /* takes ownership of source */
    } else {
        free(source);
        rc = efs_fail(err, -ENOMEM, "no memory for a request");
    }
    free(misses);
    if (rc < 0) {
        if (request) {
            device_drop(&request->base, 0, count);
            efs_client_request_free(&request->base);
        }
        return rc;
    }
    pthread_mutex_lock(&device->lock);
    efs_vram_requested(&device->vram, stack, layer, needs, count); /* the experts exist now */
    pthread_mutex_unlock(&device->lock);
    *out = &request->base;
    return 0;
}

/* ---- other calls ---- */

/* Lock held. The expert's event for this stream, created if missing. NULL: no memory, or a driver error in *result. */
static struct efs_vram_reader *device_reader(struct efs_device *device, struct efs_vram_expert *expert,
                                             efs_cu_stream stream, efs_cu_result *result)
{
    struct efs_vram_reader *reader = expert->readers;
    while (reader && reader->stream != stream)
        reader = reader->next;
    if (reader)
        return reader;
    reader = device->free_readers;
    if (reader) {
        device->free_readers = reader->next;
    } else {
        reader = efs_sys_calloc(1, sizeof(*reader));
        if (!reader)
            return NULL;
        *result = device->driver.event_create(&reader->event, EFS_CU_EVENT_NO_TIMING);
        if (*result != 0) {
            free(reader);
            return NULL;
        }
    }
    reader->stream = stream;
    reader->next = expert->readers;
    expert->readers = reader;
    return reader;
}

errint_t efs_client_drop_after(struct efs_client_request *of, uint32_t index, void *stream)
{
    struct efs_device_request *request = device_request_of(of);
    if (of->ops != &device_request_ops)
        return -EINVAL;
    if (!efs_owner_is_this_process(of->owner))
        return -ECHILD;
    if (index >= of->count)
        return -EINVAL;
    struct efs_device *device = request->device;
    struct efs_device_item *item = &request->items[index];
    efs_cu_result result = efs_device_push_context(device);
    if (result != 0)
        return -EIO;
    pthread_mutex_lock(&device->lock);
    struct efs_vram_reader *reader = NULL;
    errint_t rc = item->base.state == EFS_ITEM_READY ? device->lost : -EINVAL;
    if (rc == 0) {
        reader = device_reader(device, item->expert, stream, &result);
        if (reader)
            result = device->driver.event_record(reader->event, stream);
        rc = result != 0 ? -EIO : reader ? 0 : -ENOMEM;
    }
    if (rc == 0)
        device_item_drop(device, item);
    pthread_mutex_unlock(&device->lock);
    efs_device_pop_context(device);
    return rc;
}
