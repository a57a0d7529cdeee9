/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.c - memory goes where it saves more reads. What is read through the page cache is kept there decoded; coded
 * chunks of the same experts in our pools help only after the page cache has dropped them, and it would have dropped
 * less with their memory. Simulated with routing of gpt-oss-20b and a memory limit of half of the file: a page cache
 * with all the memory misses 9 % of the bytes, one beside pools of the same size 32 %; and a miss costs more than its
 * disk read, in faults, copies and reclaim.
 *
 * So under budget=auto, while reads come for the page cache and it fills the memory of the cgroups or of the machine,
 * the pools keep only what reads under way need. Where the page cache leaves memory free, because its readers have
 * limits of their own or little to read, the chunks stay. When experts are opened with leases, or read past the page
 * cache, the budget is automatic again.
 */
#include "shrink.h"

#include <stdio.h>
#include <string.h>

#include "daemon.h"

#define MIB (UINT64_C(1) << 20)
#define LOOK_BYTES (64 * MIB)  /* between two looks: one takes less than 1 % of the time of reading so much */
#define LEAST_BYTES (96 * MIB) /* what is left to the pools: reads under way, and what the kernel reads ahead */
#define DIRECT_SHARE 8u        /* more than this part past the page cache: the pools are in use */
#define SPARE_SHARE 6u         /* less than this part of the memory that there is: the page cache has filled it */

/* Has the page cache filled the memory that is available to it and to us? Enough was read, and little is free. */
static bool pagecache_is_filled(const struct efsd *daemon)
{
    struct efs_memory memory;
    efs_memory(&memory);
    uint64_t spare = memory.available_bytes / SPARE_SHARE;
    return atomic_load(&daemon->shrink.cached_bytes) >= memory.available_bytes - spare && memory.free_bytes <= spare;
}

/* Set the budget, and remember the text by which the engine shows it. */
static void shrink_set_budget(struct efsd *daemon, uint64_t bytes)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    char text[32] = "auto";
    if (bytes)
        snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    uint64_t held_bytes;
    bool set = !efs_set(daemon->fs, "budget", text, &held_bytes, NULL);
    shrink->set_bytes = atomic_load(&shrink->cached_bytes);
    if (set) {
        set = bytes && !efs_get(daemon->fs, "budget", shrink->budget, sizeof(shrink->budget));
        atomic_store(&shrink->small, set);
    }
}

/* Was enough read since the budget was set for the page cache to fill the memory that it got? */
static bool shrink_had_time(const struct efsd *daemon)
{
    return atomic_load(&daemon->shrink.cached_bytes) - daemon->shrink.set_bytes >= efsd_memory_bytes();
}

static void shrink_look(struct efsd *daemon, bool in_use)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    char budget[64];
    if (efs_get(daemon->fs, "budget", budget, sizeof(budget)))
        return;
    bool small = atomic_load(&shrink->small) && strcmp(budget, shrink->budget) == 0;
    atomic_store(&shrink->small, small);
    if (!small && strcmp(budget, "auto") != 0)
        return; /* someone has set it */
    bool wanted = !in_use && (pagecache_is_filled(daemon) || (small && !shrink_had_time(daemon)));
    if (small == wanted)
        return;
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    uint64_t least = stats.fixed_bytes + LEAST_BYTES;
    if (small)
        shrink_set_budget(daemon, 0);
    else if (least < stats.budget_bytes)
        shrink_set_budget(daemon, least);
}

static void shrink_look_alone(struct efsd *daemon, bool in_use)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    if (!atomic_exchange(&shrink->looking, true)) {
        shrink_look(daemon, in_use);
        atomic_store(&shrink->looking, false);
    }
}

void efsd_shrink_read(struct efsd *daemon, size_t bytes, bool cached)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    uint64_t direct = atomic_fetch_add_explicit(&shrink->direct_bytes, cached ? 0 : bytes, memory_order_relaxed);
    uint64_t all = atomic_fetch_add_explicit(&shrink->cached_bytes, cached ? bytes : 0, memory_order_relaxed);
    uint64_t at = atomic_load_explicit(&shrink->look_bytes, memory_order_relaxed);
    if (all + direct < at + LOOK_BYTES || !atomic_compare_exchange_strong(&shrink->look_bytes, &at, all))
        return;
    direct = atomic_exchange(&shrink->direct_bytes, 0);
    bool leased = atomic_exchange(&shrink->leased, false);
    shrink_look_alone(daemon, leased || direct > LOOK_BYTES / DIRECT_SHARE);
}

void efsd_shrink_leased(struct efsd *daemon)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    if (!atomic_exchange(&shrink->leased, true) && atomic_load(&shrink->small))
        shrink_look_alone(daemon, true);
}
