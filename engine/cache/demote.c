/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demote.c - moves a full expert to C, S or E (ZipMoE 3.4): the queue of experts, the job that takes one extent after
 * the other, and the chunks from decoded bytes: a demotion reads nothing. Splitting gives the SM-chunk, encoding the
 * E-chunk; both must have the checksums of the store, else the cache state drops the expert.
 *
 * No thread waits for a demotion, and it must not take a processor from one: the thread of idle work (idle.h) encodes.
 * That thread may not run for seconds, and uses only buffers that no other thread needs: a worker copies a shard from
 * the full form, the thread encodes it, and after the last shard of an extent a worker copies the chunks to the chunk
 * pool. While the thread encodes, the demotion can be cancelled at once.
 */
#include "demote_internal.h"
#include "stats.h"

#include "codec_table.h"
#include "container.h"
#include "hash.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The components that the policy protects and that are not in memory; of an extent in IDLE. */
static unsigned missing(const struct efs_extent *x)
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
        any = any || missing(&fs->extents->at[x]);
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

/* ---- chunks ---- */

/* Copies a chunk and zeros the bytes up to the start of the next one, as in the store. A chunk that does not start at a
 * multiple of EFS_CHUNK_ALIGN, in a checkpoint that is served in place, has no such bytes. */
static void demotion_store_chunk(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
    if ((uintptr_t)to % EFS_CHUNK_ALIGN == 0)
        memset(to + bytes, 0, efs_chunk_up(bytes) - bytes);
}

/* Makes the chunks of the shard in `raw`, and appends them to `coded`. false: they are not those of the store. */
static bool make_shard(struct efs_demotion *d)
{
    struct efs *fs = d->fs;
    const struct efs_extent *x = &fs->extents->at[d->extent];
    const struct efs_disk_shard *s = &fs->store->shards[x->shard_first + d->shard];
    const struct efs_disk_object *object = &fs->store->objects[x->object];
    enum efs_format format = (enum efs_format)object->format;
    size_t n = efs_store_shard_elements(fs->store, object, x->shard_first + d->shard);
    size_t e_span = d->components & EFS_COMPONENT_E ? efs_extent_span(fs, x, EFS_COMPONENT_E) : 0;
    struct efs_shard_coded coded = {.sm_bytes = efs_sm_bytes(format, n)};
    if (!(d->components & EFS_COMPONENT_E) && format != EFS_FORMAT_BYTES)
        efs_split(format, d->raw, n, d->e, d->sm);
    else if (efs_shard_encode(format, efs_codec_of(s->codec)->choice, d->raw, n, d->e, d->sm, &coded, d->scratch) < 0 ||
             coded.codec != s->codec)
        return false;
    if (d->components & EFS_COMPONENT_E) {
        if (coded.e_bytes != s->e_bytes || efs_hash(d->e, s->e_bytes) != s->e_hash)
            return false;
        if (s->e_bytes)
            demotion_store_chunk(d->coded + efs_extent_offset(fs, x, s, EFS_COMPONENT_E), d->e, s->e_bytes);
    }
    if (d->components & EFS_COMPONENT_SM) {
        if (coded.sm_bytes != s->sm_bytes || efs_hash(d->sm, s->sm_bytes) != s->sm_hash)
            return false;
        if (s->sm_bytes)
            demotion_store_chunk(d->coded + e_span + efs_extent_offset(fs, x, s, EFS_COMPONENT_SM), d->sm, s->sm_bytes);
    }
    return true;
}

/* On the thread of idle work. */
static void demotion_encode(struct efs_job *job, struct efs_codec_scratch *none)
{
    struct efs_demotion *d = EFS_CONTAINER(job, struct efs_demotion, idle_job);
    (void)none;
    d->good = make_shard(d);
    d->shard++;
    atomic_store(&d->encoded, true);
    efs_io_wake(d->fs->io);
}

void efs_demotion_encoded(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion;
    if (d && atomic_exchange(&d->encoded, false))
        efs_workers_push(fs->workers, &d->job, EFS_JOB_LOW);
}

