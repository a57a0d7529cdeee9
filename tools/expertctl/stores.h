/* SPDX-License-Identifier: Apache-2.0 */
/* stores.h - the folder in which `expertctl up` keeps its stores and mount points. */
#ifndef EXPERTCTL_STORES_H
#define EXPERTCTL_STORES_H

#include "expertfs.h"

#include <dirent.h>
#include <stdbool.h>

#define CTL_STORE_KEY_DIGITS 8 /* of the checksum in the name of a store */

/* The folder of stores: `given`, or if NULL $XDG_DATA_HOME/expertfs or ~/.local/share/expertfs. Makes it and its
 * parents with mode 0755 if `make`; else a missing folder is no error. 0 or -errno. */
errint_t ctl_stores_folder(const char *given, bool make, char *path, size_t room, struct efs_error *err);
/* The entries *.efs of a folder, sorted by name; the caller frees each and the array. Their number, or -errno. */
int ctl_stores_list(const char *folder, struct dirent ***stores);
/* Makes a directory and its parents. 0 or -errno. */
errint_t ctl_make_folders(const char *path, struct efs_error *err);

/* Copies the path of the store in folder with this name to path, of the newest of several. false: none. */
bool ctl_store_by_name(const char *folder, const char *name, char *path, size_t room);
/* Copies the name of a store or a mount point to name: the last part of path, without ".efs" and without the checksum
 * that `up` appends to names of stores ("model-1a2b3c4d.efs": "model"). Returns name. */
const char *ctl_store_name(const char *path, char *name, size_t room);

#endif
