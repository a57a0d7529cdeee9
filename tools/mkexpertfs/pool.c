/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - mkexpertfs SRC rados:POOL/NAME: packs into a file of TMPDIR without a name, and copies that to the pool. A
 * store's first page is written last, which objects that are written once do not allow.
 */
#include "mkexpertfs.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* A path in TMPDIR at which there is nothing. The caller frees it. */
static char *temporary_path(void)
{
    const char *folder = getenv("TMPDIR");
    uint64_t number = 0;
    char *path;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number) ||
        asprintf(&path, "%s/expertfs-%016" PRIx64 ".efs", folder && *folder ? folder : "/var/tmp", number) < 0)
        return NULL;
    return path;
}

/* The store at the path loses its name before it is copied: a kill leaves nothing. */
static errint_t copy_nameless(const char *path, const char *out, const struct efs_pack_options *options,
                              struct efs_error *err)
{
    uint64_t bytes;
    char self[40];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    errint_t rc = fd < 0 ? efs_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
    unlink(path);
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    if (rc == 0) {
        rc = efs_store_copy(self, out, options->force, options->progress, options->progress_arg, &bytes, err);
        close(fd);
    }
    return rc;
}

errint_t pack_to_pool(const char *src, const char *out, const struct efs_pack_options *options,
                      struct efs_pack_report *report, struct efs_error *err)
{
    if (!efs_is_rados(out))
        return efs_fail(err, -EINVAL,
                        "OUT is an address: of these only rados:POOL/NAME can be written\nhint: curl or a client of S3 "
                        "uploads a store's file");
    errint_t rc = efs_rados_check_copy(out, options->force, err);
    if (rc < 0)
        return rc;
    char *path = temporary_path();
    umask(077); /* TMPDIR may be a folder of all users */
    rc = path ? efs_pack(src, path, options, report, err) : efs_fail(err, -ENOMEM, "no memory");
    if (rc == -ENOSPC) {
        const struct efs_error why = *err;
        efs_fail(err, rc, "%s\nhint: TMPDIR names another folder", why.text);
    }
    if (rc == 0)
        rc = copy_nameless(path, out, options, err);
    free(path);
    return rc;
}