/* ---- the job ---- */

/* Copies a component to the chunk pool. false: it has no pages. */
static bool demotion_copy(struct efs *fs, const struct efs_extent *x, unsigned component, uint8_t *to,
                          const uint8_t *from)
{
    size_t bytes = efs_extent_span(fs, x, component);
    if (efs_sys_populate(to, bytes, NULL) != 0)
        return false;
    memcpy(to, from, bytes);
    return true;
}

/* Moves the extent's chunks, which are made, to the chunk pool. false: retry, because memory is being freed or segments
 * are being prepared. */
static bool publish(struct efs_demotion *d)
{
    struct efs *fs = d->fs;
    struct efs_extent *x = &fs->extents->at[d->extent];
    size_t e_span = d->components & EFS_COMPONENT_E ? efs_extent_span(fs, x, EFS_COMPONENT_E) : 0;
    efs_lock(fs);
    unsigned components = fs->closing || d->cancelled ? 0 : missing(x) & d->components;
    bool have = components && efs_extent_alloc(fs, d->extent, components, EFS_LOAD_DEMAND);
    bool retry = components && !have && (fs->account.bytes[EFS_ACCOUNT_RETURNING] != 0 || fs->growing);
    efs_unlock(fs);
    if (!have)
        return !retry;
    bool good =
        (!(components & EFS_COMPONENT_E) || demotion_copy(fs, x, EFS_COMPONENT_E, x->e.data, d->coded)) &&
        (!(components & EFS_COMPONENT_SM) || demotion_copy(fs, x, EFS_COMPONENT_SM, x->sm.data, d->coded + e_span));
    efs_count(fs->stats, recoded_bytes, good ? efs_extent_span(fs, x, components) : 0);
    efs_lock(fs);
    efs_extent_loaded(fs, d->extent, components, good ? 0 : -EAGAIN);
    efs_unlock(fs);
    return true;
}

/* Allocates the buffers and starts the thread at the first demotion; they stay charged to the budget, also if a part is
 * missing until the next one. false: no room or no memory. */
static bool prepare(struct efs_demotion *d)
{
    uint32_t n = d->fs->store->sb.shard_elements;
    size_t e = efs_shard_e_bound(n), sm = 0;
    if (d->idle)
        return true;
    for (unsigned f = 0; f < EFS_FORMAT_COUNT; f++)
        if (efs_shard_sm_bound((enum efs_format)f, n) > sm)
            sm = efs_shard_sm_bound((enum efs_format)f, n);
    efs_lock(d->fs);
    d->reserved = d->reserved || efs_charge_fixed(d->fs,
                                                  e + sm + d->raw_bytes + d->extent_bytes + EFS_STACK_TOUCHED_BYTES +
                                                      efs_codec_scratch_encoding_bytes(n),
                                                  d->largest_bytes);
    efs_unlock(d->fs);
    if (!d->reserved)
        return false;
    d->e = d->e ? d->e : efs_sys_malloc(e);
    d->sm = d->sm ? d->sm : efs_sys_malloc(sm);
    d->raw = d->raw ? d->raw : efs_sys_malloc(d->raw_bytes);
    d->coded = d->coded ? d->coded : efs_sys_aligned_alloc(EFS_CHUNK_ALIGN, d->extent_bytes);
    return d->e && d->sm && d->raw && d->coded && (d->scratch || efs_codec_scratch_new(n, &d->scratch) == 0) &&
           efs_idle_start(&d->idle) == 0;
}

/* Lock held: ends the demotion of an expert, and takes the next one. false: there is none. */
static bool demotion_next(struct efs_demotion *d, bool *ended)
{
    struct efs *fs = d->fs;
    if (d->working && (d->extent == d->extent_end || d->cancelled || fs->closing)) {
        efs_demotion_unpin(fs, d->expert); /* components that could not be made are lost with the full form */
        d->working = false;
        *ended = true;
    }
    d->cancelled = false;
    if (!d->working && d->count) {
        d->expert = d->queue[d->head];
        d->head = (d->head + 1) % fs->store->expert_count;
        d->count--;
        d->extent = efs_expert_extent_first(fs, d->expert);
        d->extent_end = efs_expert_extent_end(fs, d->expert);
        d->shard = 0;
        d->working = true;
    }
    return d->working;
}

