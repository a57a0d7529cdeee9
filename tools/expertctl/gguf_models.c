/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_models.c - see gguf_models.h. */
#include "gguf_models.h"

#include "info_checkpoint.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ctl_gguf_part(const char *path)
{
    const char *last = strrchr(path, '/'), *of = strstr(last ? last + 1 : path, "-of-");
    bool split = of && of - path > 6 && of[-6] == '-' && strspn(of - 5, "0123456789") == 5;
    return split ? of - 5 : NULL;
}

void ctl_gguf_first_part(char *path)
{
    static const char first[] = "00001";
    char given[sizeof(first)] = "";
    const char *at = ctl_gguf_part(path);
    char *number = at ? path + (at - path) : NULL;
    if (!number)
        return;
    memcpy(given, number, strlen(first));
    memcpy(number, first, strlen(first));
    if (access(path, F_OK) < 0)
        memcpy(number, given, strlen(first));
}

bool ctl_gguf_is_first(const char *path)
{
    const char *end = strrchr(path, '.'), *number = ctl_gguf_part(path);
    return end && strcmp(end, ".gguf") == 0 && (!number || strncmp(number, "00001", 5) == 0);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Drops the files that are no models, unless that leaves none. */
static void drop_companions(struct ctl_paths *models)
{
    size_t kept = 0;
    for (size_t i = 0; i < models->count; i++)
        if (ctl_gguf_is_model(models->path[i])) {
            char *path = models->path[i];
            models->path[i] = models->path[kept];
            models->path[kept++] = path;
        }
    while (kept && models->count > kept)
        free(models->path[--models->count]);
}

errint_t ctl_gguf_models(const char *folder, ctl_gguf_fits_fn *fits, const char *word, struct ctl_paths *models,
                         struct efs_error *err)
{
    char *paths[] = {(char *)(uintptr_t)folder, NULL};
    const size_t bytes = strlen(folder) + 1;
    FTS *tree = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    const FTSENT *entry;
    errint_t rc = tree ? 0 : efs_fail(err, -errno, "%s: %s", folder, strerror(errno));
    *models = (struct ctl_paths){.count = 0};
    while (rc == 0 && (entry = fts_read(tree))) {
        if (entry->fts_info == FTS_D && entry->fts_level == 1 &&
            (strcmp(entry->fts_name, "experts") == 0 || strcmp(entry->fts_name, ".expertfs") == 0))
            fts_set(tree, (FTSENT *)(uintptr_t)entry, FTS_SKIP);
        if (entry->fts_info == FTS_F && ctl_gguf_is_first(entry->fts_name) &&
            (!fits || fits(entry->fts_path + bytes, word)))
            rc = ctl_paths_add(models, entry->fts_path) ? 0 : efs_fail(err, -ENOMEM, "no memory");
    }
    if (tree)
        fts_close(tree);
    if (models->count > 1) {
        drop_companions(models);
        qsort(models->path, models->count, sizeof(*models->path), compare);
    }
    return rc;
}
