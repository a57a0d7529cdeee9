/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demote.c - moves a full expert to C, S or E: makes its chunks from the decoded bytes (ZipMoE 3.4: a demotion reads
 * nothing). Splitting gives the SM-chunk, encoding the E-chunk; both must have the checksums of the store, else the
 * cache state drops the expert.
 *
 * One extent at a time, on an idle worker.
 */
#include "cache.h"
#include "container.h"
#include "extent_internal.h"
#include "stats.h"

#include "codec_table.h"
#include "hash.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct efs_demotion {
    struct efs *fs;
    struct efs_job job;
    bool running;
    uint32_t *queue; /* [expert_count]: a ring of experts, each at most once */
    uint32_t head, count;
    uint32_t expert, extent, extent_end; /* being demoted */
    bool working, cancelled;             /* cancelled: ends after the current extent */
    uint64_t largest_bytes;              /* memory file of the largest expert */
    bool reserved;                       /* room in the budget for the following */
    struct efs_codec_scratch *scratch;   /* larger than the workers' scratch, for encoding */
    uint8_t *e, *sm;
};

static unsigned demotion_missing(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE ? x->protected & ~(unsigned)x->resident : 0;
}

void efs_demote(struct efs *fs, uint32_t expert)
{
    struct efs_demotion *d = fs->demotion;
    if (!d || fs->closing || fs->cache->expert[expert].demoting || fs->full->at[expert].state != EFS_FULL_READY)
        return;
    bool any = false;
    for (uint32_t x = efs_expert_extent_first(fs, expert); x < efs_expert_extent_end(fs, expert); x++)
        any = any || demotion_missing(&fs->extents->at[x]);
    if (!any)
        return;
    fs->cache->expert[expert].demoting = true;
    efs_full_copy_begin(fs, expert);
    efs_in_flight_begin(fs);
    d->queue[(d->head + d->count++) % fs->store->expert_count] = expert;
    if (!d->running) {
        d->running = true;
        efs_defer_job(fs, &d->job, EFS_JOB_LOW);
    }
}

/* Lock held: ends the use of the full form. */
static void demotion_unpin(struct efs *fs, uint32_t expert)
{
    fs->cache->expert[expert].demoting = false;
    efs_full_copy_end(fs, expert);
}

bool efs_demotion_cancel(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion;
    if (!d || d->count == 0) {
        if (d)
            d->cancelled = d->working;
        return false;
    }
    demotion_unpin(fs, d->queue[(d->head + --d->count) % fs->store->expert_count]);
    efs_in_flight_end_locked(fs);
    return true;
}

/* ---- making chunks ---- */

/* Copies a chunk and zeros the bytes up to the start of the next one, as in the store. A chunk that does not start at a
 * multiple of EFS_CHUNK_ALIGN, in a checkpoint that is served in place, has no such bytes. */
static void demotion_store_chunk(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
    if ((uintptr_t)to % EFS_CHUNK_ALIGN == 0)
        memset(to + bytes, 0, efs_chunk_up(bytes) - bytes);
}

static bool demotion_make_shard(struct efs_demotion *d, const struct efs_extent *x, uint32_t shard, unsigned components,
                                const uint8_t *raw)
{
    struct efs *fs = d->fs;
    const struct efs_disk_shard *s = &fs->store->shards[shard];
    const struct efs_disk_object *object = &fs->store->objects[x->object];
    enum efs_format format = (enum efs_format)object->format;
    size_t n = efs_store_shard_elements(fs->store, object, shard);
    struct efs_shard_coded coded = {.sm_bytes = efs_sm_bytes(format, n)};
    if (!(components & EFS_COMPONENT_E) && format != EFS_FORMAT_BYTES)
        efs_split(format, raw, n, d->e, d->sm);
    else if (efs_shard_encode(format, efs_codec_of(s->codec)->choice, raw, n, d->e, d->sm, &coded, d->scratch) < 0 ||
             coded.codec != s->codec)
        return false;
    if (components & EFS_COMPONENT_E) {
        if (coded.e_bytes != s->e_bytes || efs_hash(d->e, s->e_bytes) != s->e_hash)
            return false;
        demotion_store_chunk(efs_extent_e(fs, x, s), d->e, s->e_bytes);
    }
    if (components & EFS_COMPONENT_SM) {
        if (coded.sm_bytes != s->sm_bytes || efs_hash(d->sm, s->sm_bytes) != s->sm_hash)
            return false;
        demotion_store_chunk(efs_extent_sm(fs, x, s), d->sm, s->sm_bytes);
    }
    return true;
}

/* false: no pages, or not the chunks of the store. */
static bool demotion_make_extent(struct efs_demotion *d, uint32_t extent, unsigned components, const uint8_t *raw)
{
    struct efs *fs = d->fs;
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object);
    bool good = (!(components & EFS_COMPONENT_E) ||
                 efs_sys_populate(x->e.data, efs_extent_span(fs, x, EFS_COMPONENT_E), NULL) == 0) &&
                (!(components & EFS_COMPONENT_SM) ||
                 efs_sys_populate(x->sm.data, efs_extent_span(fs, x, EFS_COMPONENT_SM), NULL) == 0);
    for (uint32_t i = 0; good && i < x->shard_count; i++)
        good = demotion_make_shard(d, x, x->shard_first + i, components, raw + i * shard_bytes);
    return good;
}

