/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.c - see fetch.h. A batch is freed when its last part is done. */
#include "fetch.h"

#include "container.h"
#include "estimator.h"
#include "cache.h"
#include "sys.h"
#include "extent_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct batch_job {
    struct efs_job job;
    struct efs_batch *batch;
};

struct efs_batch {
    struct efs *fs;
    pthread_mutex_t lock;  /* guards the progress of parts */
    _Atomic uint32_t refs; /* parts that are not done, and one of efs_fetch_submit() */
    uint32_t part_count, job_next;
    struct batch_job *jobs;
    uint32_t fetch_count;
    struct efs_fetch **fetches;       /* all fetches; used by efs_fetch_submit() only */
    struct efs_fetch_part **resident; /* result of batch_request(): the parts in memory */
    struct efs_fetch_part *parts[];   /* in order of priority; NULL: done, its fetch may be freed */
};

/* ---- fetches ---- */

struct efs_fetch *efs_fetch_new(struct efs *fs, uint32_t expert)
{
    uint32_t n, count = 0, at = 0;
    const struct efs_expert_part *parts = efs_view_expert_parts(&fs->view, expert, &n);
    for (uint32_t i = 0; i < n; i++)
        count += efs_object_extent_end(fs, parts[i].object) - efs_object_extent_first(fs, parts[i].object);
    struct efs_fetch *fetch = efs_sys_calloc(1, sizeof(*fetch) + count * sizeof(fetch->parts[0]));
    if (!fetch)
        return NULL;
    fetch->fs = fs;
    fetch->expert = expert;
    fetch->part_count = count;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = efs_object_extent_first(fs, parts[i].object); x < efs_object_extent_end(fs, parts[i].object);
             x++) {
            struct efs_fetch_part *p = &fetch->parts[at++];
            uint64_t begin = efs_extent_begin(fs, x), end;
            efs_extent_at(fs, parts[i].object, begin, &end);
            p->fetch = fetch;
            p->waiter.extent = x;
            p->file_offset = parts[i].file_offset + begin;
            p->object_offset = begin;
            p->bytes = (size_t)(end - begin);
            p->shards = efs_extent(fs, x)->shard_count;
        }
    return fetch;
}

void efs_fetch_unref(struct efs_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->part_count; i++) {
        if (fetch->parts[i].waiter.error == 0 && fetch->parts[i].batch)
            efs_extent_unref_long(fetch->fs, fetch->parts[i].waiter.extent);
        fetch->parts[i].batch = NULL;
    }
}

static void fetch_put(struct efs_fetch *fetch)
{
    if (atomic_fetch_sub(&fetch->remaining, 1) == 1)
        fetch->ended(fetch);
}

static void batch_free(struct efs_batch *batch)
{
    pthread_mutex_destroy(&batch->lock);
    free(batch->resident);
    free(batch->fetches);
    free(batch->jobs);
    free(batch);
}

static void batch_put(struct efs_batch *batch)
{
    if (atomic_fetch_sub(&batch->refs, 1) == 1)
        batch_free(batch);
}

/* Whether the part is decoded uncached, because the chunk pool had no memory for its extent. */
static bool part_is_uncached(const struct efs_fetch_part *p)
{
    return p->fetch->memfile && p->waiter.error == -ENOMEM;
}

/* Ends a part that was decoded or has failed. May free the fetch and the batch. */
static void part_done(struct efs_fetch_part *p)
{
    struct efs_fetch *fetch = p->fetch;
    struct efs_batch *batch = p->batch;
    pthread_mutex_lock(&batch->lock);
    batch->parts[p->index] = NULL;
    pthread_mutex_unlock(&batch->lock);
    if (p->waiter.error < 0 && !part_is_uncached(p))
        fetch->error = p->waiter.error;
    else if (fetch->memfile && !part_is_uncached(p))
        efs_extent_put(fetch->fs, p->waiter.extent, true); /* the decoded copy replaces these chunks */
    fetch_put(fetch);
    batch_put(batch);
}

/* ---- decoding ---- */

static void part_decode(struct efs_fetch_part *p, uint32_t shard, struct efs_codec_scratch *scratch)
{
    struct efs *fs = p->fetch->fs;
    if (!p->fetch->memfile) { /* coded: only the checksums are verified */
        errint_t bad = efs_extent_check(fs, p->waiter.extent, shard);
        if (bad < 0)
            p->fetch->error = bad;
        return;
    }
    uint32_t object = efs_extent(fs, p->waiter.extent)->object;
    uint64_t shard_bytes = efs_object_shard_bytes(fs, object);
    uint64_t begin = shard * shard_bytes;
    size_t n = p->bytes - begin < shard_bytes ? (size_t)(p->bytes - begin) : (size_t)shard_bytes;
    uint8_t *to = p->fetch->memfile->data + p->file_offset + begin;
    bool fresh = !efs_extent_shard_checked(fs, p->waiter.extent, shard);
    uint64_t start = efs_now_ns(), end;
    errint_t rc = efs_extent_decode(fs, p->waiter.extent, object, p->object_offset + begin, n, to, true, scratch);
    end = efs_now_ns();
    efs_extent_record(fs, EFS_RECORD_DECODE, p->waiter.extent, shard, start, end);
    if (rc == 0)
        efs_estimator_decode(fs->estimator, fresh ? EFS_DECODE_READ : EFS_DECODE_CACHED, n, end - start);
    if (rc < 0)
        p->fetch->error = rc;
}

