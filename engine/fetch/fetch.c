/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.c - see fetch.h. A batch lives until its last part is done. */
#include "fetch.h"

#include "container.h"
#include "estimator.h"
#include "order.h"
#include "record.h"
#include "cache.h"
#include "sys.h"
#include "extent_core.h"

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
    _Atomic uint32_t left; /* parts that are not done, and one for who begins it */
    uint32_t part_count, job_next;
    uint32_t shards; /* of all parts: as many jobs */
    struct batch_job *jobs;
    struct efs_fetch_part *parts[]; /* in order of priority; NULL: done, its fetch may be gone */
};

/* ---- fetches ---- */

struct efs_fetch *efs_fetch_new(struct efs *fs, uint32_t expert)
{
    struct efs_expert_part parts[EFS_EXPERT_OBJECTS];
    uint32_t n = efs_view_expert_parts(&fs->view, expert, parts), count = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        count += fs->object_extent[parts[i].object + 1] - fs->object_extent[parts[i].object];
    struct efs_fetch *fetch = efs_sys_calloc(1, sizeof(*fetch) + count * sizeof(fetch->parts[0]));
    if (!fetch)
        return NULL;
    fetch->fs = fs;
    fetch->expert = expert;
    fetch->tokens = 1;
    fetch->part_count = count;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = fs->object_extent[parts[i].object]; x < fs->object_extent[parts[i].object + 1]; x++) {
            struct efs_fetch_part *p = &fetch->parts[at++];
            uint64_t begin = efs_extent_begin(fs, x), end;
            efs_extent_at(fs, parts[i].object, begin, &end);
            p->fetch = fetch;
            p->waiter.extent = x;
            p->file_offset = parts[i].file_offset + begin;
            p->object_offset = begin;
            p->bytes = (size_t)(end - begin);
            p->shards = fs->extents[x].shard_count;
        }
    return fetch;
}

void efs_fetch_unref(struct efs_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->part_count; i++)
        efs_extent_put(fetch->fs, fetch->parts[i].waiter.extent);
}

static void fetch_less(struct efs_fetch *fetch)
{
    if (atomic_fetch_sub(&fetch->remaining, 1) == 1)
        fetch->ended(fetch);
}

static void batch_less(struct efs_batch *batch)
{
    if (atomic_fetch_sub(&batch->left, 1) != 1)
        return;
    pthread_mutex_destroy(&batch->lock);
    free(batch->jobs);
    free(batch);
}

/* All of a part is done, or has failed. The fetch may be gone afterwards. */
static void part_done(struct efs_fetch_part *p)
{
    struct efs_fetch *fetch = p->fetch;
    struct efs_batch *batch = p->batch;
    pthread_mutex_lock(&batch->lock);
    batch->parts[p->place] = NULL;
    pthread_mutex_unlock(&batch->lock);
    if (p->waiter.error < 0) {
        fetch->error = p->waiter.error;
    } else if (fetch->memfile) {
        efs_extent_evict_first(fetch->fs, p->waiter.extent); /* the same bytes are full now */
        efs_extent_put(fetch->fs, p->waiter.extent);
    }
    fetch_less(fetch);
    batch_less(batch);
}

/* ---- decoding ---- */

static void decode(struct efs_fetch_part *p, uint32_t shard, struct efs_codec_scratch *scratch)
{
    struct efs *fs = p->fetch->fs;
    if (!p->fetch->memfile) { /* the chunks are what is wanted */
        errint_t bad = efs_extent_check(fs, p->waiter.extent, shard);
        if (bad < 0)
            p->fetch->error = bad;
        return;
    }
    uint64_t shard_bytes = efs_object_shard_bytes(fs, fs->extents[p->waiter.extent].object);
    uint64_t begin = shard * shard_bytes;
    size_t n = p->bytes - begin < shard_bytes ? (size_t)(p->bytes - begin) : (size_t)shard_bytes;
    bool fresh = !efs_extent_shard_checked(fs, p->waiter.extent, shard);
    uint64_t start = efs_now_ns(), end;
    errint_t rc = efs_extent_decode(fs, p->waiter.extent, p->object_offset + begin, n,
                                    p->fetch->memfile->data + p->file_offset + begin, true, scratch);
    end = efs_now_ns();
    efs_record(fs, EFS_RECORD_DECODE, p->waiter.extent, shard, start, end);
    if (rc == 0)
        efs_estimator_decode(fs->estimator, fresh ? EFS_DECODE_FRESH : EFS_DECODE_KEPT, n, end - start);
    if (rc < 0)
        p->fetch->error = rc;
}

/* A worker is free: the first shard available in order of priority. There is one for each job. */
static void take_one(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_batch *batch = EFS_CONTAINER(job, struct batch_job, job)->batch;
    struct efs_fetch_part *p = NULL;
    pthread_mutex_lock(&batch->lock);
    for (uint32_t i = 0; i < batch->part_count && !p; i++)
        if (batch->parts[i] && batch->parts[i]->ready && batch->parts[i]->next_shard < batch->parts[i]->shards)
            p = batch->parts[i];
    uint32_t shard = p->next_shard++;
    pthread_mutex_unlock(&batch->lock);
    decode(p, shard, scratch);
    pthread_mutex_lock(&batch->lock);
    bool last = ++p->done_shards == p->shards;
    pthread_mutex_unlock(&batch->lock);
    if (last)
        part_done(p);
}

