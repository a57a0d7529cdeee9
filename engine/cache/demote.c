/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demote.c - moves a full expert to C, S or E (ZipMoE 3.4): the queue of experts, and the job that takes one extent
 * after the other; demote_chunks.c makes the chunks.
 *
 * No thread waits for a demotion, and it must not take a processor from one: the thread of idle work (idle.h) encodes.
 * That thread may not run for seconds, and uses only buffers that no other thread needs: a worker copies a shard from
 * the full form, the thread encodes it, and after the last shard of an extent a worker copies the chunks to the chunk
 * pool. While the thread encodes, the demotion can be cancelled at once.
 */
#include "demote_internal.h"

#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void efs_demote(struct efs *fs, uint32_t expert)
{
    struct efs_demotion *d = fs->demotion;
    if (!d || fs->closing || fs->cache->expert[expert].demoting || fs->full->at[expert].state != EFS_FULL_READY)
        return;
    bool any = false;
    for (uint32_t x = efs_expert_extent_first(fs, expert); x < efs_expert_extent_end(fs, expert); x++)
        any = any || efs_demotion_missing(&fs->extents->at[x]);
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

/* On the thread of idle work. */
static void demotion_encode(struct efs_job *job, struct efs_codec_scratch *none)
{
    struct efs_demotion *d = EFS_CONTAINER(job, struct efs_demotion, idle_job);
    (void)none;
    d->good = efs_demotion_make_shard(d);
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

/* ---- the queue of experts ---- */

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
        d->components = efs_demotion_missing(x);
        efs_unlock(fs);
        d->good = raw && d->components && efs_demotion_prepare(d);
    }
    if (d->good && d->shard < x->shard_count) {
        const struct efs_disk_object *object = &fs->store->objects[x->object];
        size_t n = efs_store_shard_elements(fs->store, object, x->shard_first + d->shard);
        memcpy(d->raw, raw + d->shard * efs_object_shard_bytes(fs, x->object),
               n * efs_format_bytes((enum efs_format)object->format));
        return true;
    }
    if (!d->good || efs_demotion_publish(d)) {
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

errint_t efs_demotion_build(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion = efs_sys_calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->fs = fs;
    d->job.run = demotion_run;
    d->idle_job.run = demotion_encode;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        efs_demotion_size_buffers(d, e);
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
    efs_demotion_free_buffers(d);
    free(d->queue);
    free(d);
    fs->demotion = NULL;
}
