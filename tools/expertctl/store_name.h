/* SPDX-License-Identifier: Apache-2.0 */
/* store_name.h - names in the paths of stores and mount points. */
#ifndef EXPERTCTL_STORE_NAME_H
#define EXPERTCTL_STORE_NAME_H

#include <stddef.h>

#define CTL_STORE_KEY_DIGITS 8 /* of the checksum in the name of a store */

/* Copies the name of a store or a mount point to name: the last part of path, without ".efs" and without the checksum
 * that `up` appends to names of stores ("model@1a2b3c4d.efs": "model"). Returns name. */
const char *ctl_store_name(const char *path, char *name, size_t room);
/* The same with the checksum. */
const char *ctl_store_stem(const char *path, char *name, size_t room);
/* Copies the folder of a path, "." if it names none. Returns folder. */
const char *ctl_store_folder(const char *path, char *folder, size_t room);

#endif
