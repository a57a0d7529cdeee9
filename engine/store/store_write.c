/* store_write.c - a nameless file, aligned writes, then a name. */
#include "store_write.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (4u << 20) /* of one write */
/* Buffered writes: at most twice so many bytes are dirty at a time. */
#define WRITEBACK_BYTES (32u << 20)

static errint_t fail(const struct efs_store_writer *w, errint_t rc, const char *what, struct efs_error *err)
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
    *w = (struct efs_store_writer){.dir = -1, .file = {.fd = -1}, .force = force, .direct = true, .offset = EFS_ALIGN};
    w->synced = EFS_ALIGN;
    w->path = strdup(path);
    w->buffer = efs_sys_aligned_alloc(EFS_ALIGN, BUFFER_BYTES);
    errint_t rc = 0;
    if (!w->path || !w->buffer)
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
            fail(w, rc, "create a file in its directory", err);
    }
    if (rc < 0)
        efs_store_writer_close(w);
    return rc;
}

/* The filesystem took O_DIRECT at open and refuses it now: go on without. */
static errint_t leave_direct(struct efs_store_writer *w)
{
    errint_t rc = efs_newfile_reopen(&w->file, O_RDWR);
    if (rc == 0)
        w->direct = false;
    return rc;
}

/* The written part of the page that is to be filled further. */
static errint_t load_page(struct efs_store_writer *w)
{
    w->filled = w->offset % EFS_ALIGN;
    if (w->filled == 0)
        return 0;
    for (size_t done = 0; done < w->filled;) {
        ssize_t n = efs_sys_pread(w->file.fd, w->buffer + done, EFS_ALIGN - done, w->offset - w->filled + done);
        if (n == -EINVAL && w->direct)
            n = leave_direct(w);
        else if (n == 0)
            n = -EIO;
        if (n < 0)
            return (errint_t)n;
        done += (size_t)n;
    }
    return 0;
}

static errint_t resume(struct efs_store_writer *w, int dir, const char *name, struct efs_error *err)
{
    struct stat st;
    w->dir = efs_sys_openat(dir, ".", O_RDONLY | O_DIRECTORY, 0);
    if (w->dir < 0)
        return fail(w, w->dir, "open the directory of", err);
    int fd = efs_sys_openat(dir, name, O_RDWR | O_DIRECT | O_NOFOLLOW, 0);
    if (fd == -EINVAL) {
        w->direct = false;
        fd = efs_sys_openat(dir, name, O_RDWR | O_NOFOLLOW, 0);
    }
    if (fd < 0)
        return fail(w, fd, "open", err);
    w->file = (struct efs_newfile){.dir = w->dir, .fd = fd};
    int rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && w->offset > EFS_ALIGN && (uint64_t)st.st_size < w->offset)
        return efs_fail(err, -EUCLEAN, "%s: has %lld bytes, of %llu that were written", w->path, (long long)st.st_size,
                        (unsigned long long)w->offset);
    if (rc == 0)
        rc = load_page(w);
    if (rc == 0 && (uint64_t)st.st_size > w->offset)
        rc = efs_sys_ftruncate(w->file.fd, w->offset);
    return rc < 0 ? fail(w, rc, "go on with", err) : 0;
}

errint_t efs_store_writer_resume(struct efs_store_writer *w, int dir, const char *name, const char *path,
                                 uint64_t offset, struct efs_error *err)
{
    *w = (struct efs_store_writer){
        .dir = -1, .file = {.fd = -1}, .direct = true, .offset = offset, .synced = efs_page_down(offset)};
    w->path = strdup(path);
    w->buffer = efs_sys_aligned_alloc(EFS_ALIGN, BUFFER_BYTES);
    errint_t rc = w->path && w->buffer ? resume(w, dir, name, err) : efs_fail(err, -ENOMEM, "%s: no memory", path);
    if (rc < 0)
        efs_store_writer_close(w);
    return rc;
}

/* Keep what is dirty in memory bounded: start the writing of this window, wait for the one before. */
static void bound_dirty(struct efs_store_writer *w)
{
    while (!w->direct && w->offset - w->filled - w->synced >= 2 * (uint64_t)WRITEBACK_BYTES) {
        efs_sys_writeback(w->file.fd, w->synced + WRITEBACK_BYTES, WRITEBACK_BYTES, 0);
        efs_sys_writeback(w->file.fd, w->synced, WRITEBACK_BYTES, 1);
        w->synced += WRITEBACK_BYTES;
    }
}

