/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint_place.c - see mountpoint_place.h. */
#include "mountpoint_place.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "mountpoint.h"
#include "mountpoint_lock.h"
#include "stores.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* Whether the mount serves the model as it was before it changed: its path, or a store that was packed from it. path:
 * of the model. */
static bool is_version(const struct ctl_mount *mount, const struct ctl_model *model, char *path, size_t room)
{
    *path = '\0';
    if (model->sources.path)
        snprintf(path, room, "%s", model->sources.path);
    else
        ctl_sources_state(model->store, path, room);
    return strcmp(mount->source, path) == 0 ? model->in_place /* and up_find() did not find it */
                                            : ctl_sources_has_changed(mount->source, path);
}

/* Frees a path with a mount of an older version of the model. -EBUSY: it stays, and is a mount of *source. */
static errint_t mount_free(const char *path, const struct ctl_model *model, char *source, size_t room,
                           struct efs_error *err)
{
    struct ctl_mounts mounts;
    char served[4400];
    errint_t rc = ctl_mounts_find(&mounts, err);
    const struct ctl_mount *mount = rc == 0 ? ctl_mount_at(&mounts, path) : NULL;
    if (mount && (rc = ctl_mount_check(path, err)) == 0) {
        snprintf(source, room, "%s", mount->source);
        rc = is_version(mount, model, served, sizeof(served)) && ctl_mount_end(mount, false, err) == 0 ? 0 : -EBUSY;
        if (rc == 0)
            ctl_print_line(stderr, "expertctl: note: %s: unmounted: it served %s, which has changed", path, served);
    }
    ctl_mounts_free(&mounts);
    return rc == -ENOTCONN ? 0 : rc; /* expertfs removes a mount whose daemon has ended */
}

/* Fails for a reason for which expertfs would, after the model was packed. */
static errint_t folder_check(const char *path, bool nonempty, struct efs_error *err)
{
    struct stat st;
    const struct dirent *entry;
    if (stat(path, &st) < 0)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -ENOTDIR, "%s: %s", path, strerror(ENOTDIR));
    if (!ctl_may_mount() && access(path, W_OK) < 0)
        return efs_fail(err, -EACCES, "%s: %s: a user mounts on folders that the user may write", path,
                        strerror(EACCES));
    DIR *folder = nonempty ? NULL : opendir(path);
    bool empty = true;
    while (folder && empty && (entry = readdir(folder)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (folder)
        closedir(folder);
    return empty ? 0
                 : efs_fail(err, -ENOTEMPTY,
                            "%s: the directory is not empty\nhint: -o nonempty mounts over what is in it", path);
}

static errint_t place_make(struct ctl_place *place, bool nonempty, struct efs_error *err)
{
    errint_t rc = ctl_mount_check_above(place->path, err);
    const bool ended = rc == -ENOTCONN; /* expertfs replaces a mount whose daemon has ended; the folder is below it */
    if (rc == 0 || ended)
        rc = ctl_make_folders(place->path, &place->made, err);
    if (rc == 0 && !ended)
        rc = folder_check(place->path, nonempty, err);
    char *real = rc == 0 && place->made == strlen(place->path) ? realpath(place->path, NULL) : NULL;
    if (real && strlen(real) < sizeof(place->path)) {
        strcpy(place->path, real);
        place->made = strlen(real);
    }
    free(real);
    return rc;
}

/* The path of a mount point that may not exist yet, without links above it. */
static errint_t place_path(const char *given, struct ctl_place *place, struct efs_error *err)
{
    errint_t rc = ctl_mount_check_above(given, err); /* before a call that would wait for a daemon that hangs */
    if (rc == -ETIMEDOUT)
        return rc;
    char *real = realpath(given, NULL);
    int bytes = snprintf(place->path, sizeof(place->path), "%s", real ? real : given);
    free(real);
    return (size_t)bytes < sizeof(place->path) ? 0
                                               : efs_fail(err, -ENAMETOOLONG, "%s: %s", given, strerror(ENAMETOOLONG));
}

static uint32_t model_key(const struct ctl_model *model)
{
    return (uint32_t)(tools_sources_key(&model->sources) >> 32);
}

errint_t ctl_place_make(const struct ctl_model *model, const char *given, const char *own, bool nonempty,
                        struct ctl_place *place, struct efs_error *err)
{
    char path[4400], source[4400] = "", stem[256];
    *place = (struct ctl_place){.above = -1};
    if (!given && !*own)
        return efs_fail(err, -ENOENT,
                        "no folder for mount points: neither XDG_DATA_HOME nor HOME is set\nhint: name a MNT");
    snprintf(path, sizeof(path), "%s%s%s", given ? given : own, given ? "" : "/", given ? "" : model->name);
    errint_t rc = place_path(path, place, err);
    if (rc == 0)
        rc = mount_free(place->path, model, source, sizeof(source), err);
    if (rc == -EBUSY && given)
        return efs_fail(err, rc, "%s: is a mount of %s\nhint: `expertctl down %s` unmounts it, another MNT mounts both",
                        place->path, source, EFS_WORD(place->path));
    if (rc == -EBUSY) {
        if (model->in_place)
            snprintf(stem, sizeof(stem), "%.200s@%0*x", model->name, CTL_STORE_KEY_DIGITS, model_key(model));
        else
            ctl_store_stem(model->store, stem, sizeof(stem));
        ctl_print_line(stderr, "expertctl: note: %s is a mount of %s: %s is mounted on %s/%s", place->path, source,
                       model->path, own, stem);
        snprintf(path, sizeof(path), "%s/%s", own, stem);
        rc = place_path(path, place, err);
    }
    for (int tries = 0; rc == 0 && place->above < 0 && tries < 2; tries++) {
        rc = place_make(place, nonempty, err);
        if (rc == -ENOTEMPTY && !given)
            rc = efs_fail(err, rc, "%s: the directory is not empty\nhint: name a mount point: `expertctl up MODEL MNT`",
                          place->path);
        if (rc == 0)
            place->above = ctl_above_lock(place->path, LOCK_SH);
        if (rc == 0 && access(place->path, F_OK) == 0)
            break;
        ctl_place_drop(place, true); /* `down` has removed it */
    }
    if (rc < 0)
        ctl_place_drop(place, false);
    return rc;
}

void ctl_place_drop(struct ctl_place *place, bool mounted)
{
    if (place->above >= 0)
        close(place->above);
    place->above = -1;
    if (!mounted && *place->path && place->made < strlen(place->path))
        ctl_unmake_folders(place->path, place->made);
}
