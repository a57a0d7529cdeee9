/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - leases on full experts: joined, filled, queued for room, released. Requested by lease_coalesce.c and
 * request_begin.c.
 */
#include "lease.h"
#include "expertfs-private.h"

#include "budget.h"
#include "cache.h"
#include "plan_thread.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define RETRY_MAX 64u /* queued leases that start in one critical section */

struct efs_lease { /* one for each expert: struct efs_full counts its leases */
    struct efs *fs;
    uint32_t expert;
};

struct efs_full_waiter *efs_lease_waiter(uint32_t expert, efs_leased_fn *done, void *arg)
{
    struct efs_full_waiter *w = efs_sys_calloc(1, sizeof(*w));
    if (w)
        *w = (struct efs_full_waiter){.expert = expert, .done = done, .arg = arg};
    return w;
}

/* ---- filled, answered ---- */

/* Lock held: one more lease on a READY expert. */
static void lease_get(struct efs *fs, uint32_t expert)
{
    efs_full_lease(fs, expert);
    efs_cache_leased(fs);
}

void efs_lease_answer(struct efs *fs, struct efs_full_waiter *answers)
{
    for (struct efs_full_waiter *w = answers, *next; w; w = next) {
        next = w->next;
        if (w->error < 0)
            efs_count(&fs->stats, lease_errors, 1);
        w->done(w->arg, w->error, w->error < 0 ? NULL : &fs->leases->handles[w->expert]);
        free(w);
        efs_in_flight_end(fs);
    }
}

/* Lock held: the waiter is called after the lock is released. */
static void lease_defer_answer(struct efs *fs, struct efs_full_waiter *w, errint_t error)
{
    w->error = error;
    if (error < 0)
        efs_cache_release(fs, w->expert);
    EFS_DEFER(fs, answers, w);
}

/* The load of an expert has completed, or failed. */
static void lease_filled(struct efs_fetch *fetch)
{
    struct efs *fs = fetch->fs;
    errint_t error = fetch->error;
    efs_lock(fs);
    assert(fetch->memfile->kind != EFS_MEMFILE_EXPORTED); /* the fill has just written it */
    bool fresh = !fetch->memfile->populated;
    if (fresh)
        fetch->memfile->populated = error == 0;
    struct efs_full_waiter *waiters = efs_full_filled(fs, fetch->expert, error == 0 ? fetch->memfile : NULL, fresh);
    efs_account_add_allocated(&fs->account, fresh ? fetch->memfile->bytes : 0);
    if (error < 0) {
        efs_full_put_memfile(fs, fetch->memfile);
        efs_cache_lost_full(fs, fetch->expert);
    }
    for (struct efs_full_waiter *w = waiters, *next; w; w = next) {
        next = w->next_waiter;
        if (error == 0)
            lease_get(fs, fetch->expert);
        if (error == 0 && next) /* all except one joined the fill */
            efs_count(&fs->stats, leases_shared, 1);
        lease_defer_answer(fs, w, error);
    }
    efs_retry(fs, EFS_RETRY_LEASES); /* after an error, or without waiters, memory is available */
    if (error == 0 && fetch->from_disk)
        efs_count(&fs->stats, leases_m, 1);
    else if (error == 0)
        efs_count(&fs->stats, leases_c, 1);
    efs_unlock(fs);
    free(fetch);
}

/* ---- requests ---- */

/* Lock held: reserves a memory file for the expert and defers its fill. On error nothing has changed. */
static errint_t lease_admit(struct efs *fs, struct efs_full_waiter *w, bool from_queue)
{
    enum efs_memfile_kind use = w->use == EFS_MEMFILE_PRIVATE ? fs->leases->last_use : w->use;
    errint_t rc = efs_budget_get_memfile(fs, efs_memfile_bytes(fs, w->expert), use, &w->memfile);
    if (rc < 0)
        return rc;
    w->fresh = !w->memfile || !w->memfile->populated;
    w->next_waiter = NULL;
    efs_full_fill(fs, w->expert, w, w->fresh);
    fs->deferred.from_queues |= from_queue;
    EFS_DEFER(fs, fills, w);
    return 0;
}

/* Lock held: whether a release will make room. An open of a file does not wait for coded experts: the file can be read
 * without a lease, and the process that opens it may hold them. */
static bool lease_may_wait(const struct efs *fs, const struct efs_full_waiter *w)
{
    bool held = efs_full_any_in_use(fs) || (w->use != EFS_MEMFILE_EXPORTED && fs->coded_pinned);
    return fs->options.lease_wait && !fs->closing && held;
}

/* Lock held: 0: the waiter is answered, has joined a fill or has started one. -EAGAIN: no room, it has to be queued;
 * -EBUSY: the same, and memory is being freed. */
