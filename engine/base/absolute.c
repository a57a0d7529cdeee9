/* SPDX-License-Identifier: Apache-2.0 */
/* absolute.c - absolute paths that lead to the same file as the path they were made from. */
#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* realpath() follows links of /proc by their text, which names another file where a mount hides the one that they lead
 * to, or it is in another mount namespace. */
static bool is_other_file(const char *path, const char *absolute)
{
    struct stat given, found;
    if (stat(path, &given) < 0)
        return false;
    return !absolute || (stat(absolute, &found) == 0 && (given.st_dev != found.st_dev || given.st_ino != found.st_ino));
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
