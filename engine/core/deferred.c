/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.c - see deferred.h. */
#include "efs.h"

#include "container.h"

#include <errno.h>

#define LINES (1u << EFS_AGAIN_LEASES | 1u << EFS_AGAIN_CODED)

void efs_deferred_init(struct efs_deferred *d)
{
    *d = (struct efs_deferred){0};
    EFS_QUEUE_INIT(&d->reads);
    for (unsigned order = 0; order < EFS_JOB_ORDERS; order++)
        EFS_QUEUE_INIT(&d->jobs[order]);
    EFS_QUEUE_INIT(&d->memfiles);
    EFS_QUEUE_INIT(&d->fills);
    EFS_QUEUE_INIT(&d->fetches);
    EFS_QUEUE_INIT(&d->answers);
}

void efs_again(struct efs *fs, enum efs_again who)
{
    fs->deferred.again |= 1u << who;
}

void efs_defer_read(struct efs *fs, struct efs_disk_request *request)
{
    fs->deferred.any = true;
    EFS_QUEUE_PUT(&fs->deferred.reads, request);
}

void efs_defer_look(struct efs *fs)
{
    fs->deferred.any = fs->deferred.look = true;
}

errint_t efs_defer_supply(struct efs *fs)
{
    atomic_store(&fs->supply_wanted, true);
    if (fs->supply_failed) { /* tried for this turn; it gets none, and ends */
        fs->supply_failed = false;
        return -ENOMEM;
    }
    fs->deferred.any = fs->deferred.supply = true;
    return -EAGAIN;
}

void efs_defer_job(struct efs *fs, struct efs_job *job, enum efs_job_order order)
{
    fs->deferred.any = true;
    EFS_QUEUE_PUT(&fs->deferred.jobs[order], job);
}

/*
 * Lock held: who is to look again does, until nothing new comes of it. One thread at a time begins what waited in a
 * line: beginning may end at once, which lets the next of the line begin, and would go as deep as the line is long.
 */
static void deferred_look_again(struct efs *fs)
{
    for (;;) {
        struct efs_deferred *d = &fs->deferred;
        unsigned now = d->again & ~(fs->lines_begin || d->from_lines ? LINES : 0);
        if (now == 0)
            return;
        d->again &= ~now;
        for (unsigned who = 0; who < EFS_AGAIN_COUNT; who++)
            if (now & 1u << who)
                fs->hooks->again[who](fs);
    }
}

static void deferred_push_jobs(struct efs *fs, const struct efs_deferred *d)
{
    static void (*const push[])(struct efs_workers *, struct efs_job *) = {efs_workers_push_first, efs_workers_push,
                                                                           efs_workers_push_low};
    for (unsigned order = 0; order < EFS_JOB_ORDERS; order++)
        for (struct efs_job *job = d->jobs[order].head, *next; job; job = next) {
            next = job->next;
            push[order](fs->workers, job);
        }
}

/* No lock; does not block. */
static void deferred_pass_on(struct efs *fs, const struct efs_deferred *d)
{
    if (d->reads.head)
        efs_disk_submit(fs->disk, d->reads.head);
    if (d->look)
        efs_disk_look(fs->disk);
    deferred_push_jobs(fs, d);
}

/* No lock. */
static void deferred_work_off(struct efs *fs, const struct efs_deferred *d)
{
    if (d->memfiles.head) /* before others are made */
        fs->hooks->free_memfiles(fs, d->memfiles.head);
    deferred_pass_on(fs, d);
    if (d->fills.head || d->fetches.head)
        fs->hooks->begin(fs, d->fills.head, d->fetches.head);
    if (d->answers.head)
        fs->hooks->answer(fs, d->answers.head);
}

void efs_lock(struct efs *fs)
{
    fs->hooks->supply(fs, 0);
    pthread_mutex_lock(&fs->lock);
    fs->supply_failed = false; /* who asks in this turn is told at its end what came of it */
}

/* Lock held on entry. true: it is held again, since memory came free or a line went on, and somebody may look again. */
static bool deferred_turn_ends(struct efs *fs)
{
    deferred_look_again(fs);
    if (!fs->deferred.any) {
        pthread_mutex_unlock(&fs->lock);
        return false;
    }
    const struct efs_deferred d = fs->deferred;
    efs_deferred_init(&fs->deferred);
    fs->deferred.again = d.again; /* lines that another thread is at, or this one below */
    bool again = d.from_lines || d.memfiles.head || d.supply;
    fs->lines_begin |= d.from_lines;
    if (again)
        efs_active_begin(fs); /* all that begins may have ended when we come back */
    pthread_mutex_unlock(&fs->lock);
    deferred_work_off(fs, &d);
    if (!again)
        return false;
    fs->hooks->supply(fs, d.memfile_bytes);
    pthread_mutex_lock(&fs->lock);
    if (d.from_lines)
        fs->lines_begin = false;
    fs->account.freeing_bytes -= d.memfile_bytes;
    atomic_fetch_sub(&fs->account.gone_bytes, d.memfile_bytes);
    if (d.memfiles.head || d.supply) {
        efs_again(fs, EFS_AGAIN_EXTENTS);
        efs_again(fs, EFS_AGAIN_LEASES);
    }
    if (d.supply)
        efs_again(fs, EFS_AGAIN_REST);
    efs_active_end_locked(fs);
    return true;
}

void efs_unlock(struct efs *fs)
{
    while (deferred_turn_ends(fs))
        ;
}

/* ---- on the I/O thread ---- */

void efs_lock_completion(struct efs *fs)
{
    pthread_mutex_lock(&fs->lock);
    fs->supply_failed = false;
}

static void deferred_rest_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs *fs = EFS_CONTAINER(job, struct efs, rest_job);
    (void)scratch;
    efs_lock(fs);
    fs->rest_pushed = false;
    efs_unlock(fs);
    efs_active_end(fs);
}

/* Lock held: what may block stays for whoever leaves the lock next, a worker at the latest. */
static struct efs_deferred deferred_take_quick(struct efs *fs)
{
    struct efs_deferred *left = &fs->deferred;
    bool rest = left->memfiles.head || left->fills.head || left->fetches.head || left->answers.head || left->supply;
    if (rest && !fs->rest_pushed) {
        fs->rest_pushed = true;
        fs->rest_job.run = deferred_rest_run;
        efs_active_begin(fs);
        efs_defer_job(fs, &fs->rest_job, EFS_JOB_FIRST);
    }
    const struct efs_deferred d = *left;
    EFS_QUEUE_INIT(&left->reads);
    for (unsigned order = 0; order < EFS_JOB_ORDERS; order++)
        EFS_QUEUE_INIT(&left->jobs[order]);
    left->look = false;
    left->any = rest;
    return d;
}

void efs_unlock_completion(struct efs *fs)
{
    deferred_look_again(fs);
    const struct efs_deferred d = deferred_take_quick(fs);
    pthread_mutex_unlock(&fs->lock);
    deferred_pass_on(fs, &d);
}
