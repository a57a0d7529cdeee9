/* SPDX-License-Identifier: Apache-2.0 */
/* plain_open.c - opens a store, or a checkpoint in place, by what path names. */
#include "plain.h"

#include "regular.h"
#include "source.h"
#include "sys.h"

#include "expertfs-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* Whether weights lie in the directory itself: a tree with some further below, such as a home directory, is not opened
 * by mistake. The directory of a mount has them, too, but it is its store that can be opened. */
static bool directory_has_weights(const char *path)
{
    char *config = NULL;
    struct dirent *entry;
    bool found = false;
    int fd = asprintf(&config, "%s/.expertfs/config", path) < 0 ? -ENOMEM : efs_sys_open(config, O_PATH, 0);
    DIR *directory = fd < 0 ? opendir(path) : NULL;
    free(config);
    if (fd >= 0)
        efs_sys_close(fd);
    while (directory && !found && (entry = readdir(directory)))
        found = efs_source_named_weights(entry->d_name);
    if (directory)
        closedir(directory);
    return found;
}

bool efs_plain_is_checkpoint(const char *path)
{
    struct stat st;
    uint8_t head[EFS_SOURCE_HEAD];
    int fd = efs_regular_open(AT_FDCWD, path, 0, &st);
    if (fd < 0)
        return fd == -EISDIR && directory_has_weights(path);
    ssize_t bytes = efs_sys_pread(fd, head, sizeof(head), 0);
    efs_sys_close(fd);
    if (bytes < 0 || (bytes >= 8 && memcmp(head, EFS_MAGIC, 8) == 0))
        return false;
    return efs_source_named_weights(path) ||
           efs_source_kind(path, false, head, (size_t)bytes).format != EFS_SOURCE_PLAIN;
}

/* The permissions that all files grant; those of the owner alone if a file has an ACL, which may restrict group and
 * other, or if the files belong to several groups. */
static mode_t common_mode(const struct efs_plain *plain)
{
    mode_t mode = 0444;
    for (uint32_t i = 0; i < plain->file_count; i++) {
        const struct stat *st = &plain->files[i].opened_stat;
        bool owner_only = efs_sys_has_acl(plain->files[i].fd) || st->st_gid != plain->files[0].opened_stat.st_gid;
        mode &= owner_only ? st->st_mode & 0400 : st->st_mode;
    }
    return mode;
}

/* The index is made of the files that are open, if none of them changes until it is made. parts: path is one file of
 * several. */
static errint_t open_catalog(const char *path, bool parts, struct efs_catalog *catalog, struct efs_plain *plain,
                             struct efs_store **store, struct efs_error *err)
{
    errint_t rc = efs_catalog_check(parts ? catalog->root : path, catalog, err);
    if (rc == 0)
        rc = efs_plain_index(plain, catalog, err);
    for (uint32_t i = 0; rc == 0 && i < plain->file_count; i++)
        if (efs_plain_check(plain, i) < 0)
            rc = efs_fail(err, -ESTALE, "%s/%s: changed while it was opened\nhint: try again when nothing writes to it",
                          plain->root, plain->files[i].path);
    if (rc < 0)
        return rc;
    struct stat named;
    struct efs_store_plain source = {.plain = plain,
                                     .read = efs_plain_read,
                                     .close = efs_plain_close,
                                     .st = plain->files[0].opened_stat,
                                     .direct = plain->direct,
                                     .remote = plain->remote};
    source.st.st_mode = common_mode(plain);
    if (stat(path, &named) == 0) { /* identifies it, also a directory or another part of a split file */
        source.st.st_dev = named.st_dev;
        source.st.st_ino = named.st_ino;
    }
    rc = efs_store_open_plain(path, plain->sb.store_bytes, &source, store, err);
    free(plain->index); /* the store has a copy */
    plain->index = NULL;
    return rc;
}

errint_t efs_plain_open(const char *path, struct efs_store **store, struct efs_error *err)
{
    struct efs_catalog catalog;
    struct efs_plain *plain = NULL;
    bool parts = false;
    *store = NULL;
    errint_t rc = efs_catalog_list(path, &catalog, err);
    if (rc < 0)
        return rc;
    rc = efs_catalog_add_parts(&catalog, &parts, err);
    if (rc == 0)
        rc = efs_plain_files_open(&catalog, &plain, err);
    if (rc < 0) {
        efs_catalog_free(&catalog);
        return rc;
    }
    rc = efs_catalog_parse(&catalog, NULL, err);
    if (rc == 0) {
        rc = open_catalog(path, parts, &catalog, plain, store, err);
        efs_catalog_free(&catalog);
    }
    if (rc < 0)
        efs_plain_close(plain);
    return rc;
}

/* ---- its name ---------------------------------------------------------------------------------------------------- */

/* FOLDER/NAME, absolute, of a link FOLDER/NAME; NULL: path is none, or is in /proc, where links are descriptors. */
static char *named_path(const char *path)
{
    struct stat link;
    struct statfs fs;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("."), *named = NULL;
    char *real = folder && lstat(path, &link) == 0 && S_ISLNK(link.st_mode) ? realpath(folder, NULL) : NULL;
    if (real && (statfs(real, &fs) < 0 || fs.f_type == PROC_SUPER_MAGIC ||
                 asprintf(&named, "%s%s%s", real, real[1] ? "/" : "", name) < 0))
        named = NULL;
    free(real);
    free(folder);
    return named;
}

errint_t efs_source_path(const char *path, char **absolute, struct efs_error *err)
{
    struct stat st;
    if (efs_is_address(path)) {
        *absolute = strdup(path);
        return *absolute ? 0 : efs_fail(err, -ENOMEM, "no memory");
    }
    errint_t rc = efs_absolute_path(path, absolute, err);
    if (rc < 0 || stat(*absolute, &st) < 0 || !S_ISREG(st.st_mode) || !efs_plain_is_checkpoint(path))
        return rc;
    char *named = named_path(path);
    if (named) {
        free(*absolute);
        *absolute = named;
    }
    return 0;
}