/* Write the first bytes of the buffer, whole pages, at the file's offset `at`. */
static errint_t write_pages(struct efs_store_writer *w, size_t bytes, uint64_t at, struct efs_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = efs_sys_pwrite(w->file.fd, w->buffer + done, bytes - done, at + done);
        if (n > 0 && w->direct) { /* cut short inside a page: write the page again */
            n -= n % (ssize_t)EFS_ALIGN;
            n = n == 0 ? -EINVAL : n;
        }
        if (n == -EINVAL && w->direct) {
            int rc = leave_direct(w);
            if (rc < 0)
                return fail(w, rc, "reopen", err);
            continue;
        }
        if (n <= 0)
            return fail(w, n < 0 ? (errint_t)n : -EIO, "write", err);
        done += (size_t)n;
    }
    return 0;
}

/* Write what the buffer has of whole pages; the rest moves to its front. */
static errint_t flush(struct efs_store_writer *w, struct efs_error *err)
{
    size_t whole = w->filled & ~(size_t)(EFS_ALIGN - 1);
    errint_t rc = whole ? write_pages(w, whole, w->offset - w->filled, err) : 0;
    if (rc < 0)
        return rc;
    memmove(w->buffer, w->buffer + whole, w->filled - whole);
    w->filled -= whole;
    bound_dirty(w);
    return 0;
}

/* data NULL: zeros. */
static errint_t put(struct efs_store_writer *w, const uint8_t *data, size_t bytes, struct efs_error *err)
{
    while (bytes > 0) {
        size_t room = BUFFER_BYTES - w->filled, n = bytes < room ? bytes : room;
        if (data)
            memcpy(w->buffer + w->filled, data, n);
        else
            memset(w->buffer + w->filled, 0, n);
        data = data ? data + n : NULL;
        w->filled += n;
        w->offset += n;
        bytes -= n;
        errint_t rc = w->filled == BUFFER_BYTES ? flush(w, err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

errint_t efs_store_writer_append(struct efs_store_writer *w, const void *data, size_t bytes, struct efs_error *err)
{
    errint_t rc = put(w, data, bytes, err);
    return rc < 0 ? rc : put(w, NULL, (size_t)(efs_chunk_up(w->offset) - w->offset), err);
}

errint_t efs_store_writer_page(struct efs_store_writer *w, struct efs_error *err)
{
    errint_t rc = put(w, NULL, (size_t)(efs_page_up(w->offset) - w->offset), err);
    return rc < 0 ? rc : flush(w, err);
}

errint_t efs_store_writer_sync(struct efs_store_writer *w, struct efs_error *err)
{
    errint_t rc = flush(w, err);
    if (rc == 0 && w->filled > 0) { /* the last page is written again when it is full */
        memset(w->buffer + w->filled, 0, EFS_ALIGN - w->filled);
        rc = write_pages(w, EFS_ALIGN, w->offset - w->filled, err);
    }
    if (rc < 0)
        return rc;
    rc = efs_sys_fsync(w->file.fd);
    return rc < 0 ? fail(w, rc, "sync", err) : 0;
}

errint_t efs_store_writer_finish(struct efs_store_writer *w, const struct efs_disk_superblock *sb,
                                 struct efs_error *err)
{
    errint_t rc = efs_store_writer_page(w, err);
    memcpy(w->buffer, sb, sizeof(*sb));
    if (rc == 0)
        rc = write_pages(w, sizeof(*sb), 0, err);
    if (rc < 0)
        return rc;
    rc = efs_sys_ftruncate(w->file.fd, sb->store_bytes);
    if (rc == 0)
        rc = efs_sys_fsync(w->file.fd);
    return rc < 0 ? fail(w, rc, "write", err) : 0;
}

errint_t efs_store_writer_commit(struct efs_store_writer *w, struct efs_error *err)
{
    int rc = efs_newfile_name(&w->file, w->name, w->force);
    if (rc == -EEXIST)
        return efs_fail(err, rc, "%s: appeared while it was being packed; --force replaces it", w->path);
    if (rc < 0)
        return fail(w, rc, "name the finished store", err);
    rc = efs_sys_fsync(w->dir);
    if (rc < 0 && rc != -EINVAL) { /* EINVAL: a filesystem whose directories cannot be synced */
        if (!w->force)             /* what it replaced is gone already: better this one than none */
            efs_sys_unlinkat(w->dir, w->name, 0);
        return fail(w, rc, "sync its directory", err);
    }
    return 0;
}

void efs_store_writer_close(struct efs_store_writer *w)
{
    efs_newfile_close(&w->file);
    if (w->dir >= 0)
        efs_sys_close(w->dir);
    free(w->buffer);
    free(w->path);
    *w = (struct efs_store_writer){.dir = -1, .file = {.fd = -1}};
}
