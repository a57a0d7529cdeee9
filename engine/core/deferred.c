/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.c - see deferred.h; and of efs.h the count of operations in flight, log messages, and memory that is charged
 * to the budget as fixed while the store is served. */
#include "efs.h"

#include "container.h"
#include "memfile.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void efs_log(const struct efs *fs, enum efs_log_level level, const char *format, ...)
{
    char line[2048];
    va_list args;
    if (!fs->options.log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fs->options.log(fs->options.log_arg, level, line);
}

errint_t efs_check_process(const struct efs *fs, struct efs_error *err)
{
    return efs_owner_check(&fs->owner, "the store", err);
}

void efs_in_flight_begin(struct efs *fs)
{
    atomic_fetch_add(&fs->in_flight, 1);
}

void efs_in_flight_end(struct efs *fs)
{
    unsigned count = atomic_load(&fs->in_flight);
    while (count > 1)
        if (atomic_compare_exchange_weak(&fs->in_flight, &count, count - 1))
            return;
    pthread_mutex_lock(&fs->lock); /* the last, while closing: efs_close() must not free the lock under us */
    efs_in_flight_end_locked(fs);
    pthread_mutex_unlock(&fs->lock);
}

void efs_in_flight_end_locked(struct efs *fs)
{
    if (atomic_fetch_sub(&fs->in_flight, 1) == 1)
        pthread_cond_broadcast(&fs->drained);
}

/* ---- changes since waiters were retried ---- */

void efs_changed(struct efs *fs, enum efs_change what)
{
    fs->deferred.changes.any = true;
    fs->deferred.changes.flight |= what == EFS_CHANGED_FLIGHT;
    fs->deferred.changes.admission |=
        what == EFS_CHANGED_GROWN || what == EFS_CHANGED_HELD || what == EFS_CHANGED_QUEUE;
}

struct efs_changes efs_changes(struct efs *fs)
{
    bool changed = efs_account_take_changed(&fs->account) != 0;
    fs->deferred.changes.any |= changed;
    fs->deferred.changes.admission |= changed;
    return fs->deferred.changes;
}

void efs_changes_undo(struct efs *fs, struct efs_changes before)
{
    bool any = efs_changes(fs).any;
    fs->deferred.changes = before;
    fs->deferred.changes.any = any; /* other waiters: a failed attempt may have ended references and demotions */
}

/* ---- deferred work ---- */

void efs_deferred_init(struct efs_deferred *d)
{
    *d = (struct efs_deferred){0};
    EFS_QUEUE_INIT(&d->reads);
    for (unsigned order = 0; order < EFS_JOB_ORDERS; order++)
        EFS_QUEUE_INIT(&d->jobs[order]);
    EFS_QUEUE_INIT(&d->tasks);
    EFS_QUEUE_INIT(&d->memfiles);
}

void efs_defer_read(struct efs *fs, struct efs_io *request)
{
    assert(efs_is_locked(fs));
    fs->deferred.any = true;
    EFS_QUEUE_PUSH(&fs->deferred.reads, request);
}

void efs_defer_disk_changes(struct efs *fs)
{
    assert(efs_is_locked(fs));
    fs->deferred.any = fs->deferred.disk_changes = true;
}

void efs_defer_job(struct efs *fs, struct efs_job *job, enum efs_job_order order)
{
    assert(efs_is_locked(fs));
    fs->deferred.any = true;
    EFS_QUEUE_PUSH(&fs->deferred.jobs[order], job);
}

void efs_defer_task(struct efs *fs, struct efs_task *task, void (*run)(struct efs *fs, struct efs_task *task))
{
    assert(efs_is_locked(fs));
    task->run = run;
    fs->deferred.any = true;
    EFS_QUEUE_PUSH(&fs->deferred.tasks, task);
}

void efs_defer_free(struct efs *fs, struct efs_memfile *memfile)
{
    assert(efs_is_locked(fs));
    efs_account_begin_return(&fs->account, memfile->bytes);
    fs->deferred.memfile_bytes += memfile->bytes;
    fs->deferred.any = true;
    EFS_QUEUE_PUSH(&fs->deferred.memfiles, memfile);
}

/* Whether waiters are to be retried; from here on only for further changes. */
static bool deferred_take_changes(struct efs *fs)
{
    if (!fs->account.changed && !fs->deferred.changes.any && !fs->arena.emptied)
        return false;
    bool changed = efs_changes(fs).any || fs->arena.emptied;
    fs->deferred.changes.any = fs->arena.emptied = false;
    return changed;
}

/* Lock held: retries all waiters until nothing changes any more; while the store is closed, always. */
static void deferred_run_retries(struct efs *fs)
{
    const struct efs_hooks *hooks = fs->hooks;
    for (bool run = deferred_take_changes(fs) || fs->closing; run && hooks; run = deferred_take_changes(fs)) {
        hooks->fit_budget(fs);
        if (fs->items_waiting || fs->admission_starved)
            hooks->admit(fs);
        hooks->load_extents(fs);
        if (fs->account.bytes[EFS_ACCOUNT_RETIRING])
            hooks->release_segments(fs);
        hooks->use_idle_disk(fs);
        hooks->look_at_plan(fs);
    }
}

/* No lock; does not block. */
static void deferred_submit(struct efs *fs, const struct efs_deferred *d)
{
    if (d->reads.head)
        efs_io_submit(fs->io, d->reads.head);
    if (d->disk_changes)
        efs_io_apply_changes(fs->io);
    for (enum efs_job_order order = 0; order < EFS_JOB_ORDERS; order++)
        for (struct efs_job *job = d->jobs[order].head, *next; job; job = next) {
            next = job->next;
            efs_workers_push(fs->workers, job, order);
        }
}

void efs_lock(struct efs *fs)
{
    pthread_mutex_lock(&fs->lock);
    fs->copied_bytes = 0;
}

void efs_copy_begin(struct efs *fs, size_t bytes)
{
    if (fs->copied_bytes + bytes <= EFS_LOCKED_COPY_MAX)
        return;
    efs_unlock(fs);
    efs_lock(fs);
}

void efs_copy_locked(struct efs *fs, void *to, const void *from, size_t bytes)
{
    fs->copied_bytes += bytes;
    assert(fs->copied_bytes <= EFS_LOCKED_COPY_MAX);
    memcpy(to, from, bytes);
}

/* Releases the lock, after all retries have run. */
static void deferred_release_lock(struct efs *fs)
{
    assert(efs_account_adds_up(&fs->account, (uint64_t)fs->arena.segment_count * fs->arena.segment_bytes));
    assert(efs_account_is_within_budget(&fs->account, fs->arena.segment_bytes));
    assert(!fs->hooks || fs->hooks->is_live(fs));
    pthread_mutex_unlock(&fs->lock);
}

/* Lock held on entry. true: it is held again, because memory was freed or a queue has advanced. */
static bool deferred_unlock(struct efs *fs)
{
    deferred_run_retries(fs);
    if (!fs->deferred.any) {
        deferred_release_lock(fs);
        return false;
    }
    const struct efs_deferred d = fs->deferred;
    efs_deferred_init(&fs->deferred);
    fs->deferred.changes = d.changes; /* for the admission queue: see efs_admission_run() */
    bool relock = d.admitted || d.memfiles.head;
    fs->queue_starts |= d.admitted;
    if (relock)
        efs_in_flight_begin(fs); /* all other operations may end before the lock is taken again */
    deferred_release_lock(fs);
    for (struct efs_memfile *memfile = d.memfiles.head, *next; memfile; memfile = next) { /* before new ones */
        next = memfile->next;
        efs_memfile_free(memfile);
    }
    deferred_submit(fs, &d);
    for (struct efs_task *task = d.tasks.head, *next; task; task = next) {
        next = task->next;
        task->run(fs, task);
    }
    if (!relock)
        return false;
    pthread_mutex_lock(&fs->lock);
    if (d.admitted) {
        fs->queue_starts = false;
        fs->deferred.changes.any = true;
    }
    if (d.memfiles.head)
        efs_account_return(&fs->account, EFS_ACCOUNT_RETURNING, d.memfile_bytes);
    efs_in_flight_end_locked(fs);
    return true;
}

void efs_unlock(struct efs *fs)
{
    while (deferred_unlock(fs))
        ;
}

/* ---- on the I/O thread ---- */

static void deferred_blocking_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs *fs = EFS_CONTAINER(job, struct efs, blocking_job);
    (void)scratch;
    efs_lock(fs);
    fs->blocking_pushed = false;
    efs_unlock(fs);
    efs_in_flight_end(fs);
}

