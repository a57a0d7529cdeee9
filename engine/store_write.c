/* store_write.c - a nameless file, aligned writes, then a name. */
#include "store_write.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BOUNCE_BYTES (1u << 20)
/* Buffered writes: at most twice so many bytes are dirty at a time. */
#define WRITEBACK_BYTES (32u << 20)

static errint_t fail(const struct efs_store_writer *w, errint_t rc, const char *what, struct efs_error *err)
{
    return efs_fail(err, rc, "%s: cannot %s: %s", w->path, what, strerror(-rc));
}

/* A file with a name of its own in the same directory, for filesystems without O_TMPFILE. */
static int open_named(struct efs_store_writer *w, int flags)
{
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(w->temporary, sizeof(w->temporary), ".expertfs-%ld-%u.tmp", (long)getpid(), i);
        int fd = efs_sys_openat(w->dir, w->temporary, flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0)
            return fd;
        w->temporary[0] = '\0';
        if (fd != -EEXIST)
            return fd;
    }
    return -EEXIST;
}

static int open_temporary(struct efs_store_writer *w, int flags)
{
    int fd = efs_sys_openat(w->dir, ".", flags | O_TMPFILE, 0666);
    if (fd == -EOPNOTSUPP || fd == -EISDIR || fd == -EINVAL || fd == -ENOENT)
        fd = open_named(w, flags);
    return fd;
}

static errint_t open_directory(struct efs_store_writer *w, struct efs_error *err)
{
    char *slash = strrchr(w->path, '/');
    w->name = slash ? slash + 1 : w->path;
    if (w->name[0] == '\0' || strcmp(w->name, ".") == 0 || strcmp(w->name, "..") == 0)
        return efs_fail(err, -EISDIR, "%s: is a directory; name the store's file", w->path);
    char *parent = slash ? strndup(w->path, slash == w->path ? 1 : (size_t)(slash - w->path)) : strdup(".");
    if (!parent)
        return fail(w, -ENOMEM, "open", err);
    w->dir = efs_sys_open(parent, O_RDONLY | O_DIRECTORY, 0);
    errint_t rc = w->dir < 0 ? efs_fail(err, w->dir, "%s: cannot open directory: %s", parent, strerror(-w->dir)) : 0;
    free(parent);
    return rc;
}

/* An existing file is replaced only if asked for, and only if it is a file. */
static errint_t check_existing(struct efs_store_writer *w, struct efs_error *err)
{
    struct stat st;
    int fd = efs_sys_openat(w->dir, w->name, O_PATH | O_NOFOLLOW, 0);
    if (fd == -ENOENT)
        return 0;
    if (fd < 0)
        return fail(w, fd, "open", err);
    int rc = efs_sys_fstat(fd, &st);
    efs_sys_close(fd);
    if (rc < 0)
        return fail(w, rc, "stat", err);
    if (S_ISDIR(st.st_mode))
        return efs_fail(err, -EISDIR, "%s: is a directory; name the store's file", w->path);
    if (!w->force)
        return efs_fail(err, -EEXIST, "%s: exists already; --force replaces it", w->path);
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return efs_fail(err, -EINVAL, "%s: is no regular file", w->path);
    return 0;
}

errint_t efs_store_writer_open(struct efs_store_writer *w, const char *path, bool force, struct efs_error *err)
{
    *w = (struct efs_store_writer){.dir = -1, .fd = -1, .force = force, .direct = true, .offset = EFS_ALIGN};
    w->synced = EFS_ALIGN;
    w->path = strdup(path);
    w->bounce = efs_sys_aligned_alloc(EFS_ALIGN, BOUNCE_BYTES);
    errint_t rc = 0;
    if (!w->path || !w->bounce)
        rc = efs_fail(err, -ENOMEM, "%s: no memory", path);
    if (rc == 0)
        rc = open_directory(w, err);
    if (rc == 0)
        rc = check_existing(w, err);
    if (rc == 0) {
        w->fd = open_temporary(w, O_RDWR | O_DIRECT);
        if (w->fd == -EINVAL) {
            w->direct = false;
            w->fd = open_temporary(w, O_RDWR);
        }
        if (w->fd < 0)
            rc = fail(w, w->fd, "create a file in its directory", err);
    }
    if (rc < 0)
        efs_store_writer_close(w);
    return rc;
}

/* The filesystem took O_DIRECT at open and refuses it now: go on without. */
static errint_t leave_direct(struct efs_store_writer *w)
{
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", w->fd);
    int fd = w->temporary[0] ? efs_sys_openat(w->dir, w->temporary, O_RDWR, 0) : efs_sys_open(self, O_RDWR, 0);
    if (fd < 0)
        return fd;
    efs_sys_close(w->fd);
    w->fd = fd;
    w->direct = false;
    return 0;
}

/* Keep what is dirty in memory bounded: start the writing of this window, wait for the one before. */
static void bound_dirty(struct efs_store_writer *w)
{
    while (!w->direct && w->offset - w->synced >= 2 * (uint64_t)WRITEBACK_BYTES) {
        efs_sys_writeback(w->fd, w->synced + WRITEBACK_BYTES, WRITEBACK_BYTES, 0);
        efs_sys_writeback(w->fd, w->synced, WRITEBACK_BYTES, 1);
        w->synced += WRITEBACK_BYTES;
    }
}

