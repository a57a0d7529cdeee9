/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dir.c - which files a checkpoint has: every regular file below a directory, links followed.
 *
 * Hub caches keep checkpoints as links to blobs, so a link counts as what it leads to. A directory that a link leads
 * back into is refused, as is a link that leads nowhere: the packed tree would not be the tree.
 */
#include "source.h"

#include "sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The directories that the walk is inside of. */
struct ancestor {
    dev_t dev;
    ino_t ino;
    const struct ancestor *parent;
    unsigned depth;
};

struct walk {
    struct efs_catalog *catalog;
    size_t capacity;
    struct efs_error *err;
};

/* "directory/name", or name alone when directory is ""; NULL without memory. */
static char *source_join(const char *directory, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s%s%s", directory, directory[0] ? "/" : "", name) < 0)
        return NULL;
    return path;
}

/* What path leads to, without opening it for reading. */
static errint_t stat_target(const char *root, const char *path, struct stat *st)
{
    char *full = source_join(root, path);

    if (!full)
        return -ENOMEM;
    int fd = efs_sys_open(full, O_PATH, 0);
    free(full);
    if (fd < 0)
        return fd;
    int ret = efs_sys_fstat(fd, st);
    efs_sys_close(fd);
    return ret;
}

/* Takes path. */
static errint_t add_file(struct walk *walk, char *path, const struct stat *st)
{
    struct efs_catalog *catalog = walk->catalog;
    errint_t ret = -E2BIG;

    if (catalog->file_count < EFS_SOURCE_MAX_FILES)
        ret = efs_source_grow((void **)&catalog->files, catalog->file_count, &walk->capacity, sizeof(*catalog->files));
    if (ret < 0) {
        efs_fail(walk->err, ret, "%s: %s", path,
                 ret == -E2BIG ? "the checkpoint has more than a million files" : "out of memory");
        free(path);
        return ret;
    }
    catalog->files[catalog->file_count++] = (struct efs_source_file){
        .path = path,
        .bytes = (uint64_t)st->st_size,
        .index = EFS_NONE,
    };
    return 0;
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* All names in a directory but "." and "..". It is closed before the walk goes deeper: depth costs no descriptors. */
static errint_t list_names(const char *root, const char *path, char ***names, size_t *count)
{
    size_t capacity = 0;
    errint_t ret = 0;
    struct dirent *entry;

    *names = NULL;
    *count = 0;
    char *full = source_join(root, path);
    if (!full)
        return -ENOMEM;
    int fd = efs_sys_open(full, O_RDONLY | O_DIRECTORY, 0);
    free(full);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        ret = -errno;
        efs_sys_close(fd);
        return ret;
    }
    while (errno = 0, (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        ret = *count < EFS_SOURCE_MAX_FILES ? efs_source_grow((void **)names, *count, &capacity, sizeof(**names))
                                            : -E2BIG;
        if (ret == 0 && !((*names)[*count] = strdup(entry->d_name)))
            ret = -ENOMEM;
        if (ret < 0)
            break;
        (*count)++;
    }
    if (!entry && errno)
        ret = -errno;
    closedir(dir);
    if (ret < 0) {
        free_names(*names, *count);
        *names = NULL;
        *count = 0;
    }
    return ret;
}

static errint_t walk_directory(struct walk *walk, const char *path, const struct ancestor *self);

/* A clone's history has each file that Git LFS fetched a second time, and old ones. */
static bool is_history(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, ".git") == 0;
}

