/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the statistics of expertfs-stats.h as atomics. Counters only increase; gauges are computed when they are
 * read.
 */
#ifndef EFS_STATS_H
#define EFS_STATS_H

#include "expertfs-stats.h"

#include <stdatomic.h>

struct efs_stats_counters {
#define EFS_STATS_ATOMIC(name, kind, unit, help) _Atomic uint64_t name;
    EFS_STATS(EFS_STATS_ATOMIC)
#undef EFS_STATS_ATOMIC
};

#define efs_count(stats, name, n) atomic_fetch_add_explicit(&(stats)->name, (uint64_t)(n), memory_order_relaxed)

#endif
