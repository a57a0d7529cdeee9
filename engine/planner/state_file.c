/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_file.c - finds the state directory and replaces files in it atomically.
 */
#include "state_file.h"

#include "expertfs-profile-private.h"
#include "newfile.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *set_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

errint_t efs_state_path(const char *kind, uint64_t content_hash, const char *ending, char *path, size_t room,
                        struct efs_error *err)
{
    const char *base, *below = "";
    if (!(base = set_variable("EXPERTFS_STATE"))) {
        if (geteuid() == 0)
            base = "/var/lib/expertfs";
        else if ((base = set_variable("XDG_STATE_HOME")) && *base == '/') /* by its specification */
            below = "/expertfs";
        else if ((base = set_variable("HOME")))
            below = "/.local/state/expertfs";
        else
            return efs_fail(err, -ENOENT, "no place for the %s: set EXPERTFS_STATE to a directory", kind);
    }
    int n = snprintf(path, room, "%s%s/%s-%016" PRIx64 ".%s", base, below, kind, content_hash, ending);
    return n >= 0 && (size_t)n < room ? 0 : efs_fail(err, -ENAMETOOLONG, "%s: the path is too long", base);
}

void efs_state_remove(uint64_t content_hash)
{
    static const char *const kinds[][2] = {
        {"profile", "json"}, {"counts", "bin"}, {"guesses", "bin"}, {"same", "txt"}, {"sources", "txt"}};
    char path[EFS_STATE_PATH_BYTES];
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (efs_state_path(kinds[i][0], content_hash, kinds[i][1], path, sizeof(path), NULL) == 0)
            efs_sys_unlinkat(AT_FDCWD, path, 0);
}

/* Cuts path to its directory part, creates missing directories and opens it. Returns a descriptor, or -errno, and path
 * is then the directory that could not be created or opened. */
static int open_directory(char *path)
{
    char *end = strrchr(path, '/');
    end[end == path] = '\0'; /* of a file in "/" that */
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char was = *p;
        *p = '\0';
        int rc = efs_sys_mkdirat(AT_FDCWD, path, 0777);
        if (rc < 0 && rc != -EEXIST)
            return rc;
        *p = was;
        if (was == '\0')
            break;
    }
    return efs_sys_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

errint_t efs_state_save(const char *path, const void *data, size_t bytes, struct efs_error *err)
{
    char directory[EFS_STATE_PATH_BYTES];
    struct efs_newfile file = {.fd = -1};
    if (strlen(path) >= sizeof(directory) || path[0] == '\0' || !strchr(path, '/'))
        return efs_fail(err, -EINVAL, "%s: not a path below a directory", path);
    memcpy(directory, path, strlen(path) + 1);
    int dir = open_directory(directory);
    if (dir >= 0)
        efs_newfile_clean(dir);
    errint_t rc = dir < 0 ? dir : efs_newfile_open(&file, dir, O_WRONLY | O_CLOEXEC);
    if (rc == 0)
        rc = efs_sys_pwrite_all(file.fd, data, bytes, 0);
    if (rc == 0)
        rc = efs_newfile_sync(&file);
    if (rc == 0)
        rc = efs_newfile_name(&file, strrchr(path, '/') + 1, true);
    errint_t closed = efs_newfile_close(&file);
    rc = rc < 0 ? rc : closed;
    if (dir >= 0)
        efs_sys_close(dir);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", dir < 0 ? directory : path, strerror(-rc)) : 0;
}
