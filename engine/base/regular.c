/* SPDX-License-Identifier: Apache-2.0 */
/* regular.c - see regular.h. */
#include "regular.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* "a FIFO", "a socket", "a directory", ... for messages. */
static const char *regular_kind(mode_t mode)
{
    return S_ISREG(mode)    ? "a regular file"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "no file";
}

static int regular_check(const struct stat *st)
{
    return S_ISREG(st->st_mode) ? 0 : S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL;
}

static bool regular_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

int efs_regular_open(int dir, const char *path, int flags, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    int look = efs_sys_openat(dir, path, O_PATH, 0); /* has no side effect on a device and does not block on a FIFO */
    if (look < 0)
        return look;
    int rc = efs_sys_fstat(look, st);
    efs_sys_close(look);
    if (rc == 0)
        rc = regular_check(st);
    if (rc < 0)
        return rc;
    /* O_NONBLOCK: the path may have been replaced by a FIFO since. Reads of regular files ignore it. */
    int fd = efs_sys_openat(dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | flags, 0);
    if (fd < 0)
        return fd;
    rc = efs_sys_fstat(fd, st);
    if (rc == 0)
        rc = regular_check(st);
    if (rc == 0)
        return fd;
    efs_sys_close(fd);
    return rc;
}

int efs_regular_open_path(const char *path, struct stat *st, struct efs_error *err)
{
    int fd = efs_regular_open(AT_FDCWD, path, 0, st);
    if (fd >= 0)
        return fd;
    if (st->st_mode && !S_ISREG(st->st_mode))
        return efs_fail(err, fd, "%s: not a regular file but %s", path, regular_kind(st->st_mode));
    return efs_fail(err, fd, "%s: cannot open: %s", path, strerror(-fd));
}

int efs_regular_reopen(int fd, const char *path, int flags)
{
    struct stat now, st;
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    int again = efs_sys_open(self, flags | O_NONBLOCK, 0);
    if (again != -ENOENT)
        return again;
    again = efs_sys_open(path, flags | O_NONBLOCK, 0);
    if (again < 0)
        return again;
    if (efs_sys_fstat(fd, &st) == 0 && efs_sys_fstat(again, &now) == 0 && regular_same(&st, &now))
        return again;
    efs_sys_close(again);
    return -ESTALE;
}
