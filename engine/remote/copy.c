/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c - copies a store as it is, between a file and an address. */
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "newfile.h"
#include "rados.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (4u << 20)

/* *reading: the store could not be read. */
static errint_t copy_bytes(const struct efs_store *store, uint64_t all, int fd, efs_progress_fn *progress, void *arg,
                           bool *reading)
{
    uint8_t *buffer = efs_sys_aligned_alloc(EFS_ALIGN, PIECE_BYTES);
    errint_t rc = buffer ? 0 : -ENOMEM;
    for (uint64_t at = 0; at < all && rc == 0; at += PIECE_BYTES) {
        const size_t bytes = all - at < PIECE_BYTES ? (size_t)(all - at) : PIECE_BYTES;
        if (progress && progress(arg, at, all, "copying"))
            rc = -ECANCELED;
        if (rc == 0) {
            rc = efs_store_read(store, at, buffer, bytes);
            *reading = rc < 0;
        }
        if (rc == 0)
            rc = efs_sys_pwrite_all(fd, buffer, bytes, at);
    }
    free(buffer);
    return rc;
}

static errint_t copy_to_file(const struct efs_store *store, uint64_t bytes, const char *to, bool force,
                             efs_progress_fn *progress, void *arg, struct efs_error *err)
{
    char folder[4096], name[4096];
    struct efs_newfile file = {.fd = -1};
    bool reading = false;
    if (strlen(to) >= sizeof(folder))
        return efs_fail(err, -ENAMETOOLONG, "%s: %s", to, strerror(ENAMETOOLONG));
    strcpy(folder, to);
    strcpy(name, to);
    int dir = efs_sys_open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0)
        return efs_fail(err, -errno, "%s: %s", to, strerror(errno));
    errint_t rc = !force && faccessat(dir, basename(name), F_OK, AT_SYMLINK_NOFOLLOW) == 0 ? -EEXIST : 0;
    if (rc == 0)
        rc = efs_newfile_open(&file, dir, O_WRONLY);
    if (rc == 0) {
        rc = copy_bytes(store, bytes, file.fd, progress, arg, &reading);
        if (rc == 0)
            rc = efs_newfile_sync(&file);
        if (rc == 0)
            rc = efs_newfile_name(&file, basename(name), force);
        const errint_t closed = efs_newfile_close(&file);
        rc = rc < 0 ? rc : closed;
    }
    close(dir);
    if (rc == -EEXIST)
        return efs_fail(err, rc, "%s: exists\nhint: --force replaces it", to);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", reading ? store->path : to, strerror(-rc)) : 0;
}

static errint_t refuse(const char *path, const char *why, struct efs_error *err)
{
    char shown[4096];
    snprintf(shown, sizeof(shown), "%s", path);
    efs_hide_secret(shown);
    return efs_fail(err, -EINVAL, "%s: %s", shown, why);
}

errint_t efs_store_copy(const char *from, const char *to, bool force, efs_progress_fn *progress, void *arg,
                        uint64_t *bytes, struct efs_error *err)
{
    struct efs_store *store;
    struct efs_store_info info;
    *bytes = 0;
    if (efs_is_address(from) == efs_is_address(to))
        return refuse(from,
                      efs_is_address(from) ? "one of SRC and OUT is a file\nhint: copy it to a file first"
                                           : "one of SRC and OUT is an address\nhint: cp copies a file",
                      err);
    if (efs_is_address(to) && !efs_is_rados(to))
        return refuse(to, "cannot be written: only rados:POOL/NAME\nhint: curl or a client of S3 uploads the file",
                      err);
    errint_t rc = efs_store_open(from, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    if (info.in_place)
        rc = efs_fail(err, -EINVAL, "%s: not a store\nhint: %s", store->path,
                      efs_is_address(from) ? "download it; then mkexpertfs packs it" : "mkexpertfs packs it");
    else if (efs_is_address(to))
        rc = efs_rados_copy(store, to, force, progress, arg, err);
    else
        rc = copy_to_file(store, info.store_bytes, to, force, progress, arg, err);
    *bytes = info.store_bytes;
    efs_store_close(store);
    return rc;
}
