/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dir.c - lists the files of a checkpoint: every regular file below a directory, following links.
 *
 * Hub caches store checkpoints as links to blobs, so a link counts as its target. A link to a directory that contains
 * it and a dangling link are rejected: the packed tree would differ from the checkpoint.
 */
#include "source.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct walk {
    struct efs_catalog *catalog;
    int hub_level; /* of the .cache/huggingface that is walked; 0: none */
    dev_t device;  /* of the root */
    size_t capacity;
    struct efs_error *err;
};

/* "ROOT/PATH: REASON" */
static errint_t walk_fail(const struct walk *walk, errint_t rc, const char *path, const char *reason)
{
    return efs_fail(walk->err, rc, "%s%s%s: %s", walk->catalog->root, *path ? "/" : "", path, reason);
}

static errint_t add_file(struct walk *walk, const char *path, const struct stat *st)
{
    struct efs_catalog *catalog = walk->catalog;
    errint_t ret = -E2BIG;
    char *copy = NULL;

    if (catalog->file_count < EFS_SOURCE_MAX_FILES)
        ret = efs_source_grow((void **)&catalog->files, catalog->file_count, &walk->capacity, sizeof(*catalog->files));
    if (ret == 0 && !(copy = strdup(path)))
        ret = -ENOMEM;
    if (ret < 0)
        return efs_fail(walk->err, ret, "%s: %s", path,
                        ret == -E2BIG ? "the checkpoint has more than a million files" : "out of memory");
    catalog->files[catalog->file_count++] = (struct efs_source_file){
        .path = copy,
        .bytes = (uint64_t)st->st_size,
        .index = EFS_NONE,
    };
    return 0;
}

/* Reports a link whose target cannot be found. */
static errint_t fail_link(const struct walk *walk, const FTSENT *entry, const char *path)
{
    struct stat st;
    errint_t ret = stat(entry->fts_accpath, &st) < 0 ? -errno : -EAGAIN; /* the target exists now */

    return walk_fail(walk, ret, path,
                     ret == -ENOENT  ? "the symbolic link leads nowhere\nhint: download what is missing again"
                     : ret == -ELOOP ? "the symbolic link leads to itself"
                                     : strerror(-ret));
}

/* Notes the first part of the checkpoint that cannot be packed. */
static errint_t lack(const struct walk *walk, const char *path, const char *what, const char *reason)
{
    if (walk->catalog->lacks)
        return 0;
    if (asprintf(&walk->catalog->lacks, "%s: %s%s", path, what, reason) < 0)
        walk->catalog->lacks = NULL;
    return walk->catalog->lacks ? 0 : efs_fail(walk->err, -ENOMEM, "%s: out of memory", walk->catalog->root);
}

/* Handles one entry below the root: adds a file, accepts a directory, rejects anything else. */
static errint_t walk_entry(struct walk *walk, const FTSENT *entry, const char *path)
{
    if (strlen(path) > EFS_SOURCE_MAX_PATH)
        return efs_fail(walk->err, -ENAMETOOLONG, "%.100s...: the path has more than %u bytes", path,
                        EFS_SOURCE_MAX_PATH);
    switch (entry->fts_info) {
    case FTS_F:
        return add_file(walk, path, entry->fts_statp);
    case FTS_D:
        if (entry->fts_level > (int)EFS_SOURCE_MAX_DEPTH)
            return efs_fail(walk->err, -ELOOP, "%s/%s: more than %u directories deep", walk->catalog->root, path,
                            EFS_SOURCE_MAX_DEPTH);
        return 0;
    case FTS_DP:
        return 0;
    case FTS_DC:
        return walk_fail(walk, -ELOOP, path, "the symbolic link leads back to a directory that it is in");
    case FTS_SLNONE:
        return fail_link(walk, entry, path);
    case FTS_DNR:
        if (entry->fts_level > 0)
            return lack(walk, path, "cannot read the folder: ", strerror(entry->fts_errno));
        return efs_fail(walk->err, -entry->fts_errno, "%s%s%s: cannot read the directory: %s", walk->catalog->root,
                        *path ? "/" : "", path, strerror(entry->fts_errno));
    case FTS_NS: /* of a directory that may be read, but not searched */
        if (entry->fts_errno == EACCES)
            return lack(walk, path, "", strerror(entry->fts_errno));
        return walk_fail(walk, -entry->fts_errno, path, strerror(entry->fts_errno));
    case FTS_ERR:
        return walk_fail(walk, -entry->fts_errno, path, strerror(entry->fts_errno));
    default:
        return walk_fail(walk, -EINVAL, path, "neither a file nor a directory; a checkpoint has only these");
    }
}

static errint_t note_skipped(struct walk *walk, const char *path, const char *reason)
{
    struct efs_catalog *catalog = walk->catalog;

    catalog->skipped_count++;
    if (!catalog->skipped && asprintf(&catalog->skipped, "%s: %s", path, reason) < 0)
        catalog->skipped = NULL;
    return catalog->skipped ? 0 : efs_fail(walk->err, -ENOMEM, "%s: out of memory", catalog->root);
}

/* Handles entries in .cache/huggingface, which has metadata of `hf download`, and what it has not finished. */
static errint_t walk_hub(struct walk *walk, const FTSENT *entry, const char *path)
{
    static const char end[] = ".incomplete";
    size_t bytes = strlen(path);

    if (walk->hub_level == entry->fts_level)
        walk->hub_level = 0; /* the end of the folder */
    if (entry->fts_info == FTS_F && bytes >= sizeof(end) && strcmp(path + bytes - sizeof(end) + 1, end) == 0)
        return lack(walk, path, "is a download that did not end", "");
    return 0;
}

