/* SPDX-License-Identifier: Apache-2.0 */
/* store_write.c - see store_write.h: aligned writes to a nameless file. */
#include "store_write.h"

#include "expertfs-private.h"
#include "write_behind.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Without O_DIRECT, at most twice this many bytes are dirty at a time. */
#define WRITEBACK_BYTES (32u << 20)

static errint_t writer_fail(const struct efs_store_writer *w, errint_t rc, const char *what, struct efs_error *err)
{
    return efs_fail(err, rc, "%s: cannot %s: %s", w->path, what, strerror(-rc));
}

static errint_t open_directory(struct efs_store_writer *w, struct efs_error *err)
{
    char *slash = strrchr(w->path, '/');
    w->name = slash ? slash + 1 : w->path;
    if (w->name[0] == '\0' || strcmp(w->name, ".") == 0 || strcmp(w->name, "..") == 0)
        return efs_fail(err, -EISDIR, "%s: is a directory; name the store's file", w->path);
    char *parent = slash ? strndup(w->path, slash == w->path ? 1 : (size_t)(slash - w->path)) : strdup(".");
    if (!parent)
        return writer_fail(w, -ENOMEM, "open", err);
    w->dir = efs_sys_open(parent, O_RDONLY | O_DIRECTORY, 0);
    bool missing = w->dir == -ENOENT;
    errint_t rc = w->dir < 0 ? efs_fail(err, w->dir, "%s: cannot open directory: %s%s%s", parent, strerror(-w->dir),
                                        missing ? "\nhint: mkdir -p " : "", missing ? EFS_WORD(parent) : "")
                             : 0;
    free(parent);
    return rc;
}

/* Rejects an existing path unless force is set and it is a regular file or a symbolic link. */
static errint_t check_existing(struct efs_store_writer *w, struct efs_error *err)
{
    struct stat st;
    int fd = efs_sys_openat(w->dir, w->name, O_PATH | O_NOFOLLOW, 0);
    if (fd == -ENOENT)
        return 0;
    if (fd < 0)
        return writer_fail(w, fd, "open", err);
    int rc = efs_sys_fstat(fd, &st);
    efs_sys_close(fd);
    if (rc < 0)
        return writer_fail(w, rc, "stat", err);
    if (S_ISDIR(st.st_mode))
        return efs_fail(err, -EISDIR, "%s: is a directory; OUT is the store's own name, such as %s/model.efs", w->path,
                        w->path);
    if (!w->force)
        return efs_fail(err, -EEXIST, "%s: exists already; --force replaces it", w->path);
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return efs_fail(err, -EINVAL, "%s: is not a regular file", w->path);
    return 0;
}

/* Reopens the file without O_DIRECT: the file system accepted it at open(2) and rejects it now. */
static errint_t disable_direct(struct efs_store_writer *w)
{
    errint_t rc = efs_newfile_reopen(&w->file, O_RDWR);
    if (rc == 0)
        w->direct = false;
    return rc;
}

/* Bounds dirty memory: starts writeback of the last WRITEBACK_BYTES written and waits for that of the bytes before
 * them. fsync(2) does
 * not report again an error that this reports. */
static errint_t bound_dirty(struct efs_store_writer *w, uint64_t written, struct efs_error *err)
{
    while (!w->direct && written - w->synced >= 2 * (uint64_t)WRITEBACK_BYTES) {
        int rc = efs_sys_writeback(w->file.fd, w->synced + WRITEBACK_BYTES, WRITEBACK_BYTES, 0);
        int waited = efs_sys_writeback(w->file.fd, w->synced, WRITEBACK_BYTES, 1);
        rc = rc < 0 ? rc : waited;
        if (rc == -EIO || rc == -ENOSPC || rc == -EDQUOT) /* else unsupported: fsync(2) reports */
            return writer_fail(w, rc, "write", err);
        w->synced += WRITEBACK_BYTES;
    }
    return 0;
}

