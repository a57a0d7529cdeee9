/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_unfinished.c - see reclaim_unfinished.h. */
#include "reclaim_unfinished.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".reclaim"

static errint_t check_folder(const char *folder, const char *src, struct efs_error *err)
{
    const size_t suffix = strlen(SUFFIX);
    errint_t rc = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && rc == 0 && (entry = readdir(list));) {
        size_t bytes = strlen(entry->d_name);
        char out[PATH_MAX];
        if (bytes <= suffix || strcmp(entry->d_name + bytes - suffix, SUFFIX) != 0)
            continue;
        snprintf(out, sizeof(out), "%s/%.*s", folder, (int)(bytes - suffix), entry->d_name);
        if (efs_reclaim_is_of(out, src))
            rc = efs_fail(err, -EBUSY,
                          "%s: a --reclaim that did not end has taken parts of it, which are in %s" SUFFIX
                          "\nhint: `mkexpertfs --resume %s` goes on, `mkexpertfs --undo %s` goes back",
                          src, out, EFS_WORD(out), EFS_WORD(out));
    }
    if (list)
        closedir(list);
    return rc;
}

errint_t tools_reclaim_unfinished(const char *src, const char *out, struct efs_error *err)
{
    char beside[PATH_MAX], real[PATH_MAX];
    errint_t rc = 0;
    if (out) {
        snprintf(beside, sizeof(beside), "%s", out);
        rc = check_folder(dirname(beside), src, err);
    }
    return rc == 0 && realpath(src, real) ? check_folder(dirname(real), src, err) : rc;
}