errint_t efs_store_writer_append(struct efs_store_writer *w, struct iovec *iov, int count, struct efs_error *err)
{
    while (count > 0) {
        ssize_t n = efs_sys_pwritev(w->fd, iov, count, w->offset);
        if (n == -EINVAL && w->direct) {
            int rc = leave_direct(w);
            if (rc < 0)
                return fail(w, rc, "reopen", err);
            continue;
        }
        if (n < 0)
            return fail(w, (errint_t)n, "write", err);
        if (n == 0)
            return fail(w, -EIO, "write", err);
        if (w->direct && (size_t)n % EFS_ALIGN != 0) /* cut short inside a block: write the block again */
            n -= n % (ssize_t)EFS_ALIGN;
        w->offset += (uint64_t)n;
        while (count > 0 && (size_t)n >= iov->iov_len) {
            n -= (ssize_t)iov->iov_len;
            iov++;
            count--;
        }
        if (count > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + n;
            iov->iov_len -= (size_t)n;
        }
    }
    bound_dirty(w);
    return 0;
}

errint_t efs_store_writer_append_bytes(struct efs_store_writer *w, const void *data, size_t bytes,
                                       struct efs_error *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < BOUNCE_BYTES ? bytes - done : BOUNCE_BYTES;
        size_t whole = (n + EFS_ALIGN - 1) & ~(size_t)(EFS_ALIGN - 1);
        memcpy(w->bounce, (const uint8_t *)data + done, n);
        memset(w->bounce + n, 0, whole - n);
        struct iovec iov = {w->bounce, whole};
        errint_t rc = efs_store_writer_append(w, &iov, 1, err);
        if (rc < 0)
            return rc;
        done += n;
    }
    return 0;
}

errint_t efs_store_writer_finish(struct efs_store_writer *w, const struct efs_disk_superblock *sb,
                                 struct efs_error *err)
{
    memcpy(w->bounce, sb, sizeof(*sb));
    int rc = efs_sys_pwrite_all(w->fd, w->bounce, sizeof(*sb), 0);
    if (rc == -EINVAL && w->direct) {
        rc = leave_direct(w);
        if (rc == 0)
            rc = efs_sys_pwrite_all(w->fd, w->bounce, sizeof(*sb), 0);
    }
    if (rc == 0)
        rc = efs_sys_ftruncate(w->fd, sb->store_bytes);
    if (rc == 0)
        rc = efs_sys_fsync(w->fd);
    return rc < 0 ? fail(w, rc, "write", err) : 0;
}

/* Link the nameless file to name. */
static int link_nameless(const struct efs_store_writer *w, const char *name)
{
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", w->fd);
    int rc = efs_sys_linkat(AT_FDCWD, self, w->dir, name, AT_SYMLINK_FOLLOW);
    if (rc == -ENOENT) /* no /proc; this way needs a privilege */
        rc = efs_sys_linkat(w->fd, "", w->dir, name, AT_EMPTY_PATH);
    return rc;
}

/* Without force: never over a file that appeared meanwhile. */
static int name_new(struct efs_store_writer *w)
{
    if (!w->temporary[0])
        return link_nameless(w, w->name);
    int rc = efs_sys_linkat(w->dir, w->temporary, w->dir, w->name, 0);
    if (rc == 0)
        efs_sys_unlinkat(w->dir, w->temporary, 0);
    else if (rc == -EPERM || rc == -EOPNOTSUPP || rc == -EMLINK) { /* a filesystem without hard links */
        int fd = efs_sys_openat(w->dir, w->name, O_PATH | O_NOFOLLOW, 0);
        if (fd >= 0) {
            efs_sys_close(fd);
            return -EEXIST;
        }
        rc = efs_sys_renameat(w->dir, w->temporary, w->dir, w->name);
    }
    return rc;
}

static int name_over(struct efs_store_writer *w)
{
    int rc = 0;
    if (!w->temporary[0]) {
        for (unsigned i = 0; i < 1000; i++) {
            snprintf(w->temporary, sizeof(w->temporary), ".expertfs-%ld-%u.tmp", (long)getpid(), i);
            rc = link_nameless(w, w->temporary);
            if (rc != -EEXIST)
                break;
        }
        if (rc < 0)
            w->temporary[0] = '\0';
    }
    return rc < 0 ? rc : efs_sys_renameat(w->dir, w->temporary, w->dir, w->name);
}

errint_t efs_store_writer_commit(struct efs_store_writer *w, struct efs_error *err)
{
    int rc = w->force ? name_over(w) : name_new(w);
    if (rc == -EEXIST)
        return efs_fail(err, rc, "%s: appeared while it was being packed; --force replaces it", w->path);
    if (rc < 0)
        return fail(w, rc, "name the finished store", err);
    w->committed = true;
    rc = efs_sys_fsync(w->dir);
    if (rc < 0 && rc != -EINVAL) { /* EINVAL: a filesystem whose directories cannot be synced */
        if (!w->force) /* what it replaced is gone already: better this one than none */
            efs_sys_unlinkat(w->dir, w->name, 0);
        return fail(w, rc, "sync its directory", err);
    }
    return 0;
}

void efs_store_writer_close(struct efs_store_writer *w)
{
    if (w->temporary[0] && !w->committed && w->dir >= 0)
        efs_sys_unlinkat(w->dir, w->temporary, 0);
    if (w->fd >= 0)
        efs_sys_close(w->fd);
    if (w->dir >= 0)
        efs_sys_close(w->dir);
    free(w->bounce);
    free(w->path);
    *w = (struct efs_store_writer){.dir = -1, .fd = -1};
}
