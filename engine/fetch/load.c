/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - see fetch.h: admitted items. Prepares their memory, reads and decodes them; answers them, and what an item
 * holds until it is dropped.
 */
#include "fetch.h"
#include "stats.h"

#include "cache.h"
#include "container.h"
#include "estimator.h"
#include "extent.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- holders and references; without lock ---- */

struct efs_holder *efs_holder_new(void)
{
    struct efs_holder *holder = efs_sys_calloc(1, sizeof(*holder));
    if (holder)
        holder->refs = 1;
    return holder;
}

void efs_holder_unref(struct efs_holder *holder)
{
    if (holder && atomic_fetch_sub(&holder->refs, 1) == 1)
        free(holder);
}

void efs_request_unref(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool last = --request->refs == 0;
    pthread_mutex_unlock(&request->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < request->base.count; i++)
        free(request->items[i].tensors);
    efs_holder_unref(request->holder);
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    efs_client_request_free(&request->base);
}

/* ---- memory; with efs.lock held ---- */

uint64_t efs_item_bytes(const struct efs *fs, const struct efs_request_item *item)
{
    return item->form == EFS_FORM_CODED ? efs_expert_coded_bytes(fs, item->expert)
                                        : efs_memfile_bytes(fs, item->expert);
}

void efs_item_set_held(struct efs *fs, struct efs_request_item *item, bool held)
{
    uint64_t bytes = efs_item_bytes(fs, item);
    if (item->held == held)
        return;
    item->held = held;
    const bool was_holding = efs_held_some(item->request->held);
    item->request->held.bytes[item->form] += held ? bytes : -bytes;
    const bool is_holding = efs_held_some(item->request->held);
    if (item->request->base.thread && !was_holding && is_holding)
        LIST_INSERT_HEAD(&fs->leases->holding, item->request, holding);
    else if (item->request->base.thread && was_holding && !is_holding)
        LIST_REMOVE(item->request, holding);
    if (item->request->holder)
        item->request->holder->held.bytes[item->form] += held ? bytes : -bytes;
    if (!held)
        efs_changed(fs, EFS_CHANGED_HELD);
}

void efs_item_coded_pin(struct efs *fs, const struct efs_request_item *item)
{
    if (fs->leases->at[item->expert].coded_pins++ == 0) {
        efs_account_charge(&fs->account, EFS_ACCOUNT_CODED_PINNED, efs_item_bytes(fs, item));
        fs->coded_pinned++;
    }
}

void efs_item_coded_unpin(struct efs *fs, const struct efs_request_item *item)
{
    if (--fs->leases->at[item->expert].coded_pins == 0) {
        efs_account_release(&fs->account, EFS_ACCOUNT_CODED_PINNED, efs_item_bytes(fs, item));
        fs->coded_pinned--;
    }
}

void efs_lease_get(struct efs *fs, uint32_t expert)
{
    efs_full_lease(fs, expert);
    efs_cache_leased(fs);
}

void efs_item_release(struct efs_request_item *item, int *fd)
{
    struct efs *fs = item->request->fs;
    efs_item_set_held(fs, item, false);
    if (item->form == EFS_FORM_FULL) {
        efs_full_unlease(fs, item->expert, fd);
    } else {
        for (uint32_t i = 0; i < item->part_count; i++)
            if (item->parts[i].waiter.error == 0)
                efs_extent_unref(fs, &item->parts[i].waiter, false);
        efs_item_coded_unpin(fs, item);
    }
    efs_cache_release(fs, item->expert);
}

/* ---- the answer; without lock ---- */

static void item_release(struct efs_request_item *item)
{
    int fd = -1;
    efs_lock(item->request->fs);
    efs_item_release(item, &fd);
    efs_unlock(item->request->fs);
    if (fd >= 0)
        efs_sys_close(fd);
}

