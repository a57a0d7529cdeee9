/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint_place.h - where `expertctl up` mounts a model. */
#ifndef EXPERTCTL_MOUNTPOINT_PLACE_H
#define EXPERTCTL_MOUNTPOINT_PLACE_H

#include "model.h"

struct ctl_place {
    char path[4096]; /* absolute, of the mount point, an existing folder */
    size_t made;     /* bytes of the path before the folders that were made */
    int above;       /* locked folder above it: `down` removes no mount point there meanwhile; -1: none */
};

/*
 * Chooses the mount point of a model that is not mounted there, and makes its folder: `given`, or if NULL NAME in the
 * folder own. If another version of the same checkpoint is mounted there, that is unmounted if no program uses it; if
 * it is in use, or another model is mounted there, NAME@KEY is taken in place of NAME, which is said on stderr. Blocks
 * while a daemon ends. nonempty: the folder may have files. -EBUSY: given has a mount; -ETIMEDOUT: the daemon of a
 * mount there does not answer; -ENOTDIR, -ENOTEMPTY, -EACCES: expertfs or fusermount3 would refuse the folder; -errno.
 */
errint_t ctl_place_make(const struct ctl_model *model, const char *given, const char *own, bool nonempty,
                        struct ctl_place *place, struct efs_error *err);
/* Unlocks; removes the folders that were made unless mounted. */
void ctl_place_drop(struct ctl_place *place, bool mounted);

#endif
