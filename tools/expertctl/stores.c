/* SPDX-License-Identifier: Apache-2.0 */
/* stores.c - see stores.h. */
#include "stores.h"

#include "expertfs-private.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- folders ----------------------------------------------------------------------------------------------------- */

errint_t ctl_make_folders(const char *path, size_t *made, struct efs_error *err)
{
    char *copy = strdup(path), *at = copy;
    errint_t rc = copy ? 0 : -ENOMEM;
    const size_t none = strlen(path);
    *made = none;
    while (rc == 0 && at) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(copy, 0755) < 0)
            rc = errno == EEXIST ? 0 : -errno;
        else if (*made == none)
            *made = strrchr(copy, '/') ? (size_t)(strrchr(copy, '/') - copy) : 0;
        if (at)
            *at = '/';
    }
    free(copy);
    if (rc == 0)
        return 0;
    ctl_unmake_folders(path, *made);
    return efs_fail(err, rc, "%s: %s", path, strerror(-rc));
}

void ctl_unmake_folders(const char *path, size_t made)
{
    char *copy = strdup(path);
    for (size_t bytes = copy ? strlen(copy) : 0; bytes > made; bytes--)
        if (bytes == strlen(path) || copy[bytes] == '/') {
            copy[bytes] = '\0';
            rmdir(copy);
        }
    free(copy);
}

/* The default folder below these variables. */
static int default_folder(const char *data, const char *home, char *path, size_t room)
{
    return data && *data == '/'
               ? snprintf(path, room, "%s/expertfs", data) /* the XDG specification: ignore relative paths */
           : home && *home == '/' ? snprintf(path, room, "%s/.local/share/expertfs", home)
                                  : 0;
}

static errint_t folder_check(int bytes, char *path, size_t room, struct efs_error *err)
{
    if (bytes <= 0)
        *path = '\0';
    if (bytes <= 0)
        return efs_fail(err, -ENOENT, "no folder for stores: neither XDG_DATA_HOME nor HOME is set\nhint: --store DIR");
    if ((size_t)bytes >= room)
        return efs_fail(err, -ENAMETOOLONG, "the folder of stores: %s", strerror(ENAMETOOLONG));
    char *real = realpath(path, NULL);
    if (real && strlen(real) < room)
        strcpy(path, real);
    free(real);
    return 0;
}

errint_t ctl_stores_folder(const char *given, char *path, size_t room, struct efs_error *err)
{
    int bytes =
        given ? snprintf(path, room, "%s", given) : default_folder(getenv("XDG_DATA_HOME"), getenv("HOME"), path, room);
    return folder_check(bytes, path, room, err);
}

/* Whether path, or the nearest folder above it that exists, may be written; owner: the owner of that folder. */
static bool folder_is_writable(const char *path, uid_t *owner)
{
    char above[4400];
    struct stat st;
    snprintf(above, sizeof(above), "%s", path);
    for (char *slash; stat(above, &st) < 0 && (slash = strrchr(above, '/')) && slash > above;)
        *slash = '\0';
    bool there = stat(above, &st) == 0;
    *owner = there ? st.st_uid : 0;
    return there && access(above, W_OK) == 0;
}

void ctl_stores_own(const char *folder, bool given, char *path, size_t room)
{
    uid_t owner;
    const struct passwd *user = NULL;
    struct efs_error ignored;
    if (*folder && folder_is_writable(folder, &owner) && (given || geteuid() != 0 || owner == 0)) {
        snprintf(path, room, "%s", folder);
        return;
    }
    int bytes = default_folder(getenv("XDG_DATA_HOME"), getenv("HOME"), path, room);
    if (geteuid() == 0 && bytes > 0) {
        folder_is_writable(path, &owner);
        user = owner != 0 ? getpwuid(0) : NULL;
    }
    if (user)
        bytes = default_folder(NULL, user->pw_dir, path, room);
    folder_check(bytes, path, room, &ignored);
}

/* ---- stores ------------------------------------------------------------------------------------------------------ */

static int is_store_name(const struct dirent *entry)
{
    size_t bytes = strlen(entry->d_name);
    return bytes > 4 && entry->d_name[0] != '.' && entry->d_type != DT_DIR && /* a mount point may have such a name */
           strcmp(entry->d_name + bytes - 4, ".efs") == 0;
}

void ctl_stores_list(const char *folder, struct ctl_paths *stores)
{
    struct dirent **entries;
    int count = *folder ? scandir(folder, &entries, is_store_name, alphasort) : -1;
    *stores = (struct ctl_paths){.count = 0};
    for (int i = 0; i < count; i++) {
        char path[4400];
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        ctl_paths_add(stores, path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}