/* Writes whole pages at file offset `at`. */
static errint_t write_pages(struct efs_store_writer *w, const uint8_t *data, size_t bytes, uint64_t at,
                            struct efs_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = efs_sys_pwrite(w->file.fd, data + done, bytes - done, at + done);
        if (n > 0 && w->direct) { /* short write inside a page: write that page again */
            n -= n % (ssize_t)EFS_ALIGN;
            n = n == 0 ? -EINVAL : n;
        }
        if (efs_sys_no_direct(n) && w->direct) {
            int rc = disable_direct(w);
            if (rc < 0)
                return writer_fail(w, rc, "reopen", err);
            continue;
        }
        if (n <= 0)
            return writer_fail(w, n < 0 ? (errint_t)n : -EIO, "write", err);
        done += (size_t)n;
    }
    return 0;
}

static errint_t write_piece(void *arg, const uint8_t *data, size_t bytes, uint64_t at, struct efs_error *err)
{
    struct efs_store_writer *w = arg;
    errint_t rc = write_pages(w, data, bytes, at, err);
    return rc < 0 ? rc : bound_dirty(w, at + bytes, err);
}

errint_t efs_store_writer_open(struct efs_store_writer *w, const char *path, bool force, struct efs_error *err)
{
    *w = (struct efs_store_writer){.dir = -1, .file = {.fd = -1}, .force = force, .direct = true, .offset = EFS_ALIGN};
    w->synced = EFS_ALIGN;
    w->path = strdup(path);
    errint_t rc = 0;
    if (!w->path || efs_write_behind_start(w->offset, write_piece, w, &w->behind) < 0)
        rc = efs_fail(err, -ENOMEM, "%s: no memory", path);
    if (rc == 0)
        rc = open_directory(w, err);
    if (rc == 0)
        rc = check_existing(w, err);
    if (rc == 0)
        efs_newfile_clean(w->dir);
    if (rc == 0) {
        rc = efs_newfile_open(&w->file, w->dir, O_RDWR | O_DIRECT);
        if (rc == -EINVAL) {
            w->direct = false;
            rc = efs_newfile_open(&w->file, w->dir, O_RDWR);
        }
        if (rc < 0)
            writer_fail(w, rc, "create a file in its directory", err);
    }
    if (rc < 0)
        efs_store_writer_close(w);
    return rc;
}

/* Reads the written part of the page that is filled next. */
static errint_t load_page(struct efs_store_writer *w)
{
    uint64_t page = efs_page_down(w->offset);
    uint8_t *memory = efs_write_behind_page(w->behind);
    for (size_t done = 0; page + done < w->offset;) {
        ssize_t n = efs_sys_pread(w->file.fd, memory + done, EFS_ALIGN - done, page + done);
        if (efs_sys_no_direct(n) && w->direct)
            n = disable_direct(w);
        else if (n == 0)
            n = -EIO;
        if (n < 0)
            return (errint_t)n;
        done += (size_t)n;
    }
    return 0;
}

static errint_t writer_resume(struct efs_store_writer *w, int dir, const char *name, struct efs_error *err)
{
    struct stat st;
    w->dir = efs_sys_openat(dir, ".", O_RDONLY | O_DIRECTORY, 0);
    if (w->dir < 0)
        return writer_fail(w, w->dir, "open the directory of", err);
    int fd = efs_sys_openat(dir, name, O_RDWR | O_DIRECT | O_NOFOLLOW, 0);
    if (fd == -EINVAL) {
        w->direct = false;
        fd = efs_sys_openat(dir, name, O_RDWR | O_NOFOLLOW, 0);
    }
    if (fd < 0)
        return writer_fail(w, fd, "open", err);
    w->file = (struct efs_newfile){.dir = w->dir, .fd = fd};
    int rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && w->offset > EFS_ALIGN && (uint64_t)st.st_size < w->offset)
        return efs_fail(err, -EUCLEAN, "%s: has %lld bytes, of %llu that were written", w->path, (long long)st.st_size,
                        (unsigned long long)w->offset);
    if (rc == 0)
        rc = load_page(w);
    if (rc == 0 && (uint64_t)st.st_size > w->offset)
        rc = efs_sys_ftruncate(w->file.fd, w->offset);
    return rc < 0 ? writer_fail(w, rc, "go on with", err) : 0;
}

