/* SPDX-License-Identifier: Apache-2.0 */
/* memory_left.c - see memory_left.h. */
#include "memory_left.h"

#include "expertfs-private.h"
#include "proc_text.h"
#include "sys.h"

#include <stddef.h>

#define MIB (1ull << 20)
#define MARGIN_SHARE 16u /* 1/16 of the limit as margin for allocations between two checks */
#define MARGIN_LEAST (8 * MIB)
#define MARGIN_MOST (64 * MIB)

/* ---- open and close ---- */

static void memory_left_close_group(struct efs_memory_group *g)
{
    const int all[] = {g->limit, g->high, g->usage, g->stat};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            efs_sys_close(all[i]);
}

static void memory_left_add_group(void *arg, const char *directory, const struct efs_cgroup_files *files)
{
    struct efs_memory_left *left = arg;
    if (left->count == EFS_MEMORY_GROUPS)
        return;
    struct efs_memory_group g = {.limit = efs_kernel_open(directory, files->limit),
                                 .high = files->high ? efs_kernel_open(directory, files->high) : -1,
                                 .usage = efs_kernel_open(directory, files->usage),
                                 .stat = efs_kernel_open(directory, "memory.stat"),
                                 .cache = files->cache,
                                 .shared = files->shared};
    if (g.limit < 0) /* the root of a hierarchy has no limit file */
        memory_left_close_group(&g);
    else
        left->groups[left->count++] = g;
}

void efs_memory_left_open(struct efs_memory_left *left)
{
    *left = (struct efs_memory_left){.machine = efs_kernel_open("/proc", "meminfo")};
    efs_memory_cgroups(memory_left_add_group, left);
}

void efs_memory_left_close(struct efs_memory_left *left)
{
    for (uint32_t i = 0; i < left->count; i++)
        memory_left_close_group(&left->groups[i]);
    if (left->machine >= 0)
        efs_sys_close(left->machine);
    *left = (struct efs_memory_left){.machine = -1};
}

/* ---- reading ---- */

static uint64_t memory_left_margin(uint64_t limit)
{
    uint64_t m = limit / MARGIN_SHARE;
    return m < MARGIN_LEAST ? MARGIN_LEAST : m > MARGIN_MOST ? MARGIN_MOST : m;
}

static uint64_t memory_left_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* bytes - used - margin, clamped against overflow: the numbers come from text files. */
static int64_t memory_left_of(uint64_t bytes, uint64_t used, uint64_t margin)
{
    uint64_t most = INT64_MAX / 2;
    return (int64_t)(bytes < most ? bytes : most) - (int64_t)(used < most ? used : most) - (int64_t)margin;
}

/* Numbers of a cgroup. The kernel throttles processes above memory.high until they make no progress, but kills none. It
 * reclaims page cache on demand, but not tmpfs and memfds. */
struct group_bytes {
    uint64_t hard, limit;  /* memory.max; the lower of memory.max and memory.high */
    uint64_t usage, cache; /* cache: page cache without tmpfs and memfds */
};

/* false: the cgroup has no limit; usage and memory.stat are then not read, because the kernel sums them over all
 * CPUs. */
static bool memory_left_read(const struct efs_memory_group *g, struct group_bytes *bytes)
{
    char text[EFS_PROC_TEXT];
    uint64_t high = efs_kernel_number(g->high, UINT64_MAX);
    bytes->hard = efs_kernel_number(g->limit, UINT64_MAX);
    bytes->limit = bytes->hard < high ? bytes->hard : high;
    if (bytes->limit >= EFS_CGROUP_NO_LIMIT)
        return false;
    bytes->usage = efs_kernel_number(g->usage, 0);
    efs_proc_text(g->stat, text);
    bytes->cache = memory_left_less(efs_kernel_field(text, g->cache, 0), efs_kernel_field(text, g->shared, 0));
    return true;
}

static void lower(uint64_t *least, uint64_t bytes)
{
    *least = bytes < *least ? bytes : *least;
}

static int64_t memory_left_in_machine(int fd, struct efs_memory *memory)
{
    char text[EFS_PROC_TEXT];
    efs_proc_text(fd, text);
    uint64_t all = efs_kernel_field(text, "MemTotal", UINT64_MAX / 1024) * 1024;
    uint64_t available = efs_kernel_field(text, "MemAvailable", UINT64_MAX / 1024) * 1024;
    bool known = available < UINT64_MAX / 1024 * 1024;
    *memory = (struct efs_memory){.limit_bytes = all,
                                  .available_bytes = known ? available : 512 * MIB,
                                  .free_bytes = efs_kernel_field(text, "MemFree", 0) * 1024};
    bool total = all != 0 && all < UINT64_MAX / 1024 * 1024;
    return total ? memory_left_of(known ? available : 0, 0, memory_left_margin(all)) : INT64_MAX;
}

int64_t efs_memory_left_read(const struct efs_memory_left *left, struct efs_memory *memory)
{
    int64_t least = memory_left_in_machine(left->machine, memory);
    for (uint32_t i = 0; i < left->count; i++) {
        struct group_bytes b;
        if (!memory_left_read(&left->groups[i], &b))
            continue;
        uint64_t used = memory_left_less(b.usage, b.cache);
        int64_t bytes = memory_left_of(b.limit, used, memory_left_margin(b.limit));
        least = bytes < least ? bytes : least;
        lower(&memory->available_bytes, memory_left_less(b.limit, used));
        lower(&memory->free_bytes, memory_left_less(b.limit, b.usage));
        memory->cgroup |= b.hard < memory->limit_bytes;
        lower(&memory->limit_bytes, b.hard);
    }
    return least;
}

void efs_memory(struct efs_memory *memory)
{
    struct efs_memory_left left;
    efs_memory_left_open(&left);
    efs_memory_left_read(&left, memory);
    efs_memory_left_close(&left);
}

uint64_t efs_auto_budget(void)
{
    struct efs_memory memory;
    efs_memory(&memory);
    return memory.available_bytes / 2;
}

bool efs_fits_memory(uint64_t bytes)
{
    struct efs_memory memory;
    efs_memory(&memory);
    return bytes < memory.available_bytes / 5 * 4;
}
