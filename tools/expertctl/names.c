/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - see names.h. */
#include "names.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "hub.h"
#include "hub_name.h"
#include "mountpoint.h"
#include "store_sources.h"
#include "stores.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The store is of a checkpoint that has changed since. */
static bool is_stale(const char *path)
{
    char source[4400];
    return ctl_sources_state(path, source, sizeof(source)) == CTL_SOURCE_CHANGED;
}

errint_t ctl_store_by_name(const char *folder, const char *name, bool current, char *path, size_t room,
                           struct efs_error *err)
{
    char is[256], names[1024] = "", hub[256];
    struct ctl_paths stores;
    size_t found = 0;
    bool exact = false, fits = true;
    if (ctl_hub_name(name, hub, sizeof(hub)))
        name = hub;
    ctl_stores_list(folder, &stores);
    for (size_t i = 0; i < stores.count && !exact; i++) {
        const char *at = stores.path[i];
        exact = strcmp(ctl_store_stem(at, is, sizeof(is)), name) == 0;
        if (!exact && (strcmp(ctl_store_name(at, is, sizeof(is)), name) != 0 || (current && is_stale(at))))
            continue;
        ctl_list_add(names, sizeof(names), ctl_store_stem(at, is, sizeof(is)));
        found = exact ? 1 : found + 1;
        fits = (size_t)snprintf(path, room, "%s", at) < room;
    }
    ctl_paths_free(&stores);
    return found > 1
               ? efs_fail(err, -E2BIG, "%s: which store? there are %s\nhint: `expertctl ls` shows what they are of",
                          name, names)
           : found && fits ? 0
                           : efs_fail(err, -ENOENT, "%s: no store\nhint: `expertctl ls` lists the stores", name);
}

bool ctl_store_of_checkpoint(const char *path, char *name, size_t room)
{
    char folder[4096], *absolute;
    struct ctl_paths stores;
    struct efs_error ignored;
    bool found = false, current = false;
    if (efs_source_path(path, &absolute, &ignored) < 0)
        return false;
    ctl_stores_folder(NULL, folder, sizeof(folder), &ignored);
    ctl_stores_list(folder, &stores);
    for (size_t i = 0; i < stores.count && !current; i++) {
        bool of_it = ctl_sources_has_path(stores.path[i], absolute);
        current = of_it && !is_stale(stores.path[i]);
        if (current || (of_it && !found))
            ctl_store_stem(stores.path[i], name, room);
        found |= of_it;
    }
    ctl_paths_free(&stores);
    free(absolute);
    return found;
}

/* The model that a mount of that name serves. */
static errint_t name_of_mount(const char *given, char *path, size_t room, struct efs_error *err)
{
    struct ctl_mounts mounts;
    const struct ctl_mount *mount;
    errint_t rc = ctl_mounts_find(&mounts, err);
    if (rc < 0)
        return rc;
    rc = ctl_mount_choose(&mounts, given, &mount, err);
    if (rc == 0 && ((size_t)snprintf(path, room, "%s", mount->source) >= room ||
                    (!efs_is_address(path) && access(path, F_OK) < 0)))
        rc = efs_fail(err, -ENOENT, "%s: %s", mount->source, strerror(ENOENT));
    ctl_mounts_free(&mounts);
    return rc;
}

errint_t ctl_name_find(const char *given, char *path, size_t room, struct efs_error *err)
{
    char folder[4096];
    struct efs_error ignored;
    if (efs_is_address(given) || access(given, F_OK) == 0 || errno != ENOENT) {
        bool fits = (size_t)snprintf(path, room, "%s", given) < room;
        return fits ? 0 : efs_fail(err, -ENAMETOOLONG, "%s: %s", given, strerror(ENAMETOOLONG));
    }
    ctl_stores_folder(NULL, folder, sizeof(folder), &ignored);
    errint_t rc = ctl_store_by_name(folder, given, true, path, room, err);
    if (rc == -ENOENT)
        rc = name_of_mount(given, path, room, &ignored);
    if (rc == -ENOENT)
        rc = ctl_hub_find(given, path, room, &ignored);
    return rc == -ENOENT ? efs_fail(err, rc, "%s: %s\nhint: `expertctl ls` lists the names of stores and mounts", given,
                                    strerror(ENOENT))
                         : rc;
}

errint_t ctl_name_open(const char *given, char *path, size_t room, struct efs_store **store, struct efs_error *err)
{
    errint_t rc = ctl_name_find(given, path, room, err);
    return rc < 0 ? rc : ctl_store_open(path, store, err);
}
