/* SPDX-License-Identifier: Apache-2.0 */
/* pack_source.c - reads of the source files: past the page cache where possible, each file open only while it is read.
 */
#include "pack.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>

/* Small files are read through the page cache: it most likely has them, and O_DIRECT gains nothing. */
#define DIRECT_MIN_BYTES (1u << 20)

struct source_file {
    int fd; /* -1: not open */
    bool direct;
    unsigned users;      /* reads under way */
    uint64_t left_bytes; /* not yet read */
    struct stat seen;    /* at the start */
    bool renumbered;     /* it has another inode number than when it was opened first */
};

struct efs_pack_source {
    const struct efs_catalog *catalog;
    int root;
    pthread_mutex_t lock; /* guards files' fd, direct, users, left_bytes */
    struct source_file files[];
};

static errint_t source_fail(const struct efs_pack_source *s, uint32_t file, errint_t rc, const char *what,
                            struct efs_error *err)
{
    return efs_fail(err, rc, "%s/%s: cannot %s: %s", s->catalog->root, s->catalog->files[file].path, what,
                    strerror(-rc));
}

errint_t efs_pack_source_changed(const struct efs_pack_source *s, uint32_t file, struct efs_error *err)
{
    return efs_fail(err, -ESTALE, "%s/%s: changed while it was being packed; pack again when nothing writes to it",
                    s->catalog->root, s->catalog->files[file].path);
}

/* What the catalogue found to be a file may be a FIFO by now, or gone: -ESTALE then. */
static int open_file(const struct efs_pack_source *s, uint32_t file, int flags, struct stat *st)
{
    int fd = efs_regular_open(s->root, s->catalog->files[file].path, flags, st);
    bool other = fd == -ENOENT || fd == -EISDIR || (fd < 0 && st->st_mode && !S_ISREG(st->st_mode));
    return other ? -ESTALE : fd;
}

/* Is it as long as it says? Files that the kernel makes as they are read say that they have no byte, or a page. */
static errint_t check_size(const struct efs_pack_source *s, uint32_t file, int fd, const struct stat *st,
                           struct efs_error *err)
{
    uint8_t bytes[2];
    uint64_t size = (uint64_t)st->st_size;
    const char *root = s->catalog->root, *slash = root[strlen(root) - 1] == '/' ? "" : "/",
               *path = s->catalog->files[file].path;
    int64_t kind = efs_sys_filesystem(fd);
    if (kind == PROC_SUPER_MAGIC || kind == SYSFS_MAGIC) /* reading some of them has effects */
        return efs_fail(err, -EINVAL,
                        "%s%s%s: made by the kernel as it is read (%s), it has no size to be packed by; "
                        "copy it to a disk (cat FILE >COPY) and pack the copy",
                        root, slash, path, kind == SYSFS_MAGIC ? "sysfs" : "procfs");
    ssize_t last = size > 0, got = efs_sys_pread(fd, bytes, sizeof(bytes), size - (size_t)last);
    if (got < 0)
        return source_fail(s, file, (errint_t)got, "read its end", err);
    if (got == last)
        return 0;
    return efs_fail(err, -EINVAL,
                    "%s%s%s: says that it has %llu bytes, but has %s; where it is made as it is read, "
                    "copy it to a disk (cat FILE >COPY) and pack the copy; else pack again when nothing writes to it",
                    root, slash, path, (unsigned long long)size, got < last ? "fewer" : "more");
}

/* first: what the catalogue says of it has to hold. */
static errint_t source_look(const struct efs_pack_source *s, uint32_t file, bool first, struct stat *st,
                            struct efs_error *err)
{
    int fd = open_file(s, file, 0, st);
    if (fd < 0)
        return fd == -ESTALE ? efs_pack_source_changed(s, file, err) : source_fail(s, file, fd, "open", err);
    errint_t rc = 0;
    if (first && (uint64_t)st->st_size != s->catalog->files[file].bytes)
        rc = efs_pack_source_changed(s, file, err);
    else if (first)
        rc = check_size(s, file, fd, st, err);
    efs_sys_close(fd);
    return rc;
}

/* Not the inode number: FUSE filesystems give a file another one after the kernel has forgotten its name. */
static bool source_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

errint_t efs_pack_source_open(const struct efs_catalog *catalog, struct efs_pack_source **out, struct efs_error *err)
{
    *out = NULL;
    struct efs_pack_source *s = efs_sys_calloc(1, sizeof(*s) + catalog->file_count * sizeof(struct source_file));
    if (!s)
        return efs_fail(err, -ENOMEM, "%s: no memory", catalog->root);
    s->catalog = catalog;
    pthread_mutex_init(&s->lock, NULL);
    for (size_t f = 0; f < catalog->file_count; f++)
        s->files[f].fd = -1;
    s->root = efs_sys_open(catalog->root, O_RDONLY | O_DIRECTORY, 0);
    errint_t rc = s->root < 0 ? efs_fail(err, s->root, "%s: cannot open: %s", catalog->root, strerror(-s->root)) : 0;
    for (uint32_t f = 0; rc == 0 && f < catalog->file_count; f++)
        rc = source_look(s, f, true, &s->files[f].seen, err);
    if (rc < 0) {
        efs_pack_source_close(s);
        return rc;
    }
    efs_pack_source_rewind(s);
    *out = s;
    return 0;
}

