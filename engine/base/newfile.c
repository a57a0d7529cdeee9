/* SPDX-License-Identifier: Apache-2.0 */
/* newfile.c - see newfile.h. */
#include "newfile.h"

#include "sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES 100000u /* attempts to find an unused name */

static void make_name(struct efs_newfile *f, unsigned i)
{
    snprintf(f->temporary, sizeof(f->temporary), ".expertfs-%ld-%u.tmp", (long)getpid(), i);
}

/*
 * A process holds an exclusive lock on a temporary file that has a name; the kernel releases it when the process exits,
 * however it exits. efs_newfile_clean() removes files whose lock it can take. It may take the lock between the creation
 * of a file and its locking here, and remove the file: in that case this function returns false and the caller tries
 * another name. On file systems without flock(2) (-errno other than -EWOULDBLOCK), nothing is cleaned.
 */
static bool newfile_lock(int fd)
{
    struct stat st;
    return efs_sys_flock(fd, LOCK_EX | LOCK_NB) != -EWOULDBLOCK && (efs_sys_fstat(fd, &st) < 0 || st.st_nlink > 0);
}

static int open_named(struct efs_newfile *f, int flags)
{
    int fd = -EEXIST;
    for (unsigned i = 0; fd == -EEXIST && i < TRIES; i++) {
        make_name(f, i);
        fd = efs_sys_openat(f->dir, f->temporary, flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0 && !newfile_lock(fd)) {
            efs_sys_close(fd);
            fd = -EEXIST;
        }
    }
    if (fd == -EINVAL) /* some file systems create the file and then reject O_DIRECT */
        efs_sys_unlinkat(f->dir, f->temporary, 0);
    if (fd < 0)
        f->temporary[0] = '\0';
    return fd;
}

static int link_nameless(const struct efs_newfile *f, const char *name)
{
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", f->fd);
    int rc = efs_sys_linkat(AT_FDCWD, self, f->dir, name, AT_SYMLINK_FOLLOW);
    if (rc == -ENOENT) /* /proc is not mounted; AT_EMPTY_PATH requires CAP_DAC_READ_SEARCH */
        rc = efs_sys_linkat(f->fd, "", f->dir, name, AT_EMPTY_PATH);
    return rc;
}

/* Links a nameless file under its temporary name. */
static int name_temporary(struct efs_newfile *f)
{
    int rc = -EEXIST;
    for (unsigned i = 0; rc == -EEXIST && i < TRIES; i++) {
        make_name(f, i);
        rc = link_nameless(f, f->temporary);
    }
    if (rc < 0)
        f->temporary[0] = '\0';
    return rc;
}

/* Whether this directory supports linking a nameless file, tested with a second file: Android and containers reject
 * link(2). */
static bool can_link_nameless(int dir)
{
    struct efs_newfile probe = {.dir = dir};
    probe.fd = efs_sys_openat(dir, ".", O_WRONLY | O_TMPFILE, 0666);
    int rc = probe.fd < 0 ? probe.fd : name_temporary(&probe);
    if (probe.fd >= 0)
        efs_newfile_close(&probe);
    return rc == 0;
}

errint_t efs_newfile_open(struct efs_newfile *f, int dir, int flags)
{
    *f = (struct efs_newfile){.dir = dir, .fd = -1};
    int fd = can_link_nameless(dir) ? efs_sys_openat(dir, ".", flags | O_TMPFILE, 0666) : -EOPNOTSUPP;
    if (fd >= 0)
        efs_sys_flock(fd, LOCK_EX | LOCK_NB); /* name_over() links it under a temporary name first */
    if (fd == -EOPNOTSUPP || fd == -EISDIR || fd == -EINVAL || fd == -ENOENT)
        fd = open_named(f, flags);
    if (fd < 0)
        return fd;
    f->fd = fd;
    return 0;
}

