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

#define PROBE_MS 5000

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

#define IN_USE_TRIES 6
#define IN_USE_PAUSE_US 10000

/* Whether files of a mount are open. The daemon learns of a close(2) some time after it, so it is asked again, for .6
 * seconds in all. */
static bool mount_is_used(const char *path)
{
    bool used = true;
    for (unsigned tries = 0; used && tries <= IN_USE_TRIES; tries++) {
        if (tries)
            usleep((useconds_t)IN_USE_PAUSE_US << (tries - 1));
        char *readers = ctl_mount_probe(path, "readers", PROBE_MS);
        const char *row = readers ? strchr(readers, '\n') : NULL; /* after the header */
        used = row && row[1];
        free(readers);
    }
    return used;
}

/* Looks for a mount at the place. An older version of the model is replaced later, unless it is another
 * user's, or programs use it and used_stays. -EBUSY: it stays, and is a mount of *source. */
static errint_t mount_look(struct ctl_place *place, const struct ctl_model *model, bool used_stays, char *source,
                           size_t room, struct efs_error *err)
{
    struct ctl_mounts mounts;
    errint_t rc = ctl_mounts_find(&mounts, err);
    const struct ctl_mount *mount = rc == 0 ? ctl_mount_at(&mounts, place->path) : NULL;
    if (mount && (rc = ctl_mount_check(place->path, err)) == 0) {
        snprintf(source, room, "%s", mount->source);
        place->foreign = mount->user != geteuid() && !ctl_may_mount();
        if (place->foreign || !is_version(mount, model, place->replaces, sizeof(place->replaces)) ||
            (used_stays && mount_is_used(place->path))) {
            *place->replaces = '\0';
            rc = -EBUSY;
        }
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

static errint_t fail_mounted(const struct ctl_place *place, const char *source, struct efs_error *err)
{
    if (place->foreign)
        return efs_fail(err, -EBUSY,
                        "%s: is a mount of %s\nhint: root and the user who mounted it unmount it, another MNT mounts "
                        "both",
                        place->path, source);
    return efs_fail(err, -EBUSY, "%s: is a mount of %s\nhint: `expertctl down %s` unmounts it, another MNT mounts both",
                    place->path, source, EFS_WORD(place->path));
}

/* Chooses NAME@KEY, because place is a mount of source. */
static errint_t place_other(struct ctl_place *place, const struct ctl_model *model, const char *own, const char *source,
                            struct efs_error *err)
{
    char path[4400], stem[256];
    if (model->in_place)
        snprintf(stem, sizeof(stem), "%.200s@%0*x", model->name, CTL_STORE_KEY_DIGITS, model_key(model));
    else
        ctl_store_stem(model->store, stem, sizeof(stem));
    ctl_print_line(stderr, "expertctl: note: %s is a mount of %s: %s is mounted on %s/%s", place->path, source,
                   model->path, own, stem);
    snprintf(path, sizeof(path), "%s/%s", own, stem);
    return place_path(path, place, err);
}

/* Makes the folder of a place that has no mount, and locks the one above it. */
static errint_t place_take(struct ctl_place *place, bool given, bool nonempty, struct efs_error *err)
{
    errint_t rc = 0;
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

errint_t ctl_place_make(const struct ctl_model *model, const char *given, const char *own, bool nonempty, bool packs,
                        struct ctl_place *place, struct efs_error *err)
{
    char path[4400], source[4400] = "";
    *place = (struct ctl_place){.above = -1};
    if (!given && !*own)
        return efs_fail(err, -ENOENT,
                        "no folder for mount points: neither XDG_DATA_HOME nor HOME is set\nhint: name a MNT");
    snprintf(path, sizeof(path), "%s%s%s", given ? given : own, given ? "" : "/", given ? "" : model->name);
    errint_t rc = place_path(path, place, err);
    if (rc == 0)
        rc = mount_look(place, model, given && packs, source, sizeof(source), err);
    if (rc == -EBUSY && given)
        return fail_mounted(place, source, err);
    if (rc == -EBUSY)
        rc = place_other(place, model, own, source, err);
    if (rc == 0 && *place->replaces) {
        place->made = strlen(place->path);
        place->above = ctl_above_lock(place->path, LOCK_SH);
        return 0;
    }
    return rc == 0 ? place_take(place, given != NULL, nonempty, err) : rc;
}

errint_t ctl_place_replace(const struct ctl_model *model, const char *given, const char *own, struct ctl_place *place,
                           struct efs_error *err)
{
    struct ctl_mounts mounts;
    errint_t rc = ctl_mounts_find(&mounts, err);
    const struct ctl_mount *mount = rc == 0 ? ctl_mount_at(&mounts, place->path) : NULL;
    if (mount && ctl_mount_end(mount, false, err) == 0)
        ctl_print_line(stderr, "expertctl: note: %s: unmounted: it served %s, which has changed", place->path,
                       place->replaces);
    else if (mount && given)
        rc = fail_mounted(place, mount->source, err);
    else if (mount) {
        ctl_place_drop(place, true);
        *place->replaces = '\0';
        rc = place_other(place, model, own, mount->source, err);
        if (rc == 0)
            rc = place_take(place, false, false, err);
    }
    ctl_mounts_free(&mounts);
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
