/* SPDX-License-Identifier: Apache-2.0 */
/* unmount.c - see unmount.h. */
#include "unmount.h"

#include <errno.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUSE_MAGIC 0x65735546

bool tools_is_fuse(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 ? fs.f_type == FUSE_MAGIC : errno == ENOTCONN || errno == ECONNABORTED;
}

void tools_unmount_fuse(const char *path)
{
    if (!tools_is_fuse(path) || umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("fusermount3", "fusermount3", "-u", "-z", "-q", path, (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}