/* Decodes the first shard, in order of priority, of a part that is ready. One job is pushed per shard of a ready part,
 * so such a shard exists. */
static void batch_decode_next(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_batch *batch = EFS_CONTAINER(job, struct batch_job, job)->batch;
    struct efs_fetch_part *p = NULL;
    pthread_mutex_lock(&batch->lock);
    for (uint32_t i = 0; i < batch->part_count && !p; i++)
        if (batch->parts[i] && batch->parts[i]->ready && batch->parts[i]->next_shard < batch->parts[i]->shards)
            p = batch->parts[i];
    uint32_t shard = p->next_shard++;
    pthread_mutex_unlock(&batch->lock);
    part_decode(p, shard, scratch);
    pthread_mutex_lock(&batch->lock);
    bool last = ++p->done_shards == p->shards;
    pthread_mutex_unlock(&batch->lock);
    if (last)
        part_done(p);
}

/* Whether the part has shards to decode or check, after its extent was loaded or failed. */
static bool part_has_work(const struct efs_fetch_part *p)
{
    return p->shards > 0 && p->waiter.error == 0 &&
           (p->fetch->memfile || !efs_extent_checked(p->batch->fs, p->waiter.extent));
}

/* Marks the part ready. Returns its jobs, one per shard, which the caller pushes. */
static struct batch_job *part_jobs(struct efs_fetch_part *p)
{
    struct efs_batch *batch = p->batch;
    pthread_mutex_lock(&batch->lock);
    p->ready = true;
    struct batch_job *jobs = &batch->jobs[batch->job_next];
    batch->job_next += p->shards;
    pthread_mutex_unlock(&batch->lock);
    for (uint32_t i = 0; i < p->shards; i++)
        jobs[i] = (struct batch_job){.job = {.run = batch_decode_next}, .batch = batch};
    return jobs;
}

static void part_uncached_done(struct efs *fs, struct efs_uncached *uncached, errint_t error)
{
    struct efs_fetch_part *p = EFS_CONTAINER(uncached, struct efs_fetch_part, uncached);
    (void)fs;
    if (error < 0)
        p->fetch->error = error;
    part_done(p);
}

static void part_read_uncached(struct efs_fetch_part *p)
{
    struct efs *fs = p->fetch->fs;
    efs_count(&fs->stats, reads_past, 1);
    p->uncached = (struct efs_uncached){.object = efs_extent(fs, p->waiter.extent)->object,
                                        .begin = p->object_offset,
                                        .bytes = p->bytes,
                                        .dst = p->fetch->memfile->data + p->file_offset,
                                        .done = part_uncached_done};
    efs_uncached_read(fs, &p->uncached);
}

/* Pushes the part's jobs, or ends a part that has none. May free the part. */
static void part_ready(struct efs_fetch_part *p)
{
    if (part_is_uncached(p)) {
        part_read_uncached(p);
        return;
    }
    if (!part_has_work(p)) {
        part_done(p);
        return;
    }
    struct efs_workers *workers = p->batch->fs->workers;
    uint32_t count = p->shards;
    struct batch_job *jobs = part_jobs(p);
    for (uint32_t i = 0; i < count; i++)
        efs_workers_push(workers, &jobs[i].job);
}

/* efs_extent_waiter.loaded, lock held: defers the decode jobs. false: the part has none; a job ends it, because
 * fetch->ended() may call the user. */
static bool part_loaded(struct efs *fs, struct efs_extent_waiter *waiter)
{
    struct efs_fetch_part *p = EFS_CONTAINER(waiter, struct efs_fetch_part, waiter);
    if (!part_has_work(p))
        return false;
    uint32_t count = p->shards;
    struct batch_job *jobs = part_jobs(p);
    for (uint32_t i = 0; i < count; i++)
        efs_defer_job(fs, &jobs[i].job, EFS_JOB_NORMAL);
    return true;
}

static void part_wait_done(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    (void)scratch;
    part_ready(EFS_CONTAINER(job, struct efs_fetch_part, waiter.job));
}

/* ---- building a batch ---- */

