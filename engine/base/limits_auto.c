/* SPDX-License-Identifier: Apache-2.0 */
/* limits_auto.c - the memory that the machine and its memory cgroups have, and what they leave. */
#include "expertfs.h"

#include "kernel_text.h"
#include "sized.h"
#include "sys.h"

static uint64_t limits_number(const char *directory, const char *name, uint64_t fallback)
{
    int fd = efs_kernel_open(directory, name);
    uint64_t number = efs_kernel_number(fd, fallback);
    if (fd >= 0)
        efs_sys_close(fd);
    return number;
}

static uint64_t limits_limit(const char *directory, const char *name)
{
    uint64_t limit = name ? limits_number(directory, name, UINT64_MAX) : UINT64_MAX;
    return limit >= EFS_CGROUP_NO_LIMIT ? UINT64_MAX : limit;
}

static void limits_text(const char *directory, const char *name, char text[EFS_KERNEL_TEXT])
{
    int fd = efs_kernel_open(directory, name);
    efs_kernel_text(fd, text);
    if (fd >= 0)
        efs_sys_close(fd);
}

/* What a cgroup leaves: limit - (usage - page cache). Page cache is given back on demand, memfds are not. Above high
 * nobody is killed, but slowed down until nothing goes on. */
static uint64_t limits_leave(const char *directory, uint64_t limit, const struct efs_cgroup_files *files,
                             uint64_t *free_bytes)
{
    char text[EFS_KERNEL_TEXT];
    uint64_t high = limits_limit(directory, files->high);
    limit = limit < high ? limit : high;
    *free_bytes = limit;
    if (limit == UINT64_MAX)
        return limit;
    uint64_t usage = limits_number(directory, files->usage, 0);
    *free_bytes = limit > usage ? limit - usage : 0;
    limits_text(directory, "memory.stat", text);
    uint64_t cache = efs_kernel_field(text, files->cache, 0), shared = efs_kernel_field(text, files->shared, 0);
    cache = cache > shared ? cache - shared : 0;
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

static void limits_add(void *arg, const char *directory, const struct efs_cgroup_files *files)
{
    struct efs_memory *least = arg;
    uint64_t limit = limits_limit(directory, files->limit), free_bytes;
    uint64_t left = limits_leave(directory, limit, files, &free_bytes);
    if (left < least->available_bytes)
        least->available_bytes = left;
    if (free_bytes < least->free_bytes)
        least->free_bytes = free_bytes;
    least->cgroup |= limit < least->limit_bytes;
    if (limit < least->limit_bytes)
        least->limit_bytes = limit;
}

void efs_memory(struct efs_memory *out, size_t bytes)
{
    struct efs_memory memory;
    char text[EFS_KERNEL_TEXT];
    limits_text("/proc", "meminfo", text);
    uint64_t total = efs_kernel_field(text, "MemTotal", UINT64_MAX / 1024);
    memory = (struct efs_memory){.limit_bytes = total * 1024,
                                 .available_bytes = efs_kernel_field(text, "MemAvailable", 512 * 1024) * 1024,
                                 .free_bytes = efs_kernel_field(text, "MemFree", 0) * 1024};
    efs_memory_cgroups(limits_add, &memory);
    efs_sized_out(out, bytes, &memory, sizeof(memory));
}

uint64_t efs_auto_budget(void)
{
    struct efs_memory memory;
    efs_memory(&memory, sizeof(memory));
    return memory.available_bytes / 2;
}
