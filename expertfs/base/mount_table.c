/* SPDX-License-Identifier: Apache-2.0 */
/* mount_table.c - see mount_table.h. */
#include "mount_table.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

bool efsd_mounts_find(struct efs_mounts *mounts, int id, struct efs_mount_entry *mount)
{
    efs_mounts_open(mounts, "self");
    while (efs_mounts_next(mounts, mount))
        if (mount->id == id)
            return true;
    return false;
}

long efsd_fdinfo(int fd, const char *name)
{
    char path[64], *line = NULL;
    size_t room = 0, bytes = strlen(name);
    long value = -ENODATA;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (!file)
        return -errno;
    while (value == -ENODATA && getline(&line, &room, file) > 0)
        if (strncmp(line, name, bytes) == 0 && line[bytes] == ':')
            value = strtol(line + bytes + 1, NULL, 10);
    free(line);
    fclose(file);
    return value;
}

int efsd_mount_open(const char *path, int *id)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    long found = efsd_fdinfo(fd, "mnt_id");
    if (found < 0) {
        close(fd);
        return (int)found;
    }
    *id = (int)found;
    return fd;
}

/* A daemon without CAP_SYS_ADMIN cannot unmount; fusermount3, which is set-user-ID, unmounts by path. */
static errint_t detach_by_helper(const char *path)
{
    const char *const arguments[] = {"fusermount3", "-u", "-z", "-q", "--", path, NULL};
    int status = 0;
    pid_t pid;
    int rc = posix_spawnp(&pid, arguments[0], NULL, NULL, (char *const *)(uintptr_t)arguments, environ);
    if (rc)
        return -rc;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status ? -EPERM : 0;
}

errint_t efsd_mount_detach(const struct efs_mount_entry *mount)
{
    char by_descriptor[64];
    int id, fd = efsd_mount_open(mount->path, &id);
    bool none_left = fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM;
    errint_t rc = none_left ? fd : fd < 0 || id != mount->id ? -EBUSY : 0;
    snprintf(by_descriptor, sizeof(by_descriptor), "/proc/self/fd/%d", fd);
    if (!rc && umount2(by_descriptor, MNT_DETACH) < 0)
        rc = errno == EPERM ? detach_by_helper(mount->path) : -errno;
    if (fd >= 0)
        close(fd);
    return rc;
}

char *efsd_mounts_path(dev_t device)
{
    struct efs_mounts mounts;
    struct efs_mount_entry mount;
    char *path = NULL;
    efs_mounts_open(&mounts, "self");
    while (!path && efs_mounts_next(&mounts, &mount))
        if (mount.device == device && strcmp(mount.root, "/") == 0)
            path = strdup(mount.path);
    efs_mounts_close(&mounts);
    return path;
}
