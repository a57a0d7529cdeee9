/* SPDX-License-Identifier: Apache-2.0 */
/* memory_left.c - see memory_left.h. */
#include "memory_left.h"

#include "sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT 8192
#define MIB (1ull << 20)
#define MARGIN_SHARE 16u /* of a limit: for what is taken meanwhile, by us and by others */
#define MARGIN_LEAST (8 * MIB)
#define MARGIN_MOST (64 * MIB)

/* The text of an open file, "" when it cannot be read. */
static void text_of(int fd, char text[TEXT])
{
    ssize_t n = fd < 0 ? 0 : efs_sys_pread(fd, text, TEXT - 1, 0);
    text[n > 0 ? n : 0] = 0;
}

/* A file of one number; "max" or nothing: fallback. */
static uint64_t number_of(int fd, uint64_t fallback)
{
    char text[TEXT], *end;
    text_of(fd, text);
    uint64_t value = strtoull(text, &end, 10);
    return end == text ? fallback : value;
}

/* The number after `name` at a line's start; 0: it is not there. */
static uint64_t field(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == ':'))
            return strtoull(line + n + 1, NULL, 10);
        if (!*line)
            break;
    }
    return 0;
}

/* ---- begin and end ---- */

static int open_in(const char *directory, const char *name)
{
    char path[TEXT + 64];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return efs_sys_open(path, O_RDONLY, 0);
}

static void close_group(struct efs_memory_group *g)
{
    const int all[] = {g->limit, g->usage, g->stat};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            efs_sys_close(all[i]);
}

static void add_group(struct efs_memory_left *left, const char *directory, bool v2)
{
    if (left->count == EFS_MEMORY_GROUPS)
        return;
    struct efs_memory_group g = {.limit = open_in(directory, v2 ? "memory.max" : "memory.limit_in_bytes"),
                                 .usage = open_in(directory, v2 ? "memory.current" : "memory.usage_in_bytes"),
                                 .stat = open_in(directory, "memory.stat"),
                                 .cache = v2 ? "file" : "total_cache",
                                 .shared = v2 ? "shmem" : "total_shmem"};
    if (g.limit < 0 || g.usage < 0) /* the root of a hierarchy, or none of ours */
        close_group(&g);
    else
        left->groups[left->count++] = g;
}

static void add_groups(struct efs_memory_left *left, const char *mount, const char *cgroup, bool v2)
{
    char directory[TEXT];
    int n = snprintf(directory, sizeof(directory), "%s%s", mount, cgroup);
    if (n < 0 || (size_t)n >= sizeof(directory))
        return;
    while (strlen(directory) >= strlen(mount)) {
        add_group(left, directory, v2);
        *strrchr(directory, '/') = 0;
    }
}

void efs_memory_left_open(struct efs_memory_left *left)
{
    char text[TEXT], *save = NULL;
    *left = (struct efs_memory_left){.machine = efs_sys_open("/proc/meminfo", O_RDONLY, 0)};
    int fd = efs_sys_open("/proc/self/cgroup", O_RDONLY, 0);
    text_of(fd, text);
    if (fd >= 0)
        efs_sys_close(fd);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        if (controllers[1] == 0)
            add_groups(left, "/sys/fs/cgroup", path, true);
        else if (strcmp(controllers + 1, "memory") == 0)
            add_groups(left, "/sys/fs/cgroup/memory", path, false);
    }
}

void efs_memory_left_close(struct efs_memory_left *left)
{
    for (uint32_t i = 0; i < left->count; i++)
        close_group(&left->groups[i]);
    if (left->machine >= 0)
        efs_sys_close(left->machine);
    *left = (struct efs_memory_left){.machine = -1};
}

/* ---- looking ---- */

static uint64_t margin(uint64_t limit)
{
    uint64_t m = limit / MARGIN_SHARE;
    return m < MARGIN_LEAST ? MARGIN_LEAST : m > MARGIN_MOST ? MARGIN_MOST : m;
}

static bool group_has(const struct efs_memory_group *g, uint64_t bytes)
{
    char text[TEXT];
    uint64_t limit = number_of(g->limit, UINT64_MAX);
    if (limit >= (1ull << 60)) /* v1 says "no limit" by a huge number */
        return true;
    uint64_t usage = number_of(g->usage, 0), more = bytes + margin(limit);
    if (usage <= limit && limit - usage >= more)
        return true;
    text_of(g->stat, text);
    uint64_t cache = field(text, g->cache), shared = field(text, g->shared);
    cache = cache > shared ? cache - shared : 0;
    usage = usage > cache ? usage - cache : 0;
    return usage <= limit && limit - usage >= more;
}

static bool machine_has(int fd, uint64_t bytes)
{
    char text[TEXT];
    text_of(fd, text);
    uint64_t all = field(text, "MemTotal") * 1024, available = field(text, "MemAvailable") * 1024;
    return all == 0 || available >= bytes + margin(all);
}

bool efs_memory_left_for(const struct efs_memory_left *left, uint64_t bytes)
{
    for (uint32_t i = 0; i < left->count; i++)
        if (!group_has(&left->groups[i], bytes))
            return false;
    return machine_has(left->machine, bytes);
}