/* Lock held: takes the work that cannot block. The rest is run by the next thread that releases the lock with
 * efs_unlock(), at the latest by a worker. */
static struct efs_deferred deferred_take_nonblocking(struct efs *fs)
{
    struct efs_deferred *left = &fs->deferred;
    bool blocking = left->memfiles.head || left->tasks.head;
    if (blocking && !fs->blocking_pushed) {
        fs->blocking_pushed = true;
        fs->blocking_job.run = deferred_blocking_run;
        efs_in_flight_begin(fs);
        efs_defer_job(fs, &fs->blocking_job, EFS_JOB_FIRST);
    }
    const struct efs_deferred d = *left;
    EFS_QUEUE_INIT(&left->reads);
    for (unsigned order = 0; order < EFS_JOB_ORDERS; order++)
        EFS_QUEUE_INIT(&left->jobs[order]);
    left->disk_changes = false;
    left->any = blocking;
    return d;
}

void efs_unlock_completion(struct efs *fs)
{
    deferred_run_retries(fs);
    const struct efs_deferred d = deferred_take_nonblocking(fs);
    deferred_release_lock(fs);
    deferred_submit(fs, &d);
}

/* ---- fixed memory ---- */

bool efs_charge_fixed(struct efs *fs, uint64_t bytes, uint64_t expert_bytes)
{
    const uint64_t left = fs->account.budget_bytes, floor = fs->account.floor_segments;
    const uint64_t segment = fs->arena.segment_bytes, fixed = efs_account_fixed(&fs->account) + bytes;
    uint64_t held = 0; /* segments with pinned chunks: these, or the minimum of the chunk pool, cannot be released */
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        held += fs->arena.segments[i].long_refs != 0;
    const uint64_t always = fixed + floor * segment + expert_bytes;
    const uint64_t now = fixed + (held > floor ? held : floor) * segment + fs->account.bytes[EFS_ACCOUNT_FULL_PINNED];
    if (always > left || now > left)
        return false;
    efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    return true;
}

errint_t efs_charge(struct efs *fs, uint64_t bytes)
{
    efs_lock(fs);
    bool charged = efs_charge_fixed(fs, bytes, 0);
    efs_unlock(fs);
    return charged ? 0 : -ENOMEM;
}

void efs_uncharge(struct efs *fs, uint64_t bytes)
{
    efs_lock(fs);
    efs_account_release(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    efs_unlock(fs);
}
