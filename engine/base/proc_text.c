/* SPDX-License-Identifier: Apache-2.0 */
/* proc_text.c - see proc_text.h. */
#include "proc_text.h"

#include "sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int efs_kernel_open(const char *directory, const char *name)
{
    char path[EFS_PROC_TEXT + 64];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return efs_sys_open(path, O_RDONLY, 0);
}

void efs_proc_text(int fd, char text[EFS_PROC_TEXT])
{
    ssize_t n = fd < 0 ? 0 : efs_sys_pread(fd, text, EFS_PROC_TEXT - 1, 0);
    text[n > 0 ? n : 0] = 0;
}

void efs_kernel_read(const char *directory, const char *name, char text[EFS_PROC_TEXT])
{
    int fd = efs_kernel_open(directory, name);
    efs_proc_text(fd, text);
    if (fd >= 0)
        efs_sys_close(fd);
}

uint64_t efs_kernel_number(int fd, uint64_t fallback)
{
    char text[EFS_PROC_TEXT], *end;
    efs_proc_text(fd, text);
    uint64_t value = strtoull(text, &end, 10);
    return end == text ? fallback : value;
}

uint64_t efs_kernel_field(const char *text, const char *name, uint64_t fallback)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == ':'))
            return strtoull(line + n + 1, NULL, 10);
        if (!*line)
            break;
    }
    return fallback;
}

static void cgroups_up(const char *mount, const char *cgroup, const struct efs_cgroup_files *files, efs_cgroup_fn *each,
                       void *arg)
{
    char directory[EFS_PROC_TEXT];
    int n = snprintf(directory, sizeof(directory), "%s%s", mount, cgroup);
    if (n < 0 || (size_t)n >= sizeof(directory))
        return;
    while (strlen(directory) >= strlen(mount)) {
        each(arg, directory, files);
        *strrchr(directory, '/') = 0;
    }
}

void efs_memory_cgroups(efs_cgroup_fn *each, void *arg)
{
    static const struct efs_cgroup_files v1 = {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_cache",
                                               "total_shmem"},
                                         v2 = {"memory.max", "memory.high", "memory.current", "file", "shmem"};
    char text[EFS_PROC_TEXT], *save = NULL;
    efs_kernel_read("/proc/self", "cgroup", text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        if (controllers[1] == 0)
            cgroups_up("/sys/fs/cgroup", path, &v2, each, arg);
        else if (strstr(controllers + 1, "memory"))
            cgroups_up("/sys/fs/cgroup/memory", path, &v1, each, arg);
    }
}