void efs_item_set(struct efs_request_item *item, enum efs_item_state state, errint_t error)
{
    pthread_mutex_lock(&item->request->lock);
    efs_client_item_set(&item->request->base, &item->base, state, error);
    pthread_mutex_unlock(&item->request->lock);
}

/* Answers an item; it was loaded, or load_error says why not. One of another process is READY until efs_client_drop(),
 * or FAILED. One of this process is READY, FAILED, or was dropped meanwhile. May free
 * the request. */
static void item_answer(struct efs *fs, struct efs_task *task)
{
    struct efs_request_item *item = EFS_CONTAINER(task, struct efs_request_item, task);
    struct efs_request *request = item->request;
    const errint_t error = item->load_error;
    const bool own = !request->arrived;
    efs_count(fs->stats, lease_errors, item->form == EFS_FORM_FULL && error < 0);
    efs_count(fs->stats, coded_errors, item->form == EFS_FORM_CODED && error < 0);
    if (!own) {
        efs_item_set(item, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
        request->arrived(item->arg, error, error < 0 ? NULL : &request->base, (uint32_t)(item - request->items));
    } else {
        pthread_mutex_lock(&request->lock);
        bool loading = item->base.state == EFS_ITEM_LOADING;
        if (loading)
            efs_client_item_set(&request->base, &item->base, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
        pthread_mutex_unlock(&request->lock);
        if (error == 0 && !loading)
            item_release(item);
    }
    if (own || error < 0) /* else it may be freed already */
        efs_request_unref(request);
    efs_in_flight_end(fs);
}

void efs_item_defer_answer(struct efs *fs, struct efs_request_item *item, errint_t error)
{
    item->load_error = error;
    efs_defer_task(fs, &item->task, item_answer);
}

/* ---- the end of a load; without lock ---- */

/* The item was loaded, or load_error is set. A full one answers all items that wait for the expert. May free the
 * request. */
static void item_loaded(struct efs_request_item *item)
{
    struct efs *fs = item->request->fs;
    struct efs_memfile *memfile = item->memfile;
    const uint32_t expert = item->expert;
    const errint_t error = item->load_error;
    const bool good = error == 0, from_disk = item->from_disk, fresh = !memfile || !memfile->populated;
    if (item->form == EFS_FORM_CODED) {
        efs_count(fs->stats, coded_m, good && from_disk);
        efs_count(fs->stats, coded_c, good && !from_disk);
        if (!good)
            item_release(item);
        item_answer(fs, &item->task);
        return;
    }
    efs_lock(fs);
    efs_extents_put_used_up(fs);
    assert(!memfile || memfile->kind != EFS_MEMFILE_EXPORTED); /* the fill has just written it */
    if (memfile && fresh)
        memfile->populated = good;
    struct efs_request_item *waiter = efs_full_filled(fs, expert, good ? memfile : NULL, fresh), *next;
    efs_account_add_allocated(&fs->account, memfile && fresh ? memfile->bytes : 0);
    if (!memfile)
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL, efs_memfile_bytes(fs, expert));
    else if (!good)
        efs_full_put_memfile(fs, memfile);
    if (!good)
        efs_cache_lost_full(fs, expert);
    for (; waiter; waiter = next) {
        next = waiter->next_waiter;
        if (good) {
            efs_lease_get(fs, expert);
        } else {
            efs_item_set_held(fs, waiter, false);
            efs_cache_release(fs, expert);
        }
        efs_count(fs->stats, leases_shared, good && next); /* all except one joined the load */
        efs_item_defer_answer(fs, waiter, error);
    }
    efs_count(fs->stats, leases_m, good && from_disk);
    efs_count(fs->stats, leases_c, good && !from_disk);
    efs_unlock(fs);
}

struct efs_load_job {
    struct efs_job job;
    struct efs_request *request;
};

/* ---- parts ---- */

size_t efs_expert_load_bytes(const struct efs *fs, uint32_t expert)
{
    uint32_t n, parts = 0, shards = 0;
    const uint32_t *object_first = efs_extents(fs)->object_first;
    const struct efs_expert_part *objects = efs_view_expert_parts(&fs->view, expert, &n);
    for (uint32_t i = 0; i < n; i++) {
        parts += object_first[objects[i].object + 1] - object_first[objects[i].object];
        shards += fs->store->objects[objects[i].object].shard_count;
    }
    return parts * sizeof(struct efs_part) + shards * sizeof(struct efs_load_job);
}

static void part_job_run(struct efs_job *job, struct efs_codec_scratch *scratch);
static bool part_loaded(struct efs *fs, struct efs_extent_waiter *waiter);
static void part_uncached_done(struct efs *fs, struct efs_uncached *span, errint_t error);

/* In memory that is zero. Returns the end of the item's parts. */
static struct efs_part *item_add_parts(struct efs_request_item *item, struct efs_part *parts)
{
    const struct efs *fs = item->request->fs;
    uint32_t n;
    const uint32_t *object_first = efs_extents(fs)->object_first;
    const struct efs_expert_part *objects = efs_view_expert_parts(&fs->view, item->expert, &n);
    item->parts = parts;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t begin = 0, end;
        for (uint32_t x = object_first[objects[i].object]; x < object_first[objects[i].object + 1]; x++, begin = end) {
            struct efs_part *p = parts++;
            end = efs_extent_end(fs, x, objects[i].object);
            p->item = item;
            p->waiter.extent = x;
            p->waiter.job.run = part_job_run;
            p->waiter.loaded = part_loaded;
            p->file_offset = objects[i].file_offset + begin;
            p->span.object = objects[i].object;
            p->span.begin = begin;
            p->span.bytes = (size_t)(end - begin);
            p->span.done = part_uncached_done;
            p->shards = efs_extent(fs, x)->shard_count;
            p->gate = 2;
        }
    }
    item->part_count = (uint32_t)(parts - item->parts);
    item->remaining = item->part_count + 1;
    return parts;
}

