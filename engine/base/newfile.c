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

#define TRIES 100000u /* names that other processes may hold */
#define TEMPORARY ".expertfs-%ld-%u.tmp"

/*
 * The process that writes a file holds a lock on it, which ends with the process: efs_newfile_clean() removes files
 * that are not locked. It may run between the file's creation and its locking: then it holds the lock, or has removed
 * the file, and another name is taken. Where flock(2) fails otherwise than by -EWOULDBLOCK, nothing is ever removed.
 */
static bool newfile_lock(int fd)
{
    struct stat st;
    return efs_sys_flock(fd, LOCK_EX | LOCK_NB) != -EWOULDBLOCK && (efs_sys_fstat(fd, &st) < 0 || st.st_nlink > 0);
}

errint_t efs_newfile_open(struct efs_newfile *f, int dir, int flags)
{
    *f = (struct efs_newfile){.dir = dir, .fd = -1};
    int fd = -EEXIST;
    for (unsigned i = 0; fd == -EEXIST && i < TRIES; i++) {
        snprintf(f->temporary, sizeof(f->temporary), TEMPORARY, (long)getpid(), i);
        fd = efs_sys_openat(f->dir, f->temporary, flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0 && !newfile_lock(fd)) {
            efs_sys_close(fd);
            fd = -EEXIST;
        }
    }
    if (fd == -EINVAL) /* some filesystems make the file before they refuse O_DIRECT */
        efs_sys_unlinkat(f->dir, f->temporary, 0);
    if (fd < 0)
        return fd;
    f->fd = fd;
    return 0;
}

errint_t efs_newfile_link(int from_dir, const char *from, int dir, const char *name)
{
    int rc = efs_sys_linkat(from_dir, from, dir, name, 0);
    if (rc == 0 || rc == -EEXIST)
        return rc;
    /* Filesystems refuse hard links with every error: EPERM, EOPNOTSUPP, EMLINK, ENOSYS, EACCES, EIO, EXDEV, EINVAL. */
    int fd = efs_sys_openat(dir, name, O_PATH | O_NOFOLLOW, 0);
    if (fd >= 0) {
        efs_sys_close(fd);
        return -EEXIST;
    }
    return efs_sys_renameat(from_dir, from, dir, name);
}

errint_t efs_newfile_name(struct efs_newfile *f, const char *name, bool replace)
{
    int rc = replace ? efs_sys_renameat(f->dir, f->temporary, f->dir, name)
                     : efs_newfile_link(f->dir, f->temporary, f->dir, name);
    if (rc == 0 && !replace)
        efs_sys_unlinkat(f->dir, f->temporary, 0);
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
    int rc = efs_sys_close(f->fd);
    f->fd = -1;
    return rc;
}

/* ---- what killed processes left ----------------------------------------------------------------------------- */

/* TEMPORARY with two numbers, and nothing else. */
static bool is_ours(const char *name)
{
    long pid;
    unsigned i;
    char again[sizeof(((struct efs_newfile *)NULL)->temporary)];
    if (sscanf(name, ".expertfs-%ld-%u", &pid, &i) != 2)
        return false;
    snprintf(again, sizeof(again), TEMPORARY, pid, i);
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
