/* SPDX-License-Identifier: Apache-2.0 */
/* source_skip.c - folders below a checkpoint that are no part of it: by the names that systems and programs give to
 * them, and by the tag of caches (bford.info/cachedir). */
#include "source.h"

#include "sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TAG "Signature: 8a477f597d28d172789f06886806bc55"

static const struct {
    const char *name, *reason; /* a name that ends in '-': its beginning */
} folders[] = {
    {".git", "is the history of a Git clone"}, /* has a second copy of each file of Git LFS, and old versions */
    {"lost+found", "is for fsck(8)"},
    {".Trash", "is a waste bin"},
    {".Trash-", "is a waste bin"},
    {".Trashes", "is a waste bin"},
    {"$RECYCLE.BIN", "is a waste bin"},
    {".snapshot", "has snapshots of the file system"},
    {".snapshots", "has snapshots of the file system"},
    {".zfs", "has snapshots of the file system"},
    {".ipynb_checkpoints", "has copies that Jupyter makes"},
};

static bool is_tagged(const char *path)
{
    char *tag, text[sizeof(TAG) - 1];
    if (asprintf(&tag, "%s/CACHEDIR.TAG", path) < 0)
        return false;
    int fd = efs_sys_open(tag, O_RDONLY | O_NONBLOCK, 0);
    ssize_t bytes = fd >= 0 ? efs_sys_pread(fd, text, sizeof(text), 0) : -1;
    free(tag);
    if (fd >= 0)
        efs_sys_close(fd);
    return bytes == (ssize_t)sizeof(text) && memcmp(text, TAG, sizeof(text)) == 0;
}

/* Whether an entry next to this one is a file. */
static bool has_beside(const char *path, const char *name, const char *other)
{
    struct stat st;
    char *whole;
    if (asprintf(&whole, "%.*s%s", (int)(strlen(path) - strlen(name)), path, other) < 0)
        return false;
    bool found = stat(whole, &st) == 0 && S_ISREG(st.st_mode);
    free(whole);
    return found;
}

/* A copy of a mount: experts/ has the bytes of experts again, and .expertfs/ what the daemon said of itself. */
static bool is_of_mount(const char *path, const char *name)
{
    return (strcmp(name, "experts") == 0 || strcmp(name, ".expertfs") == 0) &&
           has_beside(path, name, ".expertfs/config") && has_beside(path, name, ".expertfs/stat");
}

const char *efs_source_skip_reason(const char *path, const char *name, bool folder)
{
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        size_t bytes = strlen(folders[i].name);
        bool begins = folders[i].name[bytes - 1] == '-';
        if ((folder || i == 0) && strncmp(name, folders[i].name, bytes + !begins) == 0)
            return folders[i].reason;
    }
    if (folder && is_of_mount(path, name))
        return "is of the mount that this was copied from";
    return folder && is_tagged(path) ? "is a cache (CACHEDIR.TAG)" : NULL;
}

bool efs_source_is_hub_folder(const char *path)
{
    static const char end[] = ".cache/huggingface";
    size_t bytes = strlen(path), least = sizeof(end) - 1;
    return bytes >= least && strcmp(path + bytes - least, end) == 0 &&
           (bytes == least || path[bytes - least - 1] == '/');
}
