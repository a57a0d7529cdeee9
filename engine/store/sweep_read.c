/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_read.c - see sweep_read.h. store_check.c has made sure that the pages of every chunk lie inside the store. */
#include "sweep_read.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define GAP_BYTES (64u << 10) /* between two windows that are read as one */

static uint64_t window_bytes(const struct efs_sweep_window *w)
{
    return w->end - w->begin;
}

/* The smallest window that holds both. */
static struct efs_sweep_window sweep_join(struct efs_sweep_window a, struct efs_sweep_window b)
{
    if (a.begin == a.end)
        return b;
    if (b.begin == b.end)
        return a;
    return (struct efs_sweep_window){a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

static struct efs_sweep_window sweep_chunk(uint64_t offset, uint32_t bytes)
{
    if (bytes == 0)
        return (struct efs_sweep_window){0, 0};
    return (struct efs_sweep_window){efs_page_down(offset), efs_page_up(offset + bytes)};
}

static bool sweep_near(struct efs_sweep_window a, struct efs_sweep_window b)
{
    return a.begin == a.end || b.begin == b.end || (a.begin <= b.end + GAP_BYTES && b.begin <= a.end + GAP_BYTES);
}

/* Bytes to read for both. */
static uint64_t sweep_cost(struct efs_sweep_window e, struct efs_sweep_window sm)
{
    struct efs_sweep_window both = sweep_join(e, sm);
    return sweep_near(e, sm) ? window_bytes(&both) : window_bytes(&e) + window_bytes(&sm);
}

size_t efs_sweep_room(const struct efs_disk_shard *s)
{
    struct efs_sweep_window e = sweep_chunk(s->e_offset, s->e_bytes), sm = sweep_chunk(s->sm_offset, s->sm_bytes);
    return (size_t)(window_bytes(&e) + window_bytes(&sm)) + GAP_BYTES;
}

/* Where a group begins on disk. */
static uint64_t group_offset(const struct efs_store *store, uint32_t group)
{
    const struct efs_disk_group *g = &store->groups[group];
    if (g->object_count == 0)
        return UINT64_MAX;
    const struct efs_disk_shard *s = &store->shards[store->objects[g->object_first].shard_first];
    return s->e_bytes ? s->e_offset : s->sm_offset;
}

static int compare_offsets(const void *a, const void *b, void *arg)
{
    uint32_t g = *(const uint32_t *)a, h = *(const uint32_t *)b;
    uint64_t at = group_offset(arg, g), bt = group_offset(arg, h);
    return at != bt ? (at < bt ? -1 : 1) : (g > h) - (g < h);
}

static void enter_group(const struct efs_store *store, struct efs_sweep_part *p)
{
    while (p->at < store->group_count && store->groups[p->order[p->at]].object_count == 0)
        p->at++;
    if (p->at == store->group_count)
        return;
    p->object = store->groups[p->order[p->at]].object_first;
    p->shard = store->objects[p->object].shard_first;
}

errint_t efs_sweep_cursor_init(const struct efs_store *store, const struct efs_sweep_part *part,
                               struct efs_sweep_cursor *c)
{
    *c = (struct efs_sweep_cursor){0};
    if (part) {
        c->part = *part;
        return 0;
    }
    c->sorted = efs_sys_malloc(((size_t)store->group_count + 1) * sizeof(*c->sorted));
    if (!c->sorted)
        return -ENOMEM;
    for (uint32_t g = 0; g < store->group_count; g++)
        c->sorted[g] = g;
    qsort_r(c->sorted, store->group_count, sizeof(*c->sorted), compare_offsets, (void *)(uintptr_t)store);
    c->part = (struct efs_sweep_part){.order = c->sorted, .end_at = store->group_count};
    enter_group(store, &c->part);
    return 0;
}

void efs_sweep_cursor_free(struct efs_sweep_cursor *c)
{
    free(c->sorted);
    c->sorted = NULL;
}

static bool sweep_at_end(const struct efs_store *store, const struct efs_sweep_part *p)
{
    return p->at == store->group_count || (p->at == p->end_at && p->shard == p->end_shard);
}

static void sweep_step(const struct efs_store *store, struct efs_sweep_part *p)
{
    const struct efs_disk_object *o = &store->objects[p->object];
    const struct efs_disk_group *g = &store->groups[o->group];
    if (++p->shard < o->shard_first + o->shard_count)
        return;
    if (++p->object < g->object_first + g->object_count)
        return;
    p->at++;
    enter_group(store, p);
}

bool efs_sweep_take(const struct efs_store *store, struct efs_sweep_cursor *c, size_t buffer_bytes,
                    struct efs_sweep_batch *batch)
{
    struct efs_sweep_window none = {0, 0}, e = none, sm = none;
    uint64_t useful = 0;
    batch->count = 0;
    while (!sweep_at_end(store, &c->part) && batch->count < EFS_SWEEP_SHARDS) {
        const struct efs_disk_shard *s = &store->shards[c->part.shard];
        struct efs_sweep_window e_next = sweep_join(e, sweep_chunk(s->e_offset, s->e_bytes));
        struct efs_sweep_window sm_next = sweep_join(sm, sweep_chunk(s->sm_offset, s->sm_bytes));
        uint64_t bytes = sweep_cost(e_next, sm_next);
        useful += (uint64_t)s->e_bytes + s->sm_bytes;
        if (batch->count > 0 && (bytes > buffer_bytes || bytes > useful + useful / 2 + GAP_BYTES))
            break;
        e = e_next;
        sm = sm_next;
        batch->shards[batch->count].object = c->part.object;
        batch->shards[batch->count++].shard = c->part.shard;
        sweep_step(store, &c->part);
    }
    batch->e = sweep_near(e, sm) ? sweep_join(e, sm) : e;
    batch->sm = sweep_near(e, sm) ? none : sm;
    return batch->count > 0;
}

bool efs_sweep_read(const struct efs_store *store, const struct efs_sweep_batch *batch, uint8_t *buffer)
{
    size_t e_bytes = (size_t)window_bytes(&batch->e), sm_bytes = (size_t)window_bytes(&batch->sm);
    return efs_store_read(store, batch->e.begin, buffer, e_bytes) == 0 &&
           (sm_bytes == 0 || efs_store_read(store, batch->sm.begin, buffer + e_bytes, sm_bytes) == 0);
}

void efs_sweep_shard_at(const struct efs_store *store, const struct efs_sweep_batch *batch, uint32_t i, uint8_t *buffer,
                        struct efs_sweep_shard *shard)
{
    uint32_t object = batch->shards[i].object, index = batch->shards[i].shard;
    const struct efs_disk_object *o = &store->objects[object];
    const struct efs_disk_shard *s = &store->shards[index];
    enum efs_format format = (enum efs_format)o->format;
    bool one = window_bytes(&batch->sm) == 0;
    size_t width = efs_format_bytes(format), elements = efs_store_shard_elements(store, o, index);
    const uint8_t *sm = one ? buffer + (s->sm_offset - batch->e.begin)
                            : buffer + window_bytes(&batch->e) + (s->sm_offset - batch->sm.begin);
    *shard = (struct efs_sweep_shard){
        .object = object,
        .shard = index,
        .object_offset = (uint64_t)(index - o->shard_first) * store->sb.shard_elements * width,
        .raw_bytes = elements * width,
        .view = {.format = format,
                 .codec = s->codec,
                 .elements = elements,
                 .e = s->e_bytes ? buffer + (s->e_offset - batch->e.begin) : buffer,
                 .sm = s->sm_bytes ? sm : buffer,
                 .e_bytes = s->e_bytes,
                 .sm_bytes = s->sm_bytes},
    };
}

/* The pages of a chunk to where they were to come by the batch. */
static errint_t read_chunk(const struct efs_store *store, uint64_t offset, uint32_t bytes, const uint8_t *to)
{
    struct efs_sweep_window pages = sweep_chunk(offset, bytes);
    return bytes ? efs_store_read(store, pages.begin, (uint8_t *)(uintptr_t)to - (offset - pages.begin),
                                  (size_t)window_bytes(&pages))
                 : 0;
}

void efs_sweep_read_again(const struct efs_store *store, struct efs_sweep_shard *shard)
{
    const struct efs_disk_shard *s = &store->shards[shard->shard];
    shard->e_error = read_chunk(store, s->e_offset, s->e_bytes, shard->view.e);
    shard->sm_error = read_chunk(store, s->sm_offset, s->sm_bytes, shard->view.sm);
    if (shard->sm_error && !shard->e_error) /* what failed may have been in the page where E ends */
        shard->e_error = read_chunk(store, s->e_offset, s->e_bytes, shard->view.e);
}