static errint_t lease_try(struct efs *fs, struct efs_full_waiter *w, bool from_queue)
{
    const struct efs_full *f = efs_full_of(fs, w->expert);
    errint_t rc = fs->closing ? -ECANCELED : 0;
    bool left = rc == 0 && efs_full_evict_for(fs, w->expert, w->use);
    if (rc == 0 && f->state == EFS_FULL_READY) {
        lease_get(fs, w->expert);
        efs_count(&fs->stats, leases_f, 1);
        lease_defer_answer(fs, w, 0);
        return 0;
    }
    if (rc == 0 && f->state == EFS_FULL_FILLING) {
        w->next_waiter = efs_full_join(fs, w->expert, w);
        return 0;
    }
    if (rc == 0)
        rc = lease_admit(fs, w, from_queue);
    if (rc == 0)
        return 0;
    if (left)
        efs_cache_lost_full(fs, w->expert);
    if (rc == -EAGAIN || rc == -EBUSY || (rc == -ENOMEM && lease_may_wait(fs, w)))
        return rc == -EBUSY ? rc : -EAGAIN;
    lease_defer_answer(fs, w, rc);
    return 0;
}

/* Lock held: appends to the queue for room. */
static void lease_enqueue(struct efs *fs, struct efs_full_waiter *w, bool is_temporary)
{
    w->next = NULL;
    *fs->leases->queue_tail = w;
    fs->leases->queue_tail = &w->next;
    fs->leases_waiting++;
    if (is_temporary)
        return;
    efs_count(&fs->stats, lease_waits, 1);
    efs_plan_thread_kick(fs);
}

void efs_lease_request(struct efs *fs, struct efs_full_waiter *w)
{
    efs_in_flight_begin(fs);
    errint_t rc = lease_try(fs, w, false);
    if (rc < 0)
        lease_enqueue(fs, w, rc == -EBUSY);
}

void efs_leases_cancel(struct efs *fs, efs_cancelled_fn *cancelled)
{
    struct efs_full_waiter **at = &fs->leases->queue;
    for (struct efs_full_waiter *w; (w = *at);) {
        if (!w->client_arg || !cancelled(w->client_arg)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        fs->leases_waiting--;
        lease_defer_answer(fs, w, -ECANCELED);
    }
    fs->leases->queue_tail = at;
}

/* Removes the waiter from the queue if it gets room or is answered. false: it stays queued. */
static bool queue_try(struct efs *fs, struct efs_full_waiter **at)
{
    struct efs_full_waiter *w = *at, *behind = w->next;
    if (lease_try(fs, w, true) < 0)
        return false;
    *at = behind;
    fs->leases_waiting--;
    if (!behind)
        fs->leases->queue_tail = at;
    return true;
}

void efs_leases_retry(struct efs *fs)
{
    for (uint32_t taken = 0; fs->leases->queue; taken++) {
        if (taken == RETRY_MAX) {
            efs_retry(fs, EFS_RETRY_LEASES);
            return;
        }
        if (!queue_try(fs, &fs->leases->queue))
            break;
    }
    /* opens wait neither for coded experts to be dropped, nor for requests ahead of them that do */
    for (struct efs_full_waiter **at = &fs->leases->queue; fs->coded_pinned && *at;)
        if ((*at)->use != EFS_MEMFILE_EXPORTED || !queue_try(fs, at))
            at = &(*at)->next;
}

/* ---- start of fills, without lock ---- */

/* Sets the size of the memory file, allocates its pages, writes the header of the expert's file and zeros after its
 * end. -ENOMEM: no pages. */
static errint_t fill_prepare(struct efs_fetch *fetch)
{
    const struct efs_view *view = &fetch->fs->view;
    uint64_t file_bytes = efs_view_expert_bytes(view, fetch->expert);
    efs_memfile_resize(fetch->memfile, file_bytes);
    errint_t rc = efs_memfile_reserve(fetch->memfile);
    if (rc < 0)
        return rc;
    efs_view_expert_header(view, fetch->expert, (char *)fetch->memfile->data);
    memset(fetch->memfile->data + file_bytes, 0, fetch->memfile->bytes - file_bytes);
    return 0;
}

/* Ends a fill for which the system has no memory. Requests no retry of queued leases, because the budget had room. */
static void fill_fail(struct efs *fs, uint32_t expert, struct efs_memfile *memfile, bool fresh)
{
    efs_lock(fs);
    struct efs_full_waiter *waiters = efs_full_filled(fs, expert, NULL, fresh);
    efs_account_add_allocated(&fs->account,
                              memfile && fresh ? memfile->bytes : 0); /* a part of its pages may be allocated */
    if (memfile)
        efs_full_put_memfile(fs, memfile);
    else
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL, efs_memfile_bytes(fs, expert));
    efs_cache_lost_full(fs, expert);
    for (struct efs_full_waiter *w = waiters, *next; w; w = next) {
        next = w->next_waiter;
        if (lease_may_wait(fs, w))
            lease_enqueue(fs, w, false);
        else
            lease_defer_answer(fs, w, -ENOMEM);
    }
    efs_unlock(fs);
}

