/* SPDX-License-Identifier: Apache-2.0 */
/* stores.h - the folder in which `expertctl up` keeps its stores and mount points. */
#ifndef EXPERTCTL_STORES_H
#define EXPERTCTL_STORES_H

#include "expertfs.h"
#include "paths.h"
#include "store_name.h"

#include <stdbool.h>

/* The folder of stores: `given`, or if NULL $XDG_DATA_HOME/expertfs or ~/.local/share/expertfs; it need not exist.
 * -ENOENT: no home; path is "" then. */
errint_t ctl_stores_folder(const char *given, char *path, size_t room, struct efs_error *err);
/* The folder in which this user makes stores and mount points: `folder` if it may be written, and is not in the home of
 * another user while this one is root, as after `sudo -E`, unless that was given; else the user's own default folder.
 * "" if there is none. */
void ctl_stores_own(const char *folder, bool given, char *path, size_t room);
/* The paths of the files *.efs in a folder, sorted; none, if it is "" or cannot be read. The caller frees them. */
void ctl_stores_list(const char *folder, struct ctl_paths *stores);
/* Makes a directory and its parents. *made: bytes of the path before the first one that was made, for
 * ctl_unmake_folders(), which removes these again if they are empty. 0 or -errno. */
errint_t ctl_make_folders(const char *path, size_t *made, struct efs_error *err);
void ctl_unmake_folders(const char *path, size_t made);

#endif