errint_t efs_newfile_reopen(struct efs_newfile *f, int flags)
{
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", f->fd);
    int fd = f->temporary[0] ? efs_sys_openat(f->dir, f->temporary, flags, 0) : efs_sys_open(self, flags, 0);
    if (fd < 0)
        return fd;
    if (f->reopened)
        efs_sys_close(f->fd);
    else
        f->lock_fd = f->fd; /* closing this descriptor would release the lock */
    f->reopened = true;
    f->fd = fd;
    return 0;
}

errint_t efs_newfile_sync(const struct efs_newfile *f)
{
    int rc = f->reopened ? efs_sys_sync(f->lock_fd) : 0; /* for data written before the reopen */
    return rc < 0 ? rc : efs_sys_sync(f->fd);
}

errint_t efs_newfile_link(int from_dir, const char *from, int dir, const char *name)
{
    int rc = efs_sys_linkat(from_dir, from, dir, name, 0);
    if (rc == 0 || rc == -EEXIST)
        return rc;
    /* File systems without hard links return various errors: EPERM, EOPNOTSUPP, EMLINK, ENOSYS, EACCES, EIO, EXDEV,
     * EINVAL. */
    int fd = efs_sys_openat(dir, name, O_PATH | O_NOFOLLOW, 0);
    if (fd >= 0) {
        efs_sys_close(fd);
        return -EEXIST;
    }
    return efs_sys_renameat(from_dir, from, dir, name);
}

static int name_new(const struct efs_newfile *f, const char *name)
{
    if (!f->temporary[0])
        return link_nameless(f, name);
    int rc = efs_newfile_link(f->dir, f->temporary, f->dir, name);
    if (rc == 0)
        efs_sys_unlinkat(f->dir, f->temporary, 0);
    return rc;
}

static int name_over(struct efs_newfile *f, const char *name)
{
    int rc = f->temporary[0] ? 0 : name_temporary(f);
    return rc < 0 ? rc : efs_sys_renameat(f->dir, f->temporary, f->dir, name);
}

errint_t efs_newfile_name(struct efs_newfile *f, const char *name, bool replace)
{
    int rc = replace ? name_over(f, name) : name_new(f, name);
    if (rc == 0)
        f->temporary[0] = '\0';
    return rc;
}

errint_t efs_newfile_close(struct efs_newfile *f)
{
    if (f->fd < 0)
        return 0;
    if (f->temporary[0])
        efs_sys_unlinkat(f->dir, f->temporary, 0);
    int rc = efs_sys_close(f->fd), locked = f->reopened ? efs_sys_close(f->lock_fd) : 0;
    f->reopened = false;
    f->fd = -1;
    return rc < 0 ? rc : locked;
}

/* ---- files of killed processes ---------------------------------------------------------------------------------- */

/* Whether the name is exactly one that make_name() writes: ".expertfs-NUMBER-NUMBER.tmp". */
static bool is_ours(const char *name)
{
    long pid;
    unsigned i;
    char again[sizeof(((struct efs_newfile *)NULL)->temporary)];
    if (sscanf(name, ".expertfs-%ld-%u", &pid, &i) != 2)
        return false;
    snprintf(again, sizeof(again), ".expertfs-%ld-%u.tmp", pid, i);
    return strcmp(name, again) == 0;
}

static bool is_abandoned(int fd)
{
    struct stat st;
    return efs_sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           efs_sys_flock(fd, LOCK_EX | LOCK_NB) == 0 && efs_sys_fstat(fd, &st) == 0 && st.st_nlink > 0;
}

unsigned efs_newfile_clean(int dir)
{
    unsigned count = 0;
    int fd = efs_sys_openat(dir, ".", O_RDONLY | O_DIRECTORY, 0);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names && fd >= 0)
        efs_sys_close(fd);
    for (const struct dirent *entry; names && (entry = readdir(names));) {
        int file =
            is_ours(entry->d_name) ? efs_sys_openat(dir, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
        if (file < 0)
            continue;
        count += is_abandoned(file) && efs_sys_unlinkat(dir, entry->d_name, 0) == 0;
        efs_sys_close(file);
    }
    if (names)
        closedir(names);
    return count;
}