/* The address of the extent's raw bytes in the full expert. NULL: the expert's file does not contain the object. */
static const uint8_t *demotion_raw(const struct efs *fs, uint32_t expert, uint32_t extent)
{
    uint64_t at = efs_view_expert_offset(&fs->view, expert, fs->extents->at[extent].object);
    return at == UINT64_MAX ? NULL : fs->full->at[expert].memfile->data + at + efs_extent_begin(fs, extent);
}

/* Lock held: segments that cannot be released: the minimum of the chunk pool, or those with pinned chunks. */
static uint64_t segments_minimum_bytes(const struct efs *fs)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        held += fs->arena.segments[i].long_refs != 0;
    return (held > fs->account.floor_segments ? held : fs->account.floor_segments) * fs->arena.segment_bytes;
}

/* Charges bytes to the budget, as fixed. false: the rest would not hold the memory that is pinned now, or the largest
 * expert. */
static bool demotion_reserve(const struct efs_demotion *d, uint64_t bytes)
{
    struct efs *fs = d->fs;
    efs_lock(fs);
    uint64_t left = fs->account.budget_bytes, least = fs->account.floor_segments * fs->arena.segment_bytes;
    uint64_t fixed = efs_account_fixed(&fs->account) + bytes, always = fixed + least + d->largest_bytes;
    uint64_t now = fixed + segments_minimum_bytes(fs) + fs->account.bytes[EFS_ACCOUNT_FULL_PINNED];
    bool room = always <= left && now <= left;
    if (room) {
        efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, bytes);
        efs_retry(fs, EFS_RETRY_BUDGET);
    }
    efs_unlock(fs);
    return room;
}

/* Allocates the buffers at the first demotion; they stay charged to the budget, also if a part is missing until the
 * next one. false: no room or no memory. */
static bool demotion_alloc_buffers(struct efs_demotion *d)
{
    uint32_t n = d->fs->store->sb.shard_elements;
    size_t e = efs_shard_e_bound(n), sm = 0;
    if (d->scratch)
        return true;
    for (unsigned f = 0; f < EFS_FORMAT_COUNT; f++)
        if (efs_shard_sm_bound((enum efs_format)f, n) > sm)
            sm = efs_shard_sm_bound((enum efs_format)f, n);
    d->reserved = d->reserved || demotion_reserve(d, e + sm + efs_codec_scratch_encoding_bytes(n));
    if (!d->reserved)
        return false;
    d->e = d->e ? d->e : efs_sys_malloc(e);
    d->sm = d->sm ? d->sm : efs_sys_malloc(sm);
    return d->e && d->sm && efs_codec_scratch_new(n, &d->scratch) == 0;
}

/* false: retry, because memory is being freed or segments are being prepared. */
static bool demotion_work(struct efs_demotion *d, uint32_t extent)
{
    struct efs *fs = d->fs;
    if (!demotion_alloc_buffers(d))
        return true;
    efs_lock(fs);
    unsigned components = fs->closing || d->cancelled ? 0 : demotion_missing(&fs->extents->at[extent]);
    const uint8_t *raw = components ? demotion_raw(fs, d->expert, extent) : NULL;
    bool have = raw && efs_extent_alloc(fs, extent, components, EFS_LOAD_DEMAND);
    bool retry = raw && !have && (fs->account.bytes[EFS_ACCOUNT_RETURNING] != 0 || fs->growing);
    efs_unlock(fs);
    if (!have)
        return !retry;
    bool good = demotion_make_extent(d, extent, components, raw);
    efs_count(fs->stats, recoded_bytes, good ? efs_extent_span(fs, &fs->extents->at[extent], components) : 0);
    efs_lock(fs);
    efs_extent_loaded(fs, extent, components, good ? 0 : -EAGAIN);
    efs_unlock(fs);
    return true;
}

/* ---- the queue of experts ---- */

static void demotion_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_demotion *d = EFS_CONTAINER(job, struct efs_demotion, job);
    struct efs *fs = d->fs;
    bool ended = false;
    (void)scratch;
    if (d->working && demotion_work(d, d->extent))
        d->extent++;
    efs_lock(fs);
    if (d->working && (d->extent == d->extent_end || d->cancelled)) {
        demotion_unpin(fs, d->expert); /* components that could not be made are lost with the full form */
        d->working = d->cancelled = false;
        efs_retry(fs, EFS_RETRY_BUDGET); /* the budget may have been reduced during the demotion */
        efs_retry(fs, EFS_RETRY_ADMIT);  /* its memory file may be needed for another expert */
        ended = true;
    }
    if (!d->working && d->count) {
        d->expert = d->queue[d->head];
        d->head = (d->head + 1) % fs->store->expert_count;
        d->count--;
        d->extent = efs_expert_extent_first(fs, d->expert);
        d->extent_end = efs_expert_extent_end(fs, d->expert);
        d->working = true;
    }
    d->running = d->working;
    if (d->running)
        efs_defer_job(fs, &d->job, EFS_JOB_LOW);
    efs_unlock(fs);
    if (ended)
        efs_in_flight_end(fs);
}

errint_t efs_demotion_build(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion = efs_sys_calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->fs = fs;
    d->job.run = demotion_run;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        if (efs_memfile_bytes(fs, e) > d->largest_bytes)
            d->largest_bytes = efs_memfile_bytes(fs, e);
    d->queue = efs_sys_calloc(fs->store->expert_count + 1u, sizeof(*d->queue));
    return d->queue ? 0 : -ENOMEM;
}

void efs_demotion_destroy(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion;
    if (!d)
        return;
    efs_codec_scratch_free(d->scratch);
    free(d->sm);
    free(d->e);
    free(d->queue);
    free(d);
    fs->demotion = NULL;
}
