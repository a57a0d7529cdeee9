/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_load.c - loads an expert: takes it from the client, allocates its memory in pool G,
 * copies it slot by slot, and completes it. The chunks of a slot are copied to contiguous device memory; one kernel
 * decodes and merges all of them to the expert's memory. Uncoded parts are copied there directly.
 */
#include "device_internal.h"

#include "codec.h"
#include "layout.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define CHUNK_ALIGN 64u /* of chunks in a slot, as in the store, so that adjacent chunks stay adjacent */
#define SEGMENT_ALIGN ((uintptr_t)2 << 20) /* of segments of the chunk pool: arena.h */

static size_t chunk_room(size_t bytes)
{
    return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
}

/* Bytes that a shard takes in a slot. */
static size_t shard_room(const struct efs_coded_shard *s)
{
    return chunk_room(s->e_bytes) + chunk_room(s->sm ? s->sm_bytes : 0);
}

static size_t slot_room(void)
{
    return EFS_SLOT_BYTES - EFS_SLOT_TABLE - EFS_CASCADE_SLACK;
}

/* Computes the decoded bytes of a shard. -EUCLEAN: its fields are inconsistent; -EOPNOTSUPP: no kernel decodes it, or
 * it exceeds a slot; *bytes is set then. */
static errint_t shard_plain(const struct efs_tensor *t, const struct efs_coded_shard *s, uint64_t *bytes)
{
    const enum efs_format format = s->sm ? efs_object_format(t->dtype, EFS_CHOOSE_AUTO) : EFS_FORMAT_BYTES;
    if (!s->e) { /* uncoded */
        *bytes = s->sm_bytes;
        return s->sm ? 0 : -EUCLEAN;
    }
    if (s->elements == 0 || s->elements > t->shard_elements || s->elements > EFS_SHARD_ELEMENTS_MAX ||
        s->e_bytes > UINT32_MAX || (s->sm && s->sm_bytes != efs_sm_bytes(format, s->elements)))
        return -EUCLEAN;
    *bytes = s->elements * efs_format_bytes(format);
    return s->codec == EFS_CODEC_CASCADE && shard_room(s) <= slot_room() ? 0 : -EOPNOTSUPP;
}

static errint_t load_check(const struct efs_tensor *tensors, uint32_t count)
{
    errint_t rc = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_tensor *t = &tensors[i];
        uint64_t all = 0, bytes;
        for (uint32_t k = 0; k < t->shard_count && !t->data; k++) {
            errint_t one = shard_plain(t, &t->shards[k], &bytes);
            if (one == -EUCLEAN || __builtin_add_overflow(all, bytes, &all))
                return -EUCLEAN;
            /* Kernels store 16 bytes at once, so every shard but the last must have a multiple of that. */
            if (k + 1 < t->shard_count && t->shards[k].e && bytes % EFS_GPU_ALIGN != 0)
                one = -EOPNOTSUPP;
            rc = one < 0 ? one : rc;
        }
        if (!t->data && all != t->bytes)
            return -EUCLEAN;
    }
    return rc;
}

/* ---- copies; adjacent ones are merged ---- */

#define COPIES 64u

/* Copies of a slot, collected for one call: a driver that has cuMemcpyBatchAsync begins each while the last one ends.
 */
struct copy_run {
    struct efs_device *device;
    efs_cu_stream stream;
    uint32_t count;
    bool pinned; /* the driver has registered all sources, which a batch requires */
    efs_cu_address to[COPIES], from[COPIES];
    size_t bytes[COPIES];
    uint64_t all;
    const char *call; /* the failed call, or NULL */
    efs_cu_result result;
};

