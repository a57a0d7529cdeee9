/* SPDX-License-Identifier: Apache-2.0 */
/* local_copy.c - see local_copy.h. */
#include "local_copy.h"

#include "expertctl.h"
#include "size.h"
#include "stores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define LEAST_BYTES (256u << 20)

/* $XDG_CACHE_HOME or ~/.cache, which is made; false: there is none. */
static bool cache_folder(char *path, size_t room)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct efs_error ignored;
    size_t made;
    if (!(cache && *cache) && !(home && *home))
        return false;
    const bool named = cache && *cache;
    int bytes = snprintf(path, room, "%s%s", named ? cache : home, named ? "" : "/.cache");
    return (size_t)bytes < room && ctl_make_folders(path, &made, &ignored) == 0;
}

/* Whether options of a mount, joined by commas, have `local`. */
static bool has_local(const char *options)
{
    for (const char *at = options; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, "local=", 6) == 0)
            return true;
    return false;
}

void ctl_local_copy(const char *options, char *text, size_t room)
{
    char folder[3000], size[16];
    struct statvfs disk;
    *text = '\0';
    if (has_local(options) || !cache_folder(folder, sizeof(folder)) || folder[0] != '/' || strpbrk(folder, ",\\") ||
        statvfs(folder, &disk) < 0)
        return;
    const uint64_t bytes = (uint64_t)disk.f_bavail * disk.f_frsize / 2;
    if (bytes < LEAST_BYTES)
        return;
    snprintf(text, room, "local=%s/expertfs,local-size=%lluM", folder, (unsigned long long)(bytes >> 20));
    ctl_print_line(stderr, "expertctl: a copy of what is read is kept in %s/expertfs, up to %s, half of what is free",
                   folder, tools_size_print(bytes, size, sizeof(size)));
}
