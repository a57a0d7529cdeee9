/* SPDX-License-Identifier: Apache-2.0 */
/* unmount.h - take away a mount of FUSE whose daemon has ended, or is about to. */
#ifndef TOOLS_UNMOUNT_H
#define TOOLS_UNMOUNT_H

#include <stdbool.h>

/* Is a FUSE file system what is on top at path? May block on its daemon. */
bool tools_is_fuse(const char *path);
/* Unmount a FUSE file system, also while it is in use. Other types stay mounted. */
void tools_unmount_fuse(const char *path);

#endif
