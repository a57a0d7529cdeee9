/* SPDX-License-Identifier: Apache-2.0 */
/* limits_auto.c - the memory that the machine and its memory cgroups have, and what they leave. */
#include "expertfs.h"

#include "sized.h"
#include "sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT 8192

/* The file's text, "" when it cannot be read. */
static void slurp(const char *path, char text[TEXT])
{
    int fd = efs_sys_open(path, O_RDONLY, 0);
    ssize_t n = fd < 0 ? 0 : efs_sys_pread(fd, text, TEXT - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        efs_sys_close(fd);
}

/* The number after `name` at a line's start; fallback if it is not there. */
static uint64_t field(const char *text, const char *name, uint64_t fallback)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] >= '\t')
            return strtoull(line + n, NULL, 10);
        if (!*line)
            break;
    }
    return fallback;
}

/* A file of one number; "max", none or nonsense: fallback. */
static uint64_t number(const char *directory, const char *name, uint64_t fallback)
{
    char path[TEXT + 64], text[TEXT], *end;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    slurp(path, text);
    uint64_t value = strtoull(text, &end, 10);
    return end == text ? fallback : value;
}

/* The files of a kind of cgroup; in memory.stat the page cache, and the part of it that is tmpfs and memfds. */
struct files {
    const char *limit, *high, *usage, *cache, *shared;
};
static const struct files v1 = {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_cache", "total_shmem"},
                          v2 = {"memory.max", "memory.high", "memory.current", "file", "shmem"};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A limit; v1 says "no limit" by a huge number. */
static uint64_t limit_of(const char *directory, const char *name)
{
    uint64_t limit = name ? number(directory, name, UINT64_MAX) : UINT64_MAX;
    return limit >= (1ull << 60) ? UINT64_MAX : limit;
}

/* What a cgroup leaves: limit - (usage - page cache). Page cache is given back on demand, memfds are not. Above high
 * nobody is killed, but slowed down until nothing goes on. */
static uint64_t cgroup_leaves(const char *directory, const struct files *files)
{
    char path[TEXT + 64], text[TEXT];
    uint64_t limit = smaller(limit_of(directory, files->limit), limit_of(directory, files->high));
    if (limit == UINT64_MAX)
        return limit;
    uint64_t usage = number(directory, files->usage, 0);
    snprintf(path, sizeof(path), "%s/memory.stat", directory);
    slurp(path, text);
    uint64_t cache = field(text, files->cache, 0), shared = field(text, files->shared, 0);
    cache = cache > shared ? cache - shared : 0;
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* All cgroups from this process's up to the root. */
static void walk(const char *mount, const char *cgroup, const struct files *files, struct efs_memory *least)
{
    char directory[TEXT];
    int n = snprintf(directory, sizeof(directory), "%s%s", mount, cgroup);
    if (n < 0 || (size_t)n >= sizeof(directory))
        return;
    for (;;) {
        uint64_t limit = limit_of(directory, files->limit);
        least->available_bytes = smaller(least->available_bytes, cgroup_leaves(directory, files));
        least->cgroup |= limit < least->limit_bytes;
        least->limit_bytes = smaller(least->limit_bytes, limit);
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(mount))
            return;
        *slash = 0;
    }
}

static void look_at_cgroups(struct efs_memory *least)
{
    char text[TEXT], *save = NULL;
    slurp("/proc/self/cgroup", text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        if (controllers[1] == 0)
            walk("/sys/fs/cgroup", path, &v2, least);
        else if (strstr(controllers + 1, "memory"))
            walk("/sys/fs/cgroup/memory", path, &v1, least);
    }
}

void efs_memory(struct efs_memory *out, size_t bytes)
{
    struct efs_memory memory;
    char text[TEXT];
    slurp("/proc/meminfo", text);
    uint64_t total = field(text, "MemTotal:", UINT64_MAX / 1024);
    memory = (struct efs_memory){.limit_bytes = total * 1024,
                                 .available_bytes = field(text, "MemAvailable:", 512 * 1024) * 1024};
    look_at_cgroups(&memory);
    efs_sized_out(out, bytes, &memory, sizeof(memory));
}

uint64_t efs_auto_budget(void)
{
    struct efs_memory memory;
    efs_memory(&memory, sizeof(memory));
    return memory.available_bytes / 2;
}
