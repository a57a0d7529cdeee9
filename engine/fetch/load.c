/* SPDX-License-Identifier: Apache-2.0 */
/* load.c - see fetch.h: reads and decodes the items of requests. */
#include "fetch.h"

#include "cache.h"
#include "container.h"
#include "estimator.h"
#include "extent_internal.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

struct efs_load_job {
    struct efs_job job;
    struct efs_load *load;
};

/* ---- allocation ---- */

static void item_count(const struct efs *fs, const struct efs_request_item *item, uint32_t *parts, uint32_t *shards)
{
    uint32_t n;
    const uint32_t *object_first = efs_extents(fs)->object_first;
    const struct efs_expert_part *objects = efs_view_expert_parts(&fs->view, item->expert, &n);
    for (uint32_t i = 0; i < n; i++) {
        *parts += object_first[objects[i].object + 1] - object_first[objects[i].object];
        *shards += fs->store->objects[objects[i].object].shard_count;
    }
}

static void part_job_run(struct efs_job *job, struct efs_codec_scratch *scratch);
static bool part_loaded(struct efs *fs, struct efs_extent_waiter *waiter);

static void item_add_parts(const struct efs *fs, struct efs_request_item *item, struct efs_load *load)
{
    uint32_t n;
    const uint32_t *object_first = efs_extents(fs)->object_first;
    const struct efs_expert_part *objects = efs_view_expert_parts(&fs->view, item->expert, &n);
    item->load = load;
    item->parts = &load->parts[load->part_count];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = object_first[objects[i].object]; x < object_first[objects[i].object + 1]; x++) {
            struct efs_part *p = &load->parts[load->part_count++];
            uint64_t begin = efs_extent_begin(fs, x), end;
            efs_extent_at(fs, objects[i].object, begin, &end);
            p->item = item;
            p->waiter = (struct efs_extent_waiter){
                .extent = x, .job.run = part_job_run, .loaded = part_loaded, .long_term = item->form == EFS_FORM_CODED};
            p->file_offset = objects[i].file_offset + begin;
            p->object_offset = begin;
            p->bytes = (size_t)(end - begin);
            p->shards = efs_extent(fs, x)->shard_count;
        }
    item->part_count = (uint32_t)(&load->parts[load->part_count] - item->parts);
    item->remaining = item->part_count + 1;
}

struct efs_load *efs_load_new(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    uint32_t parts = 0, shards = 0;
    for (uint32_t i = 0; i < count; i++)
        item_count(fs, &items[i], &parts, &shards);
    struct efs_load *load =
        efs_sys_calloc(1, sizeof(*load) + parts * sizeof(load->parts[0]) + shards * sizeof(load->jobs[0]));
    if (!load)
        return NULL;
    load->request = items->request;
    load->refs = count;
    load->jobs = (struct efs_load_job *)(void *)&load->parts[parts];
    for (uint32_t i = 0; i < count; i++)
        item_add_parts(fs, &items[i], load);
    return load;
}

/* ---- completion ---- */

static void item_put(struct efs_request_item *item)
{
    if (atomic_fetch_sub(&item->remaining, 1) == 1)
        item->ops->loaded(item);
}

/* Whether the part is read uncached, because the chunk pool had no memory for its extent. */
static bool part_is_uncached(const struct efs_part *p)
{
    return p->waiter.error == -ENOMEM && p->item->form == EFS_FORM_FULL;
}

/* Ends a part that was decoded or has failed. May free the request. */
static void part_done(struct efs_part *p)
{
    struct efs_request_item *item = p->item;
    if (p->waiter.error < 0 && !part_is_uncached(p))
        item->load_error = p->waiter.error;
    else if (item->form == EFS_FORM_FULL && !part_is_uncached(p))
        efs_extent_put_later(item->request->fs, &p->waiter); /* the decoded copy replaces these chunks */
    item_put(item);
}

/* ---- decoding ---- */

static void part_decode(struct efs_part *p, uint32_t shard, struct efs_codec_scratch *scratch)
{
    struct efs_request_item *item = p->item;
    struct efs *fs = item->request->fs;
    if (item->form == EFS_FORM_CODED) { /* only the checksums are verified */
        errint_t bad = efs_extent_check(fs, p->waiter.extent, shard);
        if (bad < 0)
            item->load_error = bad;
        return;
    }
    uint32_t object = efs_extent(fs, p->waiter.extent)->object;
    uint64_t shard_bytes = efs_object_shard_bytes(fs, object);
    uint64_t begin = shard * shard_bytes;
    size_t n = p->bytes - begin < shard_bytes ? (size_t)(p->bytes - begin) : (size_t)shard_bytes;
    uint8_t *to = item->memfile->data + p->file_offset + begin;
    bool fresh = !efs_extent_shard_checked(fs, p->waiter.extent, shard);
    uint64_t start = efs_now_ns(), end;
    errint_t rc = efs_extent_decode(fs, p->waiter.extent, object, p->object_offset + begin, n, to, true, scratch);
    end = efs_now_ns();
    efs_extent_record(fs, EFS_RECORD_DECODE, p->waiter.extent, shard, start, end);
    if (rc == 0)
        efs_estimator_decode(fs->estimator, fresh ? EFS_DECODE_READ : EFS_DECODE_CACHED, n, end - start);
    else
        item->load_error = rc;
}

