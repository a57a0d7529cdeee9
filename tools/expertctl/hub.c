/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.c - see hub.h. Layout of the cache: models--ORG--NAME/refs/REVISION holds the commit of a branch or tag,
 * snapshots/COMMIT/ the files, as links to blobs/.
 */
#include "hub.h"

#include "expertctl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES 128u /* longer than the 96 characters that the Hub allows */

struct hub_name {
    char org[PART_BYTES], name[PART_BYTES], revision[PART_BYTES];
    const char *file; /* in the snapshot; "": all files */
    size_t repository_bytes;
};

static bool is_name(const char *text, size_t bytes)
{
    bool good = bytes > 0 && bytes < PART_BYTES && *text != '.' && *text != '-';
    for (size_t i = 0; i < bytes && good; i++)
        good = isalnum((unsigned char)text[i]) || strchr("-_.", text[i]);
    return good;
}

/* Reads the parts of ORG/NAME[@REVISION][/FILE]. false: given does not have this form. */
static bool name_parse(const char *given, struct hub_name *hub)
{
    size_t org = strcspn(given, "/");
    const char *name = given + org + (given[org] == '/');
    size_t name_bytes = strcspn(name, "@/"), revision_bytes;
    *hub = (struct hub_name){.file = ""};
    if (!is_name(given, org) || !is_name(name, name_bytes))
        return false;
    const char *rest = name + name_bytes;
    hub->repository_bytes = (size_t)(rest - given);
    revision_bytes = *rest == '@' ? strcspn(rest + 1, "/") : 0;
    if (*rest == '@' && !is_name(rest + 1, revision_bytes))
        return false;
    snprintf(hub->org, PART_BYTES, "%.*s", (int)org, given);
    snprintf(hub->name, PART_BYTES, "%.*s", (int)name_bytes, name);
    if (*rest == '@') {
        snprintf(hub->revision, PART_BYTES, "%.*s", (int)revision_bytes, rest + 1);
        rest += 1 + revision_bytes;
    }
    hub->file = *rest == '/' ? rest + 1 : rest;
    return !strstr(hub->file, "..");
}

const char *ctl_hub_text(const char *given)
{
    static const char *const before[] = {"https://", "huggingface.co/", "hf.co/", "hf://"};
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++)
        given += strncmp(given, before[i], strlen(before[i])) == 0 ? strlen(before[i]) : 0;
    return given;
}

bool ctl_hub_name(const char *given, char *name, size_t room)
{
    struct hub_name hub;
    bool is = name_parse(given, &hub);
    snprintf(name, room, "%s%s%s", is ? hub.org : "", is ? "--" : "", is ? hub.name : "");
    return is;
}

size_t ctl_hub_repository_bytes(const char *given)
{
    struct hub_name hub;
    return name_parse(given, &hub) ? hub.repository_bytes : 0;
}

static bool cache_folder(char *path, size_t room)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value)
            return (size_t)snprintf(path, room, "%s%s", value, places[i].below) < room;
    }
    return false;
}

/* The commit that refs/REVISION names; false: no such file. */
static bool ref_read(const char *repository, const char *revision, char commit[PART_BYTES])
{
    char path[4400];
    snprintf(path, sizeof(path), "%s/refs/%s", repository, revision);
    FILE *file = fopen(path, "re");
    bool read = file && fgets(commit, PART_BYTES, file);
    if (file)
        fclose(file);
    if (read)
        commit[strcspn(commit, " \r\n")] = '\0';
    return read && is_name(commit, strlen(commit));
}

/* The snapshot of a commit, of which `prefix` may be the beginning; the newest of several. */
static bool snapshot_find(const char *repository, const char *prefix, char *path, size_t room)
{
    char folder[4300], at[4600];
    const struct dirent *entry;
    struct stat st;
    struct timespec newest = {0};
    bool any = false;
    snprintf(folder, sizeof(folder), "%s/snapshots", repository);
    DIR *directory = opendir(folder);
    while (directory && (entry = readdir(directory))) {
        snprintf(at, sizeof(at), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || stat(at, &st) < 0 ||
            (any && !ctl_is_later(&st.st_mtim, &newest)))
            continue;
        any = (size_t)snprintf(path, room, "%s", at) < room;
        newest = st.st_mtim;
    }
    if (directory)
        closedir(directory);
    return any;
}

errint_t ctl_hub_find(const char *given, char *path, size_t room)
{
    struct hub_name hub;
    char cache[3800], repository[4200], commit[PART_BYTES];
    if (!name_parse(given, &hub) || !cache_folder(cache, sizeof(cache)))
        return -ENOENT;
    snprintf(repository, sizeof(repository), "%s/models--%s--%s", cache, hub.org, hub.name);
    const char *revision = *hub.revision ? hub.revision : "main";
    bool named = ref_read(repository, revision, commit);
    if (!snapshot_find(repository, named ? commit : hub.revision, path, room))
        return -ENOENT;
    size_t used = strlen(path);
    if (*hub.file && (size_t)snprintf(path + used, room - used, "/%s", hub.file) >= room - used)
        return -ENOENT;
    return access(path, F_OK) == 0 ? 0 : -ENOENT;
}