void efs_request_add_parts(struct efs_request *request)
{
    struct efs_part *end = request->parts = (struct efs_part *)(void *)&request->items[request->base.count];
    for (uint32_t i = 0; i < request->base.count; i++)
        end = item_add_parts(&request->items[i], end);
    request->jobs = (struct efs_load_job *)(void *)end;
}

/* ---- completion ---- */

static void item_put(struct efs_request_item *item)
{
    if (atomic_fetch_sub(&item->remaining, 1) == 1)
        item_loaded(item);
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
    uint32_t object = p->span.object;
    uint64_t shard_bytes = efs_object_shard_bytes(fs, object);
    uint64_t begin = shard * shard_bytes;
    size_t n = p->span.bytes - begin < shard_bytes ? (size_t)(p->span.bytes - begin) : (size_t)shard_bytes;
    uint8_t *to = item->memfile->data + p->file_offset + begin;
    bool fresh = !efs_extent_shard_checked(fs, p->waiter.extent, shard);
    uint64_t start = efs_now_ns();
    errint_t rc = efs_extent_decode(fs, p->waiter.extent, object, p->span.begin + begin, n, to, true, scratch);
    if (rc == 0)
        efs_estimator_decode(fs->estimator, fresh ? EFS_DECODE_READ : EFS_DECODE_CACHED, n, efs_now_ns() - start);
    else
        item->load_error = rc;
}

/* Decodes the first shard, in order of priority, of a part that is ready. One job is pushed per shard of a ready part,
 * so such a shard exists. */