static void copy_flush(struct copy_run *run)
{
    const struct efs_driver *cu = &run->device->driver;
    struct efs_cu_copy_attributes how = {.source_order = EFS_CU_SOURCE_ANY_ORDER, .flags = EFS_CU_COPY_OVERLAP};
    size_t first = 0, failed;
    for (uint32_t i = 0; i < run->count; i++)
        run->all += run->bytes[i];
    if (cu->copy_batch && run->pinned && run->count > 1 && !run->call) {
        run->result = cu->copy_batch(run->to, run->from, run->bytes, run->count, &how, &first, 1, &failed, run->stream);
        run->call = run->result ? "cuMemcpyBatchAsync" : NULL;
        run->count = 0;
    }
    for (uint32_t i = 0; i < run->count && !run->call; i++) {
        run->result = cu->copy_in(run->to[i], (const void *)(uintptr_t)run->from[i], run->bytes[i], run->stream);
        run->call = run->result ? "cuMemcpyHtoDAsync" : NULL;
    }
    run->count = 0;
    run->pinned = true;
}

static void copy_add(struct copy_run *run, efs_cu_address to, const void *from, size_t bytes, bool pinned)
{
    const uintptr_t next = (uintptr_t)from;
    const uint32_t last = run->count - 1;
    const uintptr_t end = run->count ? (uintptr_t)run->from[last] + run->bytes[last] : UINTPTR_MAX;
    /* The gap between adjacent chunks is shorter than CHUNK_ALIGN, so copying it touches no other page. A copy must not
     * cross segments, which the driver has registered separately. */
    if (next >= end && next - end < CHUNK_ALIGN && next % CHUNK_ALIGN == 0 && next % SEGMENT_ALIGN != 0 &&
        to - run->to[last] == next - (uintptr_t)run->from[last]) {
        run->bytes[last] = next - (uintptr_t)run->from[last] + bytes;
        run->pinned &= pinned;
        return;
    }
    if (run->count == COPIES)
        copy_flush(run);
    run->pinned &= pinned;
    run->to[run->count] = to;
    run->from[run->count] = next;
    run->bytes[run->count++] = bytes;
}

/* Copies a chunk, whose segment is registered with the driver at its first use. */
static void copy_chunk(struct copy_run *run, efs_cu_address to, const void *from, size_t bytes)
{
    copy_add(run, to, from, bytes, efs_segment_registry_register(&run->device->registry, from));
}

/* ---- a slot ---- */

/* Selects the parts of the expert that fit in this slot: fills the table with coded shards, at host addresses for now,
 * and adds the copies of uncoded parts. Returns the number of shards. */
static uint32_t slot_select(struct efs_slot *slot, struct efs_device_load *load, struct copy_run *run)
{
    size_t room = slot_room();
    uint32_t shards = 0;
    while (load->tensor < load->count) {
        const struct efs_tensor *t = &load->tensors[load->tensor];
        const efs_cu_address plain = (uintptr_t)load->expert->tensors[load->tensor].data;
        if (t->data)
            copy_add(run, plain, t->data, (size_t)t->bytes, false);
        for (; load->shard < t->shard_count && !t->data; load->shard++) {
            const struct efs_coded_shard *s = &t->shards[load->shard];
            uint64_t bytes = 0;
            (void)shard_plain(t, s, &bytes); /* load_check() has checked it */
            if (!s->e) {
                copy_chunk(run, plain + load->at, s->sm, s->sm_bytes);
                load->at += bytes;
                continue;
            }
            if (shards == EFS_SLOT_SHARDS || shard_room(s) > room)
                return shards;
            room -= shard_room(s);
            const enum efs_format format = s->sm ? efs_object_format(t->dtype, EFS_CHOOSE_AUTO) : EFS_FORMAT_BYTES;
            slot->table[shards] = (struct efs_gpu_shard){.e = s->e,
                                                         .sm = s->sm,
                                                         .dst = (uint8_t *)(uintptr_t)(plain + load->at),
                                                         .e_bytes = (uint32_t)s->e_bytes,
                                                         .elements = (uint32_t)s->elements,
                                                         .format = (uint32_t)format,
                                                         .status = EFS_GPU_OK};
            shards++;
            load->at += bytes;
        }
        load->tensor++;
        load->shard = 0;
        load->at = 0;
    }
    load->filled = true;
    return shards;
}

