/* SPDX-License-Identifier: Apache-2.0 */
/* prefetcher_fill.c - see prefetcher.h: fills empty memory while the disk is idle (setting warm). */
#include "prefetcher_internal.h"
#include "stats.h"

#include "budget.h"
#include "extent.h"
#include "machine.h"
#include "plan_thread.h"

#include <errno.h>
#include <string.h>

static const char *const warm_names[EFS_WARMS] = {"off", "auto", "always"};

enum efs_warm efs_prefetcher_warm(const struct efs *fs)
{
    return fs->prefetcher->warm;
}

/* ---- reads ---- */

#define FILL_AT_ONCE 2u     /* extents in flight; bounds the delay of demand reads */
#define FILL_FREE_SHARE 16u /* 1/16 of the chunk pool stays empty, so that demand reads find holes of their size */

/* Whether bytes fit into the memory of the planned chunk pool that is not in use. */
static bool fill_fits(const struct efs *fs, uint64_t bytes)
{
    uint64_t planned = fs->account.planned_segments * fs->arena.segment_bytes;
    return fs->arena.used_bytes + bytes <= planned - planned / FILL_FREE_SHARE;
}

/* Whether that memory is in segments of the pool, or in one that can be added now. */
static bool fill_has_empty(struct efs *fs, uint64_t bytes)
{
    uint64_t now = fs->arena.segment_count * fs->arena.segment_bytes;
    return fs->arena.used_bytes + bytes <= now - now / FILL_FREE_SHARE || efs_budget_has_segment(fs);
}

static bool fill_wants(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = efs_extent(fs, extent);
    return x->state == EFS_EXTENT_IDLE && x->resident != x->required && !x->elsewhere;
}

static uint64_t fill_extent_bytes(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = efs_extent(fs, extent);
    unsigned missing = x->required & ~(unsigned)x->resident;
    return (missing & EFS_COMPONENT_E ? efs_extent_alloc_bytes(fs, x, EFS_COMPONENT_E) : 0) +
           (missing & EFS_COMPONENT_SM ? efs_extent_alloc_bytes(fs, x, EFS_COMPONENT_SM) : 0);
}

/* With warm=always a mount, whose files other programs read, fills its memory with what it can hold: experts, then the
 * rest of the files. Elsewhere only experts are read, and only if all of them fit. */
static bool fill_takes_all(const struct efs *fs)
{
    return fs->prefetcher->warm == EFS_WARM_ALWAYS && fs->options.exports;
}

/* The next extent that is not in memory, in the order of the store; EFS_NONE: none. Extents of experts are the first of
 * a store. */
static uint32_t fill_next(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint32_t experts = fs->store->expert_count, others = experts ? efs_expert_extent_end(fs, experts - 1) : 0;
    for (; pf->fill_expert < experts; pf->fill_expert++) {
        uint32_t first = efs_expert_extent_first(fs, pf->fill_expert), end = efs_expert_extent_end(fs, pf->fill_expert);
        for (uint32_t i = first; i < end && efs_full_of(fs, pf->fill_expert)->state == EFS_FULL_NONE; i++)
            if (fill_wants(fs, i))
                return i;
    }
    if (!fill_takes_all(fs))
        return EFS_NONE;
    for (pf->fill_extent = pf->fill_extent > others ? pf->fill_extent : others;
         pf->fill_extent < efs_extents(fs)->count; pf->fill_extent++)
        if (fill_wants(fs, pf->fill_extent))
            return pf->fill_extent;
    return EFS_NONE;
}

enum fill_state {
    FILL_OFF,
    FILL_LATER,
    FILL_TOO_LARGE,
    FILL_SERVER,
    FILL_FULL,
    FILL_DONE,
    FILL_UNKNOWN,
    FILL_SAMPLES,
    FILL_BUSY,
    FILL_ON
};

/* The state, without a look at the machine. */
static enum fill_state fill_plan(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    if (pf->warm == EFS_WARM_OFF)
        return FILL_OFF;
    if (pf->warm == EFS_WARM_AUTO && fs->store->backed)
        return FILL_SERVER;
    if (!pf->fills || (fs->store->expert_count && !efs_plan_thread_planned(fs)))
        return FILL_LATER;
    uint64_t planned = fs->account.planned_segments, most = planned * fs->arena.segment_bytes;
    if (!fill_takes_all(fs) && pf->fill_bytes > most - most / FILL_FREE_SHARE)
        return FILL_TOO_LARGE;
    if (pf->fill_segments != planned)
        pf->fill_expert = pf->fill_extent = 0;
    pf->fill_segments = planned;
    uint32_t extent = fill_next(fs);
    if (extent != EFS_NONE)
        return fill_fits(fs, fill_extent_bytes(fs, extent)) ? FILL_ON : FILL_FULL;
    return efs_extents(fs)->loads[EFS_LOAD_WARM] ? FILL_ON : FILL_DONE;
}

