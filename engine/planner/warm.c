/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm.c - see warm.h. There is no thread: each load that ends, whoever wanted it, looks whether another can begin.
 */
#include "warm.h"

#include "history.h"
#include "budget.h"
#include "cache.h"
#include "sys.h"
#include "extent_core.h"

#include <errno.h>
#include <stdlib.h>

#define AT_ONCE 2u     /* extents under way: keeps the disk busy, and a read that is wanted waits for little */
#define FREE_SHARE 16u /* of the chunk pool stays empty, so that what is wanted finds holes of its size */

struct candidate {
    double share; /* of its layer's passes that asked for it */
    uint32_t expert, layer, index;
};

struct efs_warming {
    struct candidate *order;    /* [count] the most expected first */
    uint32_t count, at, extent; /* the next one, and the next extent of it, counted from its first */
    bool open, planned;
};

errint_t efs_warm_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    if (!fs->options.warm || count == 0)
        return 0;
    struct efs_warming *w = efs_sys_calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    fs->warming = w;
    w->order = efs_sys_calloc(count, sizeof(w->order[0]));
    w->count = count;
    return w->order ? 0 : -ENOMEM;
}

void efs_warm_destroy(struct efs *fs)
{
    if (fs->warming)
        free(fs->warming->order);
    free(fs->warming);
}

uint64_t efs_warm_bytes(const struct efs_options *options, const struct efs_store *store)
{
    return options->warm ? store->expert_count * sizeof(struct candidate) : 0;
}

/* Of experts that are expected alike, layers get theirs evenly. */
static int warm_by_share(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->share != b->share)
        return a->share > b->share ? -1 : 1;
    if (a->index != b->index)
        return a->index < b->index ? -1 : 1;
    return (a->layer > b->layer) - (a->layer < b->layer);
}

void efs_warm_plan(struct efs *fs, const struct efs_history *history)
{
    struct efs_warming *w = fs->warming;
    if (!w)
        return;
    efs_lock(fs);
    for (uint32_t e = 0; e < w->count; e++) {
        uint32_t layer = efs_cache_layer_of(fs, e), index = e - efs_cache_layer_first(fs, layer);
        uint64_t passes = history->passes[layer];
        uint32_t times = history->counts[(size_t)layer * history->experts + index];
        w->order[e] = (struct candidate){
            .share = passes ? (double)times / (double)passes : 0, .expert = e, .layer = layer, .index = index};
    }
    qsort(w->order, w->count, sizeof(w->order[0]), warm_by_share);
    w->at = w->extent = 0;
    w->planned = true;
    efs_again(fs, EFS_AGAIN_REST);
    efs_unlock(fs);
}

/* Empty memory for that many bytes, within the plan, or room to have it. */
static bool warm_has_empty(struct efs *fs, uint64_t bytes)
{
    uint64_t segment = fs->arena.segment_bytes, planned = fs->account.planned_segments * segment;
    uint64_t after = fs->arena.used_bytes + bytes, now = fs->arena.segment_count * segment;
    if (after > planned - planned / FREE_SHARE)
        return false;
    return after <= now - now / FREE_SHARE || efs_budget_has_segment(fs);
}

/* Nobody waits for the disk or for memory, and none is on its way out. */
static bool warm_all_rests(const struct efs *fs)
{
    return !fs->closing && efs_extents_are_quiet(fs) && efs_extents_loads(fs, EFS_LOAD_GUESS) == 0 &&
           fs->leases_waiting == 0 && fs->coded_waiting == 0 && fs->account.segments_leaving == 0;
}

/* The next extent that is not here; EFS_NONE: there is no more. */
static uint32_t warm_next_extent(const struct efs *fs, struct efs_warming *w)
{
    for (; w->at < w->count; w->at++, w->extent = 0) {
        const uint32_t expert = w->order[w->at].expert;
        if (efs_full_of(fs, expert)->state != EFS_FULL_NONE)
            continue;
        uint32_t first = efs_expert_extent_first(fs, expert), end = efs_expert_extent_end(fs, expert);
        for (; first + w->extent < end; w->extent++) {
            const struct efs_extent *x = efs_extent(fs, first + w->extent);
            if (x->state == EFS_EXTENT_REST && x->have != x->needs)
                return first + w->extent;
        }
    }
    return EFS_NONE;
}

void efs_warm_go_on(struct efs *fs)
{
    struct efs_warming *w = fs->warming;
    if (!w || !w->open || !w->planned)
        return;
    while (warm_all_rests(fs) && efs_extents_loads(fs, EFS_LOAD_WARM) < AT_ONCE) {
        uint32_t extent = warm_next_extent(fs, w);
        if (extent == EFS_NONE)
            return;
        const struct efs_extent *x = efs_extent(fs, extent);
        unsigned missing = x->needs & ~(unsigned)x->have;
        uint64_t bytes = (missing & EFS_COMPONENT_E ? efs_extent_room(fs, x, EFS_COMPONENT_E) : 0) +
                         (missing & EFS_COMPONENT_SM ? efs_extent_room(fs, x, EFS_COMPONENT_SM) : 0);
        if (!warm_has_empty(fs, bytes) || efs_extent_load(fs, extent, EFS_LOAD_WARM) < 0)
            return;
        efs_count(&fs->stats, warmed_extents, 1);
        w->extent++;
    }
}

void efs_warm_ended(struct efs *fs, uint32_t extent, errint_t error)
{
    if (error < 0)
        fs->warming->at = fs->warming->count;
    else
        efs_extent_evict_early(fs, extent);
}

void efs_warm_begin(struct efs *fs)
{
    if (!fs->warming)
        return;
    if (!fs->plan_thread)
        efs_log(fs, EFS_LOG_WARNING, "no policy keeps this store's experts, so that none are read ahead of requests");
    efs_lock(fs);
    fs->warming->open = true;
    efs_again(fs, EFS_AGAIN_REST);
    efs_unlock(fs);
}
