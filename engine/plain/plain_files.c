/* SPDX-License-Identifier: Apache-2.0 */
/* plain_files.c - the files of a checkpoint that is served in place: opened once, checked after each read. */
#include "plain.h"

#include "catalog.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Smaller files are read through the page cache: O_DIRECT would gain nothing and take a second descriptor. */
#define DIRECT_MIN_BYTES (1u << 20)

/* ---- opening ---- */

/* FUSE file systems may accept O_DIRECT at open(2) and reject the reads, so one page is read. -1: not available. */
static int open_direct(const struct efs_plain *plain, const struct efs_plain_file *f)
{
    char *path = NULL;
    void *page = efs_sys_aligned_alloc(EFS_ALIGN, EFS_ALIGN);
    int fd = page && asprintf(&path, "%s/%s", plain->root, f->path) >= 0
                 ? efs_regular_reopen(f->fd, path, O_RDONLY | O_DIRECT)
                 : -ENOMEM;
    ssize_t rc = fd >= 0 ? efs_sys_pread(fd, page, EFS_ALIGN, 0) : 0;
    free(path);
    free(page);
    if (fd >= 0 && rc < 0) {
        efs_sys_close(fd);
        return -1;
    }
    return fd < 0 ? -1 : fd;
}

static errint_t open_file(struct efs_plain *plain, const struct efs_source_file *listed, struct efs_plain_file *f,
                          struct efs_error *err)
{
    f->fd = efs_regular_open(plain->root_fd, f->path, 0, &f->opened_stat);
    if (f->fd < 0)
        return efs_fail(err, f->fd, "%s/%s: cannot open: %s%s", plain->root, f->path, strerror(-f->fd),
                        f->fd == -EMFILE ? "\nhint: raise the limit of open files (ulimit -n)" : "");
    if ((uint64_t)f->opened_stat.st_size != listed->bytes)
        return efs_fail(err, -ESTALE, "%s/%s: changed while it was opened\nhint: try again when nothing writes to it",
                        plain->root, f->path);
    if (f->bytes >= DIRECT_MIN_BYTES) {
        f->direct_fd = open_direct(plain, f);
        plain->direct = plain->direct && f->direct_fd >= 0;
        plain->remote = plain->remote || efs_sys_is_remote(f->fd);
    }
    return 0;
}

struct efs_plain *efs_plain_new(const struct efs_catalog *catalog)
{
    size_t path_bytes = 0;
    for (size_t i = 0; i < catalog->file_count; i++)
        path_bytes += strlen(catalog->files[i].path) + 1;
    struct efs_plain *plain = efs_sys_calloc(1, sizeof(*plain) + catalog->file_count * sizeof(plain->files[0]));
    if (!plain)
        return NULL;
    plain->root_fd = -1;
    plain->direct = true;
    plain->root = strdup(catalog->root);
    plain->paths = efs_sys_calloc(path_bytes + 1, 1);
    if (!plain->root || !plain->paths) {
        efs_plain_close(plain);
        return NULL;
    }
    uint64_t address = sizeof(struct efs_disk_superblock);
    char *path = plain->paths;
    for (uint32_t i = 0; i < catalog->file_count; i++) {
        struct efs_plain_file *f = &plain->files[plain->file_count++];
        *f = (struct efs_plain_file){
            .path = path, .fd = -1, .direct_fd = -1, .address = address, .bytes = catalog->files[i].bytes};
        path = stpcpy(path, catalog->files[i].path) + 1;
        address = efs_page_up(address + f->bytes) + EFS_ALIGN;
    }
    plain->index_address = address;
    return plain;
}

errint_t efs_plain_files_open(const struct efs_catalog *catalog, struct efs_plain **out, struct efs_error *err)
{
    uint64_t total = 0;
    *out = NULL;
    for (size_t i = 0; i < catalog->file_count; i++)
        if (__builtin_add_overflow(total, catalog->files[i].bytes, &total) || total > INT64_MAX / 2)
            return efs_fail(err, -EFBIG, "%s: impossible size", catalog->root);
    struct efs_plain *plain = efs_plain_new(catalog);
    if (!plain)
        return efs_fail(err, -ENOMEM, "%s: no memory", catalog->root);
    plain->root_fd = efs_sys_open(plain->root, O_PATH | O_DIRECTORY, 0);
    errint_t rc = plain->root_fd < 0
                      ? efs_fail(err, plain->root_fd, "%s: cannot open: %s", plain->root, strerror(-plain->root_fd))
                      : 0;
    for (uint32_t i = 0; rc == 0 && i < plain->file_count; i++)
        rc = open_file(plain, &catalog->files[i], &plain->files[i], err);
    if (rc < 0) {
        efs_plain_close(plain);
        return rc;
    }
    *out = plain;
    return 0;
}

void efs_plain_notify(struct efs_plain *plain, efs_plain_changed_fn *changed, void *arg)
{
    if (!plain)
        return;
    plain->changed = changed;
    plain->changed_arg = arg;
}

void efs_plain_close(struct efs_plain *plain)
{
    if (!plain)
        return;
    for (uint32_t i = 0; i < plain->file_count; i++) {
        if (plain->files[i].fd >= 0)
            efs_sys_close(plain->files[i].fd);
        if (plain->files[i].direct_fd >= 0)
            efs_sys_close(plain->files[i].direct_fd);
    }
    if (plain->root_fd >= 0)
        efs_sys_close(plain->root_fd);
    free(plain->index);
    free(plain->paths);
    free(plain->root);
    free(plain);
}

