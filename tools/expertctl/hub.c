/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.c - see hub.h. Layout of the cache: models--ORG--NAME/refs/REVISION holds the commit of a branch or tag,
 * snapshots/COMMIT/ the files, as links to blobs/.
 */
#include "hub.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "gguf_models.h"
#include "hub_name.h"
#include "hub_quant.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_ROOM 4400

/* ---- the cache --------------------------------------------------------------------------------------------------- */

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
static bool ref_read(const char *repository, const char *revision, char commit[CTL_HUB_PART])
{
    char path[4400];
    snprintf(path, sizeof(path), "%s/refs/%s", repository, revision);
    FILE *file = strstr(revision, "..") ? NULL : fopen(path, "re");
    bool read = file && fgets(commit, CTL_HUB_PART, file);
    if (file)
        fclose(file);
    if (read)
        commit[strcspn(commit, " \r\n")] = '\0';
    return read && ctl_hub_is_name(commit, strlen(commit));
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

/* Splits rest at the slash after the revision: the shortest beginning that refs/ names, else a commit, up to the first
 * slash; after refs/pr/ the third. Returns the bytes of the revision. */
static size_t revision_bytes(const char *repository, const char *rest)
{
    char name[CTL_HUB_PART], commit[CTL_HUB_PART];
    size_t first = strcspn(rest, "/");
    for (size_t bytes = first;; bytes += 1 + strcspn(rest + bytes + 1, "/")) {
        snprintf(name, sizeof(name), "%.*s", (int)bytes, rest);
        if (ref_read(repository, name, commit))
            return bytes;
        if (!rest[bytes])
            break;
    }
    return strncmp(rest, "refs/pr/", 8) == 0 ? 8 + strcspn(rest + 8, "/") : first;
}

/* The snapshot of a revision, or without one of main, else the newest one. */
static bool snapshot_of(const char *repository, const char *revision, char *path, size_t room)
{
    char commit[CTL_HUB_PART];
    bool named = ref_read(repository, *revision ? revision : "main", commit);
    return (named || !strchr(revision, '/')) && snapshot_find(repository, named ? commit : revision, path, room);
}

/* Lists, for a message, the GGUF files of a snapshot, or with "" the revisions of the model; "": none. */
static void cache_list(const char *repository, const char *snapshot, char *names, size_t room)
{
    char folder[4300], revision[300];
    struct ctl_paths models = {.count = 0};
    struct efs_error ignored;
    const struct dirent *entry;
    names[0] = '\0';
    if (*snapshot && ctl_gguf_models(snapshot, NULL, NULL, &models, &ignored) == 0)
        for (size_t i = 0; i < models.count; i++)
            ctl_list_add(names, room, models.path[i] + strlen(snapshot) + 1);
    ctl_paths_free(&models);
    snprintf(folder, sizeof(folder), "%s/snapshots", repository);
    DIR *directory = *snapshot ? NULL : opendir(folder);
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.') {
            snprintf(revision, sizeof(revision), "revision %s", entry->d_name);
            ctl_list_add(names, room, revision);
        }
    if (directory)
        closedir(directory);
}

errint_t ctl_hub_find(const char *given, char *path, size_t room, struct efs_error *err)
{
    struct ctl_hub hub;
    char cache[3800], repository[4200], revision[CTL_HUB_PART] = "", names[400];
    if (!ctl_hub_parse(given, &hub) || !cache_folder(cache, sizeof(cache)))
        return efs_fail(err, -ENOENT, "%s: %s", given, strerror(ENOENT));
    snprintf(repository, sizeof(repository), "%s/models--%s--%s", cache, hub.org, hub.name);
    size_t bytes = hub.has_revision ? revision_bytes(repository, hub.rest) : 0;
    const char *file = hub.rest + bytes + (hub.rest[bytes] == '/');
    snprintf(revision, sizeof(revision), "%.*s", (int)bytes, hub.rest);
    errint_t rc = snapshot_of(repository, revision, path, room) ? 0 : -ENOENT;
    size_t used = rc == 0 ? strlen(path) : 0;
    if (rc == 0 && *file && (size_t)snprintf(path + used, room - used, "/%s", file) >= room - used)
        rc = -ENAMETOOLONG;
    if (rc == 0 && access(path, F_OK) < 0)
        rc = -ENOENT;
    if (rc == 0 && *hub.quant)
        rc = ctl_hub_quant(path, room, hub.quant, given, err);
    if (rc != -ENOENT)
        return rc == -ENAMETOOLONG ? efs_fail(err, rc, "%s: %s", given, strerror(ENAMETOOLONG)) : rc;
    bool named = *revision && strcmp(revision, "main") != 0;
    path[used] = '\0';
    cache_list(repository, path, names, sizeof(names));
    return efs_fail(
        err, rc,
        "%s: neither a path, nor in the cache of the Hugging Face Hub%s%s%s\nhint: `hf download %s/%s%s%s%s%s%s%s%s` "
        "gets it from the Hub, `expertctl up --remote` serves it without a download; HF_HUB_CACHE names another cache",
        given, *names ? ", which has " : "", names, *names ? " of this model" : "", hub.org, hub.name, *file ? " " : "",
        EFS_WORD(file), named ? " --revision " : "", named ? EFS_WORD(revision) : "", *hub.quant ? " --include '*" : "",
        hub.quant, *hub.quant ? "*'" : "");
}

bool ctl_hub_of_path(char *path, size_t room, char *name, size_t name_room)
{
    char model[PATH_ROOM], at[PATH_ROOM + 16];
    snprintf(model, sizeof(model), "%s", path);
    char *slash = strrchr(model, '/');
    size_t above = slash ? (size_t)(slash - model) : 0;
    bool snapshot = above > 10 && strncmp(model + above - 10, "/snapshots", 10) == 0;
    if (snapshot)
        model[above - 10] = '\0';
    slash = strrchr(model, '/');
    if (!slash || strncmp(slash, "/models--", 9) != 0)
        return false;
    snprintf(at, sizeof(at), "%s/snapshots", model);
    if (access(at, F_OK) < 0)
        return false;
    snprintf(name, name_room, "%s", slash + 9);
    return snapshot || snapshot_of(model, "", path, room);
}
