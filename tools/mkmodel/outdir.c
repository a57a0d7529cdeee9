/* SPDX-License-Identifier: Apache-2.0 */
#include "outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int outdir_fail(struct mk_error *error, const char *path, int rc)
{
    snprintf(error->text, sizeof(error->text), "%s: %s", path, strerror(-rc));
    return rc;
}

/* 1: a directory with something in it, 0: an empty one or nothing at all, else -errno. */
static int directory_occupied(const char *path)
{
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOENT ? 0 : -errno;
    int entries = 0;
    while (readdir(directory))
        entries++;
    closedir(directory);
    return entries > 2;
}

static void outdir_release(struct mk_outdir *outdir)
{
    if (outdir->directory >= 0)
        close(outdir->directory);
    free(outdir->out);
    free(outdir->temporary);
}

static int make_temporary(struct mk_outdir *outdir, struct mk_error *error)
{
    if (!outdir->out || asprintf(&outdir->temporary, "%s.mkmodel-XXXXXX", outdir->out) < 0) {
        outdir->temporary = NULL;
        return -ENOMEM;
    }
    if (!mkdtemp(outdir->temporary))
        return outdir_fail(error, outdir->out, -errno);
    mode_t mask = umask(0);
    umask(mask);
    outdir->directory = open(outdir->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (outdir->directory < 0 || fchmod(outdir->directory, 0777 & ~mask)) {
        int rc = outdir_fail(error, outdir->temporary, -errno);
        rmdir(outdir->temporary);
        return rc;
    }
    return 0;
}

int mk_outdir_begin(struct mk_outdir *outdir, const char *out, bool force, struct mk_error *error)
{
    *outdir = (struct mk_outdir){.directory = -1, .out = strdup(out)};
    for (size_t n = outdir->out ? strlen(outdir->out) : 0; n > 1 && outdir->out[n - 1] == '/'; n--)
        outdir->out[n - 1] = 0;
    int rc = directory_occupied(out);
    if (rc > 0 && !force) {
        snprintf(error->text, sizeof(error->text), "%s: has files; --force replaces those of a checkpoint", out);
        rc = -EEXIST;
    } else if (rc < 0) {
        outdir_fail(error, out, rc);
    } else {
        outdir->replace = rc > 0;
        rc = make_temporary(outdir, error);
    }
    if (rc)
        outdir_release(outdir);
    return rc;
}

void mk_outdir_abandon(struct mk_outdir *outdir, const struct mk_files *files)
{
    for (uint32_t f = 0; f < files->count; f++)
        unlinkat(outdir->directory, files->files[f].name, 0);
    rmdir(outdir->temporary);
    outdir_release(outdir);
}

/* Take away what an earlier run may have left: the files whose names this program writes. */
static int remove_old(int directory)
{
    static const char *const patterns[] = {
        "model.safetensors", "model-*-of-*.safetensors", "*.index.json",   "model.gguf",           "model-*-of-*.gguf",
        "config.json",       "generation_config.json",   "tokenizer.json", "tokenizer_config.json"};
    DIR *list = fdopendir(dup(directory));
    if (!list)
        return -errno;
    rewinddir(list);
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(list));)
        for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]) && !rc; i++)
            if (!fnmatch(patterns[i], entry->d_name, 0) && unlinkat(directory, entry->d_name, 0) && errno != ENOENT)
                rc = -errno;
    closedir(list);
    return rc;
}

static int replace_files(const struct mk_outdir *outdir, const struct mk_files *files)
{
    int out = open(outdir->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out < 0)
        return -errno;
    int rc = remove_old(out);
    for (uint32_t f = 0; f < files->count && !rc; f++)
        if (renameat(outdir->directory, files->files[f].name, out, files->files[f].name))
            rc = -errno;
    if (!rc && fsync(out))
        rc = -errno;
    close(out);
    return rc;
}

int mk_outdir_commit(struct mk_outdir *outdir, const struct mk_files *files, struct mk_error *error)
{
    int rc = 0;
    if (outdir->replace)
        rc = replace_files(outdir, files);
    else if (rename(outdir->temporary, outdir->out)) /* an empty directory of that name is replaced */
        rc = -errno;
    if (rc) {
        outdir_fail(error, outdir->out, rc);
        mk_outdir_abandon(outdir, files);
        return rc;
    }
    if (outdir->replace)
        rmdir(outdir->temporary);
    outdir_release(outdir);
    return 0;
}