/* Decodes the first shard, in order of priority, of a part that is ready. One job is pushed per shard of a ready part,
 * so such a shard exists. */
static void load_decode_next(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_load *load = EFS_CONTAINER(job, struct efs_load_job, job)->load;
    pthread_mutex_t *lock = &load->request->lock;
    struct efs_part *p = load->parts;
    pthread_mutex_lock(lock);
    while (!p->ready || p->next_shard == p->shards)
        p++;
    uint32_t shard = p->next_shard++;
    pthread_mutex_unlock(lock);
    part_decode(p, shard, scratch);
    pthread_mutex_lock(lock);
    bool last = ++p->done_shards == p->shards;
    pthread_mutex_unlock(lock);
    if (last)
        part_done(p);
}

/* Whether the part has shards to decode or check, after its extent was loaded or failed, and its item was started. */
static bool part_has_work(const struct efs_part *p)
{
    return p->shards > 0 && p->waiter.error == 0 && p->item->load_error == 0 &&
           (p->item->form == EFS_FORM_FULL || !efs_extent_checked(p->item->request->fs, p->waiter.extent));
}

/* Marks the part ready. Returns its jobs, one per shard, which the caller pushes. */
static struct efs_load_job *part_jobs(struct efs_part *p)
{
    struct efs_load *load = p->item->load;
    pthread_mutex_lock(&load->request->lock);
    p->ready = true;
    struct efs_load_job *jobs = &load->jobs[load->job_next];
    load->job_next += p->shards;
    pthread_mutex_unlock(&load->request->lock);
    for (uint32_t i = 0; i < p->shards; i++)
        jobs[i] = (struct efs_load_job){.job = {.run = load_decode_next}, .load = load};
    return jobs;
}

static void part_uncached_done(struct efs *fs, struct efs_uncached *uncached, errint_t error)
{
    struct efs_part *p = EFS_CONTAINER(uncached, struct efs_part, uncached);
    (void)fs;
    if (error < 0)
        p->item->load_error = error;
    part_done(p);
}

static void part_read_uncached(struct efs_part *p)
{
    struct efs *fs = p->item->request->fs;
    efs_count(&fs->stats, reads_past, 1);
    p->uncached = (struct efs_uncached){.object = efs_extent(fs, p->waiter.extent)->object,
                                        .begin = p->object_offset,
                                        .bytes = p->bytes,
                                        .dst = p->item->memfile->data + p->file_offset,
                                        .done = part_uncached_done};
    efs_uncached_read(fs, &p->uncached);
}

/* Pushes the part's jobs, or ends a part that has none. May free the request. */
static void part_ready(struct efs_part *p)
{
    if (part_is_uncached(p) && p->item->load_error == 0) {
        part_read_uncached(p);
        return;
    }
    if (!part_has_work(p)) {
        part_done(p);
        return;
    }
    struct efs_workers *workers = p->item->request->fs->workers;
    uint32_t count = p->shards;
    struct efs_load_job *jobs = part_jobs(p);
    for (uint32_t i = 0; i < count; i++)
        efs_workers_push(workers, &jobs[i].job);
}

/* Whether the item was started; else efs_item_begin() handles the part, which is loaded or has failed. */
static bool part_is_started(struct efs_part *p)
{
    pthread_mutex_lock(&p->item->request->lock);
    bool started = p->item->started;
    if (!started)
        p->early = true;
    pthread_mutex_unlock(&p->item->request->lock);
    return started;
}

static void part_job_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_part *p = EFS_CONTAINER(job, struct efs_part, waiter.job);
    (void)scratch;
    if (part_is_started(p))
        part_ready(p);
}

/* efs_extent_waiter.loaded, lock held: defers the decode jobs. false: the part has none; a job ends it, because that
 * may call the user. */
static bool part_loaded(struct efs *fs, struct efs_extent_waiter *waiter)
{
    struct efs_part *p = EFS_CONTAINER(waiter, struct efs_part, waiter);
    if (!part_is_started(p))
        return true;
    if (!part_has_work(p))
        return false;
    uint32_t count = p->shards;
    struct efs_load_job *jobs = part_jobs(p);
    for (uint32_t i = 0; i < count; i++)
        efs_defer_job(fs, &jobs[i].job, EFS_JOB_NORMAL);
    return true;
}

/* ---- start ---- */

void efs_item_request_parts(struct efs_request_item *item)
{
    struct efs *fs = item->request->fs;
    for (uint32_t i = 0; i < item->part_count; i++) {
        struct efs_part *p = &item->parts[i];
        if (efs_extent_request(fs, p->waiter.extent, EFS_PACE_RANDOM, &p->waiter))
            p->early = true;
        else
            item->from_disk = true;
    }
}

void efs_item_begin(struct efs_request_item *item)
{
    struct efs_part *parts = item->parts;
    uint32_t count = item->part_count;
    pthread_mutex_lock(&item->request->lock);
    item->started = true;
    pthread_mutex_unlock(&item->request->lock);
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].early)
            part_ready(&parts[i]);
    item_put(item);
}
