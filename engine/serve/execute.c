/* execute.c - see execute.h. A batch lives until its last piece is done. */
#include "execute.h"

#include "gauge.h"
#include "order.h"
#include "record.h"
#include "residency.h"
#include "sys.h"
#include "unit_core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct batch_job {
    struct efs_job job;
    struct efs_batch *batch;
};

struct efs_batch {
    struct efs *fs;
    pthread_mutex_t lock;  /* guards the progress of pieces */
    _Atomic uint32_t left; /* pieces that are not done, and one for who begins it */
    uint32_t piece_count, job_next;
    uint32_t shards; /* of all pieces: as many jobs */
    struct batch_job *jobs;
    struct efs_fill_piece *pieces[]; /* in order of priority; NULL: done, its fill may be gone */
};

/* ---- fills ---- */

struct efs_fill *efs_fill_new(struct efs *fs, uint32_t expert)
{
    struct efs_expert_part parts[EFS_EXPERT_OBJECTS];
    uint32_t n = efs_view_expert_parts(&fs->view, expert, parts), count = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        count += fs->object_unit[parts[i].object + 1] - fs->object_unit[parts[i].object];
    struct efs_fill *fill = efs_sys_calloc(1, sizeof(*fill) + count * sizeof(fill->pieces[0]));
    if (!fill)
        return NULL;
    fill->fs = fs;
    fill->expert = expert;
    fill->tokens = 1;
    fill->piece_count = count;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t u = fs->object_unit[parts[i].object]; u < fs->object_unit[parts[i].object + 1]; u++) {
            struct efs_fill_piece *p = &fill->pieces[at++];
            uint64_t begin = efs_unit_begin(fs, u), end;
            efs_unit_at(fs, parts[i].object, begin, &end);
            p->fill = fill;
            p->waiter.unit = u;
            p->file_offset = parts[i].file_offset + begin;
            p->object_offset = begin;
            p->bytes = (size_t)(end - begin);
            p->shards = fs->units[u].shard_count;
        }
    return fill;
}

void efs_fill_unref(struct efs_fill *fill)
{
    for (uint32_t i = 0; i < fill->piece_count; i++)
        efs_unit_put(fill->fs, fill->pieces[i].waiter.unit);
}

static void fill_less(struct efs_fill *fill)
{
    if (atomic_fetch_sub(&fill->remaining, 1) == 1)
        fill->ended(fill);
}

static void batch_less(struct efs_batch *batch)
{
    if (atomic_fetch_sub(&batch->left, 1) != 1)
        return;
    pthread_mutex_destroy(&batch->lock);
    free(batch->jobs);
    free(batch);
}

/* All of a piece is done, or has failed. The fill may be gone afterwards. */
static void piece_done(struct efs_fill_piece *p)
{
    struct efs_fill *fill = p->fill;
    struct efs_batch *batch = p->batch;
    pthread_mutex_lock(&batch->lock);
    batch->pieces[p->place] = NULL;
    pthread_mutex_unlock(&batch->lock);
    if (p->waiter.error < 0) {
        fill->error = p->waiter.error;
    } else if (fill->slot) {
        efs_unit_first_to_go(fill->fs, p->waiter.unit); /* the same bytes are full now */
        efs_unit_put(fill->fs, p->waiter.unit);
    }
    fill_less(fill);
    batch_less(batch);
}

/* ---- decoding ---- */

static void decode(struct efs_fill_piece *p, uint32_t shard, struct efs_codec_scratch *scratch)
{
    struct efs *fs = p->fill->fs;
    if (!p->fill->slot) { /* the chunks are what is wanted */
        errint_t bad = efs_unit_check(fs, p->waiter.unit, shard);
        if (bad < 0)
            p->fill->error = bad;
        return;
    }
    uint64_t shard_bytes = efs_object_shard_bytes(fs, fs->units[p->waiter.unit].object);
    uint64_t begin = shard * shard_bytes;
    size_t n = p->bytes - begin < shard_bytes ? (size_t)(p->bytes - begin) : (size_t)shard_bytes;
    bool fresh = !efs_unit_shard_checked(fs, p->waiter.unit, shard);
    uint64_t start = efs_now_ns(), end;
    errint_t rc = efs_unit_decode(fs, p->waiter.unit, p->object_offset + begin, n,
                                  p->fill->slot->data + p->file_offset + begin, true, scratch);
    end = efs_now_ns();
    efs_record(fs, EFS_RECORD_DECODE, p->waiter.unit, shard, start, end);
    if (rc == 0)
        efs_gauge_decode(fs->gauge, fresh ? EFS_DECODE_FRESH : EFS_DECODE_KEPT, n, end - start);
    if (rc < 0)
        p->fill->error = rc;
}

/* A worker is free: the first shard available in order of priority. There is one for each job. */
static void take_one(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_batch *batch = ((struct batch_job *)((char *)job - offsetof(struct batch_job, job)))->batch;
    struct efs_fill_piece *p = NULL;
    pthread_mutex_lock(&batch->lock);
    for (uint32_t i = 0; i < batch->piece_count && !p; i++)
        if (batch->pieces[i] && batch->pieces[i]->ready && batch->pieces[i]->next_shard < batch->pieces[i]->shards)
            p = batch->pieces[i];
    uint32_t shard = p->next_shard++;
    pthread_mutex_unlock(&batch->lock);
    decode(p, shard, scratch);
    pthread_mutex_lock(&batch->lock);
    bool last = ++p->done_shards == p->shards;
    pthread_mutex_unlock(&batch->lock);
    if (last)
        piece_done(p);
}

