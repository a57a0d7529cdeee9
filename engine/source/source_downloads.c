/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_downloads.c - files whose download has not ended, by the names that programs give to such files, or to a
 * control file in the same folder.
 */
#include "source.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_FOLDER "._____temp/" /* of ModelScope */
#define OLLAMA_BEGIN "sha256-"
#define OLLAMA_END "-partial"

static const struct {
    const char *end;
    bool any_name;  /* NAME and this end is a download of any NAME; else only if NAME is that of a file of weights */
    bool at_target; /* a control file: the data lies in NAME, also if a link leads there */
} ends[] = {
    {".aria2", false, true},              /* aria2 */
    {".st", false, true},                 /* axel */
    {".part", false, false},              /* Firefox, curl, wget2 */
    {".partial", false, false},           /* rclone: NAME.HASH.partial */
    {".crdownload", true, false},         /* Chrome, Edge */
    {".incomplete", true, false},         /* hf download */
    {".downloadInProgress", true, false}, /* llama.cpp */
    {".!qB", true, false},                /* qBittorrent */
};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

/* Whether the name is that of a file of weights, of an index of them, or of a part of either. */
static bool may_be_weights(const char *name)
{
    return strstr(name, ".safetensors") || strstr(name, ".gguf");
}

/* Whether the file has the name of a download in progress. */
static bool is_download(const char *path)
{
    const char *name = path + efs_source_folder(path);

    if (strncmp(path, TEMPORARY_FOLDER, strlen(TEMPORARY_FOLDER)) == 0 || strstr(path, "/" TEMPORARY_FOLDER) ||
        (strncmp(name, OLLAMA_BEGIN, strlen(OLLAMA_BEGIN)) == 0 &&
         efs_ends_with(name + strlen(OLLAMA_BEGIN), OLLAMA_END)))
        return true;
    for (size_t i = 0; i < ENDS; i++)
        if (efs_ends_with(name, ends[i].end) && (ends[i].any_name || may_be_weights(name)))
            return true;
    return false;
}

errint_t efs_source_mark_broken(struct efs_source_file *file, const char *other, const char *what)
{
    char *note;

    if (asprintf(&note, "%s: %s%s", file->path, other, what) < 0)
        return -ENOMEM;
    free(file->note);
    file->note = note;
    file->state = EFS_SOURCE_BROKEN;
    return 0;
}

static errint_t mark_beside(struct efs_source_file *file, const char *other)
{
    return efs_source_mark_broken(file, other, " lies beside it, as while it is downloaded");
}

/* Marks the file that `other` is a control file or another download of. *found: it is listed. */
static errint_t mark_listed(struct efs_catalog *catalog, const struct efs_source_file *other, bool *found)
{
    *found = false;
    for (size_t i = 0; i < ENDS; i++) {
        char *path = efs_ends_with(other->path, ends[i].end)
                         ? strndup(other->path, strlen(other->path) - strlen(ends[i].end))
                         : NULL;
        struct efs_source_file *file = path ? efs_source_find(catalog, path) : NULL;
        free(path);
        /* README and README.part are two files; a browser leaves an empty README until the other is whole. */
        if (file && !ends[i].any_name && !ends[i].at_target && file->bytes > 0 && !file->has_tensors &&
            file->index == EFS_NONE && !may_be_weights(file->path))
            file = NULL;
        *found = file != NULL;
        if (file)
            return mark_beside(file, other->path);
    }
    return 0;
}

/* Looks in the folder of a path that was not listed: of a file that was given alone (all), or the target of a link. */
static errint_t mark_path(struct efs_source_file *file, const char *path, bool all)
{
    errint_t ret = 0;

    for (size_t i = 0; ret == 0 && i < ENDS; i++) {
        char *other;
        if (!all && !ends[i].at_target)
            continue;
        if (asprintf(&other, "%s%s", path, ends[i].end) < 0)
            return -ENOMEM;
        if (access(other, F_OK) == 0)
            ret = mark_beside(file, other);
        free(other);
    }
    return ret;
}

static errint_t mark_unlisted(const struct efs_catalog *catalog, struct efs_source_file *file)
{
    char *path, *target = NULL;
    struct stat st;
    errint_t ret = 0;

    if (asprintf(&path, "%s/%s", catalog->root, file->path) < 0)
        return -ENOMEM;
    if (!catalog->folder)
        ret = mark_path(file, path, true);
    if (ret == 0 && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && (target = realpath(path, NULL)))
        ret = mark_path(file, target, false);
    free(target);
    free(path);
    return ret;
}

errint_t efs_source_mark_downloads(struct efs_catalog *catalog, struct efs_error *err)
{
    errint_t ret = 0;

    for (size_t i = 0; ret == 0 && i < catalog->file_count; i++) {
        struct efs_source_file *file = &catalog->files[i];
        bool beside;
        ret = mark_listed(catalog, file, &beside);
        if (ret == 0 && !beside && is_download(file->path))
            ret = efs_source_mark_broken(file, "", "is a download that did not end");
        if (ret == 0 && (file->has_tensors || file->index != EFS_NONE || efs_source_named_weights(file->path)))
            ret = mark_unlisted(catalog, file);
    }
    return ret < 0 ? efs_fail(err, ret, "%s: out of memory", catalog->root) : 0;
}
