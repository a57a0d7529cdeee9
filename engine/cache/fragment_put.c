/* SPDX-License-Identifier: Apache-2.0 */
/* fragment_put.c - adds fragments, and finds memory for their slabs. */
#include "fragment_internal.h"

#include "extent_internal.h"

#define POOL_SHARE 2 /* fragments take at most half of the pools */

#define PROMOTE_MIN 64u

bool efs_fragments_serve(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    if (!fs->fragments || fs->closing || x->state != EFS_EXTENT_IDLE || x->resident)
        return false;
    uint64_t half = efs_extent_span(fs, x, x->required) / EFS_GRANULE / 2;
    return efs_fragments_of(fs, extent) < (half > PROMOTE_MIN ? half : PROMOTE_MIN);
}

/* A new slab, or the oldest one with room. false: no memory. */
static bool next_slab(struct efs *fs)
{
    struct efs_fragments *f = fs->fragments;
    struct efs_block block = {0};
    bool may_grow =
        (f->slabs + 1) * EFS_FRAGMENT_SLAB <= efs_account_available(&fs->account) / POOL_SHARE || f->slabs == 0;
    bool have = may_grow && efs_arena_alloc(&fs->arena, EFS_FRAGMENT_SLAB, false, &block);
    while (may_grow && !have && !efs_extents_wait(fs) && efs_extents_reclaim(fs, EFS_LOAD_PREFETCH))
        have = efs_arena_alloc(&fs->arena, EFS_FRAGMENT_SLAB, false, &block);
    if (have) {
        struct efs_fragment_slab *slab = (void *)block.data;
        slab->block = block;
        slab->count = 0;
        f->slabs++;
        efs_fragments_append(f, slab);
        return true;
    }
    if (f->slabs == 0)
        return false;
    efs_fragments_recycle(f);
    return true;
}

void efs_fragment_put(struct efs *fs, struct efs_fragment_key key, uint32_t extent, const void *page)
{
    struct efs_fragments *f = fs->fragments;
    if ((f->newest && f->newest->count < EFS_FRAGMENTS_IN_SLAB) || next_slab(fs))
        efs_fragments_add(f, key, extent, page);
}