/* Continues with the extent until a shard is to be encoded, or its chunks are in memory, or cannot be made. Returns
 * true in the first case. */
static bool demotion_continue(struct efs_demotion *d)
{
    struct efs *fs = d->fs;
    const struct efs_extent *x = &fs->extents->at[d->extent];
    uint64_t at = efs_view_expert_offset(&fs->view, d->expert, x->object); /* UINT64_MAX: not in the expert's file */
    const uint8_t *raw =
        at == UINT64_MAX ? NULL : fs->full->at[d->expert].memfile->data + at + efs_extent_begin(fs, d->extent);
    if (d->shard == 0) {
        efs_lock(fs);
        d->components = missing(x);
        efs_unlock(fs);
        d->good = raw && d->components && prepare(d);
    }
    if (d->good && d->shard < x->shard_count) {
        const struct efs_disk_object *object = &fs->store->objects[x->object];
        size_t n = efs_store_shard_elements(fs->store, object, x->shard_first + d->shard);
        memcpy(d->raw, raw + d->shard * efs_object_shard_bytes(fs, x->object),
               n * efs_format_bytes((enum efs_format)object->format));
        return true;
    }
    if (!d->good || publish(d)) {
        d->extent++;
        d->shard = 0;
    }
    return false;
}

static void demotion_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_demotion *d = EFS_CONTAINER(job, struct efs_demotion, job);
    struct efs *fs = d->fs;
    bool ended = false;
    (void)scratch;
    efs_lock(fs);
    d->encoding = false;
    bool working = d->running = demotion_next(d, &ended);
    efs_unlock(fs);
    bool encode = working && demotion_continue(d);
    if (working) {
        efs_lock(fs);
        d->encoding = encode && !d->cancelled && !fs->closing;
        if (!d->encoding)
            efs_defer_job(fs, &d->job, EFS_JOB_LOW);
        encode = d->encoding;
        efs_unlock(fs);
    }
    if (encode)
        efs_idle_push(d->idle, &d->idle_job);
    if (ended)
        efs_in_flight_end(fs);
}

/* The buffers hold the extents of this expert, too. */
static void size_buffers(struct efs_demotion *d, uint32_t expert)
{
    const struct efs *fs = d->fs;
    uint64_t bytes = efs_memfile_bytes(fs, expert);
    d->largest_bytes = bytes > d->largest_bytes ? bytes : d->largest_bytes;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        bytes = efs_extent_span(fs, x, EFS_BOTH);
        d->extent_bytes = bytes > d->extent_bytes ? bytes : d->extent_bytes;
        bytes = efs_object_shard_bytes(fs, x->object);
        d->raw_bytes = bytes > d->raw_bytes ? bytes : d->raw_bytes;
    }
}

errint_t efs_demotion_build(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion = efs_sys_calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->fs = fs;
    d->job.run = demotion_run;
    d->idle_job.run = demotion_encode;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        size_buffers(d, e);
    d->queue = efs_sys_calloc(fs->store->expert_count + 1u, sizeof(*d->queue));
    return d->queue ? 0 : -ENOMEM;
}

void efs_demotion_stop(struct efs *fs)
{
    if (fs->demotion)
        efs_idle_stop(fs->demotion->idle); /* a worker may be about to push a cancelled demotion's job */
}

void efs_demotion_close_in_child(struct efs *fs)
{
    if (fs->demotion)
        efs_idle_close_in_child(fs->demotion->idle);
}

void efs_demotion_destroy(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion;
    if (!d)
        return;
    efs_idle_free(d->idle);
    efs_codec_scratch_free(d->scratch);
    free(d->coded);
    free(d->raw);
    free(d->sm);
    free(d->e);
    free(d->queue);
    free(d);
    fs->demotion = NULL;
}
