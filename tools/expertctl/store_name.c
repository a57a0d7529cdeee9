/* SPDX-License-Identifier: Apache-2.0 */
/* store_name.c - see store_name.h. */
#include "store_name.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of name without ".efs" and "@" with CTL_STORE_KEY_DIGITS hexadecimal digits. *stem: with these. */
static size_t name_bytes(const char *name, size_t *stem)
{
    size_t bytes = strlen(name), at;
    bool store = bytes > 4 && strcmp(name + bytes - 4, ".efs") == 0;
    *stem = bytes -= store ? 4 : 0;
    bool key = store && bytes > CTL_STORE_KEY_DIGITS + 1 && name[bytes - CTL_STORE_KEY_DIGITS - 1] == '@';
    for (at = bytes - CTL_STORE_KEY_DIGITS; key && at < bytes; at++)
        key = isxdigit((unsigned char)name[at]) && !isupper((unsigned char)name[at]);
    return key ? bytes - CTL_STORE_KEY_DIGITS - 1 : bytes;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

const char *ctl_store_name(const char *path, char *name, size_t room)
{
    size_t stem;
    int bytes = (int)name_bytes(last_part(path), &stem);
    snprintf(name, room, "%.*s", bytes, last_part(path));
    return name;
}

const char *ctl_store_stem(const char *path, char *name, size_t room)
{
    size_t stem;
    name_bytes(last_part(path), &stem);
    snprintf(name, room, "%.*s", (int)stem, last_part(path));
    return name;
}

const char *ctl_store_folder(const char *path, char *folder, size_t room)
{
    const char *slash = strrchr(path, '/');
    snprintf(folder, room, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
    return folder;
}