/* Has the machine sampled while there is something to fill. */
static enum fill_state fill_state(struct efs *fs)
{
    enum fill_state state = fill_plan(fs);
    bool watch = state == FILL_ON && fs->prefetcher->warm == EFS_WARM_AUTO;
    bool idle = efs_plan_thread_machine_idle(fs, watch);
    if (!watch || idle)
        return state;
    const struct efs_machine *machine = efs_plan_thread_machine(fs);
    return machine->known ? FILL_BUSY : machine->missing ? FILL_UNKNOWN : FILL_SAMPLES;
}

/* After an error, which was logged, filling stops until the number of planned segments changes. */
static void fill_done(struct efs *fs, uint32_t extent, errint_t error)
{
    (void)extent;
    if (error < 0)
        fs->prefetcher->fill_expert = fs->prefetcher->fill_extent = EFS_NONE;
}

void efs_prefetcher_fill(struct efs *fs)
{
    if (fill_state(fs) != FILL_ON)
        return;
    while (efs_extents_idle(fs) && efs_extents(fs)->loads[EFS_LOAD_PREFETCH] == 0 &&
           efs_extents(fs)->loads[EFS_LOAD_WARM] < FILL_AT_ONCE) {
        uint32_t extent = fill_next(fs);
        if (extent == EFS_NONE)
            return;
        uint64_t bytes = fill_extent_bytes(fs, extent);
        if (!fill_fits(fs, bytes) || !fill_has_empty(fs, bytes) ||
            !efs_extent_load(fs, extent, EFS_LOAD_WARM, fill_done))
            return;
        efs_count(fs->stats, warmed_extents, 1);
    }
}

void efs_prefetcher_set_warm(struct efs *fs, enum efs_warm warm)
{
    efs_lock(fs);
    fs->prefetcher->warm = warm;
    fs->prefetcher->fill_segments = UINT64_MAX; /* from the start again */
    efs_prefetcher_fill(fs);
    efs_unlock(fs);
}

void efs_prefetcher_print_fill(struct efs *fs, FILE *out)
{
    static const char *const words[] = {[FILL_OFF] = "off",
                                        [FILL_LATER] = "waits for the first plan",
                                        [FILL_TOO_LARGE] = "off: the plan has no room for all experts, coded",
                                        [FILL_SERVER] = "off: from a server only what is requested is read",
                                        [FILL_FULL] = "done: the planned part of the memory is full",
                                        [FILL_DONE] = "done",
                                        [FILL_UNKNOWN] = "waits: the kernel does not report how busy the machine is",
                                        [FILL_SAMPLES] = "waits for a sample of how busy the machine is",
                                        [FILL_BUSY] = "waits: the machine is busy",
                                        [FILL_ON] = "reads"};
    /* of a plan with a pool of decoded experts, which requests fill */
    static const char *const words_full[] = {
        [FILL_TOO_LARGE] = "off: memory is kept for decoded experts, too little for all, coded",
        [FILL_FULL] = "done: memory for coded experts is full, the rest is for decoded ones"};
    const struct efs_machine *machine = efs_plan_thread_machine(fs);
    const enum fill_state state = fill_state(fs);
    bool full = (state == FILL_TOO_LARGE || state == FILL_FULL) && efs_cache_tuning(fs)->ratio[EFS_POOL_F] > 0;
    bool known = machine && machine->known;
    fprintf(out, "warm: %s\n", warm_names[fs->prefetcher->warm]);
    fprintf(out, "warm_state: %s\n", full ? words_full[state] : words[state]);
    uint64_t bytes = fill_takes_all(fs) ? efs_extents(fs)->all_bytes : fs->prefetcher->fill_bytes;
    fprintf(out, "warm_bytes: %llu\n", (unsigned long long)bytes);
    fprintf(out, "io_stall: %.3f\ncpu_stall: %.3f\n", known ? machine->share[0] : 0, known ? machine->share[1] : 0);
}