/* Whether a folder was reached by its own path, not by a symbolic link, and is another file system than the root. */
static bool is_mount(const FTSENT *entry, dev_t root)
{
    struct stat st;

    return entry->fts_statp->st_dev != root && lstat(entry->fts_accpath, &st) == 0 && !S_ISLNK(st.st_mode);
}

/* Entries that are skipped are neither packed nor part of what identifies a checkpoint for `expertctl up`, which lists
 * files by this walk, too. */
static errint_t walk_any(struct walk *walk, FTS *tree, FTSENT *entry, const char *path)
{
    if (walk->hub_level)
        return walk_hub(walk, entry, path);
    if (entry->fts_level == 0)
        walk->device = entry->fts_statp->st_dev;
    if (entry->fts_level == 0 || entry->fts_info == FTS_DP)
        return walk_entry(walk, entry, path);
    bool folder = entry->fts_info == FTS_D;
    if (folder && efs_source_is_hub_folder(path)) {
        walk->hub_level = entry->fts_level;
        return note_skipped(walk, path, "is of `hf download`");
    }
    const char *reason = efs_source_skip_reason(entry->fts_accpath, entry->fts_name, folder);
    if (!reason && folder && is_mount(entry, walk->device))
        reason = "is another file system";
    if (!reason)
        return walk_entry(walk, entry, path);
    fts_set(tree, entry, FTS_SKIP);
    return note_skipped(walk, path, reason);
}

static errint_t walk_all(struct walk *walk)
{
    struct efs_catalog *catalog = walk->catalog;
    char *roots[] = {catalog->root, NULL};
    FTS *tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry;
    errint_t ret = tree ? 0 : efs_fail(walk->err, -errno, "%s: %s", catalog->root, strerror(errno));

    while (ret == 0 && (errno = 0, entry = fts_read(tree))) {
        const char *path = entry->fts_path + strlen(catalog->root);
        ret = walk_any(walk, tree, entry, path + strspn(path, "/"));
    }
    if (ret == 0 && errno)
        ret = efs_fail(walk->err, -errno, "%s: %s", catalog->root, strerror(errno));
    if (tree)
        fts_close(tree);
    return ret;
}

/* A single file: its directory is the root, its name is the last component of src. */
static errint_t walk_file(struct walk *walk, const char *src, const struct stat *st)
{
    const char *slash = strrchr(src, '/');
    const char *name = slash ? slash + 1 : src;

    walk->catalog->root = !slash ? strdup(".") : slash == src ? strdup("/") : strndup(src, (size_t)(slash - src));
    if (!walk->catalog->root)
        return efs_fail(walk->err, -ENOMEM, "%s: out of memory", src);
    return add_file(walk, name, st);
}

static int compare_path(const void *a, const void *b)
{
    return strcmp(((const struct efs_source_file *)a)->path, ((const struct efs_source_file *)b)->path);
}

/* Whether the name is that of another part of the model that `part` of path belongs to. */
static bool is_sibling(const char *path, const struct efs_source_part *part, const char *name)
{
    struct efs_source_part other;

    return strcmp(name, path) != 0 && efs_source_part(name, &other) && other.prefix_bytes == part->prefix_bytes &&
           memcmp(name, path, (size_t)part->prefix_bytes) == 0 && strcmp(other.end, part->end) == 0;
}

errint_t efs_catalog_add_parts(struct efs_catalog *catalog, bool *added, struct efs_error *err)
{
    struct walk walk = {.catalog = catalog, .capacity = catalog->file_count, .err = err};
    struct efs_source_part part;
    struct dirent *entry;
    struct stat st;
    errint_t ret = 0;

    *added = false;
    if (catalog->file_count != 1 || !efs_source_part(catalog->files[0].path, &part))
        return 0;
    char *path = strdup(catalog->files[0].path); /* adding a file moves the files; part.end points into this copy */
    DIR *directory = path ? opendir(catalog->root) : NULL;
    if (!path)
        ret = efs_fail(err, -ENOMEM, "%s: out of memory", catalog->root);
    else if (!directory)
        ret = efs_fail(err, -errno, "%s: cannot read the directory: %s", catalog->root, strerror(errno));
    else
        efs_source_part(path, &part);
    while (ret == 0 && (entry = readdir(directory)))
        if (is_sibling(path, &part, entry->d_name) && fstatat(dirfd(directory), entry->d_name, &st, 0) == 0 &&
            S_ISREG(st.st_mode)) {
            ret = add_file(&walk, entry->d_name, &st);
            *added = true;
        }
    if (directory)
        closedir(directory);
    free(path);
    if (ret == 0)
        qsort(catalog->files, catalog->file_count, sizeof(*catalog->files), compare_path);
    return ret;
}

errint_t efs_source_walk(const char *src, struct efs_catalog *catalog, struct efs_error *err)
{
    struct walk walk = {.catalog = catalog, .err = err};
    struct stat st;

    if (stat(src, &st) < 0)
        return efs_fail(err, -errno, "%s: %s", src, strerror(errno));
    if (S_ISREG(st.st_mode))
        return walk_file(&walk, src, &st);
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -EINVAL, "%s: neither a file nor a directory", src);
    catalog->folder = true;
    catalog->root = strdup(src);
    if (!catalog->root)
        return efs_fail(err, -ENOMEM, "%s: out of memory", src);
    errint_t ret = walk_all(&walk);
    if (ret < 0)
        return ret;
    if (catalog->file_count == 0)
        return efs_fail(err, -ENOENT, "%s: the directory holds no files", src);
    qsort(catalog->files, catalog->file_count, sizeof(*catalog->files), compare_path);
    return 0;
}