static struct efs_batch *batch_alloc(uint32_t fetches, uint32_t parts, uint32_t shards)
{
    struct efs_batch *batch = efs_sys_calloc(1, sizeof(*batch) + parts * sizeof(batch->parts[0]));
    if (!batch)
        return NULL;
    batch->jobs = efs_sys_calloc(shards + 1u, sizeof(*batch->jobs));
    batch->fetches = efs_sys_calloc(fetches, sizeof(struct efs_fetch *));
    batch->resident = efs_sys_calloc(parts + 1u, sizeof(struct efs_fetch_part *));
    if (!batch->jobs || !batch->fetches || !batch->resident) {
        free(batch->resident);
        free(batch->fetches);
        free(batch->jobs);
        free(batch);
        return NULL;
    }
    pthread_mutex_init(&batch->lock, NULL);
    return batch;
}

/* NULL: no memory; the fetches are unchanged. */
static struct efs_batch *batch_new(struct efs *fs, struct efs_fetch *fetches)
{
    uint32_t count = 0, parts = 0, shards = 0;
    for (const struct efs_fetch *f = fetches; f; f = f->next, count++)
        for (uint32_t i = 0; i < f->part_count; i++, parts++)
            shards += f->parts[i].shards;
    struct efs_batch *batch = batch_alloc(count, parts, shards);
    if (!batch)
        return NULL;
    batch->fs = fs;
    batch->refs = parts + 1;
    for (struct efs_fetch *f = fetches; f; f = f->next) {
        batch->fetches[batch->fetch_count++] = f;
        f->remaining = f->part_count + 1;
        for (uint32_t i = 0; i < f->part_count; i++) {
            struct efs_fetch_part *p = &f->parts[i];
            p->batch = batch;
            p->waiter.job.run = part_wait_done;
            p->waiter.loaded = part_loaded;
            p->waiter.long_term = !f->memfile;
            p->waiter.error = 0;
            p->next_shard = p->done_shards = 0;
            p->ready = false;
            p->index = batch->part_count;
            batch->parts[batch->part_count++] = p;
        }
    }
    return batch;
}

/* Lock held: requests a part's extent. Removes its reads from the deferred reads and stores them by component in
 * p->read; batch_request() defers them in its own order. true: the extent is in memory. */
static bool part_request(struct efs_fetch_part *p)
{
    struct efs *fs = p->batch->fs;
    const struct efs_extent *x = efs_extent(fs, p->waiter.extent);
    struct efs_io **before = fs->deferred.reads.tail;
    bool here = efs_extent_request(fs, p->waiter.extent, &p->waiter);
    for (struct efs_io *r = *before; r; r = r->next)
        p->read[r->data == x->e.data ? 0 : 1] = r;
    *before = NULL;
    fs->deferred.reads.tail = before;
    return here;
}

/* Lock held: defers the part's read of a component, if it has one. */
static void part_read(struct efs_fetch_part *p, unsigned component)
{
    struct efs_io *r = p->read[component];
    p->read[component] = NULL;
    if (r)
        efs_defer_read(p->batch->fs, r);
}

/* Lock held: requests all parts, then defers their reads expert by expert, E components before SM components. Returns
 * the number of parts that are in memory: the first entries of batch->resident. */
static uint32_t batch_request(struct efs_batch *batch)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < batch->part_count; i++) {
        struct efs_fetch_part *p = batch->parts[i];
        if (part_request(p))
            batch->resident[count++] = p;
        else
            p->fetch->from_disk = true;
    }
    for (uint32_t f = 0; f < batch->fetch_count; f++)
        for (unsigned component = 0; component < 2; component++)
            for (uint32_t i = 0; i < batch->fetches[f]->part_count; i++)
                part_read(&batch->fetches[f]->parts[i], component);
    return count;
}

/* Ends a fetch that has requested nothing. */
static void fetch_fail(struct efs_fetch *f, errint_t error)
{
    for (uint32_t i = 0; i < f->part_count; i++)
        f->parts[i].batch = NULL;
    f->error = error;
    f->ended(f);
}

/* Ends the fetches that were cancelled before they started; returns the remaining ones in order. */
static struct efs_fetch *fetches_end_cancelled(struct efs_fetch *fetches)
{
    struct efs_fetch *rest = NULL, **tail = &rest;
    for (struct efs_fetch *f = fetches, *next; f; f = next) {
        next = f->next;
        if (f->error == -ECANCELED) {
            fetch_fail(f, -ECANCELED);
        } else {
            *tail = f;
            tail = &f->next;
        }
    }
    *tail = NULL;
    return rest;
}

void efs_fetch_submit(struct efs *fs, struct efs_fetch *fetches)
{
    fetches = fetches_end_cancelled(fetches);
    if (!fetches)
        return;
    struct efs_batch *batch = batch_new(fs, fetches);
    for (struct efs_fetch *next; !batch && fetches; fetches = next) {
        next = fetches->next;
        fetch_fail(fetches, -ENOMEM);
    }
    if (!batch)
        return;
    efs_lock(fs);
    uint32_t here = batch_request(batch);
    efs_unlock(fs);
    for (uint32_t i = 0; i < here; i++)
        part_ready(batch->resident[i]);
    for (uint32_t f = 0; f < batch->fetch_count; f++)
        fetch_put(batch->fetches[f]);
    batch_put(batch);
}
