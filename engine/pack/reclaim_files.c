/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_files.c - opens and restores source files; iterates over shards. */
#include "reclaim.h"
#include "sys.h"
#include "expertfs-packing-private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* ---- source files ---- */

errint_t efs_reclaim_fail(const struct efs_reclaim *r, errint_t rc, const char *name, const char *what,
                          struct efs_error *err)
{
    return efs_fail(err, rc, "%s/%s: cannot %s: %s", r->folder, name, what, strerror(-rc));
}

int efs_reclaim_open(const struct efs_reclaim *r, uint32_t file, int flags, bool any_time, struct efs_error *err)
{
    const struct efs_reclaim_file *seen = &r->files[file];
    const char *path = r->catalog.files[file].path;
    struct stat st;
    int fd = efs_sys_openat(r->root_dir, path, flags | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return efs_fail(err, fd, "%s/%s: cannot open: %s", r->root, path, strerror(-fd));
    int rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && (st.st_ino != seen->inode || (uint64_t)st.st_size != r->catalog.files[file].bytes))
        rc = efs_fail(err, -ESTALE, "%s/%s: is no longer the file that it was at the start", r->root, path);
    else if (rc == 0 && !any_time &&
             (st.st_mtim.tv_sec != seen->mtime.tv_sec || st.st_mtim.tv_nsec != seen->mtime.tv_nsec))
        rc = efs_fail(err, -ESTALE,
                      "%s/%s: was changed since the start. If its bytes are what they were, `touch -d @%lld.%09ld` "
                      "puts its time back",
                      r->root, path, (long long)seen->mtime.tv_sec, seen->mtime.tv_nsec);
    else if (rc < 0)
        efs_fail(err, rc, "%s/%s: cannot stat: %s", r->root, path, strerror(-rc));
    if (rc < 0) {
        efs_sys_close(fd);
        return rc;
    }
    return fd;
}

errint_t efs_reclaim_check_names(const struct efs_reclaim *r, uint32_t file, unsigned long names, struct efs_error *err)
{
    return names > 1
               ? efs_fail(err, -EMLINK, "%s/%s: has %lu names (hard links); --reclaim would take it from all of them",
                          r->root, r->catalog.files[file].path, names)
               : 0;
}

errint_t efs_reclaim_finish_file(const struct efs_reclaim *r, uint32_t file, int fd, struct efs_error *err)
{
    int rc = efs_sys_set_mtime(fd, &r->files[file].mtime);
    if (rc == 0)
        rc = efs_sys_sync(fd);
    efs_sys_drop_cache(fd, 0, 0);
    efs_sys_close(fd);
    return rc < 0 ? efs_fail(err, rc, "%s/%s: cannot sync: %s", r->root, r->catalog.files[file].path, strerror(-rc))
                  : 0;
}

/* ---- shards ---- */

bool efs_reclaim_in_step(const struct efs_index *plan, const struct efs_reclaim_step *step,
                         const struct efs_pack_cursor *at)
{
    return !efs_pack_cursor_at_end(plan, at) &&
           (at->order != step->end.order || at->shard != step->end.shard || at->object != step->end.object);
}

uint64_t efs_reclaim_run_most(const struct efs_index *plan, struct efs_pack_cursor *at, uint64_t *raw_bytes)
{
    uint64_t raw = 0, shards = 0;
    for (uint32_t order = at->order; !efs_pack_cursor_at_end(plan, at) && at->order == order; shards++) {
        size_t bytes = efs_reclaim_shard_bytes(plan, at->object, at->shard);
        if (shards > 0 && raw + bytes > EFS_RUN_BYTES)
            break;
        raw += bytes;
        efs_pack_cursor_step(plan, at);
    }
    *raw_bytes += raw;
    return raw + raw / 64 + shards * 2 * EFS_ALIGN; /* upper bound */
}

size_t efs_reclaim_shard_bytes(const struct efs_index *plan, uint32_t object, uint32_t shard)
{
    return efs_index_shard_elements(plan, object, shard) *
           efs_format_bytes((enum efs_format)plan->objects[object].format);
}

void efs_reclaim_mark_touched(struct efs_reclaim *r, const struct efs_reclaim_step *step)
{
    for (size_t f = 0; f < r->catalog.file_count; f++)
        r->files[f].touched = false;
    for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(&r->plan, step, &at);
         efs_pack_cursor_step(&r->plan, &at))
        r->files[r->plan.origins[at.object].file].touched = true;
}

void efs_reclaim_add_stored(struct efs_reclaim *r, const struct efs_reclaim_step *step)
{
    for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(&r->plan, step, &at);
         efs_pack_cursor_step(&r->plan, &at))
        r->stored[at.object] += efs_reclaim_shard_bytes(&r->plan, at.object, at.shard);
}
