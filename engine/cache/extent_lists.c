/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_lists.c - which components of extents stay in memory, and the list of each extent. Extents whose components are
 * all kept by the policy (extent.keep) are in the protected list. All other extents are *evictable*: of dense tensors,
 * of experts that are not kept, components that their expert lost; or *passing*, of scans (extent_scan.c).
 * extent_evict.c chooses what to evict.
 */
#include "extent_internal.h"

void efs_extent_set_passing(struct efs *fs, struct efs_extent *x, bool passing)
{
    fs->extents->passing_bytes -= x->passing_bytes;
    x->passing_bytes = passing && !x->keep ? (uint32_t)efs_extent_span(fs, x, x->needs) : 0;
    fs->extents->passing_bytes += x->passing_bytes;
}

void efs_extent_delist(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->list == EFS_LIST_PROTECTED)
        efs_lru_remove(&fs->extents->protected, extent);
    else if (x->list != EFS_LIST_NONE)
        efs_lru_remove(x->list == EFS_LIST_PASSING ? &fs->extents->passing : &fs->extents->evictable, extent);
    x->list = EFS_LIST_NONE;
}

void efs_extent_enlist(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    efs_extent_delist(fs, extent);
    if (x->have == 0 || x->state == EFS_EXTENT_LOADING)
        return;
    bool evictable = efs_extent_evictable(x) != 0;
    x->evict_first = x->evict_first && evictable;
    x->list = !evictable ? EFS_LIST_PROTECTED : x->passing_bytes ? EFS_LIST_PASSING : EFS_LIST_EVICTABLE;
    efs_lru_insert(!evictable         ? &fs->extents->protected
                   : x->passing_bytes ? &fs->extents->passing
                                      : &fs->extents->evictable,
                   extent, !x->evict_first);
}

void efs_extent_used(struct efs *fs, struct efs_extent *x)
{
    fs->extents->ahead_bytes -= x->ahead_bytes;
    x->ahead_bytes = 0;
}

void efs_extent_drop(struct efs *fs, uint32_t extent, unsigned components)
{
    struct efs_extent *x = &fs->extents->at[extent];
    bool whole = x->have == x->needs;
    efs_extent_used(fs, x);
    if (components & EFS_COMPONENT_E)
        efs_arena_free(&fs->arena, &x->e);
    if (components & EFS_COMPONENT_SM)
        efs_arena_free(&fs->arena, &x->sm);
    if (whole && (x->have & components))
        fs->extents->ready_count--;
    x->have &= (uint8_t)~components;
    if (x->have == 0) {
        x->discard = x->evict_first = x->awaited = x->streamed = false;
        efs_extent_set_passing(fs, x, false);
    }
    efs_extent_enlist(fs, extent);
}

void efs_extents_keep(struct efs *fs, uint32_t expert, unsigned components)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent *x = &fs->extents->at[i];
        uint8_t keep = (uint8_t)(components & x->needs);
        if (x->keep != keep) {
            x->keep = keep;
            if (keep)
                efs_extent_set_passing(fs, x, false);
            efs_extent_enlist(fs, i);
        }
    }
}

unsigned efs_extents_have(const struct efs *fs, uint32_t expert, bool *some)
{
    unsigned all = EFS_BOTH, any = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        unsigned have = x->state == EFS_EXTENT_REST ? x->have : 0;
        all &= have | (EFS_BOTH & ~(unsigned)x->needs);
        any |= have;
    }
    *some = any != 0;
    return any ? all : 0;
}

bool efs_extents_loading(const struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        if (fs->extents->at[i].state != EFS_EXTENT_REST)
            return true;
    return false;
}
