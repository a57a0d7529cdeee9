/* SPDX-License-Identifier: Apache-2.0 */
/* extent_alloc.c - memory for components of extents: free, of a new segment, or evicted. */
#include "extent_internal.h"

#include <assert.h>
#include <errno.h>

static bool extent_alloc_component(struct efs *fs, struct efs_extent *x, unsigned component)
{
    struct efs_block *block = component == EFS_COMPONENT_E ? &x->e : &x->sm;
    const struct efs_block *other = component == EFS_COMPONENT_E ? &x->sm : &x->e; /* on the same node */
    return block->data ||
           efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, other),
                              efs_extent_alloc_bytes(fs, x, component), component == EFS_COMPONENT_SM, block);
}

static bool extents_reclaim(struct efs *fs, enum efs_load_reason why)
{
    efs_extents_put_used_up(fs);
    if (efs_extents_evict(fs, EFS_VICTIM(FIRST)) == EFS_EVICTED_ONE)
        return true;
    errint_t rc = fs->hooks->add_segment(fs, true);
    if (rc == -EAGAIN || rc == 0)
        return rc == 0;
    enum efs_evicted evicted =
        efs_extents_evict(fs, why == EFS_LOAD_PREFETCH ? EFS_VICTIMS_UNNEEDED : EFS_VICTIMS_EVICTABLE);
    if (evicted == EFS_EVICTED_NONE && why != EFS_LOAD_PREFETCH)
        evicted = efs_extents_evict(fs, EFS_VICTIMS_KEPT);
    return evicted == EFS_EVICTED_ONE;
}

/* Evictions update the policy (efs_policy_set()); its moves must not be applied meanwhile. */
bool efs_extents_reclaim(struct efs *fs, enum efs_load_reason why)
{
    assert(!fs->extents->reclaiming);
    fs->extents->reclaiming = true;
    bool more = extents_reclaim(fs, why);
    fs->extents->reclaiming = false;
    return more;
}

bool efs_extents_reclaim_protected(struct efs *fs)
{
    assert(!fs->extents->reclaiming);
    fs->extents->reclaiming = true;
    bool more = efs_extents_evict(fs, EFS_VICTIMS_KEPT) == EFS_EVICTED_ONE;
    fs->extents->reclaiming = false;
    return more;
}

static bool extent_alloc_components(struct efs *fs, struct efs_extent *x, unsigned components)
{
    return (!(components & EFS_COMPONENT_E) || extent_alloc_component(fs, x, EFS_COMPONENT_E)) &&
           (!(components & EFS_COMPONENT_SM) || extent_alloc_component(fs, x, EFS_COMPONENT_SM));
}

errint_t efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why)
{
    struct efs_extent *x = &fs->extents->at[extent];
    enum efs_extent_state was = (enum efs_extent_state)x->state;
    /* its resident components must not be evicted for the missing ones: while it is LOADING it is in no list, also when
     * evictions change the cache state */
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    while (!extent_alloc_components(fs, x, components))
        if (!efs_extents_reclaim(fs, why)) {
            efs_extent_free(fs, x, components);
            bool others = fs->arena.used_bytes != 0 || fs->account.bytes[EFS_ACCOUNT_RETURNING] != 0 || fs->growing;
            x->state = (uint8_t)was;
            efs_extent_enlist(fs, extent);
            return others ? -EAGAIN : -ENOMEM;
        }
    return 0;
}

errint_t efs_extent_alloc_empty(struct efs *fs, uint32_t extent, unsigned components)
{
    struct efs_extent *x = &fs->extents->at[extent];
    while (!extent_alloc_components(fs, x, components))
        if (fs->hooks->add_segment(fs, false) < 0) {
            efs_extent_free(fs, x, components);
            return -EAGAIN;
        }
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    return 0;
}
