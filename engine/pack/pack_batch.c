/* SPDX-License-Identifier: Apache-2.0 */
/* pack_batch.c - hands out shards in disk order, a batch at a time, with memory for their chunks. */
#include "kernels.h"
#include "pack.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- memory of encoded chunks that are to be written ---- */

errint_t efs_pack_ring_init(struct efs_pack_ring *ring, size_t bytes)
{
    *ring = (struct efs_pack_ring){.bytes = bytes};
    ring->base = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!ring->base)
        return -ENOMEM;
    efs_sys_madvise(ring->base, bytes, MADV_HUGEPAGE); /* optional: fewer page faults */
    return 0;
}

void efs_pack_ring_free(struct efs_pack_ring *ring)
{
    if (ring->base)
        efs_sys_munmap(ring->base, ring->bytes);
    ring->base = NULL;
}

/* Allocates `bytes` contiguous bytes (a multiple of EFS_CHUNK_ALIGN). NULL: no room now. *end: to be passed to
 * efs_pack_ring_release(). */
static uint8_t *ring_alloc(struct efs_pack_ring *ring, size_t bytes, uint64_t *end)
{
    if (ring->begin == ring->end)
        ring->begin = ring->end = 0;
    uint64_t at = ring->end;
    if (at % ring->bytes + bytes > ring->bytes) /* would wrap: continue at the start of the ring */
        at += ring->bytes - at % ring->bytes;
    if (at + bytes - ring->begin > ring->bytes)
        return NULL;
    ring->end = *end = at + bytes;
    return ring->base + at % ring->bytes;
}

void efs_pack_ring_release(struct efs_pack_ring *ring, uint64_t end)
{
    ring->begin = end;
}

/* ---- shards ---- */

/* Largest gap in a file that is read through instead of skipped. */
#define GAP_BYTES (64u << 10)
/* Limit of the memory of the runs that start in one batch, if there are several: a small part of the ring, so that a
 * batch cannot wait for memory that it holds itself. */
#define BATCH_ROOM (EFS_PACK_RING_BYTES / 16)

static size_t e_room(const struct efs_disk_object *o, size_t elements)
{
    size_t room = efs_shard_e_bound(elements);
    if (o->format == EFS_FORMAT_BYTES && room < elements)
        room = elements;
    return efs_chunk_up(room);
}

/* 0 for BYTES, which use one of the two buffers. */
static size_t sm_room(const struct efs_disk_object *o, size_t elements)
{
    return o->format == EFS_FORMAT_BYTES ? 0 : efs_chunk_up(efs_sm_bytes((enum efs_format)o->format, elements));
}

/* Moves the cursor to the first group at or after at->order that has objects. */
static void enter_group(const struct efs_index *plan, struct efs_pack_cursor *at)
{
    while (!efs_pack_cursor_at_end(plan, at) && plan->groups[plan->order[at->order]].object_count == 0)
        at->order++;
    if (efs_pack_cursor_at_end(plan, at))
        return;
    at->object = plan->groups[plan->order[at->order]].object_first;
    at->shard = plan->objects[at->object].shard_first;
}

void efs_pack_cursor_begin(const struct efs_index *plan, struct efs_pack_cursor *at)
{
    *at = (struct efs_pack_cursor){0};
    enter_group(plan, at);
}

void efs_pack_cursor_step(const struct efs_index *plan, struct efs_pack_cursor *at)
{
    const struct efs_disk_object *o = &plan->objects[at->object];
    const struct efs_disk_group *g = &plan->groups[o->group];
    at->shard++;
    if (at->run && at->shard == at->run->shard_first + at->run->shard_count)
        at->run = NULL;
    if (at->shard < o->shard_first + o->shard_count)
        return;
    at->object++;
    if (at->object < g->object_first + g->object_count)
        return;
    at->order++;
    enter_group(plan, at);
}

/* Whether this call has no more shards to hand out. */
static bool at_end(const struct efs_pack_pipe *p)
{
    return p->full || efs_pack_cursor_at_end(p->plan, &p->cursor);
}

struct run_size {
    uint32_t shards;
    size_t e_bytes, sm_bytes;
};

/* Measures the run that starts at the cursor: shards of one group within the limits. */
static struct run_size measure_run(const struct efs_pack_pipe *p)
{
    const struct efs_index *plan = p->plan;
    const struct efs_disk_group *g = &plan->groups[plan->order[p->cursor.order]];
    struct run_size size = {0};
    uint64_t raw = 0;
    uint32_t shard = p->cursor.shard;
    for (uint32_t i = p->cursor.object; i < g->object_first + g->object_count; i++) {
        const struct efs_disk_object *o = &plan->objects[i];
        for (; shard < o->shard_first + o->shard_count; shard++) {
            size_t elements = efs_index_shard_elements(plan, i, shard);
            size_t e = e_room(o, elements), sm = sm_room(o, elements);
            raw += elements * efs_format_bytes((enum efs_format)o->format);
            if (size.shards > 0 && (raw > EFS_RUN_BYTES || size.e_bytes + size.sm_bytes + e + sm > EFS_PACK_RUN_ROOM))
                return size;
            size.shards++;
            size.e_bytes += e;
            size.sm_bytes += sm;
        }
    }
    return size;
}

