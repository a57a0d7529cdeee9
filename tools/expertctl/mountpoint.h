/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - mounts of expertfs, as commands are told of them. */
#ifndef EXPERTCTL_MOUNTPOINT_H
#define EXPERTCTL_MOUNTPOINT_H

#include "expertfs.h"

#define CTL_XATTR "user.expertfs."

/* The root of the expertfs mount that path is in, for free(). -ENODEV: it is in none (or in one of an earlier version);
 * what the system says. */
errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err);
/* The text of a file of .expertfs, for free(); NULL: it has none of that name. */
char *ctl_mount_text(const char *root, const char *file);
/* Is it the root of a mount? */
bool ctl_is_mount(const char *path);
/* As efs_store_open(); of a mountpoint the error names its store. */
errint_t ctl_store_open(const char *path, struct efs_store **store, struct efs_error *err);
/* The mounts of type fuse.expertfs that a path leads to, each once, in the order in which they were made. */
struct ctl_mounts {
    char **paths;
    int *ids;
    size_t count;
};
errint_t ctl_mounts_find(struct ctl_mounts *mounts, struct efs_error *err);
/* Is this mount what a path names, and not hidden or unmounted by now? Asks no daemon. */
bool ctl_mount_is_there(const char *path, int id);
void ctl_mounts_free(struct ctl_mounts *mounts);
/* The one mount of type fuse.expertfs, for free(). -ENOENT: there is none; -E2BIG: several, err names them. */
errint_t ctl_mount_only(char **root, struct efs_error *err);
/* What the mount said last (its xattr `answer`); "" when that is not known. */
void ctl_mount_answer(const char *root, char *text, size_t room);

#endif
