/* SPDX-License-Identifier: Apache-2.0 */
/* info_checkpoint.c - see info_checkpoint.h. */
#include "info_checkpoint.h"

#include "catalog.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "reclaim_unfinished.h"
#include "sources.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LISTED_MODELS 8u

bool ctl_is_checkpoint(const char *path)
{
    struct stat st;
    char magic[4] = "";
    const char *end = strrchr(path, '.');
    if (stat(path, &st) < 0)
        return false;
    int fd = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool gguf = fd >= 0 && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (fd >= 0)
        close(fd);
    return S_ISDIR(st.st_mode) || gguf || (end && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".gguf") == 0));
}

/* ---- several models ---------------------------------------------------------------------------------------------- */

bool ctl_gguf_is_model(const char *path)
{
    struct efs_catalog catalog;
    struct efs_error ignored;
    if (efs_catalog_read(path, NULL, &catalog, &ignored) < 0)
        return false;
    bool part = strstr(path, "-of-") != NULL; /* the first part of a split model may have no tensors */
    bool model = catalog.file_count == 1 && catalog.files[0].gguf && (catalog.tensor_count > 0 || part) &&
                 !catalog.files[0].facts->companion;
    efs_catalog_free(&catalog);
    return model;
}

static bool has_file(const struct efs_catalog *catalog, const char *folder, size_t bytes, const char *name)
{
    for (size_t f = 0; f < catalog->file_count; f++) {
        const char *path = catalog->files[f].path;
        if (strncmp(path, folder, bytes) == 0 && strcmp(path + bytes, name) == 0)
            return true;
    }
    return false;
}

/* Bytes of the path that name the model of a file of weights: of a GGUF file its name without the number of a part,
 * else the nearest folder with a config.json, or its own folder. */
static size_t model_bytes(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    const char *of = strstr(file->path, "-of-"), *slash = strrchr(file->path, '/');
    if (file->gguf)
        return of && of - file->path > 6 && strspn(of - 5, "0123456789") == 5 ? (size_t)(of - file->path) - 6
                                                                              : strlen(file->path);
    size_t own = slash ? (size_t)(slash - file->path) + 1 : 0, bytes = own;
    while (bytes > 0 && !has_file(catalog, file->path, bytes, "config.json"))
        for (bytes--; bytes > 0 && file->path[bytes - 1] != '/';)
            bytes--;
    return bytes ? bytes : own;
}

/* Whether safetensors files are at the top of the folder: it is one model. */
static bool top_has_weights(const struct efs_catalog *catalog)
{
    bool found = false;
    for (size_t f = 0; f < catalog->file_count && !found; f++)
        found = catalog->files[f].has_tensors && !catalog->files[f].gguf && !strchr(catalog->files[f].path, '/');
    return found;
}

/* Whether the safetensors files of the folder are one model by an index or a configuration at its top. GGUF files are
 * models of their own: repositories of quantisations have the configuration of the model, too. */
static bool top_is_model(const struct efs_catalog *catalog)
{
    return has_file(catalog, "", 0, "config.json") || has_file(catalog, "", 0, "model_index.json") ||
           has_file(catalog, "", 0, "model.safetensors.index.json");
}

/* Lists the models of a folder that has several; *spread: whether they are in different folders. */
static void list_models(const struct efs_catalog *catalog, char *names, size_t room, bool *spread)
{
    const char *before = NULL;
    size_t before_bytes = 0, count = 0, used = 0, tensor = 0;
    const bool one = top_is_model(catalog);
    *names = '\0';
    *spread = false;
    for (size_t f = 0; f < catalog->file_count && !top_has_weights(catalog); f++) { /* sorted by path */
        const struct efs_source_file *file = &catalog->files[f];
        size_t bytes = model_bytes(catalog, file), first = tensor;
        while (tensor < catalog->tensor_count && catalog->tensors[tensor].file == f)
            tensor++;
        if (first == tensor || (file->gguf ? file->facts->companion : one) ||
            (before && before_bytes == bytes && strncmp(before, file->path, bytes) == 0))
            continue;
        before = file->path;
        before_bytes = bytes;
        *spread |= strchr(file->path, '/') != NULL;
        if (count++ < LISTED_MODELS)
            used += (size_t)snprintf(names + used, room - used, "%s%.*s", count > 1 ? ", " : "",
                                     bytes > 75 ? 75 : (int)bytes, file->path);
    }
    if (count > LISTED_MODELS)
        snprintf(names + used, room - used, " and %zu more", count - LISTED_MODELS);
    if (count < 2)
        *names = '\0';
}

/* ---- what it holds ----------------------------------------------------------------------------------------------- */

errint_t ctl_checkpoint_read(const char *path, struct ctl_checkpoint *checkpoint, struct tools_sources *sources,
                             struct efs_error *err)
{
    struct efs_catalog catalog;
    struct efs_error taken;
    double coded = 0, saved = 0;
    errint_t rc = efs_pack_check(path, &catalog, err); /* refuses an incomplete checkpoint: its sizes would be wrong */
    if (rc < 0) {
        if (tools_reclaim_unfinished(path, NULL, &taken) < 0)
            *err = taken;
        return rc;
    }
    *checkpoint = (struct ctl_checkpoint){.files = catalog.file_count, .experts = catalog.expert_count};
    snprintf(checkpoint->family, sizeof(checkpoint->family), "%s", catalog.family ? catalog.family : "?");
    for (size_t f = 0; f < catalog.file_count; f++)
        checkpoint->source_bytes += catalog.files[f].bytes;
    for (size_t t = 0; t < catalog.tensor_count; t++) {
        const struct efs_source_tensor *tensor = &catalog.tensors[t];
        saved += (double)tensor->bytes * (1 - efs_pack_ratio(tensor->dtype));
        if (tensor->tensor_class == EFS_CLASS_DENSE)
            continue;
        checkpoint->expert_raw_bytes += tensor->bytes;
        coded += (double)tensor->bytes * efs_pack_ratio(tensor->dtype);
    }
    checkpoint->expert_coded_bytes = (uint64_t)coded;
    checkpoint->store_bytes = checkpoint->source_bytes - (uint64_t)saved;
    for (size_t e = 0; e < catalog.expert_count; e++) { /* sorted by stack, layer, number */
        const struct efs_source_expert *now = &catalog.experts[e], *before = e ? now - 1 : NULL;
        checkpoint->layers += !before || before->layer != now->layer || strcmp(before->stack, now->stack) != 0;
    }
    list_models(&catalog, checkpoint->models, sizeof(checkpoint->models), &checkpoint->spread);
    efs_pack_warn_dense(&catalog, "served", checkpoint->warning, sizeof(checkpoint->warning));
    bool alone = strcmp(catalog.root, path) != 0; /* a file, whose name the caller prints */
    for (size_t f = 0; f < catalog.file_count && !catalog.tensor_count && !*checkpoint->warning; f++)
        if (catalog.files[f].note)
            snprintf(checkpoint->warning, sizeof(checkpoint->warning), "%.800s; served as plain bytes, without experts",
                     catalog.files[f].note + (alone ? strlen(catalog.files[f].path) + 2 : 0));
    if (sources)
        rc = tools_sources_take(&catalog, path, sources, err);
    efs_catalog_free(&catalog);
    return rc;
}
