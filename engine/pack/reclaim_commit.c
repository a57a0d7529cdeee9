/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_commit.c - names the finished store; only then removes the sources and the directory OUT.reclaim. */
#include "newfile.h"
#include "reclaim.h"
#include "store.h"
#include "sys.h"
#include "expertfs-packing-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define PATH_ROOM 1100

/* Opens the store as a reader would, with its index read from disk. */
static errint_t check_store(const struct efs_reclaim *r, struct efs_error *err)
{
    char self[40];
    struct efs_store *store;
    efs_sys_drop_cache(r->writer.file.fd, 0, 0);
    snprintf(self, sizeof(self), "/proc/self/fd/%d", r->writer.file.fd);
    errint_t rc = efs_store_open_file(self, &store, err);
    if (rc == 0)
        efs_store_close(store);
    return rc;
}

static errint_t link_store(const struct efs_reclaim *r, struct efs_error *err)
{
    int rc = efs_newfile_link(r->dir, EFS_RECLAIM_STORE, r->parent, r->name);
    if (rc == -EEXIST)
        return efs_fail(err, rc, "%s: appeared meanwhile; move it away", r->out);
    if (rc == 0)
        rc = efs_sys_sync_directory(r->parent);
    return rc < 0 ? efs_fail(err, rc, "%s: cannot name the finished store: %s", r->out, strerror(-rc)) : 0;
}

errint_t efs_reclaim_name_store(struct efs_reclaim *r, struct efs_pack_report *report, struct efs_error *err)
{
    efs_pack_report(&r->plan, r->entropy_bits, report);
    errint_t rc = efs_pack_index(&r->plan, &r->writer, report, err);
    if (rc == 0)
        rc = check_store(r, err);
    return rc == 0 ? link_store(r, err) : rc;
}

/* Removes a source file if it is the one that was packed. */
static errint_t remove_source(const struct efs_reclaim *r, uint32_t file, struct efs_error *err)
{
    struct stat st;
    const char *path = r->catalog.files[file].path;
    int fd = efs_sys_openat(r->root_dir, path, O_PATH | O_NOFOLLOW, 0);
    if (fd == -ENOENT || fd == -ENOTDIR)
        return 0;
    int rc = fd < 0 ? fd : efs_sys_fstat(fd, &st);
    if (fd >= 0)
        efs_sys_close(fd);
    if (rc == 0 && st.st_ino == r->files[file].inode)
        rc = efs_sys_unlinkat(r->root_dir, path, 0);
    return rc < 0 ? efs_fail(err, rc, "%s/%s: is stored, and cannot be removed: %s", r->root, path, strerror(-rc)) : 0;
}

/* Removes directories that are empty now, innermost first. */
static void remove_directories(const struct efs_reclaim *r)
{
    char path[PATH_ROOM];
    for (size_t f = r->catalog.file_count; f-- > 0;) {
        snprintf(path, sizeof(path), "%s", r->catalog.files[f].path);
        for (char *slash; (slash = strrchr(path, '/'));) {
            *slash = '\0';
            if (efs_sys_unlinkat(r->root_dir, path, AT_REMOVEDIR) < 0)
                break;
        }
    }
}

errint_t efs_reclaim_remove_sources(struct efs_reclaim *r, struct efs_error *err)
{
    for (uint32_t f = 0; f < r->catalog.file_count; f++) {
        errint_t told = remove_source(r, f, err);
        if (told < 0)
            return told;
    }
    remove_directories(r);
    int rc = efs_sys_sync_directory(r->root_dir);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot sync: %s", r->root, strerror(-rc));
    if (r->whole_directory)
        efs_sys_unlinkat(AT_FDCWD, r->root, AT_REMOVEDIR); /* fails, and it stays, if it has newer files */
    return 0;
}

/* Truncates a store that has no other name and is no longer needed, before its journal is removed. */
static int empty_store(const struct efs_reclaim *r)
{
    struct stat st;
    int fd = efs_sys_openat(r->dir, EFS_RECLAIM_STORE, O_WRONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    int rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && st.st_nlink == 1 && st.st_size > 0) {
        rc = efs_sys_ftruncate(fd, 0);
        if (rc == 0)
            rc = efs_sys_fsync(fd);
    }
    efs_sys_close(fd);
    return rc;
}

errint_t efs_reclaim_remove_folder(struct efs_reclaim *r, struct efs_error *err)
{
    const char *slash = strrchr(r->folder, '/');
    int rc = empty_store(r);
    if (rc == 0) /* then the journal: nothing in a directory without one is needed */
        rc = efs_sys_unlinkat(r->dir, EFS_RECLAIM_JOURNAL, 0);
    if (rc == 0 || rc == -ENOENT)
        rc = efs_sys_sync_directory(r->dir);
    if (rc == 0)
        rc = efs_sys_unlinkat(r->dir, EFS_RECLAIM_STORE, 0);
    if (rc == 0 || rc == -ENOENT)
        rc = efs_sys_unlinkat(r->parent, slash ? slash + 1 : r->folder, AT_REMOVEDIR);
    if (rc == 0)
        efs_sys_fsync(r->parent);
    return rc < 0 ? efs_fail(err, rc, "%s: cannot remove: %s", r->folder, strerror(-rc)) : 0;
}