/* One name of a directory: a file is added, a directory walked, anything else refused. Takes path. */
static errint_t walk_entry(struct walk *walk, char *path, const struct ancestor *parent)
{
    struct stat st;

    if (is_history(path)) {
        if (walk->catalog->skipped)
            free(path);
        else
            walk->catalog->skipped = path;
        return 0;
    }
    if (strlen(path) > EFS_SOURCE_MAX_PATH) {
        efs_fail(walk->err, -ENAMETOOLONG, "%.100s...: the path has more than %u bytes", path, EFS_SOURCE_MAX_PATH);
        free(path);
        return -ENAMETOOLONG;
    }
    errint_t ret = stat_target(walk->catalog->root, path, &st);
    if (ret < 0) {
        efs_fail(walk->err, ret, "%s: %s", path,
                 ret == -ENOENT  ? "the symbolic link leads nowhere"
                 : ret == -ELOOP ? "the symbolic link leads to itself"
                                 : strerror(-ret));
    } else if (S_ISREG(st.st_mode)) {
        return add_file(walk, path, &st);
    } else if (!S_ISDIR(st.st_mode)) {
        ret = efs_fail(walk->err, -EINVAL, "%s: neither a file nor a directory; a checkpoint has only these", path);
    } else if (parent->depth >= EFS_SOURCE_MAX_DEPTH) {
        ret = efs_fail(walk->err, -ELOOP, "%s: more than %u directories deep", path, EFS_SOURCE_MAX_DEPTH);
    } else {
        struct ancestor self = {st.st_dev, st.st_ino, parent, parent->depth + 1};
        ret = walk_directory(walk, path, &self);
    }
    free(path);
    return ret;
}

static errint_t walk_directory(struct walk *walk, const char *path, const struct ancestor *self)
{
    char **names;
    size_t count;

    for (const struct ancestor *a = self->parent; a; a = a->parent)
        if (a->dev == self->dev && a->ino == self->ino)
            return efs_fail(walk->err, -ELOOP, "%s: the symbolic link leads back to a directory that it is in", path);
    errint_t ret = list_names(walk->catalog->root, path, &names, &count);
    if (ret < 0)
        return efs_fail(walk->err, ret, "%s: cannot read the directory: %s", path[0] ? path : walk->catalog->root,
                        strerror(-ret));
    for (size_t i = 0; ret == 0 && i < count; i++) {
        char *child = source_join(path, names[i]);
        ret = child ? walk_entry(walk, child, self) : efs_fail(walk->err, -ENOMEM, "%s: out of memory", names[i]);
    }
    free_names(names, count);
    return ret;
}

/* A single file: its directory becomes the root, its name stays as it was given. */
static errint_t walk_file(struct walk *walk, const char *src, const struct stat *st)
{
    const char *slash = strrchr(src, '/');
    const char *name = slash ? slash + 1 : src;

    walk->catalog->root = !slash ? strdup(".") : slash == src ? strdup("/") : strndup(src, (size_t)(slash - src));
    char *path = strdup(name);
    if (!path || !walk->catalog->root) {
        free(path);
        return efs_fail(walk->err, -ENOMEM, "%s: out of memory", src);
    }
    return add_file(walk, path, st);
}

static int compare_path(const void *a, const void *b)
{
    return strcmp(((const struct efs_source_file *)a)->path, ((const struct efs_source_file *)b)->path);
}

errint_t efs_source_walk(const char *src, struct efs_catalog *catalog, struct efs_error *err)
{
    struct walk walk = {.catalog = catalog, .err = err};
    struct stat st;

    errint_t ret = stat_target("", src, &st);
    if (ret < 0)
        return efs_fail(err, ret, "%s: %s", src, strerror(-ret));
    if (S_ISREG(st.st_mode))
        return walk_file(&walk, src, &st);
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -EINVAL, "%s: neither a file nor a directory", src);
    catalog->root = strdup(src);
    if (!catalog->root)
        return efs_fail(err, -ENOMEM, "%s: out of memory", src);
    struct ancestor self = {st.st_dev, st.st_ino, NULL, 0};
    ret = walk_directory(&walk, "", &self);
    if (ret < 0)
        return ret;
    if (catalog->file_count == 0)
        return efs_fail(err, -ENOENT, "%s: the directory holds no files", src);
    qsort(catalog->files, catalog->file_count, sizeof(*catalog->files), compare_path);
    return 0;
}
