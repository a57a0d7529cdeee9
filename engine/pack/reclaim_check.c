/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_check.c - checks before the start, and the disk space needed. */
#include "reclaim.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_BYTES (256u << 10)

errint_t efs_reclaim_check_files(struct efs_reclaim *r, struct efs_error *err)
{
    for (uint32_t f = 0; f < r->catalog.file_count; f++) {
        int fd = efs_reclaim_open(r, f, O_RDONLY, r->files[f].touched, err);
        if (fd < 0)
            return fd;
        efs_sys_close(fd);
    }
    return 0;
}

static errint_t check_unstored_of(const struct efs_reclaim *r, uint32_t file, int fd, struct efs_error *err)
{
    const struct efs_disk_file *f = &r->plan.files[file];
    for (uint32_t i = f->extent_first; i < f->extent_first + f->extent_count; i++) {
        const struct efs_disk_extent *x = &r->plan.extents[i];
        uint64_t begin = x->file_offset + r->stored[x->object], end = x->file_offset + x->bytes;
        int64_t hole = begin < end ? efs_sys_seek_hole(fd, begin) : INT64_MAX;
        if (hole >= 0 && (uint64_t)hole < end)
            return efs_fail(err, -EUCLEAN,
                            "%s/%s: has a hole at offset %lld, which %s/" EFS_RECLAIM_JOURNAL " does not tell of: that "
                            "is damaged or not the newest",
                            r->root, r->catalog.files[file].path, (long long)hole, r->folder);
    }
    return 0;
}

errint_t efs_reclaim_check_unstored(struct efs_reclaim *r, struct efs_error *err)
{
    errint_t rc = 0;
    for (uint32_t f = 0; rc == 0 && f < r->catalog.file_count; f++) {
        int fd = r->files[f].whole ? efs_reclaim_open(r, f, O_RDONLY, true, err) : -1;
        if (!r->files[f].whole)
            continue;
        rc = fd < 0 ? fd : check_unstored_of(r, f, fd, err);
        if (fd >= 0)
            efs_sys_close(fd);
    }
    return rc;
}

errint_t efs_reclaim_check_exclusive(struct efs_reclaim *r, struct efs_error *err)
{
    for (uint32_t f = 0; f < r->catalog.file_count; f++) {
        int fd = efs_reclaim_open(r, f, O_RDWR, true, err);
        if (fd < 0)
            return fd;
        int rc = efs_sys_is_sole_user(fd);
        efs_sys_close(fd);
        if (rc == -EAGAIN)
            return efs_fail(err, -EBUSY, "%s/%s: another program has it open or mapped; end that first", r->root,
                            r->catalog.files[f].path);
    }
    return 0;
}

/* Records the state of one file. Rejects symbolic links and files with several hard links: freeing bytes would
 * affect the other names. */
static errint_t record_file(struct efs_reclaim *r, uint32_t file, dev_t device, struct efs_error *err)
{
    const char *path = r->catalog.files[file].path;
    char *full = NULL, *real = NULL;
    struct stat st;
    errint_t rc = 0;
    if (asprintf(&full, "%s%s%s", r->root, strcmp(r->root, "/") == 0 ? "" : "/", path) < 0)
        return efs_fail(err, -ENOMEM, "%s: no memory", path);
    real = realpath(full, NULL);
    if (!real)
        rc = efs_fail(err, -errno, "%s: %s", full, strerror(errno));
    else if (strcmp(full, real) != 0)
        rc = efs_fail(err, -ELOOP,
                      "%s: is a symbolic link to %s, which may have other names. --reclaim takes files alone: move it "
                      "here first",
                      full, real);
    int fd = rc == 0 ? efs_sys_open(full, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
    int seen = fd >= 0 ? efs_sys_fstat(fd, &st) : fd;
    if (rc == 0 && seen < 0)
        rc = efs_fail(err, seen, "%s: cannot open: %s", full, strerror(-seen));
    bool whole = rc == 0 && efs_sys_seek_hole(fd, 0) >= st.st_size;
    if (fd >= 0)
        efs_sys_close(fd);
    if (rc == 0)
        rc = efs_reclaim_check_names(r, file, st.st_nlink, err);
    if (rc == 0 && st.st_dev != device)
        rc = efs_fail(err, -EXDEV,
                      "%s: lies on another filesystem than %s: freeing it makes no room there. Pack without --reclaim",
                      full, r->out);
    if (rc == 0)
        r->files[file] = (struct efs_reclaim_file){.inode = st.st_ino, .mtime = st.st_mtim, .whole = whole};
    free(real);
    free(full);
    return rc;
}

static int compare_inodes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Checks that no file appears under two paths, for example through a bind mount. */
static errint_t check_inodes(const struct efs_reclaim *r, struct efs_error *err)
{
    size_t count = r->catalog.file_count;
    uint64_t *inodes = efs_sys_malloc((count + 1) * sizeof(*inodes));
    errint_t rc = 0;
    if (!inodes)
        return efs_fail(err, -ENOMEM, "%s: no memory", r->root);
    for (size_t f = 0; f < count; f++)
        inodes[f] = r->files[f].inode;
    qsort(inodes, count, sizeof(*inodes), compare_inodes);
    for (size_t f = 1; rc == 0 && f < count; f++)
        if (inodes[f] == inodes[f - 1])
            rc = efs_fail(err, -EMLINK, "%s: a file of it is there twice (inode %llu)", r->root,
                          (unsigned long long)inodes[f]);
    free(inodes);
    return rc;
}

/* Checks that the file system of the sources and the store can punch holes, with a temporary file. */
static errint_t check_holes(const struct efs_reclaim *r, struct efs_error *err)
{
    struct efs_newfile file;
    struct stat before = {0}, after = {0};
    uint8_t *data = efs_sys_calloc(1, PROBE_BYTES);
    if (!data)
        return efs_fail(err, -ENOMEM, "%s: no memory", r->out);
    memset(data, 1, PROBE_BYTES);
    int rc = efs_newfile_open(&file, r->parent, O_RDWR);
    if (rc == 0) {
        rc = efs_sys_pwrite_all(file.fd, data, PROBE_BYTES, 0);
        if (rc == 0)
            rc = efs_sys_fsync(file.fd);
        if (rc == 0)
            rc = efs_sys_fstat(file.fd, &before);
        if (rc == 0)
            rc = efs_sys_fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PROBE_BYTES);
        if (rc == 0)
            rc = efs_sys_fstat(file.fd, &after);
        efs_newfile_close(&file);
    }
    free(data);
    if (rc == -EOPNOTSUPP || rc == -ENOSYS || (rc == 0 && after.st_blocks >= before.st_blocks))
        return efs_fail(err, -EOPNOTSUPP,
                        "%s: its filesystem cannot free parts of files (punch holes), so --reclaim cannot work there",
                        r->out);
    return rc < 0 ? efs_fail(err, rc, "%s: cannot try whether holes can be punched there: %s", r->out, strerror(-rc))
                  : 0;
}