/* Copies the chunks, all of E and then all of SM, because each are adjacent in the store; then the table. */
static void slot_copy(struct efs_slot *slot, uint32_t shards, struct copy_run *run)
{
    efs_cu_address at = slot->memory + EFS_SLOT_TABLE;
    for (uint32_t i = 0; i < shards; i++) {
        struct efs_gpu_shard *s = &slot->table[i];
        copy_chunk(run, at, s->e, s->e_bytes);
        s->e = (const uint8_t *)(uintptr_t)at;
        at += chunk_room(s->e_bytes);
    }
    for (uint32_t i = 0; i < shards; i++) {
        struct efs_gpu_shard *s = &slot->table[i];
        const size_t bytes = s->sm ? efs_sm_bytes((enum efs_format)s->format, s->elements) : 0;
        if (!bytes)
            continue;
        copy_chunk(run, at, s->sm, bytes);
        s->sm = (const uint8_t *)(uintptr_t)at;
        at += chunk_room(bytes);
    }
    if (shards)
        copy_add(run, slot->memory, slot->table, shards * sizeof(slot->table[0]), true);
    copy_flush(run);
}

static efs_cu_result slot_launch(struct efs_device *device, struct efs_slot *slot, uint32_t shards)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < shards; i++)
        most = slot->table[i].elements > most ? slot->table[i].elements : most;
    return efs_driver_launch_shards(&device->driver, device->decode, true, slot->memory, shards, most,
                                    device->computing);
}

static void slot_ended(void *arg)
{
    efs_device_wake(arg);
}

bool efs_device_load_fill_slot(struct efs_device *device, struct efs_slot *slot, struct efs_device_load *load,
                               const char **call, efs_cu_result *result)
{
    const struct efs_driver *cu = &device->driver;
    struct copy_run run = {.device = device, .stream = device->copying, .pinned = true};
    uint32_t shards = slot_select(slot, load, &run);
    /* From here the slot is in flight even if a call fails, because earlier calls may have started work. */
    slot->shards = shards;
    slot->load = load;
    load->slots++;
    slot_copy(slot, shards, &run);
    *call = run.call;
    *result = run.result;
#define SLOT_CALL(name, made)                                                                                          \
    if (!*call && (*result = (made)) != 0)                                                                             \
        *call = (name);
    SLOT_CALL("cuEventRecord", cu->event_record(slot->copied, device->copying))
    SLOT_CALL("cuStreamWaitEvent", cu->stream_wait(device->computing, slot->copied, 0))
    if (shards) {
        SLOT_CALL("cuLaunchKernel", slot_launch(device, slot, shards))
        SLOT_CALL("cuMemcpyDtoHAsync",
                  cu->copy_out(slot->table, slot->memory, shards * sizeof(slot->table[0]), device->computing))
    }
    SLOT_CALL("cuEventRecord", cu->event_record(slot->done, device->computing))
    SLOT_CALL("cuLaunchHostFunc", cu->launch_host(device->computing, slot_ended, device))
#undef SLOT_CALL
    pthread_mutex_lock(&device->lock);
    device->stats.g_link_bytes += run.all;
    device->stats.g_decodes += shards > 0;
    pthread_mutex_unlock(&device->lock);
    return !*call;
}

/* ---- from the client to pool G ---- */

/* Makes the streams that write to pool G wait for the events of readers of the evicted memory. Puts the events on the
 * free list. */
static void device_wait_for_readers(struct efs_device *device, struct efs_vram_reader *readers)
{
    while (readers) {
        struct efs_vram_reader *one = readers;
        readers = one->next;
        efs_cu_result result = device->driver.stream_wait(device->copying, one->event, 0);
        if (result == 0)
            result = device->driver.stream_wait(device->computing, one->event, 0);
        if (result != 0)
            efs_device_lose(device, "cuStreamWaitEvent", result);
        pthread_mutex_lock(&device->lock);
        one->next = device->free_readers;
        device->free_readers = one;
        pthread_mutex_unlock(&device->lock);
    }
}

void efs_load_source_finish_one(struct efs_device *device, struct efs_load_source *source, uint32_t index)
{
    source->expert[index] = NULL;
    if (--source->left)
        return;
    struct efs_load_source **at = &device->sources;
    while (*at != source)
        at = &(*at)->next;
    *at = source->next;
    efs_client_release(source->request);
    free(source);
}

