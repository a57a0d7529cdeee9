/* SPDX-License-Identifier: Apache-2.0 */
/* pack_copies.c - is it a folder above a checkpoint? A hub's cache has the files in blobs/, and links to them in
 * snapshots/REVISION/, the same ones for several revisions. */
#include "pack.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REVISION_MAX 128 /* bytes of a revision's name */
#define SNAPSHOTS "snapshots/"

/* The root's bytes without slashes at the end. */
static int root_bytes(const struct efs_catalog *catalog)
{
    size_t bytes = strlen(catalog->root);
    while (bytes > 0 && catalog->root[bytes - 1] == '/')
        bytes--;
    return (int)bytes;
}

/* The next "snapshots/REVISION/" of a path, at REVISION; NULL: none. *end: the slash behind it. */
static const char *revision_next(const char *path, const char *from, const char **end)
{
    for (const char *at = strstr(from, SNAPSHOTS); at; at = strstr(at + 1, SNAPSHOTS)) {
        const char *revision = at + sizeof(SNAPSHOTS) - 1;
        *end = strchr(revision, '/');
        if ((at == path || at[-1] == '/') && *end && *end > revision)
            return revision;
    }
    return NULL;
}

/* The folder of the revision that refs/main names, beside snapshots; for free(). NULL: it names none that is there. */
static char *revision_main(const char *path, const char *revision)
{
    int cache_bytes = (int)(revision - path) - (int)sizeof(SNAPSHOTS) + 1;
    char name[REVISION_MAX + 1] = "", *refs, *folder = NULL;
    struct stat st;
    if (asprintf(&refs, "%.*srefs/main", cache_bytes, path) < 0)
        return NULL;
    int fd = efs_regular_open(AT_FDCWD, refs, 0, &st);
    free(refs);
    if (fd < 0)
        return NULL;
    ssize_t got = efs_sys_pread(fd, name, REVISION_MAX, 0);
    efs_sys_close(fd);
    size_t bytes = strcspn(name, "/\r\n \t");
    name[bytes] = '\0';
    if (got <= 0 || bytes == 0 || name[0] == '.' || asprintf(&folder, "%.*s%s", (int)(revision - path), path, name) < 0)
        return NULL;
    fd = efs_sys_open(folder, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0) {
        efs_sys_close(fd);
        return folder;
    }
    free(folder);
    return NULL;
}

/* The snapshot below root that root/path is in, or better that of refs/main; for free(). NULL: none. */
static char *snapshot_below(const char *root, int bytes, const char *path)
{
    char *full, *folder = NULL;
    const char *end, *revision;
    if (asprintf(&full, "%.*s/%s", bytes, root, path) < 0)
        return NULL;
    revision = revision_next(full, full, &end);
    while (revision && end - full <= bytes) /* the root is one, or below one */
        revision = revision_next(full, revision, &end);
    if (revision)
        folder = revision_main(full, revision);
    if (revision && !folder)
        folder = strndup(full, (size_t)(end - full));
    free(full);
    return folder;
}

/* As the source was named, or, as where that was ".", by its own path. */
static char *snapshot_folder(const struct efs_catalog *catalog, const char *path)
{
    char *folder = snapshot_below(catalog->root, root_bytes(catalog), path);
    char *root = folder ? NULL : realpath(catalog->root, NULL);
    if (root)
        folder = snapshot_below(root, root[1] ? (int)strlen(root) : 0, path);
    free(root);
    return folder;
}

/* 0: the file lies below that folder, whose name ends with a slash. */
static int compare_below(const void *folder, const void *element)
{
    const struct efs_source_file *file = element;
    return strncmp(folder, file->path, strlen(folder));
}

static bool has_below(const struct efs_catalog *catalog, const char *folder)
{
    return bsearch(folder, catalog->files, catalog->file_count, sizeof(catalog->files[0]), compare_below) != NULL;
}

errint_t efs_pack_check_copies(const char *src, const struct efs_catalog *catalog, struct efs_error *err)
{
    for (size_t f = 0; f < catalog->file_count; f++) {
        const char *path = catalog->files[f].path, *end;
        const char *revision = revision_next(path, path, &end);
        if (!revision)
            continue;
        char *blobs;
        if (asprintf(&blobs, "%.*sblobs/", (int)(revision - path) - (int)sizeof(SNAPSHOTS) + 1, path) < 0)
            return efs_fail(err, -ENOMEM, "%s: no memory", src);
        bool twice = has_below(catalog, blobs);
        free(blobs);
        if (!twice)
            continue;
        char *folder = snapshot_folder(catalog, path);
        errint_t rc =
            efs_fail(err, -ENODATA, "%s: has each file twice, as caches of hubs do: pack %s; --any packs it all", src,
                     folder ? folder : "one of its snapshots");
        free(folder);
        return rc;
    }
    return 0;
}
