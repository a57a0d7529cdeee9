/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint_place.h - where `expertctl up` mounts a model. */
#ifndef EXPERTCTL_MOUNTPOINT_PLACE_H
#define EXPERTCTL_MOUNTPOINT_PLACE_H

#include "model.h"

struct ctl_place {
    char path[4096];     /* absolute, of the mount point, an existing folder */
    size_t made;         /* bytes of the path before the folders that were made */
    int above;           /* locked folder above it: `down` removes no mount point there meanwhile; -1: none */
    bool foreign;        /* this user may not unmount the mount that is at path */
    char replaces[4400]; /* the model, as it was before it changed, that the mount at path serves; "": none */
};

/*
 * Chooses the mount point of a model that is not mounted there, and makes its folder: `given`, or if NULL NAME in the
 * folder own. An older version of the same checkpoint there that this user may unmount stays until ctl_place_replace().
 * If another mount is, NAME@KEY is taken in place of NAME, which is said on stderr. nonempty: the folder may have
 * files. packs: of given, -EBUSY also if files of that older version are open. -EBUSY: given has a mount; -ETIMEDOUT:
 * the daemon of a mount there does not answer; -ENOTDIR, -ENOTEMPTY, -EACCES: expertfs or fusermount3 would refuse the
 * folder; -errno.
 */
errint_t ctl_place_make(const struct ctl_model *model, const char *given, const char *own, bool nonempty, bool packs,
                        struct ctl_place *place, struct efs_error *err);
/* Unmounts place->replaces, unless it was meanwhile, and blocks while its daemon ends. If a program uses it, -EBUSY of
 * given; else NAME@KEY is taken, which is said, and place->replaces is emptied. */
errint_t ctl_place_replace(const struct ctl_model *model, const char *given, const char *own, struct ctl_place *place,
                           struct efs_error *err);
/* Unlocks; removes the folders that were made unless mounted. */
void ctl_place_drop(struct ctl_place *place, bool mounted);

#endif