void efs_pack_source_rewind(struct efs_pack_source *s)
{
    for (size_t f = 0; f < s->catalog->file_count; f++)
        s->files[f].left_bytes = s->catalog->files[f].bytes;
}

void efs_pack_source_rest(struct efs_pack_source *s, uint32_t file)
{
    struct source_file *f = &s->files[file];
    pthread_mutex_lock(&s->lock);
    if (f->users == 0 && f->fd >= 0) {
        efs_sys_close(f->fd);
        f->fd = -1;
    }
    pthread_mutex_unlock(&s->lock);
}

void efs_pack_source_skip(struct efs_pack_source *s, uint32_t file, uint64_t bytes)
{
    s->files[file].left_bytes -= bytes;
}

errint_t efs_pack_source_unchanged(struct efs_pack_source *s, struct efs_error *err)
{
    for (uint32_t f = 0; f < s->catalog->file_count; f++) {
        struct stat now;
        errint_t rc = source_look(s, f, false, &now, err);
        if (rc < 0)
            return rc;
        const struct stat *seen = &s->files[f].seen;
        if (!source_same(&now, seen))
            return efs_pack_source_changed(s, f, err);
        s->files[f].renumbered = now.st_ino != seen->st_ino || now.st_dev != seen->st_dev;
    }
    return 0;
}

bool efs_pack_source_renumbered(const struct efs_pack_source *s, uint32_t file)
{
    return s->files[file].renumbered;
}

bool efs_pack_source_has(const struct efs_pack_source *s, dev_t device, ino_t inode)
{
    for (size_t f = 0; f < s->catalog->file_count; f++)
        if (s->files[f].seen.st_dev == device && s->files[f].seen.st_ino == inode)
            return true;
    return false;
}

void efs_pack_source_close(struct efs_pack_source *s)
{
    if (!s)
        return;
    for (size_t f = 0; f < s->catalog->file_count; f++)
        if (s->files[f].fd >= 0)
            efs_sys_close(s->files[f].fd);
    if (s->root >= 0)
        efs_sys_close(s->root);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

size_t efs_pack_source_room(size_t bytes)
{
    return efs_page_up(bytes) + EFS_ALIGN;
}

/* The open file, with one more user. direct_refused: O_DIRECT was tried and failed. */
static errint_t source_acquire(struct efs_pack_source *s, uint32_t file, int *fd, struct efs_error *err)
{
    struct source_file *f = &s->files[file];
    errint_t rc = 0;
    pthread_mutex_lock(&s->lock);
    if (f->fd < 0) {
        struct stat now;
        f->direct = s->catalog->files[file].bytes >= DIRECT_MIN_BYTES;
        f->fd = f->direct ? open_file(s, file, O_DIRECT, &now) : -EINVAL;
        if (f->fd < 0) {
            f->direct = false;
            f->fd = open_file(s, file, 0, &now);
        }
        if (f->fd >= 0 && !source_same(&now, &f->seen)) {
            efs_sys_close(f->fd);
            f->fd = -ESTALE;
        }
        if (f->fd < 0) {
            rc = f->fd == -ESTALE ? efs_pack_source_changed(s, file, err) : source_fail(s, file, f->fd, "open", err);
            f->fd = -1;
        }
    }
    if (rc == 0) {
        f->users++;
        *fd = f->fd;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void source_release(struct efs_pack_source *s, uint32_t file, size_t bytes)
{
    struct source_file *f = &s->files[file];
    pthread_mutex_lock(&s->lock);
    f->left_bytes -= bytes;
    if (--f->users == 0 && f->left_bytes == 0) {
        efs_sys_close(f->fd);
        f->fd = -1;
    }
    pthread_mutex_unlock(&s->lock);
}

errint_t efs_pack_source_read(struct efs_pack_source *s, uint32_t file, uint64_t offset, size_t bytes, size_t new_bytes,
                              uint8_t *buffer, const uint8_t **data, struct efs_error *err)
{
    uint64_t begin = offset & ~(uint64_t)(EFS_ALIGN - 1);
    size_t skip = (size_t)(offset - begin), need = skip + bytes;
    int fd = -1;
    errint_t rc = source_acquire(s, file, &fd, err);
    if (rc < 0)
        return rc;
    int got = efs_sys_pread_least(fd, buffer, efs_page_up(need), need, begin);
    if (efs_sys_no_direct(got)) {
        struct stat now;
        int buffered = open_file(s, file, 0, &now);
        if (buffered >= 0) {
            got = efs_sys_pread_least(buffered, buffer, efs_page_up(need), need, begin);
            efs_sys_close(buffered);
        }
    }
    source_release(s, file, new_bytes);
    *data = buffer + skip;
    if (got == -ENODATA)
        return efs_pack_source_changed(s, file, err);
    if (got < 0)
        return efs_fail(err, got, "%s/%s: cannot read at offset %llu: %s", s->catalog->root,
                        s->catalog->files[file].path, (unsigned long long)offset, strerror(-got));
    return 0;
}