/* ---- the check ---- */

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Why the file is not the one that was opened; NULL: it is. st_ctim changes with each change of the inode, also when
 * its last name is replaced or removed; chmod(2) changes it as well. */
static const char *file_change(const struct efs_plain *plain, const struct efs_plain_file *f, char *text, size_t bytes)
{
    struct stat now, named = {0};
    int rc = efs_sys_fstat(f->fd, &now);
    if (rc < 0)
        return strerror(-rc);
    if (now.st_size != f->opened_stat.st_size) {
        snprintf(text, bytes, "its size changed from %lld to %lld bytes", (long long)f->opened_stat.st_size,
                 (long long)now.st_size);
        return text;
    }
    if (!same_time(now.st_mtim, f->opened_stat.st_mtim))
        return "it was written to";
    if (same_time(now.st_ctim, f->opened_stat.st_ctim))
        return NULL;
    int fd = efs_sys_openat(plain->root_fd, f->path, O_PATH, 0);
    rc = fd < 0 ? fd : efs_sys_fstat(fd, &named);
    if (fd >= 0)
        efs_sys_close(fd);
    if (rc < 0)
        return rc == -ENOENT ? "it was removed" : strerror(-rc);
    return same_inode(&now, &named) ? NULL : "it was replaced by another file";
}

errint_t efs_plain_check(struct efs_plain *plain, uint32_t file)
{
    struct efs_plain_file *f = &plain->files[file];
    char text[100], *line = NULL;
    if (atomic_load_explicit(&f->changed, memory_order_relaxed))
        return -EIO;
    const char *change = file_change(plain, f, text, sizeof(text));
    if (!change)
        return 0;
    if (!atomic_exchange(&f->changed, true) && plain->changed &&
        asprintf(&line, "%s/%s: %s since it was opened: reads of it fail\nhint: mount it again", plain->root, f->path,
                 change) >= 0) {
        plain->changed(plain->changed_arg, line);
        free(line);
    }
    return -EIO;
}

/* ---- reads ---- */

/* Reads bytes of a file; zeros after its end. O_DIRECT needs whole pages and an aligned buffer. */
static errint_t read_file(struct efs_plain *plain, uint32_t file, uint64_t offset, uint8_t *data, size_t bytes)
{
    const struct efs_plain_file *f = &plain->files[file];
    size_t left = f->bytes - offset < bytes ? (size_t)(f->bytes - offset) : bytes;
    bool aligned = offset % EFS_ALIGN == 0 && bytes % EFS_ALIGN == 0 && (uintptr_t)data % EFS_ALIGN == 0;
    int rc = -EOPNOTSUPP;
    if (f->direct_fd >= 0 && aligned)
        rc = efs_sys_pread_least(f->direct_fd, data, efs_page_up(left), left, offset);
    if (efs_sys_no_direct(rc))
        rc = efs_sys_pread_all(f->fd, data, left, offset);
    memset(data + left, 0, rc == 0 ? bytes - left : 0);
    errint_t changed = efs_plain_check(plain, file);
    return changed ? changed : rc == -ENODATA ? -EIO : rc;
}

/* Copies the part of [offset, offset + bytes) that lies in the range of `from`, which begins at `begin`. */
static void copy_range(uint64_t begin, const void *from, size_t from_bytes, uint64_t offset, uint8_t *data,
                       size_t bytes)
{
    uint64_t first = offset > begin ? offset : begin;
    uint64_t last = offset + bytes < begin + from_bytes ? offset + bytes : begin + from_bytes;
    if (first < last)
        memcpy(data + (first - offset), (const uint8_t *)from + (first - begin), (size_t)(last - first));
}

/* The first file whose pages end after offset. */
static uint32_t file_after(const struct efs_plain *plain, uint64_t offset)
{
    uint32_t low = 0, high = plain->file_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (efs_page_up(plain->files[mid].address + plain->files[mid].bytes) <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

errint_t efs_plain_read(void *arg, uint64_t offset, void *data, size_t bytes)
{
    struct efs_plain *plain = arg;
    uint8_t *to = data;
    uint64_t end = offset + bytes, at = offset;
    for (uint32_t i = file_after(plain, offset); i < plain->file_count && plain->files[i].address < end; i++) {
        const struct efs_plain_file *f = &plain->files[i];
        uint64_t begin = at > f->address ? at : f->address, pages = efs_page_up(f->address + f->bytes);
        uint64_t last = end < pages ? end : pages;
        if (begin >= last)
            continue;
        memset(to + (at - offset), 0, (size_t)(begin - at));
        errint_t rc = begin - f->address < f->bytes
                          ? read_file(plain, i, begin - f->address, to + (begin - offset), (size_t)(last - begin))
                          : 0;
        if (rc < 0)
            return rc;
        at = last;
    }
    memset(to + (at - offset), 0, (size_t)(end - at));
    copy_range(0, &plain->sb, sizeof(plain->sb), offset, to, bytes);
    if (plain->index)
        copy_range(plain->index_address, plain->index, plain->sb.store_bytes - plain->index_address, offset, to, bytes);
    return 0;
}
