/* SPDX-License-Identifier: Apache-2.0 */
/*
 * controller.h - how large the budget is, from numbers alone: no lock, no clock, no call of the system. budget.c
 * has one for each store, and calls it after each reading of the memory that machine and cgroups have left.
 *
 * A budget that the user set is reduced to what the system can provide. With budget=auto the controller leaves memory
 * to the page cache of files that programs map or read:
 *
 *     half of the available memory, while nothing is known of the programs
 *     the part of the model that the program of this process, or a client of the mount, maps, and 1/16 of the available
 *     memory (efs_budget_leave())
 *     all but what reads in flight need, while programs read files through the page cache and have filled it: chunks of
 *     the same experts in the pools are used only after the page cache has evicted them, and it would evict less with
 *     the memory of the pools. Simulated with routing of gpt-oss-20b and a memory limit of half of the file: a page
 *     cache with all the memory misses 9 % of the bytes, a page cache next to pools of the same size 32 %; and a miss
 *     costs more than its disk read, in faults, copies and reclaim.
 */
#ifndef EFS_CONTROLLER_H
#define EFS_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

struct efs_reading { /* numbers of one moment */
    uint64_t
        provided_bytes; /* the budget that the system can provide, with all in use; UINT64_MAX: no limit is known */
    uint64_t available_bytes; /* struct efs_memory; 0: not known */
    uint64_t free_bytes;      /* the same */
    uint64_t pools_bytes;     /* memory that the pools have taken from available_bytes */
    uint64_t fixed_bytes;
    uint64_t step_bytes;   /* smaller changes do not raise the budget */
    uint64_t cached_bytes; /* read by other programs since the start: through the page cache, ... */
    uint64_t direct_bytes; /* ... and past it */
    bool is_sample;        /* one of the plan thread's, which are 500 ms apart */
};

struct efs_controller {
    bool automatic;
    uint64_t mapped_bytes;  /* automatic: of files of the model, mapped by programs; or EFS_LEAVE_HALF,
                               EFS_LEAVE_MOST */
    uint64_t experts_bytes; /* with mapped_bytes: memory for the experts that the program needs at once */
    /* state */
    bool is_new;                       /* the settings have changed: the next reading sets the budget */
    bool experts_used;                 /* experts were requested or leased since reads of files were last looked at */
    bool ceded;                        /* the memory is left to the page cache */
    int samples;                       /* since the budget was last compared with least_bytes */
    uint64_t bytes;                    /* the budget; UINT64_MAX: not limited yet */
    uint64_t least_bytes;              /* minimum of the last readings */
    uint64_t before_bytes;             /* ceded: the budget before that */
    uint64_t ceded_at;                 /* cached_bytes when `ceded` changed */
    uint64_t seen_cached, seen_direct; /* cached_bytes, direct_bytes when they were last looked at */
};

/* Forgets all readings. automatic: budget=auto. */
void efs_controller_reset(struct efs_controller *controller, bool automatic);
/* Adjusts controller->bytes: down at once, up in steps after 6 samples, so that short changes of free memory do not
 * resize the pools. now_bytes: the budget in force. */
void efs_controller_update(struct efs_controller *controller, const struct efs_reading *reading, uint64_t now_bytes);
/* An expert is requested or leased. true: memory was ceded to the page cache, and controller->bytes is what it was
 * before. */
static inline bool efs_controller_use_expert(struct efs_controller *c)
{
    if (!c->automatic)
        return false;
    bool ceded = c->ceded;
    c->experts_used = true;
    if (ceded) {
        c->bytes = c->before_bytes;
        c->ceded_at = c->seen_cached;
        c->ceded = false;
        c->is_new = true;
    }
    return ceded;
}

#endif