/* ---- disk space ---------------------------------------------------------------------------------------------- */

/* Upper bound of the additional disk space used with steps of step_bytes, assuming that encoding saves nothing. */
static uint64_t peak_bytes(struct efs_reclaim *r, uint64_t step_bytes, uint32_t block)
{
    uint64_t used = 0, peak = 0, freed = 0;
    struct efs_reclaim_step step = {.begin = {0}};
    efs_pack_cursor_begin(&r->plan, &step.end);
    while (!efs_pack_cursor_at_end(&r->plan, &step.end)) {
        step.begin = step.end;
        for (uint64_t raw = 0; raw < step_bytes && !efs_pack_cursor_at_end(&r->plan, &step.end);)
            used += efs_reclaim_run_most(&r->plan, &step.end, &raw);
        efs_reclaim_mark_touched(r, &step);
        efs_reclaim_add_stored(r, &step);
        peak = used > freed && used - freed > peak ? used - freed : peak;
        freed += efs_reclaim_would_free(r, block);
    }
    memset(r->stored, 0, r->plan.object_count * sizeof(*r->stored));
    memset(r->freed, 0, r->plan.object_count * sizeof(*r->freed));
    return peak;
}

/* Chooses the largest step for which the disk has room. */
static errint_t find_room(struct efs_reclaim *r, struct efs_reclaim_need *need, struct efs_error *err)
{
    uint64_t room, step = r->step_bytes;
    uint32_t block;
    errint_t rc = efs_reclaim_free_space(r, &room, &need->free_bytes, &block, err);
    if (rc < 0)
        return rc;
    uint64_t peak = peak_bytes(r, step, block);
    while (peak > room && step > 1) {
        step = step > (16u << 20) ? step / 2 : 1;
        peak = peak_bytes(r, step, block);
    }
    r->step_bytes = step;
    need->source_bytes = r->plan.source_bytes;
    need->files = r->plan.file_count;
    need->need_bytes = peak + (need->free_bytes - room);
    return 0;
}

/* ---- prepare ------------------------------------------------------------------------------------------------- */

errint_t efs_reclaim_prepare(struct efs_reclaim *r, const char *src, struct efs_reclaim_need *need,
                             struct efs_error *err)
{
    struct stat st, parent;
    errint_t rc = efs_catalog_read(src, r->options.experts, &r->catalog, err);
    if (rc == 0)
        rc = efs_catalog_check_whole(src, &r->catalog, err);
    if (rc < 0)
        return rc;
    rc = efs_absolute_path(r->catalog.root, &r->root, err);
    if (rc < 0)
        return rc;
    r->files = efs_sys_calloc(r->catalog.file_count + 1, sizeof(*r->files));
    if (!r->files)
        return efs_fail(err, -ENOMEM, "%s: no memory", src);
    int fd = efs_sys_open(src, O_PATH, 0);
    rc = fd < 0 ? fd : efs_sys_fstat(fd, &st);
    if (fd >= 0)
        efs_sys_close(fd);
    r->root_dir = efs_sys_open(r->root, O_RDONLY | O_DIRECTORY, 0);
    if (rc == 0)
        rc = r->root_dir < 0 ? r->root_dir : efs_sys_fstat(r->parent, &parent);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot open: %s", src, strerror(-rc));
    r->whole_directory = S_ISDIR(st.st_mode);
    for (uint32_t f = 0; rc == 0 && f < r->catalog.file_count; f++)
        rc = record_file(r, f, parent.st_dev, err);
    if (rc == 0)
        rc = check_inodes(r, err);
    if (rc == 0)
        rc = efs_reclaim_check_exclusive(r, err);
    if (rc == 0)
        rc = efs_pack_source_open(&r->catalog, &r->source, err);
    if (rc == 0)
        rc = efs_pack_check_output(src, r->out, r->source, err);
    if (rc == 0)
        rc = check_holes(r, err);
    if (rc == 0)
        rc = efs_pack_find_copies(&r->catalog, r->source, &r->options, err);
    if (rc == 0)
        rc = efs_reclaim_plan(r, err);
    return rc == 0 ? find_room(r, need, err) : rc;
}
