/* SPDX-License-Identifier: Apache-2.0 */
/* stores.c - see stores.h. */
#include "stores.h"

#include "expertctl.h"
#include "expertfs-private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

errint_t ctl_make_folders(const char *path, struct efs_error *err)
{
    char *copy = strdup(path), *at = copy;
    errint_t rc = copy ? 0 : -ENOMEM;
    while (rc == 0 && at) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            rc = -errno;
        if (at)
            *at = '/';
    }
    free(copy);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

errint_t ctl_stores_folder(const char *given, bool make, char *path, size_t room, struct efs_error *err)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool absolute = data && *data == '/'; /* the XDG specification: ignore relative paths */
    int bytes = given                  ? snprintf(path, room, "%s", given)
                : absolute             ? snprintf(path, room, "%s/expertfs", data)
                : home && *home == '/' ? snprintf(path, room, "%s/.local/share/expertfs", home)
                                       : 0;
    if (!bytes)
        return efs_fail(err, -ENOENT, "no folder for stores: neither XDG_DATA_HOME nor HOME is set\nhint: --store DIR");
    if ((size_t)bytes >= room)
        return efs_fail(err, -ENAMETOOLONG, "the folder of stores: %s", strerror(ENAMETOOLONG));
    errint_t rc = make ? ctl_make_folders(path, err) : 0;
    char *real = rc == 0 ? realpath(path, NULL) : NULL;
    if (real && strlen(real) < room)
        strcpy(path, real);
    free(real);
    return rc;
}

/* Bytes of name without ".efs" and "-" with CTL_STORE_KEY_DIGITS hexadecimal digits; *key: whether it has these. */
static size_t stem_bytes(const char *name, bool *key)
{
    size_t bytes = strlen(name), at;
    bool store = bytes > 4 && strcmp(name + bytes - 4, ".efs") == 0;
    bytes -= store ? 4 : 0;
    *key = bytes > CTL_STORE_KEY_DIGITS + 1 && name[bytes - CTL_STORE_KEY_DIGITS - 1] == '-';
    for (at = bytes - CTL_STORE_KEY_DIGITS; *key && at < bytes; at++)
        *key = isxdigit((unsigned char)name[at]) && !isupper((unsigned char)name[at]);
    return *key ? bytes - CTL_STORE_KEY_DIGITS - 1 : bytes;
}

const char *ctl_store_name(const char *path, char *name, size_t room)
{
    const char *slash = strrchr(path, '/'), *last = slash && slash[1] ? slash + 1 : path;
    bool key;
    snprintf(name, room, "%.*s", (int)stem_bytes(last, &key), last);
    return name;
}

static int is_store_name(const struct dirent *entry)
{
    size_t bytes = strlen(entry->d_name);
    return bytes > 4 && entry->d_name[0] != '.' && entry->d_type != DT_DIR && /* a mount point may have such a name */
           strcmp(entry->d_name + bytes - 4, ".efs") == 0;
}

int ctl_stores_list(const char *folder, struct dirent ***stores)
{
    int count = scandir(folder, stores, is_store_name, alphasort);
    return count < 0 ? -errno : count;
}

bool ctl_store_by_name(const char *folder, const char *name, char *path, size_t room)
{
    char is[256], at[4400];
    struct dirent **stores;
    struct stat st;
    struct timespec newest = {0};
    int count = ctl_stores_list(folder, &stores);
    bool any = false;
    for (int i = 0; i < count; i++) {
        const char *last = stores[i]->d_name;
        bool exact = strlen(name) == strlen(last) - 4 && strncmp(last, name, strlen(name)) == 0;
        snprintf(at, sizeof(at), "%s/%s", folder, last);
        if ((exact || strcmp(ctl_store_name(last, is, sizeof(is)), name) == 0) && stat(at, &st) == 0 &&
            (exact || !any || ctl_is_later(&st.st_mtim, &newest))) {
            any = (size_t)snprintf(path, room, "%s", at) < room;
            newest = exact ? (struct timespec){.tv_sec = INT64_MAX} : st.st_mtim;
        }
        free(stores[i]);
    }
    if (count >= 0)
        free(stores);
    return any;
}
