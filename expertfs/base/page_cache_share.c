/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_cache_share.c - divides memory between the engine's pools and the page cache. Data that is read through the page
 * cache stays there decoded. Coded chunks of the same experts in the pools are used only after the page cache has
 * evicted them, and it would evict less with the memory of the pools. Simulated with routing of gpt-oss-20b and a
 * memory limit of half of the file: a page cache with all the memory misses 9 % of the bytes, a page cache next to
 * pools of the same size 32 %; and a miss costs more than its disk read, in faults, copies and reclaim.
 *
 * So under budget=auto, while reads are for the page cache and it fills the memory of the cgroups or of the machine,
 * the pools keep only the memory that reads in flight need. Where the page cache leaves memory free, because its
 * readers have limits of their own or read little, the pools keep their chunks. When experts are opened with leases or
 * read uncached, the budget is automatic again.
 */
#include "page_cache_share.h"

#include <stdio.h>
#include <string.h>

#include "daemon.h"
#include "expertfs-stats.h"

#define MIB (UINT64_C(1) << 20)
#define CHECK_BYTES (64 * MIB) /* bytes read between two checks; a check takes < 1 % of the time to read them */
#define MIN_BYTES (96 * MIB)   /* minimum for the pools: reads in flight and the kernel's read-ahead */
#define DIRECT_SHARE 8u        /* more than 1/8 of the bytes since the last check were uncached: the pools are in use */
#define SPARE_SHARE 6u         /* at most 1/6 of the available memory is free: the page cache has filled it */

bool efsd_page_cache_fits(struct efsd *daemon)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    uint64_t held = stats.fixed_bytes + stats.chunk_pool_bytes + stats.full_pool_bytes;
    uint64_t grows = stats.budget_bytes > held ? stats.budget_bytes - held : 0, left = efsd_memory_bytes();
    return left > grows && left - grows >= daemon->info.source_bytes;
}

/* True if the page cache has filled the memory available to it and to this process: at least 5/6 of it was read for the
 * page cache, and at most 1/6 of it is free. */
static bool pagecache_is_filled(const struct efsd *daemon)
{
    struct efs_memory memory;
    efs_memory(&memory);
    uint64_t spare = memory.available_bytes / SPARE_SHARE;
    return atomic_load(&daemon->shrink.cached_bytes) >= memory.available_bytes - spare && memory.free_bytes <= spare;
}

/* Sets the budget (0: auto), and stores it as efs_get() returns it, to detect changes by users. */
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
        atomic_store(&shrink->reduced, set);
    }
}

/* True if the bytes read for the page cache since the budget was set could fill the available memory. */
static bool shrink_had_time(const struct efsd *daemon)
{
    return atomic_load(&daemon->shrink.cached_bytes) - daemon->shrink.set_bytes >= efsd_memory_bytes();
}

static void shrink_check(struct efsd *daemon, bool in_use)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    char budget[64];
    if (efs_get(daemon->fs, "budget", budget, sizeof(budget)))
        return;
    bool reduced = atomic_load(&shrink->reduced) && strcmp(budget, shrink->budget) == 0;
    atomic_store(&shrink->reduced, reduced);
    if (!reduced && strcmp(budget, "auto") != 0)
        return; /* a user has set the budget */
    bool wanted = !in_use && (pagecache_is_filled(daemon) || (reduced && !shrink_had_time(daemon)));
    if (reduced == wanted)
        return;
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    uint64_t least = stats.fixed_bytes + MIN_BYTES;
    if (reduced)
        shrink_set_budget(daemon, 0);
    else if (least < stats.budget_bytes)
        shrink_set_budget(daemon, least);
}

static void shrink_try_check(struct efsd *daemon, bool in_use)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    if (!atomic_exchange(&shrink->checking, true)) {
        shrink_check(daemon, in_use);
        atomic_store(&shrink->checking, false);
    }
}

void efsd_shrink_read(struct efsd *daemon, size_t bytes, bool cached)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    uint64_t direct = atomic_fetch_add_explicit(&shrink->direct_bytes, cached ? 0 : bytes, memory_order_relaxed);
    uint64_t all = atomic_fetch_add_explicit(&shrink->cached_bytes, cached ? bytes : 0, memory_order_relaxed);
    uint64_t at = atomic_load_explicit(&shrink->checked_bytes, memory_order_relaxed);
    if (all + direct < at + CHECK_BYTES || !atomic_compare_exchange_strong(&shrink->checked_bytes, &at, all))
        return;
    direct = atomic_exchange(&shrink->direct_bytes, 0);
    bool leased = atomic_exchange(&shrink->leased, false);
    shrink_try_check(daemon, leased || direct > CHECK_BYTES / DIRECT_SHARE);
}

void efsd_shrink_leased(struct efsd *daemon)
{
    struct efsd_shrink *shrink = &daemon->shrink;
    if (!atomic_exchange(&shrink->leased, true) && atomic_load(&shrink->reduced))
        shrink_try_check(daemon, true);
}
