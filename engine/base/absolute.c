/* SPDX-License-Identifier: Apache-2.0 */
/* absolute.c - absolute paths that lead to the same file as the path they were made from. */
#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* realpath() follows links of /proc by their text, which names another file where a mount hides the one that they lead
 * to, or it is in another mount namespace. Such a file is on another mount. Numbers of inodes are compared only where
 * the kernel does not tell the mount (before Linux 5.8): on sshfs and the like they change from call to call. */
static bool is_other_file(const char *path, const char *absolute)
{
    struct statx given, found;
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_MNT_ID, &given) < 0)
        return false;
    if (!absolute)
        return true;
    if (statx(AT_FDCWD, absolute, 0, STATX_INO | STATX_MNT_ID, &found) < 0)
        return false;
    if (given.stx_mask & found.stx_mask & STATX_MNT_ID)
        return given.stx_mnt_id != found.stx_mnt_id;
    return given.stx_dev_major != found.stx_dev_major || given.stx_dev_minor != found.stx_dev_minor ||
           given.stx_ino != found.stx_ino;
}

errint_t efs_absolute_path(const char *path, char **absolute, struct efs_error *err)
{
    *absolute = realpath(path, NULL);
    errint_t rc = *absolute ? 0 : -errno;
    if ((rc == 0 || rc == -ENOENT) && is_other_file(path, *absolute)) {
        free(*absolute);
        *absolute = NULL;
        return efs_fail(err, -EXDEV,
                        "%s: no absolute path leads there: a mount hides it, it was removed, or it is in another mount "
                        "namespace; hint: run this program in that namespace (nsenter --mount)",
                        path);
    }
    return rc ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}