/* The unit is here: as many jobs as it has shards. */
static void piece_ready(struct efs_fill_piece *p)
{
    struct efs_batch *batch = p->batch;
    bool as_it_is = !p->fill->slot && p->waiter.error == 0 && efs_unit_checked(batch->fs, p->waiter.unit);
    if (p->waiter.error < 0 || p->shards == 0 || as_it_is) {
        piece_done(p);
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
    piece_ready((struct efs_fill_piece *)((char *)job - offsetof(struct efs_fill_piece, waiter.job)));
}

/* ---- putting a batch together ---- */

static struct efs_batch *batch_new(struct efs *fs, struct efs_fill **fills, uint32_t count)
{
    uint32_t pieces = 0, shards = 0;
    for (uint32_t f = 0; f < count; f++)
        for (uint32_t i = 0; i < fills[f]->piece_count; i++, pieces++)
            shards += fills[f]->pieces[i].shards;
    struct efs_batch *batch = efs_sys_calloc(1, sizeof(*batch) + pieces * sizeof(batch->pieces[0]));
    if (!batch)
        return NULL;
    batch->jobs = efs_sys_calloc(shards + 1u, sizeof(*batch->jobs));
    if (!batch->jobs) {
        free(batch);
        return NULL;
    }
    pthread_mutex_init(&batch->lock, NULL);
    batch->fs = fs;
    batch->piece_count = pieces;
    batch->left = pieces + 1;
    uint32_t at = 0;
    for (uint32_t f = 0; f < count; f++) {
        fills[f]->remaining = fills[f]->piece_count + 1;
        for (uint32_t i = 0; i < fills[f]->piece_count; i++) {
            struct efs_fill_piece *p = &fills[f]->pieces[i];
            p->batch = batch;
            p->waiter.job.run = waited;
            p->waiter.error = 0;
            batch->pieces[at++] = p;
        }
    }
    return batch;
}

/* Lock held: ask for a piece's unit, and keep its reads apart by half; what else is to be submitted is put on *others.
 * true: it is here. */
static bool ask(struct efs *fs, struct efs_fill_piece *p, struct efs_unit_waiter **failed,
                struct efs_disk_request **others)
{
    struct efs_disk_request *mine = NULL;
    const struct efs_unit *u = &fs->units[p->waiter.unit];
    bool here = efs_unit_ask(fs, p->waiter.unit, &p->waiter, failed, &mine);
    for (struct efs_disk_request *next; mine; mine = next) {
        next = mine->next;
        if (mine->bytes == 0) { /* a segment that leaves */
            mine->next = *others;
            *others = mine;
        } else {
            p->read[mine->data == u->e.data ? 0 : 1] = mine;
        }
    }
    return here;
}

/* Put a read of the piece, if it needs one, at the end of a list. */
static struct efs_disk_request **submit_read(struct efs_fill_piece *p, unsigned half, struct efs_disk_request **tail)
{
    struct efs_disk_request *r = p->read[half];
    if (!r)
        return tail;
    p->read[half] = NULL;
    r->next = NULL;
    *tail = r;
    return &r->next;
}

/* Lock held: everything is asked for in the order of reads. Pieces that are here are put first in here[]. */
static uint32_t ask_all(struct efs_batch *batch, const struct efs_order_plan *plan, struct efs_fill_piece **here,
                        struct efs_unit_waiter **failed, struct efs_disk_request **submit)
{
    struct efs_disk_request *others = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < batch->piece_count; i++) {
        struct efs_fill_piece *p = plan->ask[i];
        if (ask(batch->fs, p, failed, &others))
            here[count++] = p;
        else
            p->fill->from_disk = true;
    }
    for (*submit = others; *submit;)
        submit = &(*submit)->next;
    for (uint32_t i = 0; i < plan->read_count; i++)
        submit = submit_read(plan->reads[i].piece, plan->reads[i].sm, submit);
    for (uint32_t i = 0; i < batch->piece_count; i++) /* what was there when the plan was made and is not any more */
        for (unsigned half = 0; half < 2; half++)
            submit = submit_read(plan->ask[i], half, submit);
    return count;
}

static void fail_all(struct efs_fill **fills, uint32_t count)
{
    for (uint32_t f = 0; f < count; f++) {
        for (uint32_t i = 0; i < fills[f]->piece_count; i++)
            fills[f]->pieces[i].batch = NULL; /* nothing was asked for */
        fills[f]->error = -ENOMEM;
        fills[f]->ended(fills[f]);
    }
}

void efs_execute(struct efs *fs, struct efs_fill **fills, uint32_t count)
{
    struct efs_batch *batch = batch_new(fs, fills, count);
    struct efs_order_plan *plan = batch ? efs_order_new(fs, batch->pieces, batch->piece_count, fills, count) : NULL;
    if (!plan) {
        if (batch) {
            batch->left = 1;
            batch_less(batch);
        }
        fail_all(fills, count);
        return;
    }
    for (uint32_t i = 0; i < batch->piece_count; i++)
        batch->pieces[i]->place = i;
    struct efs_unit_waiter *failed = NULL;
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    uint32_t here = ask_all(batch, plan, plan->here, &failed, &submit);
    pthread_mutex_unlock(&fs->lock);
    while (failed) {
        struct efs_unit_waiter *w = failed;
        failed = w->next;
        w->next = NULL;
        efs_unit_push_waiters(fs, w, w->error);
    }
    efs_disk_submit_all(fs, submit);
    for (uint32_t i = 0; i < here; i++)
        piece_ready(plan->here[i]);
    efs_order_free(plan);
    for (uint32_t f = 0; f < count; f++)
        fill_less(fills[f]);
    batch_less(batch);
}