errint_t efs_store_writer_resume(struct efs_store_writer *w, int dir, const char *name, const char *path,
                                 uint64_t offset, struct efs_error *err)
{
    *w = (struct efs_store_writer){
        .dir = -1, .file = {.fd = -1}, .direct = true, .offset = offset, .synced = efs_page_down(offset)};
    w->path = strdup(path);
    errint_t rc = !w->path || efs_write_behind_start(offset, write_piece, w, &w->behind) < 0
                      ? efs_fail(err, -ENOMEM, "%s: no memory", path)
                      : writer_resume(w, dir, name, err);
    if (rc < 0)
        efs_store_writer_close(w);
    return rc;
}

/* data NULL: puts zeros. */
static errint_t writer_put(struct efs_store_writer *w, const void *data, size_t bytes, struct efs_error *err)
{
    w->offset += bytes;
    return efs_write_behind_append(w->behind, data, bytes, err);
}

errint_t efs_store_writer_append(struct efs_store_writer *w, const void *data, size_t bytes, struct efs_error *err)
{
    errint_t rc = writer_put(w, data, bytes, err);
    return rc < 0 ? rc : writer_put(w, NULL, (size_t)(efs_chunk_up(w->offset) - w->offset), err);
}

errint_t efs_store_writer_page(struct efs_store_writer *w, struct efs_error *err)
{
    errint_t rc = writer_put(w, NULL, (size_t)(efs_page_up(w->offset) - w->offset), err);
    return rc < 0 ? rc : efs_write_behind_flush(w->behind, err);
}

errint_t efs_store_writer_hole(struct efs_store_writer *w, uint64_t offset, struct efs_error *err)
{
    errint_t rc = efs_store_writer_page(w, err);
    if (rc < 0)
        return rc;
    efs_write_behind_seek(w->behind, offset);
    w->offset = w->synced = offset;
    return 0;
}

errint_t efs_store_writer_sync(struct efs_store_writer *w, struct efs_error *err)
{
    size_t filled = w->offset % EFS_ALIGN;
    errint_t rc = efs_write_behind_flush(w->behind, err);
    if (rc == 0 && filled > 0) { /* the partial page, written again when it is full */
        uint8_t *page = efs_write_behind_page(w->behind);
        memset(page + filled, 0, EFS_ALIGN - filled);
        rc = write_pages(w, page, EFS_ALIGN, w->offset - filled, err);
    }
    if (rc < 0)
        return rc;
    rc = efs_newfile_sync(&w->file);
    return rc < 0 ? writer_fail(w, rc, "sync", err) : 0;
}

errint_t efs_store_writer_finish(struct efs_store_writer *w, const struct efs_disk_superblock *sb,
                                 struct efs_error *err)
{
    errint_t rc = efs_store_writer_page(w, err);
    if (rc < 0)
        return rc;
    uint8_t *page = efs_write_behind_page(w->behind); /* unused: all pages were flushed */
    memcpy(page, sb, sizeof(*sb));
    rc = write_pages(w, page, sizeof(*sb), 0, err);
    if (rc < 0)
        return rc;
    rc = efs_sys_ftruncate(w->file.fd, sb->store_bytes);
    if (rc == 0)
        rc = efs_newfile_sync(&w->file);
    return rc < 0 ? writer_fail(w, rc, "write", err) : 0;
}

errint_t efs_store_writer_commit(struct efs_store_writer *w, struct efs_error *err)
{
    int rc = efs_newfile_name(&w->file, w->name, w->force);
    if (rc == -EEXIST)
        return efs_fail(err, rc, "%s: appeared while it was being packed; --force replaces it", w->path);
    if (rc < 0)
        return writer_fail(w, rc, "name the finished store", err);
    rc = efs_sys_sync_directory(w->dir);
    const char *what = rc < 0 ? "sync its directory" : "close";
    errint_t closed = efs_newfile_close(&w->file);
    rc = rc < 0 ? rc : closed;
    if (rc < 0 && !w->force) /* with force the replaced file is already lost: keep the new one */
        efs_sys_unlinkat(w->dir, w->name, 0);
    return rc < 0 ? writer_fail(w, rc, what, err) : 0;
}

void efs_store_writer_close(struct efs_store_writer *w)
{
    efs_write_behind_stop(w->behind);
    efs_newfile_close(&w->file);
    if (w->dir >= 0)
        efs_sys_close(w->dir);
    free(w->path);
    *w = (struct efs_store_writer){.dir = -1, .file = {.fd = -1}};
}
