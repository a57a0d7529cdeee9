/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_lists.c - which components of extents stay in memory, and the list of each extent (enum efs_extent_list). The
 * policy protects components of experts that it keeps. All other components are *evictable*: of dense tensors, of
 * experts that are not kept, components that their expert lost. extent_evict.c chooses what to evict.
 */
#include "extent_internal.h"

/* Whether the chunk pool has room for all extents, with the memory that the plan, which is for experts, gives to no
 * pool; blocks of different sizes leave a part of it unused. */
static bool extents_all_fit(const struct efs *fs)
{
    return fs->extents->all_bytes + fs->extents->all_bytes / 8 <=
           fs->account.planned_segments * fs->arena.segment_bytes + fs->account.unplanned_bytes;
}

void efs_extent_set_kind(struct efs *fs, struct efs_extent *x, enum efs_extent_list kind)
{
    if (kind == EFS_LIST_SCAN && (x->protected || extents_all_fit(fs)))
        kind = EFS_LIST_EVICTABLE;
    if (x->kind == EFS_LIST_SCAN)
        fs->extents->scan_bytes -= efs_extent_span(fs, x, x->required);
    if (kind == EFS_LIST_SCAN)
        fs->extents->scan_bytes += efs_extent_span(fs, x, x->required);
    x->kind = (uint8_t)kind;
}

void efs_extent_delist(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->list != EFS_LIST_NONE)
        efs_lru_remove(&fs->extents->lists[x->list], extent);
    x->list = EFS_LIST_NONE;
}

void efs_extent_enlist(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    efs_extent_delist(fs, extent);
    if (x->resident == 0 || x->state == EFS_EXTENT_LOADING)
        return;
    x->list = efs_extent_evictable(x) ? x->kind : EFS_LIST_PROTECTED;
    efs_lru_insert(&fs->extents->lists[x->list], extent, x->list != EFS_LIST_FIRST);
}

void efs_extent_used(struct efs *fs, struct efs_extent *x)
{
    fs->extents->ahead_bytes -= x->ahead_bytes;
    x->ahead_bytes = 0;
}

void efs_extent_free(struct efs *fs, struct efs_extent *x, unsigned components)
{
    if (components & EFS_COMPONENT_E)
        efs_arena_free(&fs->arena, &x->e);
    if (components & EFS_COMPONENT_SM)
        efs_arena_free(&fs->arena, &x->sm);
}

void efs_extents_protect(struct efs *fs, uint32_t expert, unsigned components)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent *x = &fs->extents->at[i];
        uint8_t protect = (uint8_t)(components & x->required);
        if (x->protected != protect) {
            x->protected = protect;
            efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
            efs_extent_enlist(fs, i);
        }
    }
}

unsigned efs_extents_resident(const struct efs *fs, uint32_t expert, bool *some)
{
    unsigned all = EFS_BOTH, any = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        unsigned have = x->state == EFS_EXTENT_IDLE ? x->resident : 0;
        all &= have | (EFS_BOTH & ~(unsigned)x->required);
        any |= have;
    }
    *some = any != 0;
    return any ? all : 0;
}

bool efs_extents_loading(const struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        if (fs->extents->at[i].state != EFS_EXTENT_IDLE)
            return true;
    return false;
}
