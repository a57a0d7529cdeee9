/* SPDX-License-Identifier: Apache-2.0 */
/* mount_store.c - whether the store of a mount is still at its path. */
#include "mountpoint.h"

#include "control_file.h"
#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

char *ctl_mount_store_lost(const char *config)
{
    struct stat st;
    char store[4200], *text = NULL;
    if (efs_is_address(tools_line_path(config, "store", store, sizeof(store))))
        return NULL; /* reads of the mount find out */
    bool there = stat(store, &st) == 0;
    if (!there && errno != ENOENT && errno != ENOTDIR) /* a user without access cannot check */
        return NULL;
    if (there && st.st_dev == tools_line_number(config, "store_device") &&
        st.st_ino == tools_line_number(config, "store_inode"))
        return NULL;
    if (asprintf(&text, "its store %s was %s: the mount keeps the old one, and its disk space, until it is unmounted",
                 store, there ? "replaced" : "removed") < 0)
        return NULL;
    return text;
}
