/* SPDX-License-Identifier: Apache-2.0 */
/* controller.c - see controller.h. */
#include "controller.h"

#include "expertfs-private.h"

#define MIB (UINT64_C(1) << 20)
#define RISE_SAMPLES 6 /* of the plan thread: 3 s */

/* Of the available memory, pools included: */
#define UNKNOWN_SHARE 2u  /* for the pools if nothing is known of the programs */
#define LOADING_SHARE 16u /* for the pools while a program loads its model */
#define SPARE_SHARE 16u   /* that stays free, besides mapped_bytes, for later allocations */
#define LEAST_SHARE 8u    /* for the pools at least, also if mapped_bytes is more */

#define CHECK_BYTES (64 * MIB) /* read between two looks at what reads are for */
#define CEDED_BYTES (96 * MIB) /* for the pools while ceded: reads in flight and the kernel's read-ahead */
#define DIRECT_SHARE 8u        /* more than 1/8 of the bytes passed by the page cache: the pools are in use */
#define FILLED_SHARE 6u        /* at most 1/6 of the available memory is free: the page cache has filled it */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void efs_controller_reset(struct efs_controller *c, bool automatic)
{
    *c = (struct efs_controller){.automatic = automatic,
                                 .mapped_bytes = c->mapped_bytes,
                                 .experts_bytes = c->experts_bytes,
                                 .seen_cached = c->seen_cached,
                                 .seen_direct = c->seen_direct,
                                 .ceded_at = c->seen_cached,
                                 .is_new = true,
                                 .bytes = UINT64_MAX,
                                 .least_bytes = UINT64_MAX};
}

/* Whether reads of files are for the page cache, and it has filled the memory that is available to it and to this
 * process: programs have read as much since the start. Once ceded, memory stays so at least until they have read as
 * much again. */
static bool page_cache_needs_all(const struct efs_controller *c, const struct efs_reading *r, uint64_t direct,
                                 uint64_t all)
{
    uint64_t spare = r->available_bytes / FILLED_SHARE;
    if (c->experts_used || direct > all / DIRECT_SHARE)
        return false;
    if (r->cached_bytes >= r->available_bytes - spare && r->free_bytes <= spare)
        return true;
    return c->ceded && r->cached_bytes - c->ceded_at < r->available_bytes;
}

static void look_at_reads(struct efs_controller *c, const struct efs_reading *r, uint64_t now)
{
    uint64_t direct = r->direct_bytes - c->seen_direct, all = direct + r->cached_bytes - c->seen_cached;
    if (all < CHECK_BYTES)
        return;
    bool cede = page_cache_needs_all(c, r, direct, all);
    c->seen_direct = r->direct_bytes;
    c->seen_cached = r->cached_bytes;
    c->experts_used = false;
    if (cede == c->ceded || (cede && r->fixed_bytes + CEDED_BYTES >= now))
        return;
    c->before_bytes = now;
    c->ceded = cede;
    c->ceded_at = r->cached_bytes;
    c->is_new = true;
}

/* The budget by budget=auto. */
static uint64_t automatic_bytes(const struct efs_controller *c, const struct efs_reading *r)
{
    uint64_t all = r->available_bytes + r->pools_bytes, pools;
    if (c->ceded)
        return r->fixed_bytes + CEDED_BYTES;
    if (c->mapped_bytes == EFS_LEAVE_HALF)
        return all / UNKNOWN_SHARE;
    if (c->mapped_bytes == EFS_LEAVE_MOST)
        pools = all / LOADING_SHARE;
    else
        pools = larger(less(all - all / SPARE_SHARE, c->mapped_bytes), all / LEAST_SHARE);
    return r->fixed_bytes + larger(pools, smaller(c->experts_bytes, all / UNKNOWN_SHARE));
}

static void controller_set(struct efs_controller *c, uint64_t bytes)
{
    c->bytes = bytes;
    c->least_bytes = UINT64_MAX;
    c->samples = 0;
    c->is_new = false;
}

void efs_controller_update(struct efs_controller *c, const struct efs_reading *r, uint64_t now)
{
    uint64_t wanted = r->provided_bytes, slack = 0;
    if (c->automatic) {
        if (r->is_sample)
            look_at_reads(c, r, now);
        wanted = smaller(automatic_bytes(c, r), wanted);
        slack = r->step_bytes;
    }
    if (wanted < now && (wanted < less(now, slack) || r->provided_bytes < now)) {
        controller_set(c, wanted);
        return;
    }
    if (c->automatic && c->is_new) {
        controller_set(c, wanted);
        return;
    }
    c->least_bytes = smaller(c->least_bytes, wanted);
    c->samples += r->is_sample;
    if (c->samples < RISE_SAMPLES)
        return;
    uint64_t least = c->least_bytes;
    controller_set(c, least < now + r->step_bytes ? c->bytes : less(least, r->step_bytes / 2));
}