/* Blocks until the ring has room. NULL: stopped. */
static uint8_t *wait_for_memory(struct efs_pack_pipe *p, size_t bytes, uint64_t *end)
{
    uint8_t *memory = NULL;
    pthread_mutex_lock(&p->parallel.lock);
    while (!p->parallel.stop && !(memory = ring_alloc(&p->ring, bytes, end)))
        pthread_cond_wait(&p->room, &p->parallel.lock);
    pthread_mutex_unlock(&p->parallel.lock);
    return memory;
}

static void place_slots(const struct efs_pack_pipe *p, struct efs_pack_run *run, const struct run_size *size,
                        uint8_t *memory)
{
    uint8_t *e = memory, *sm = memory + size->e_bytes;
    uint32_t object = p->cursor.object;
    for (uint32_t i = 0; i < run->shard_count; i++) {
        const struct efs_disk_object *o = &p->plan->objects[object];
        uint32_t shard = run->shard_first + i;
        size_t elements = efs_index_shard_elements(p->plan, object, shard);
        run->slots[i].e = e;
        run->slots[i].has_checks = false;
        run->slots[i].sm = o->format == EFS_FORMAT_BYTES ? e : sm;
        e += e_room(o, elements);
        sm += sm_room(o, elements);
        if (shard + 1 == o->shard_first + o->shard_count)
            object++;
    }
}

static bool begin_run(struct efs_pack_pipe *p, const struct run_size *size)
{
    struct efs_pack_run *run = efs_sys_malloc(sizeof(*run) + size->shards * sizeof(run->slots[0]));
    if (!run) {
        efs_parallel_fail(&p->parallel, -ENOMEM, "no memory for a run of shards");
        return false;
    }
    *run = (struct efs_pack_run){.shard_first = p->cursor.shard, .shard_count = size->shards, .left = size->shards};
    uint8_t *memory = wait_for_memory(p, size->e_bytes + size->sm_bytes, &run->ring_end);
    if (!memory) {
        free(run);
        return false;
    }
    place_slots(p, run, size, memory);
    p->cursor.run = run;
    pthread_mutex_lock(&p->parallel.lock);
    *p->last = run;
    p->last = &run->next;
    pthread_mutex_unlock(&p->parallel.lock);
    return true;
}

/* Whether the shard at the cursor can be read with the batch; if so, extends the batch. */
static bool batch_add(const struct efs_pack_pipe *p, struct efs_pack_batch *batch, uint64_t offset, uint64_t bytes)
{
    uint32_t file = p->plan->origins[p->cursor.object].file;
    if (batch->count == 0) {
        *batch = (struct efs_pack_batch){.file = file, .begin = offset, .end = offset + bytes, .bytes = (size_t)bytes};
        return true;
    }
    if (batch->count == EFS_PACK_BATCH_SHARDS || file != batch->file || offset < batch->end ||
        offset - batch->end > GAP_BYTES ||
        efs_pack_source_room((size_t)(offset + bytes - batch->begin)) > p->buffer_bytes)
        return false;
    batch->end = offset + bytes;
    batch->bytes += (size_t)bytes;
    return true;
}

static bool batch_fill(struct efs_pack_pipe *p, struct efs_pack_batch *batch)
{
    const struct efs_index *plan = p->plan;
    size_t new_room = 0;
    batch->count = 0;
    while (!at_end(p)) {
        const struct efs_disk_object *o = &plan->objects[p->cursor.object];
        size_t width = efs_format_bytes((enum efs_format)o->format);
        uint64_t offset = plan->origins[p->cursor.object].offset +
                          (uint64_t)(p->cursor.shard - o->shard_first) * plan->shard_elements * width;
        struct run_size size = {0};
        if (!p->cursor.run) {
            p->full = p->assigned_bytes >= p->limit_bytes;
            if (p->full)
                break;
            size = measure_run(p);
            new_room += size.e_bytes + size.sm_bytes;
            if (batch->count > 0 && new_room > BATCH_ROOM)
                break;
        }
        if (!batch_add(p, batch, offset, efs_index_shard_elements(plan, p->cursor.object, p->cursor.shard) * width))
            break;
        if (!p->cursor.run && !begin_run(p, &size))
            return false;
        batch->parts[batch->count++] = (struct efs_pack_part){p->cursor.run, offset, p->cursor.object, p->cursor.shard};
        p->assigned_bytes += efs_index_shard_elements(plan, p->cursor.object, p->cursor.shard) * width;
        efs_pack_cursor_step(plan, &p->cursor);
    }
    return batch->count > 0;
}

bool efs_pack_next_batch(struct efs_pack_pipe *p, struct efs_pack_batch *batch)
{
    pthread_mutex_lock(&p->cursor_lock);
    bool taken = batch_fill(p, batch);
    bool all = at_end(p);
    pthread_mutex_unlock(&p->cursor_lock);
    if (all) {
        pthread_mutex_lock(&p->parallel.lock);
        p->assigned_all = true;
        pthread_cond_broadcast(&p->coded);
        pthread_mutex_unlock(&p->parallel.lock);
    }
    return taken;
}
