/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_request.c - requests of extents, and the queue of extents that wait for memory, first come, first served.
 *
 * A reader that decodes drops its reference afterwards, so its memory becomes available to the queue. Chunks that are
 * handed out coded are held until a client drops them: see line_unblock().
 */
#include "extent_internal.h"

#include <errno.h>

bool efs_extent_ask_paced(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes,
                          struct efs_extent_waiter *waiter)
{
    efs_extent_asked(fs, extent, pace, bytes);
    return efs_extent_ask(fs, extent, waiter);
}

bool efs_extent_ask(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    efs_extent_used(fs, x);
    x->awaited = false;
    if (efs_extent_is_whole(x)) {
        efs_extent_ref(fs, x, waiter);
        x->evict_first = false;
        efs_extent_enlist(fs, extent);
        return true;
    }
    waiter->extent = extent;
    waiter->error = 0;
    waiter->next = x->waiters;
    x->waiters = waiter;
    if (x->state != EFS_EXTENT_REST) {
        efs_extent_load_raise(fs, extent);
        return false;
    }
    bool leave = fs->account.coded_again && !waiter->holds;
    errint_t rc = fs->closing              ? -ECANCELED
                  : leave                  ? -ENOMEM
                  : fs->extents->no_memory ? -EAGAIN
                                           : efs_extent_load(fs, extent, EFS_LOAD_WANTED);
    if (rc == -EAGAIN)
        efs_extent_wait_for_memory(fs, extent);
    else if (rc < 0)
        efs_extent_tell_waiters(fs, x, rc);
    return false;
}

/* ---- in line ---- */

static bool line_load_any(struct efs *fs)
{
    for (struct efs_extent **at = &fs->extents->no_memory; *at; at = &(*at)->next_no_memory)
        if (efs_extent_load(fs, (uint32_t)(*at - fs->extents->at), EFS_LOAD_WANTED) == 0) {
            efs_extent_leave_line(fs, at);
            return true;
        }
    return false;
}

/* Who waits for the extent and lets go when it has decoded does without the pool; who holds waits on. true: nobody. */
static bool extent_send_past(struct efs *fs, struct efs_extent *x)
{
    for (struct efs_extent_waiter **at = &x->waiters, *w; (w = *at);) {
        if (w->holds) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        efs_extent_tell_waiter(fs, x, w, -ENOMEM);
    }
    return !x->waiters;
}

/* Experts with extents in the line; the first of them in *first. */
static uint32_t line_experts(const struct efs *fs, uint32_t *first)
{
    uint32_t count = 0;
    for (const struct efs_extent *x = fs->extents->no_memory; x; x = x->next_no_memory) {
        uint32_t expert = fs->store->objects[x->object].group;
        const struct efs_extent *before = fs->extents->no_memory;
        while (before != x && fs->store->objects[before->object].group != expert)
            before = before->next_no_memory;
        count += before == x;
    }
    *first = count ? fs->store->objects[fs->extents->no_memory->object].group : EFS_NONE;
    return count;
}

/*
 * The first in line has no room, and nothing frees any but a client that drops coded experts, which may be long. One
 * that has room goes before it. If none has, who only decodes goes past the pool, and for the others what is kept goes;
 * and if all coded experts lack something, so that no client has one to drop, the first gives back what it has got (its
 * fetch fails).
 */
static void line_unblock(struct efs *fs)
{
    uint32_t first;
    if (line_load_any(fs) || fs->deferred.supply)
        return;
    for (struct efs_extent **at = &fs->extents->no_memory; *at;) {
        struct efs_extent *x = *at;
        if (extent_send_past(fs, x)) {
            x->state = EFS_EXTENT_REST;
            efs_extent_leave_line(fs, at);
        } else {
            at = &x->next_no_memory;
        }
    }
    while (fs->extents->no_memory && efs_extents_kept_give_way(fs))
        if (line_load_any(fs))
            return;
    if (fs->extents->no_memory == NULL || line_experts(fs, &first) < fs->account.coded_experts)
        return;
    for (struct efs_extent **at = &fs->extents->no_memory; *at;) {
        struct efs_extent *x = *at;
        if (fs->store->objects[x->object].group != first) {
            at = &x->next_no_memory;
            continue;
        }
        efs_extent_leave_line(fs, at);
        x->state = EFS_EXTENT_REST;
        efs_extent_tell_waiters(fs, x, -ENOMEM);
    }
}

/* In order, as far as there is room. */
void efs_extents_retry(struct efs *fs)
{
    while (fs->extents->no_memory) {
        struct efs_extent *x = fs->extents->no_memory;
        errint_t rc = fs->closing ? -ECANCELED : efs_extent_load(fs, (uint32_t)(x - fs->extents->at), EFS_LOAD_WANTED);
        if (rc == -EAGAIN) {
            if (fs->extents->held && efs_extents_only_held(fs))
                line_unblock(fs);
            break;
        }
        efs_extent_leave_line(fs, &fs->extents->no_memory);
        if (rc < 0) {
            x->state = EFS_EXTENT_REST;
            efs_extent_tell_waiters(fs, x, rc);
        }
    }
}
