/* limits_auto.c - the budget that the machine and its memory cgroups leave. */
#include "libexpertfs.h"

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
    const char *limit, *usage, *cache, *shared;
};
static const struct files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"},
                          v2 = {"memory.max", "memory.current", "file", "shmem"};

/* What a cgroup leaves: limit - (usage - page cache). Page cache is given back on demand, memfds are not. */
static uint64_t cgroup_leaves(const char *directory, const struct files *files)
{
    char path[TEXT + 64], text[TEXT];
    uint64_t limit = number(directory, files->limit, UINT64_MAX);
    if (limit >= (1ull << 60)) /* v1 says "no limit" by a huge number */
        return UINT64_MAX;
    uint64_t usage = number(directory, files->usage, 0);
    snprintf(path, sizeof(path), "%s/memory.stat", directory);
    slurp(path, text);
    uint64_t cache = field(text, files->cache, 0), shared = field(text, files->shared, 0);
    cache = cache > shared ? cache - shared : 0;
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* All cgroups from this process's up to the root. */
static uint64_t walk(const char *mount, const char *cgroup, const struct files *files)
{
    char directory[TEXT];
    uint64_t least = UINT64_MAX;
    int n = snprintf(directory, sizeof(directory), "%s%s", mount, cgroup);
    if (n < 0 || (size_t)n >= sizeof(directory))
        return least;
    for (;;) {
        uint64_t leaves = cgroup_leaves(directory, files);
        least = leaves < least ? leaves : least;
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(mount))
            return least;
        *slash = 0;
    }
}

static uint64_t cgroups_leave(void)
{
    char text[TEXT], *save = NULL;
    uint64_t least = UINT64_MAX;
    slurp("/proc/self/cgroup", text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        uint64_t leaves = UINT64_MAX;
        if (controllers[1] == 0)
            leaves = walk("/sys/fs/cgroup", path, &v2);
        else if (strstr(controllers + 1, "memory"))
            leaves = walk("/sys/fs/cgroup/memory", path, &v1);
        least = leaves < least ? leaves : least;
    }
    return least;
}

uint64_t efs_auto_budget(void)
{
    char text[TEXT];
    slurp("/proc/meminfo", text);
    uint64_t least = field(text, "MemAvailable:", 512 * 1024) * 1024, leaves = cgroups_leave();
    least = leaves < least ? leaves : least;
    return least / 2;
}
