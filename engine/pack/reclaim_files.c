/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_files.c - see reclaim.h: source files, opened and put back; errors of files in the folder. */
#include "reclaim.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

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

errint_t efs_reclaim_settle(const struct efs_reclaim *r, uint32_t file, int fd, struct efs_error *err)
{
    int rc = efs_sys_set_mtime(fd, &r->files[file].mtime);
    if (rc == 0)
        rc = efs_sys_sync(fd);
    efs_sys_drop_cache(fd, 0, 0);
    efs_sys_close(fd);
    return rc < 0 ? efs_fail(err, rc, "%s/%s: cannot sync: %s", r->root, r->catalog.files[file].path, strerror(-rc))
                  : 0;
}