static void load_decode_next(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_request *request = EFS_CONTAINER(job, struct efs_load_job, job)->request;
    pthread_mutex_t *lock = &request->lock;
    struct efs_part *p = request->parts;
    pthread_mutex_lock(lock);
    while (!p->ready || p->next_shard == p->shards)
        p++;
    uint32_t shard = p->next_shard++;
    pthread_mutex_unlock(lock);
    part_decode(p, shard, scratch);
    const uint32_t shards = p->shards; /* the last one to be done may free the request */
    if (atomic_fetch_add(&p->done_shards, 1) + 1 == shards)
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
    struct efs_request *request = p->item->request;
    pthread_mutex_lock(&request->lock);
    p->ready = true;
    struct efs_load_job *jobs = &request->jobs[request->job_next];
    request->job_next += p->shards;
    pthread_mutex_unlock(&request->lock);
    for (uint32_t i = 0; i < p->shards; i++)
        jobs[i] = (struct efs_load_job){.job = {.run = load_decode_next}, .request = request};
    return jobs;
}

static void part_uncached_done(struct efs *fs, struct efs_uncached *span, errint_t error)
{
    struct efs_part *p = EFS_CONTAINER(span, struct efs_part, span);
    (void)fs;
    if (error < 0)
        p->item->load_error = error;
    part_done(p);
}

/* Reads the part uncached, pushes its jobs, or ends it if it has none. May free the request. */
static void part_ready(struct efs_part *p)
{
    struct efs *fs = p->item->request->fs;
    if (part_is_uncached(p) && p->item->load_error == 0) {
        efs_count(fs->stats, reads_past, 1);
        p->span.dst = p->item->memfile->data + p->file_offset;
        efs_uncached_read(fs, &p->span);
    } else if (part_has_work(p)) {
        uint32_t count = p->shards;
        struct efs_load_job *jobs = part_jobs(p);
        for (uint32_t i = 0; i < count; i++)
            efs_workers_push(fs->workers, &jobs[i].job, EFS_JOB_NORMAL);
    } else {
        part_done(p);
    }
}

/* One of the two events has happened. true: both have, and the caller handles the part. */
static bool part_may_decode(struct efs_part *p)
{
    return p->gate == 0 || atomic_fetch_sub(&p->gate, 1) == 1;
}

static void part_job_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_part *p = EFS_CONTAINER(job, struct efs_part, waiter.job);
    (void)scratch;
    if (part_may_decode(p))
        part_ready(p);
}

/* efs_extent_waiter.loaded, lock held: defers the decode jobs. false: the part has none; a job ends it, because that
 * may call the user. */
static bool part_loaded(struct efs *fs, struct efs_extent_waiter *waiter)
{
    struct efs_part *p = EFS_CONTAINER(waiter, struct efs_part, waiter);
    if (!part_may_decode(p))
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
            part_may_decode(p);
        else
            item->from_disk = true;
    }
}

/* Sets the size of the memory file, allocates its pages, writes the header of the expert's file and zeros after its
 * end. -ENOMEM: no pages. */
static errint_t memfile_prepare(const struct efs_view *view, uint32_t expert, struct efs_memfile *memfile)
{
    uint64_t file_bytes = efs_view_expert_bytes(view, expert);
    efs_memfile_resize(memfile, file_bytes);
    errint_t rc = efs_memfile_reserve(memfile);
    if (rc < 0)
        return rc;
    efs_view_expert_header(view, expert, (char *)memfile->data);
    memset(memfile->data + file_bytes, 0, memfile->bytes - file_bytes);
    return 0;
}

void efs_item_start(struct efs *fs, struct efs_task *task)
{
    struct efs_request_item *item = EFS_CONTAINER(task, struct efs_request_item, task);
    struct efs_part *parts = item->parts;
    uint32_t count = item->part_count;
    if (item->form == EFS_FORM_FULL && !item->memfile)
        item->memfile = efs_memfile_new(efs_full_memfiles(fs), efs_memfile_bytes(fs, item->expert));
    if (item->form == EFS_FORM_FULL && (!item->memfile || memfile_prepare(&fs->view, item->expert, item->memfile) < 0))
        item->load_error = -ENOMEM; /* the system has no memory, although the budget had */
    for (uint32_t i = 0; i < count; i++)
        if (part_may_decode(&parts[i]))
            part_ready(&parts[i]);
    item_put(item);
}
