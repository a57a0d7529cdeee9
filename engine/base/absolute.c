/* SPDX-License-Identifier: Apache-2.0 */
/* absolute.c - converts a path to an absolute path of the same file, and recognizes addresses of servers. */
#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* realpath() follows the text of links in /proc. That text names a different file if a mount hides the link's target
 * or the target is in another mount namespace; the different file is then on another mount. Inode numbers are
 * compared only where the kernel does not report the mount id (before Linux 5.8), because sshfs and similar file
 * systems can change them between calls. */
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

bool efs_is_address(const char *path)
{
    const size_t scheme = strspn(path, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-.");
    return (scheme > 0 && strncmp(path + scheme, "://", 3) == 0 && strncasecmp(path, "hf://", 5) != 0) ||
           efs_is_rados(path);
}

bool efs_is_rados(const char *path)
{
    return strncmp(path, "rados:", 6) == 0;
}

void efs_hide_secret(char *path)
{
    if (efs_is_address(path) && strncasecmp(path, "http", 4) == 0)
        path[strcspn(path, "?#")] = '\0';
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