/* The extent is here: as many jobs as it has shards. */
static void part_ready(struct efs_fetch_part *p)
{
    struct efs_batch *batch = p->batch;
    bool as_it_is = !p->fetch->memfile && p->waiter.error == 0 && efs_extent_checked(batch->fs, p->waiter.extent);
    if (p->waiter.error < 0 || p->shards == 0 || as_it_is) {
        part_done(p);
        return;
    }
    uint32_t count = p->shards;
    pthread_mutex_lock(&batch->lock);
    p->ready = true;
    struct batch_job *jobs = &batch->jobs[batch->job_next];
    batch->job_next += count;
    pthread_mutex_unlock(&batch->lock);
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = (struct batch_job){.job = {.run = take_one}, .batch = batch};
        efs_workers_push(batch->fs->workers, &jobs[i].job);
    }
}

static void waited(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    (void)scratch;
    part_ready(EFS_CONTAINER(job, struct efs_fetch_part, waiter.job));
}

/* ---- putting a batch together ---- */

static struct efs_batch *batch_new(struct efs *fs, struct efs_fetch **fetches, uint32_t count)
{
    uint32_t parts = 0, shards = 0;
    for (uint32_t f = 0; f < count; f++)
        for (uint32_t i = 0; i < fetches[f]->part_count; i++, parts++)
            shards += fetches[f]->parts[i].shards;
    struct efs_batch *batch = efs_sys_calloc(1, sizeof(*batch) + parts * sizeof(batch->parts[0]));
    if (!batch)
        return NULL;
    batch->jobs = efs_sys_calloc(shards + 1u, sizeof(*batch->jobs));
    if (!batch->jobs) {
        free(batch);
        return NULL;
    }
    pthread_mutex_init(&batch->lock, NULL);
    batch->fs = fs;
    batch->part_count = parts;
    batch->left = parts + 1;
    uint32_t at = 0;
    for (uint32_t f = 0; f < count; f++) {
        fetches[f]->remaining = fetches[f]->part_count + 1;
        for (uint32_t i = 0; i < fetches[f]->part_count; i++) {
            struct efs_fetch_part *p = &fetches[f]->parts[i];
            p->batch = batch;
            p->waiter.job.run = waited;
            p->waiter.error = 0;
            batch->parts[at++] = p;
        }
    }
    return batch;
}

/* Lock held: ask for a part's extent, and keep its reads apart by component; what else is to be submitted is put on
 * *others. true: it is here. */
static bool ask(struct efs *fs, struct efs_fetch_part *p, struct efs_extent_waiter **failed,
                struct efs_disk_request **others)
{
    struct efs_disk_request *mine = NULL;
    const struct efs_extent *x = &fs->extents[p->waiter.extent];
    bool here = efs_extent_ask(fs, p->waiter.extent, &p->waiter, failed, &mine);
    for (struct efs_disk_request *next; mine; mine = next) {
        next = mine->next;
        if (mine->bytes == 0) { /* a segment that leaves */
            mine->next = *others;
            *others = mine;
        } else {
            p->read[mine->data == x->e.data ? 0 : 1] = mine;
        }
    }
    return here;
}

/* Put a read of the part, if it needs one, at the end of a list. */
static struct efs_disk_request **submit_read(struct efs_fetch_part *p, unsigned component,
                                             struct efs_disk_request **tail)
{
    struct efs_disk_request *r = p->read[component];
    if (!r)
        return tail;
    p->read[component] = NULL;
    r->next = NULL;
    *tail = r;
    return &r->next;
}

/* Lock held: everything is asked for in the order of reads. Parts that are here are put first in here[]. */
static uint32_t ask_all(struct efs_batch *batch, const struct efs_order_plan *plan, struct efs_fetch_part **here,
                        struct efs_extent_waiter **failed, struct efs_disk_request **submit)
{
    struct efs_disk_request *others = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < batch->part_count; i++) {
        struct efs_fetch_part *p = plan->ask[i];
        if (ask(batch->fs, p, failed, &others))
            here[count++] = p;
        else
            p->fetch->from_disk = true;
    }
    for (*submit = others; *submit;)
        submit = &(*submit)->next;
    for (uint32_t i = 0; i < plan->read_count; i++)
        submit = submit_read(plan->reads[i].part, plan->reads[i].sm, submit);
    for (uint32_t i = 0; i < batch->part_count; i++) /* what was there when the plan was made and is not any more */
        for (unsigned component = 0; component < 2; component++)
            submit = submit_read(plan->ask[i], component, submit);
    return count;
}

static void fail_all(struct efs_fetch **fetches, uint32_t count)
{
    for (uint32_t f = 0; f < count; f++) {
        for (uint32_t i = 0; i < fetches[f]->part_count; i++)
            fetches[f]->parts[i].batch = NULL; /* nothing was asked for */
        fetches[f]->error = -ENOMEM;
        fetches[f]->ended(fetches[f]);
    }
}

void efs_fetch_submit(struct efs *fs, struct efs_fetch **fetches, uint32_t count)
{
    struct efs_batch *batch = batch_new(fs, fetches, count);
    struct efs_order_plan *plan = batch ? efs_order_new(fs, batch->parts, batch->part_count, fetches, count) : NULL;
    if (!plan) {
        if (batch) {
            batch->left = 1;
            batch_less(batch);
        }
        fail_all(fetches, count);
        return;
    }
    for (uint32_t i = 0; i < batch->part_count; i++)
        batch->parts[i]->place = i;
    struct efs_extent_waiter *failed = NULL;
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    uint32_t here = ask_all(batch, plan, plan->here, &failed, &submit);
    pthread_mutex_unlock(&fs->lock);
    while (failed) {
        struct efs_extent_waiter *w = failed;
        failed = w->next;
        w->next = NULL;
        efs_extent_push_waiters(fs, w, w->error);
    }
    efs_disk_submit_all(fs, submit);
    for (uint32_t i = 0; i < here; i++)
        part_ready(plan->here[i]);
    efs_order_free(plan);
    for (uint32_t f = 0; f < count; f++)
        fetch_less(fetches[f]);
    batch_less(batch);
}
