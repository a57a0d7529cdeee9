/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_remote.c - see hub_remote.h. The Hub describes a model at a revision by a JSON object: "sha" is the commit,
 * "siblings" an array of objects whose "rfilename" is the path of a file. Nothing in it is trusted.
 */
#include "hub_remote.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "gguf_models.h"
#include "hub_name.h"
#include "hub_quant.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES_MAX (64u << 20)
#define FILES_MAX 100000u
#define PATH_BYTES_MAX 1024u

/* Of the endpoint without a slash at its end. */
static int endpoint_bytes(void)
{
    const char *endpoint = efs_hub_endpoint();
    const int bytes = (int)strlen(endpoint);
    return bytes - (endpoint[bytes - 1] == '/');
}

/* ---- the list of files ---- */

struct list {
    json_t *json;
    const char *commit;
    const char **file; /* sorted; in json */
    size_t count;
};

static void list_free(struct list *list)
{
    json_decref(list->json);
    free(list->file);
    *list = (struct list){.count = 0};
}

static bool is_commit(const char *text)
{
    size_t digits = strspn(text, "0123456789abcdef");
    return (digits == 40 || digits == 64) && !text[digits];
}

/* A path in a folder, which does not lead out of it. */
static bool is_path(const char *path)
{
    if (strlen(path) > PATH_BYTES_MAX)
        return false;
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F || *c == '\\')
            return false;
    for (;; path++) {
        size_t bytes = strcspn(path, "/");
        if (bytes == 0 || (bytes <= 2 && strncmp(path, "..", bytes) == 0))
            return false;
        path += bytes;
        if (!*path)
            return true;
    }
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static errint_t list_parse(const char *given, const char *text, size_t bytes, struct list *list, struct efs_error *err)
{
    list->json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    list->commit = json_string_value(json_object_get(list->json, "sha"));
    const json_t *files = json_object_get(list->json, "siblings");
    const size_t count = json_array_size(files);
    if (!list->commit || !is_commit(list->commit) || !json_is_array(files) || count > FILES_MAX)
        return efs_fail(err, -EUCLEAN,
                        "%s: %s sends no list of files with a commit\nhint: HF_ENDPOINT names another Hub", given,
                        efs_hub_endpoint());
    list->file = calloc(count + 1, sizeof(*list->file));
    if (!list->file)
        return efs_fail(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < count; i++) {
        const char *path = json_string_value(json_object_get(json_array_get(files, i), "rfilename"));
        if (!path || !is_path(path))
            return efs_fail(err, -EUCLEAN, "%s: the list of files of %s has a name that leads out of the model: %.100s",
                            given, efs_hub_endpoint(), path ? path : "none");
        list->file[list->count++] = path;
    }
    qsort(list->file, list->count, sizeof(*list->file), compare);
    for (size_t i = 1; i < list->count; i++)
        if (strcmp(list->file[i - 1], list->file[i]) == 0)
            return efs_fail(err, -EUCLEAN, "%s: the list of files of %s has %.100s twice", given, efs_hub_endpoint(),
                            list->file[i]);
    return 0;
}

/* The address of the list, where a slash in the revision is encoded, too. The caller frees it. */
static char *list_url(const struct ctl_hub *hub, const char *revision)
{
    char *encoded = efs_url_encode(revision), *url = NULL;
    size_t bytes;
    FILE *to = encoded ? open_memstream(&url, &bytes) : NULL;
    if (to)
        fprintf(to, "%.*s/api/models/%s/%s/revision/", endpoint_bytes(), efs_hub_endpoint(), hub->org, hub->name);
    for (const char *c = encoded; to && *c; c++)
        fprintf(to, *c == '/' ? "%%2F" : "%c", *c);
    free(encoded);
    return to && fclose(to) == 0 ? url : NULL;
}

static errint_t list_read(const char *given, const struct ctl_hub *hub, const char *revision, struct list *list,
                          struct efs_error *err)
{
    char *url = list_url(hub, revision), *text = NULL;
    size_t bytes;
    errint_t rc =
        url ? efs_remote_text(given, url, LIST_BYTES_MAX, &text, &bytes, err) : efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = list_parse(given, text, bytes, list, err);
    free(text);
    free(url);
    return rc;
}

/* Reads the list at the revision. *file: what follows the revision in hub->rest, which may have slashes: if the first
 * part names none, it is tried with the next one. */
