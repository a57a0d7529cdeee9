/* SPDX-License-Identifier: Apache-2.0 */
/* source_files.c - see source_files.h. */
#include "source_files.h"

#include "catalog.h"
#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

void ctl_sources_free(struct ctl_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->files[i].path);
    free(sources->files);
    free(sources->path);
    *sources = (struct ctl_sources){.count = 0};
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_same_file(const struct ctl_source_file *a, const struct ctl_source_file *b)
{
    return a->bytes == b->bytes && a->inode == b->inode && is_same_time(&a->modified, &b->modified) &&
           is_same_time(&a->changed, &b->changed) && strcmp(a->path, b->path) == 0;
}

bool ctl_sources_are_equal(const struct ctl_sources *a, const struct ctl_sources *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = is_same_file(&a->files[i], &b->files[i]);
    return same;
}

errint_t ctl_sources_take(const struct efs_catalog *catalog, const char *path, struct ctl_sources *sources,
                          struct efs_error *err)
{
    errint_t rc = 0;
    *sources =
        (struct ctl_sources){.path = strdup(path), .files = calloc(catalog->file_count + 1, sizeof(*sources->files))};
    if (!sources->path || !sources->files)
        rc = efs_fail(err, -ENOMEM, "no memory");
    for (size_t f = 0; f < catalog->file_count && rc == 0; f++) {
        char *whole;
        struct stat st;
        if (asprintf(&whole, "%s/%s", catalog->root, catalog->files[f].path) < 0) {
            rc = efs_fail(err, -ENOMEM, "no memory");
            break;
        }
        if (stat(whole, &st) < 0)
            rc = efs_fail(err, -ESTALE, "%s: %s", whole, strerror(errno));
        free(whole);
        struct ctl_source_file *file = &sources->files[sources->count++];
        *file = (struct ctl_source_file){.path = strdup(catalog->files[f].path),
                                         .bytes = (uint64_t)st.st_size,
                                         .inode = st.st_ino,
                                         .modified = st.st_mtim,
                                         .changed = st.st_ctim};
        if (rc == 0 && !file->path)
            rc = efs_fail(err, -ENOMEM, "no memory");
    }
    if (rc < 0)
        ctl_sources_free(sources);
    return rc;
}

errint_t ctl_sources_list(const char *path, struct ctl_sources *sources, struct efs_error *err)
{
    struct efs_catalog catalog;
    *sources = (struct ctl_sources){.count = 0};
    errint_t rc = efs_catalog_list(path, &catalog, err);
    if (rc < 0)
        return rc;
    rc = ctl_sources_take(&catalog, path, sources, err);
    efs_catalog_free(&catalog);
    return rc;
}

uint64_t ctl_sources_key(const struct ctl_sources *sources)
{
    uint64_t key = 0;
    for (size_t f = 0; f < sources->count; f++) {
        const struct ctl_source_file *file = &sources->files[f];
        const uint64_t facts[] = {key,
                                  file->bytes,
                                  file->inode,
                                  (uint64_t)file->modified.tv_sec,
                                  (uint64_t)file->modified.tv_nsec,
                                  (uint64_t)file->changed.tv_sec,
                                  (uint64_t)file->changed.tv_nsec};
        key = XXH3_64bits_withSeed(file->path, strlen(file->path), XXH3_64bits(facts, sizeof(facts)));
    }
    return key;
}
