/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_wait.c - waiters of an extent, its references, and the queue of extents that wait for memory.
 */
#include "extent_internal.h"

static void extent_count_long_ref(struct efs *fs, const struct efs_extent *x, bool hold)
{
    const struct efs_block *blocks[] = {&x->e, &x->sm};
    for (unsigned i = 0; i < 2; i++)
        if (blocks[i]->data)
            fs->arena.segments[blocks[i]->segment].long_refs += hold ? 1u : -1u;
    if (fs->account.bytes[EFS_ACCOUNT_RETIRING])
        efs_retry(fs, EFS_RETRY_BUDGET);
}

void efs_extent_ref(struct efs *fs, struct efs_extent *x, const struct efs_extent_waiter *waiter)
{
    x->refs++;
    fs->extents->refs++;
    fs->extents->long_refs += waiter->long_term;
    if (waiter->long_term && x->long_refs++ == 0)
        extent_count_long_ref(fs, x, true);
}

void efs_extent_complete_waiter(struct efs *fs, struct efs_extent *x, struct efs_extent_waiter *w, errint_t error)
{
    w->error = error;
    if (error == 0)
        efs_extent_ref(fs, x, w);
    if (error < 0 || !w->loaded || !w->loaded(fs, w))
        efs_defer_job(fs, &w->job, EFS_JOB_NORMAL);
}

void efs_extent_complete_waiters(struct efs *fs, struct efs_extent *x, errint_t error)
{
    struct efs_extent_waiter *w = x->waiters, *next;
    for (x->waiters = NULL; w; w = next) {
        next = w->next;
        efs_extent_complete_waiter(fs, x, w, error);
    }
}

void efs_extent_unref(struct efs *fs, uint32_t extent, bool used_up)
{
    if (used_up)
        efs_extent_evict_first(fs, extent);
    fs->extents->refs--;
    if (--fs->extents->at[extent].refs == 0) {
        efs_extent_released(fs, extent);
        efs_extents_retry_waiting(fs);
        efs_retry(fs, EFS_RETRY_SEGMENTS);
        efs_retry(fs, EFS_RETRY_IDLE);
    } else if (fs->extents->refs == fs->extents->long_refs) {
        efs_extents_retry_waiting(fs);
    }
}

void efs_extent_unref_long(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    fs->extents->long_refs--;
    if (--x->long_refs == 0)
        extent_count_long_ref(fs, x, false);
    efs_extent_unref(fs, extent, false);
}

void efs_extent_put(struct efs *fs, uint32_t extent)
{
    efs_lock(fs);
    efs_extent_unref(fs, extent, false);
    efs_unlock(fs);
}

void efs_extents_put_used_up(struct efs *fs)
{
    struct efs_extent_waiter *next;
    for (struct efs_extent_waiter *w = atomic_exchange(&fs->extents->used_up, NULL); w; w = next) {
        next = w->next;
        efs_extent_unref(fs, w->extent, true);
    }
}

void efs_extent_put_later(struct efs *fs, struct efs_extent_waiter *waiter)
{
    waiter->next = atomic_load(&fs->extents->used_up);
    while (!atomic_compare_exchange_weak(&fs->extents->used_up, &waiter->next, waiter))
        ;
    if (!atomic_load(&fs->extents->wanted)) /* a thread that sets it later finds the waiter in the list */
        return;
    efs_lock(fs);
    efs_extents_put_used_up(fs);
    efs_unlock(fs);
}

void efs_extents_set_wanted(struct efs *fs)
{
    bool wanted = efs_extents_wait(fs) || fs->items_waiting;
    atomic_store(&fs->extents->wanted, wanted);
    if (wanted)
        efs_extents_put_used_up(fs);
}

/* ---- queue for memory ---- */

void efs_extent_wait_for_memory(struct efs *fs, uint32_t extent)
{
    fs->extents->at[extent].state = EFS_EXTENT_QUEUED;
    efs_lru_insert(&fs->extents->waiting, extent, true);
    efs_extents_set_wanted(fs);
    if (efs_extents_only_long_refs(fs)) /* nothing in flight will request this retry */
        efs_retry(fs, EFS_RETRY_EXTENTS);
}

void efs_extents_retry_waiting(struct efs *fs)
{
    if (efs_extents_wait(fs))
        efs_retry(fs, EFS_RETRY_EXTENTS);
    if (fs->admission_starved)
        efs_retry(fs, EFS_RETRY_ADMIT);
}

bool efs_extents_only_long_refs(const struct efs *fs)
{
    const struct efs_extents *extents = fs->extents;
    bool loading = false;
    for (unsigned why = 0; why < EFS_LOADS; why++)
        loading |= extents->loads[why] != 0;
    return extents->refs == extents->long_refs && !loading && !fs->account.bytes[EFS_ACCOUNT_RETURNING] && !fs->growing;
}