/* NULL: failed, and answered or queued. */
static struct efs_fetch *fill_new(struct efs *fs, const struct efs_full_waiter *w)
{
    struct efs_memfile *memfile = w->memfile;
    struct efs_fetch *fetch = efs_fetch_new(fs, w->expert);
    if (fetch && !memfile)
        memfile = efs_full_memfile_new(fs, efs_memfile_bytes(fs, w->expert));
    if (fetch && memfile) {
        fetch->memfile = memfile;
        fetch->ended = lease_filled;
        if (fill_prepare(fetch) == 0)
            return fetch;
    }
    free(fetch);
    fill_fail(fs, w->expert, memfile, w->fresh);
    return NULL;
}

void efs_lease_fill_all(struct efs *fs, struct efs_full_waiter *fills, struct efs_fetch *fetches)
{
    struct efs_fetch *all = NULL, **tail = &all;
    for (struct efs_full_waiter *w = fills, *next; w; w = next) {
        next = w->next; /* a failed fill may free w */
        *tail = fill_new(fs, w);
        tail = *tail ? &(*tail)->next : tail;
    }
    *tail = fetches;
    if (all)
        efs_fetch_submit(fs, all);
}

/* A leased expert keeps its memory file, so no lock is needed. */
static struct efs_memfile *lease_memfile(const struct efs_lease *lease)
{
    return efs_full_of(lease->fs, lease->expert)->memfile;
}

int efs_lease_fd(const struct efs_lease *lease)
{
    errint_t rc = efs_is_this_process(lease->fs) ? efs_full_export(lease->fs, lease->expert) : -ECHILD;
    return rc < 0 ? rc : lease_memfile(lease)->fd;
}

errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window)
{
    const struct efs_memfile *memfile = lease_memfile(lease);
    errint_t rc = efs_full_make_window(lease->fs, lease->expert);
    *window = (struct efs_window){.number = memfile->window,
                                  .fd = -1,
                                  .bytes = memfile->bytes,
                                  .file_bytes = efs_view_expert_bytes(&lease->fs->view, lease->expert)};
    return rc;
}

errint_t efs_lease_open_window(const struct efs_lease *lease, struct efs_window *window)
{
    errint_t rc = efs_lease_window(lease, window);
    window->fd = rc < 0 ? rc : efs_memfile_open_window(lease_memfile(lease));
    return window->fd < 0 ? window->fd : 0;
}

const void *efs_lease_data(const struct efs_lease *lease)
{
    return efs_is_this_process(lease->fs) ? lease_memfile(lease)->data : NULL;
}

void efs_lease_release(struct efs_lease *lease)
{
    struct efs *fs = lease->fs;
    if (!efs_is_this_process(fs))
        return;
    efs_lock(fs);
    int fd = -1;
    bool last = efs_full_unlease(fs, lease->expert, &fd);
    efs_cache_release(fs, lease->expert);
    if (last) {
        efs_retry(fs, EFS_RETRY_BUDGET);  /* the budget may have been reduced during the lease */
        efs_retry(fs, EFS_RETRY_EXTENTS); /* the chunk pool may grow again */
        efs_retry(fs, EFS_RETRY_LEASES);
    }
    efs_unlock(fs);
    if (fd >= 0)
        efs_sys_close(fd);
}

errint_t efs_leases_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->leases->handles = efs_sys_calloc(count + 1u, sizeof(*fs->leases->handles));
    fs->leases->coded_pins = efs_sys_calloc(count + 1u, sizeof(*fs->leases->coded_pins));
    fs->leases->preloading = efs_sys_calloc(count + 1u, sizeof(*fs->leases->preloading));
    if (!fs->leases->handles || !fs->leases->coded_pins || !fs->leases->preloading)
        return -ENOMEM;
    for (uint32_t e = 0; e < count; e++)
        fs->leases->handles[e] = (struct efs_lease){fs, e};
    fs->leases->fs = fs;
    fs->leases->queue_tail = &fs->leases->queue;
    fs->leases->coded_tail = &fs->leases->coded_waiting;
    return 0;
}

void efs_leases_destroy(struct efs *fs)
{
    free(fs->leases->handles);
    free(fs->leases->coded_pins);
    free(fs->leases->preloading);
    fs->leases->handles = NULL;
    fs->leases->coded_pins = NULL;
    fs->leases->preloading = NULL;
}
