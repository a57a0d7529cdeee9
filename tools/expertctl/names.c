/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - see names.h. */
#include "names.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "hub.h"
#include "hub_name.h"
#include "mountpoint.h"
#include "sources.h"
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
    char is[256], at[4400], names[1024] = "", hub[256];
    struct dirent **stores;
    size_t found = 0;
    int count = *folder ? ctl_stores_list(folder, &stores) : 0;
    bool exact = false, fits = true;
    if (ctl_hub_name(name, hub, sizeof(hub)))
        name = hub;
    for (int i = 0; i < count; i++) {
        const char *last = stores[i]->d_name;
        snprintf(at, sizeof(at), "%s/%s", folder, last);
        bool this_one = strcmp(ctl_store_stem(last, is, sizeof(is)), name) == 0;
        if (!exact &&
            (this_one || (strcmp(ctl_store_name(last, is, sizeof(is)), name) == 0 && !(current && is_stale(at))))) {
            size_t used = this_one ? 0 : strlen(names);
            snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                     ctl_store_stem(last, is, sizeof(is)));
            found = this_one ? 1 : found + 1;
            exact = this_one;
            fits = (size_t)snprintf(path, room, "%s", at) < room;
        }
        free(stores[i]);
    }
    if (count > 0)
        free(stores);
    return found > 1
               ? efs_fail(err, -E2BIG, "%s: which store? there are %s\nhint: `expertctl ls` shows what they are of",
                          name, names)
           : found && fits ? 0
                           : efs_fail(err, -ENOENT, "%s: no store\nhint: `expertctl ls` lists the stores", name);
}

bool ctl_store_of_checkpoint(const char *path, char *name, size_t room)
{
    char folder[4096], *at, *absolute;
    struct dirent **stores;
    struct efs_error ignored;
    bool found = false, current = false;
    if (efs_source_path(path, &absolute, &ignored) < 0)
        return false;
    ctl_stores_folder(NULL, folder, sizeof(folder), &ignored);
    int count = *folder ? ctl_stores_list(folder, &stores) : 0;
    for (int i = 0; i < count; i++) {
        if (!current && asprintf(&at, "%s/%s", folder, stores[i]->d_name) >= 0) {
            bool of_it = ctl_sources_has_path(at, absolute);
            current = of_it && !is_stale(at);
            if (current || (of_it && !found))
                ctl_store_stem(at, name, room);
            found |= of_it;
            free(at);
        }
        free(stores[i]);
    }
    if (count > 0)
        free(stores);
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
