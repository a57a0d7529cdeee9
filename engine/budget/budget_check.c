/* SPDX-License-Identifier: Apache-2.0 */
/* budget_check.c - compares a requested budget with the memory limits: above them the process would be killed (OOM). */
#include "budget.h"
#include "full.h"

#include <errno.h>

#define MIB (1ull << 20)

/* Bytes that the budget can use at most: with all of the store in memory, coded and full, unless they are allocated at
 * the start (prealloc). */
static uint64_t budget_max_use(struct efs *fs, uint64_t budget)
{
    uint64_t segment = fs->arena.segment_bytes;
    efs_lock(fs);
    uint64_t most = fs->account.bytes[EFS_ACCOUNT_FIXED];
    efs_unlock(fs);
    most += (fs->store->sb.store_bytes / segment * 9 / 8 + 4) * segment;
    for (uint32_t e = 0; fs->options.full_pool && e < fs->store->expert_count; e++)
        most += efs_memfile_bytes(fs, e);
    return fs->options.prealloc || budget < most ? budget : most;
}

errint_t efs_budget_check(struct efs *fs, uint64_t budget, uint64_t held, struct efs_error *err)
{
    struct efs_memory memory;
    char asked[EFS_SIZE_TEXT], most[EFS_SIZE_TEXT], limit[EFS_SIZE_TEXT];
    efs_memory(&memory);
    uint64_t take = budget_max_use(fs, budget), available = memory.available_bytes + held;
    const char *whose = memory.cgroup ? "the memory cgroup's limit" : "the machine's memory";
    if (available > memory.limit_bytes)
        available = memory.limit_bytes;
    if (take > memory.limit_bytes)
        return efs_fail(
            err, -ENOMEM,
            "%s: a budget of %llu MiB is not possible: %s is %llu MiB, of which %llu MiB are available\nhint: "
            "budget=auto takes half of that, or the minimum if that is more%s",
            fs->store->path, (unsigned long long)(budget / MIB), whose, (unsigned long long)(memory.limit_bytes / MIB),
            (unsigned long long)(available / MIB), memory.cgroup ? "; or raise the limit (memory.max)" : "");
    if (take > available)
        efs_fail(
            err, 0,
            "%s: a budget of %llu MiB is above the %llu MiB that are available (%s is %llu MiB): pools are planned for "
            "these (effective_budget)\nhint: budget=auto takes half of what is available",
            fs->store->path, (unsigned long long)(budget / MIB), (unsigned long long)(available / MIB), whose,
            (unsigned long long)(memory.limit_bytes / MIB));
    else if (budget > memory.limit_bytes)
        efs_fail(err, 0, "%s: budget %s accepted; this store uses at most %s (%s is %s)", fs->store->path,
                 efs_size_text(budget, asked), efs_size_text(take, most), whose,
                 efs_size_text(memory.limit_bytes, limit));
    return 0;
}
