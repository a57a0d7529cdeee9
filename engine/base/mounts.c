/* SPDX-License-Identifier: Apache-2.0 */
/* mounts.c - reads the mount table, for daemon and tools. */
#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

errint_t efs_mounts_open(struct efs_mounts *mounts, const char *process)
{
    char path[300];
    snprintf(path, sizeof(path), "/proc/%s/mountinfo", process);
    *mounts = (struct efs_mounts){.table = fopen(path, "re")};
    return mounts->table ? 0 : -errno;
}

/* Replaces the escapes of mountinfo (\040 for a blank) in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* id parent major:minor root path options [tag...] - type source superoptions */
static bool mount_parse(char *line, struct efs_mount_entry *mount)
{
    unsigned major_number, minor_number;
    int at = 0;
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%d %d %u:%u %n", &mount->id, &mount->parent, &major_number, &minor_number, &at) != 4 || !at)
        return false;
    mount->device = makedev(major_number, minor_number);
    char *rest = line + at;
    mount->root = strsep(&rest, " ");
    mount->path = rest ? strsep(&rest, " ") : NULL;
    char *end = rest ? strstr(rest, " - ") : NULL;
    if (!end)
        return false;
    rest = end + 3;
    mount->type = strsep(&rest, " ");
    mount->source = strsep(&rest, " ");
    mount->options = rest;
    if (!rest)
        return false;
    unescape(mount->root);
    unescape(mount->path);
    unescape(mount->type);
    unescape(mount->source);
    return true;
}

bool efs_mounts_next(struct efs_mounts *mounts, struct efs_mount_entry *mount)
{
    while (mounts->table && getline(&mounts->line, &mounts->room, mounts->table) > 0)
        if (mount_parse(mounts->line, mount))
            return true;
    return false;
}

void efs_mounts_close(struct efs_mounts *mounts)
{
    free(mounts->line);
    if (mounts->table)
        fclose(mounts->table);
    *mounts = (struct efs_mounts){.table = NULL};
}
