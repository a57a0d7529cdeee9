/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_move.c - moves components that the policy keeps out of retiring segments, if free or evictable memory of other
 * segments has room: one at a time, on a worker, copied without the lock. An extent is LOADING while it moves: it has
 * no users, and requests wait.
 */
#include "extent_internal.h"

#include "container.h"
#include "sys.h"

#include <string.h>

static unsigned extent_protected_in_retiring(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    /* a QUEUED extent moves after its memory was allocated */
    return x->refs == 0 && x->state == EFS_EXTENT_IDLE ? efs_extent_in_retiring(fs, x) & x->protected : 0;
}

/* Allocates memory in another segment; evicts evictable components for it. false: none. */
static bool move_find_room(struct efs *fs, struct efs_extent_move *m)
{
    const struct efs_extent *x = &fs->extents->at[m->extent];
    const struct efs_block *from = m->component == EFS_COMPONENT_E ? &x->e : &x->sm;
    m->to = (struct efs_block){0};
    while (!efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, from),
                               efs_extent_alloc_bytes(fs, x, m->component), m->component == EFS_COMPONENT_SM, &m->to))
        if (efs_extents_evict(fs, EFS_VICTIMS_EVICTABLE) != EFS_EVICTED_ONE)
            return false;
    return true;
}

/* Lock held: the first extent that has to move, protected ones before those that are protected in part; EFS_NONE: none.
 * Each move changes the lists, so the search starts at their beginning. */
static uint32_t move_find(const struct efs *fs)
{
    for (unsigned list = EFS_LISTS; list-- > 0;)
        for (uint32_t i = fs->extents->lists[list].oldest; i != EFS_NONE;
             i = efs_lru_newer(&fs->extents->lists[list], i))
            if (extent_protected_in_retiring(fs, i))
                return i;
    return EFS_NONE;
}

/* Lock held: starts the next move; evicts components for which there is no room. false: there is none to move. */
static bool move_next(struct efs *fs)
{
    struct efs_extent_move *m = &fs->extents->move;
    while (!fs->closing && fs->account.bytes[EFS_ACCOUNT_RETIRING]) {
        efs_extents_drop_retiring(fs); /* also those that an eviction made unprotected */
        uint32_t extent = move_find(fs);
        if (extent == EFS_NONE)
            return false;
        unsigned components = extent_protected_in_retiring(fs, extent);
        m->extent = extent;
        m->component = components & EFS_COMPONENT_E ? EFS_COMPONENT_E : EFS_COMPONENT_SM;
        fs->extents->at[extent].state = EFS_EXTENT_LOADING;
        efs_extent_delist(fs, extent); /* the allocation must not evict it */
        if (move_find_room(fs, m))
            return true;
        fs->extents->at[extent].state = EFS_EXTENT_IDLE;
        efs_extent_evict(fs, extent, m->component);
        efs_retry(fs, EFS_RETRY_SEGMENTS);
    }
    return false;
}

static void move_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_extent_move *m = EFS_CONTAINER(job, struct efs_extent_move, job);
    struct efs *fs = m->fs;
    struct efs_extent *x = &fs->extents->at[m->extent];
    struct efs_block *block = m->component == EFS_COMPONENT_E ? &x->e : &x->sm;
    (void)scratch;
    size_t bytes = efs_extent_span(fs, x, m->component);
    bool good = efs_sys_populate(m->to.data, bytes, NULL) == 0;
    if (good)
        memcpy(m->to.data, block->data, bytes);
    efs_lock(fs);
    if (good) {
        efs_arena_free(&fs->arena, block);
        *block = m->to;
    } else {
        efs_arena_free(&fs->arena, &m->to);
        efs_extent_evict(fs, m->extent, m->component);
    }
    efs_extent_load_ended(fs, m->extent, 0);
    m->busy = move_next(fs);
    bool ended = !m->busy;
    if (m->busy)
        efs_defer_job(fs, &m->job, EFS_JOB_NORMAL);
    efs_unlock(fs);
    if (ended)
        efs_in_flight_end(fs);
}

void efs_extents_move(struct efs *fs)
{
    struct efs_extent_move *m = &fs->extents->move;
    if (m->busy)
        efs_extents_drop_retiring(fs);
    if (m->busy || !move_next(fs))
        return;
    m->busy = true;
    m->fs = fs;
    m->job.run = move_run;
    efs_in_flight_begin(fs);
    efs_defer_job(fs, &m->job, EFS_JOB_NORMAL);
}