static errint_t list_find(const char *given, const struct ctl_hub *hub, struct list *list, const char **file,
                          struct efs_error *err)
{
    char revision[sizeof(hub->rest)];
    struct efs_error why;
    *file = hub->rest;
    if (!hub->has_revision)
        return list_read(given, hub, "main", list, err);
    size_t bytes = strncmp(hub->rest, "refs/pr/", 8) == 0 ? 8 + strcspn(hub->rest + 8, "/") : strcspn(hub->rest, "/");
    for (errint_t first = 0;; bytes += 1 + strcspn(hub->rest + bytes + 1, "/")) {
        snprintf(revision, sizeof(revision), "%.*s", (int)bytes, hub->rest);
        errint_t rc = list_read(given, hub, revision, list, &why);
        if (rc < 0 && (first == 0 || rc != -ENOENT))
            *err = why;
        first = first < 0 ? first : rc;
        *file = hub->rest + bytes + (hub->rest[bytes] == '/');
        if (rc != -ENOENT || !hub->rest[bytes])
            return rc == -ENOENT ? first : rc;
    }
}

/* ---- the choice ---- */

enum rank { NONE, SAFETENSORS, INDEX, ONE_SAFETENSORS, MODEL_INDEX, GGUF };

/* The rank of a file, by its name below the folder that was named, if a quant was named or is "". */
static enum rank rank_of(const char *name, const char *quant)
{
    if (ctl_gguf_is_first(name))
        return !*quant || ctl_hub_has_quant(name, quant) ? GGUF : NONE;
    if (*quant || strchr(name, '/'))
        return NONE;
    return strcmp(name, "model.safetensors.index.json") == 0 ? MODEL_INDEX
           : strcmp(name, "model.safetensors") == 0          ? ONE_SAFETENSORS
           : efs_ends_with(name, ".safetensors.index.json")  ? INDEX
           : efs_ends_with(name, ".safetensors")             ? SAFETENSORS
                                                             : NONE;
}

/* The models in a folder of the list: its GGUF files, also in folders below, and its safetensors files of the best
 * rank. names: their list. Returns their number, and the first one. */
static size_t models_in(const struct list *list, const char *folder, const char *quant, char *names, size_t room,
                        const char **first)
{
    const size_t skip = strlen(folder) + (*folder != '\0');
    enum rank best = NONE;
    size_t count = 0;
    *names = '\0';
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < list->count; i++) {
            const char *path = list->file[i];
            if (skip && (strncmp(path, folder, skip - 1) != 0 || path[skip - 1] != '/'))
                continue;
            const enum rank rank = rank_of(path + skip, quant);
            if (pass == 0 && rank != GGUF && rank > best)
                best = rank;
            if (pass == 0 || rank == NONE || (rank != GGUF && rank != best))
                continue;
            *first = count++ == 0 ? path : *first;
            ctl_list_add(names, room, path);
        }
    return count;
}

static errint_t choose(const char *given, const struct ctl_hub *hub, const struct list *list, const char *file,
                       const char **chosen, struct efs_error *err)
{
    char names[700];
    for (size_t i = 0; i < list->count && *file; i++)
        if (strcmp(list->file[i], file) == 0) {
            *chosen = list->file[i];
            return 0;
        }
    size_t count = models_in(list, file, hub->quant, names, sizeof(names), chosen);
    if (count > 1)
        return efs_fail(err, -E2BIG, "%s: which file? there are %s\nhint: ORG/NAME:QUANT or ORG/NAME/FILE names one",
                        given, names);
    if (count == 1)
        return 0;
    count = models_in(list, "", "", names, sizeof(names), chosen);
    return count ? efs_fail(err, -ENOENT, "%s: no such file of the model\nhint: it has %s", given, names)
                 : efs_fail(err, -ENOENT, "%s: the model has neither GGUF nor safetensors files", given);
}

errint_t ctl_hub_address(const char *given, char *address, size_t room, struct efs_error *err)
{
    struct ctl_hub hub;
    struct list list = {.count = 0};
    const char *file, *chosen = NULL;
    if (!ctl_hub_parse(given, &hub))
        return efs_fail(err, -EINVAL, "%s: no name of a model on the Hub\nhint: ORG/NAME[:QUANT][@REVISION]", given);
    errint_t rc = list_find(given, &hub, &list, &file, err);
    if (rc == 0)
        rc = choose(given, &hub, &list, file, &chosen, err);
    char *path = rc == 0 ? efs_url_encode(chosen) : NULL;
    if (rc == 0 && !path)
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0 && (size_t)snprintf(address, room, "%.*s/%s/%s/resolve/%s/%s", endpoint_bytes(), efs_hub_endpoint(),
                                    hub.org, hub.name, list.commit, path) >= room)
        rc = efs_fail(err, -ENAMETOOLONG, "%s: %s", given, strerror(ENAMETOOLONG));
    free(path);
    list_free(&list);
    return rc;
}