void efs_device_load_complete(struct efs_device *device, struct efs_vram_expert *expert, errint_t error)
{
    struct efs_vram_reader *readers = NULL;
    pthread_mutex_lock(&device->lock);
    if (error == 0)
        for (uint32_t i = 0; i < expert->tensor_count; i++)
            device->stats.g_plain_bytes += expert->tensors[i].bytes;
    device->stats.g_brought += error == 0;
    device->stats.g_errors += error < 0;
    efs_device_complete(device, expert, error, &readers);
    pthread_mutex_unlock(&device->lock);
    device_wait_for_readers(device, readers);
}

void efs_device_load_free(struct efs_device *device, struct efs_device_load *load)
{
    if (device->load == load)
        device->load = NULL;
    efs_load_source_finish_one(device, load->source, load->index);
    free(load);
}

void efs_device_load_end(struct efs_device *device, struct efs_device_load *load, errint_t error)
{
    efs_client_drop(load->source->request, load->index);
    efs_device_load_complete(device, load->expert, error);
    efs_device_load_free(device, load);
}

bool efs_slot_done(struct efs_device *device, struct efs_slot *slot, bool ended)
{
    efs_cu_result result = ended ? 0 : device->driver.event_query(slot->done);
    if (result == EFS_CU_NOT_READY)
        return false;
    if (result != 0) {
        efs_device_lose(device, "cuEventQuery", result);
        return false;
    }
    for (uint32_t i = 0; i < slot->shards && slot->load->error == 0 && !ended; i++)
        if (slot->table[i].status != EFS_GPU_OK)
            slot->load->error = -EUCLEAN;
    slot->load->slots--;
    return true;
}

/* No kernel can decode the expert: requests it again in the full form. */
static errint_t load_retry_full(struct efs_device *device, struct efs_vram_expert *expert)
{
    struct efs_load_source *source = efs_sys_calloc(1, sizeof(*source) + sizeof(source->expert[0]));
    const struct efs_need need = {expert->key.expert, 1};
    if (!source)
        return -ENOMEM;
    *source = (struct efs_load_source){.form = EFS_FORM_FULL, .count = 1, .left = 1};
    source->expert[0] = expert;
    errint_t rc = efs_load_source_submit(device, expert->key.stack, expert->key.layer, &need, source, NULL);
    if (rc < 0) {
        free(source);
        return rc == -EINVAL ? -EOPNOTSUPP : rc; /* the store has no full pool */
    }
    source->next = device->sources;
    device->sources = source;
    return 0;
}

void efs_device_load_begin(struct efs_device *device, struct efs_load_source *source, uint32_t index, errint_t status)
{
    struct efs_vram_expert *expert = source->expert[index];
    struct efs_device_load *load = status == 0 ? efs_sys_calloc(1, sizeof(*load)) : NULL;
    if (status == 0 && !load)
        status = -ENOMEM;
    if (status == 0) {
        *load = (struct efs_device_load){.source = source, .index = index, .expert = expert};
        status = efs_client_tensors(source->request, index, &load->tensors, &load->count);
    }
    if (status == 0)
        status = load_check(load->tensors, load->count);
    if (status == 0) {
        device->load = load;
        return;
    }
    if (status == -EOPNOTSUPP && source->form != EFS_FORM_FULL)
        status = load_retry_full(device, expert);
    if (status < 0)
        efs_device_load_complete(device, expert, status);
    free(load);
    efs_client_drop(source->request, index);
    efs_load_source_finish_one(device, source, index);
}

errint_t efs_device_load_alloc(struct efs_device *device, struct efs_device_load *load)
{
    struct efs_vram_reader *readers = NULL;
    pthread_mutex_lock(&device->lock);
    errint_t rc = efs_vram_alloc(&device->vram, load->expert, load->tensors, load->count, &readers);
    pthread_mutex_unlock(&device->lock);
    device_wait_for_readers(device, readers);
    load->allocated = rc == 0;
    if (rc == -EAGAIN && device->busy)
        return rc;
    return rc == -EFBIG || rc == -EAGAIN ? -ENOMEM : rc;
}
