/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include "expertfs-pack.h"
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Cut path to its folder; false for "/". */
static bool to_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || !path[1])
        return false;
    slash[slash == path] = '\0';
    return true;
}

errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err)
{
    struct stat here, above;
    char *at = realpath(path, NULL);
    char *up = at ? strdup(at) : NULL;
    if (!up || stat(at, &here) < 0) {
        errint_t rc = -errno;
        free(at);
        free(up);
        return efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    while (to_parent(up) && stat(up, &above) == 0 && above.st_dev == here.st_dev)
        strcpy(at, up);
    free(up);
    if (!ctl_is_mount(at)) {
        free(at);
        return efs_fail(err, -ENODEV,
                        "%s: not in a mount of expertfs that can be tuned; %s`expertctl list' shows the mounts", path,
                        S_ISREG(here.st_mode) ? "a store is mounted first: expertfs STORE MOUNTPOINT; " : "");
    }
    *root = at;
    return 0;
}

char *ctl_mount_text(const char *root, const char *file)
{
    char name[4200], *text = NULL;
    size_t room = 0;
    snprintf(name, sizeof(name), "%s/.expertfs/%s", root, file);
    FILE *f = fopen(name, "re");
    if (f && getdelim(&text, &room, '\0', f) <= 0) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

bool ctl_is_mount(const char *path)
{
    return getxattr(path, CTL_XATTR "answer", NULL, 0) >= 0;
}

errint_t ctl_store_open(const char *path, struct efs_store **store, struct efs_error *err)
{
    errint_t rc = efs_store_open(path, store, err);
    char *config = rc == -EISDIR ? ctl_mount_text(path, "config") : NULL;
    const char *value = config ? tools_line_value(config, "store") : NULL;
    char *name = value ? strndup(value, strcspn(value, "\n")) : NULL;
    if (name) {
        tools_line_unescape(name);
        efs_fail(err, rc, "%s: is a mount; its store is %s; `expertctl get` and `top` read mounts", path, name);
    }
    free(name);
    free(config);
    return rc;
}

/* Undo mountinfo's escapes (\\040 for a blank and the like) in place. */
static void table_unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        bool escaped = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        *to = escaped ? (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0')) : *from;
        from += escaped ? 4 : 1;
    }
    *to = '\0';
}

bool ctl_mount_is_there(const char *path, int id)
{
    char name[64], line[64];
    int fd = open(path, O_PATH | O_CLOEXEC), found = -1;
    snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", fd);
    FILE *info = fd < 0 ? NULL : fopen(name, "re");
    while (info && found < 0 && fgets(line, sizeof(line), info))
        sscanf(line, "mnt_id: %d", &found);
    if (info)
        fclose(info);
    if (fd >= 0)
        close(fd);
    return found == id;
}

/* A line of mountinfo: NULL, or the path of a mount of expertfs as a whole, for free(). Bind mounts of a folder of it
 * have no .expertfs. */
static char *mounts_take(const char *line, int *id, dev_t *device)
{
    unsigned major_number, minor_number;
    char *path = NULL;
    const char *type = strstr(line, " - fuse.expertfs ");
    if (type && sscanf(line, "%d %*d %u:%u / %ms", id, &major_number, &minor_number, &path) == 4) {
        table_unescape(path);
        *device = makedev(major_number, minor_number);
        if (ctl_mount_is_there(path, *id))
            return path;
    }
    free(path);
    return NULL;
}

errint_t ctl_mounts_find(struct ctl_mounts *mounts, struct efs_error *err)
{
    FILE *table = fopen("/proc/self/mountinfo", "re");
    dev_t *devices = NULL; /* of the paths: a bind mount of the whole is the same mount once more */
    char *line = NULL;
    size_t room = 0;
    errint_t rc = 0;
    *mounts = (struct ctl_mounts){.count = 0};
    if (!table)
        return efs_fail(err, -errno, "/proc/self/mountinfo: %s", strerror(errno));
    while (rc == 0 && getline(&line, &room, table) > 0) {
        dev_t device;
        int id;
        char *path = mounts_take(line, &id, &device);
        size_t same = 0;
        while (path && same < mounts->count && devices[same] != device)
            same++;
        if (!path || same < mounts->count) {
            free(path);
            continue;
        }
        char **paths = reallocarray(mounts->paths, mounts->count + 1, sizeof(*paths));
        mounts->paths = paths ? paths : mounts->paths;
        int *ids = reallocarray(mounts->ids, mounts->count + 1, sizeof(*ids));
        mounts->ids = ids ? ids : mounts->ids;
        dev_t *more = reallocarray(devices, mounts->count + 1, sizeof(*more));
        devices = more ? more : devices;
        if (paths && ids && more) {
            devices[mounts->count] = device;
            mounts->ids[mounts->count] = id;
            mounts->paths[mounts->count++] = path;
        } else {
            free(path);
            rc = efs_fail(err, -ENOMEM, "no memory for the mounts");
        }
    }
    free(line);
    free(devices);
    fclose(table);
    if (rc < 0)
        ctl_mounts_free(mounts);
    return rc;
}

void ctl_mounts_free(struct ctl_mounts *mounts)
{
    for (size_t i = 0; i < mounts->count; i++)
        free(mounts->paths[i]);
    free(mounts->paths);
    free(mounts->ids);
    *mounts = (struct ctl_mounts){.count = 0};
}

errint_t ctl_mount_only(char **root, struct efs_error *err)
{
    struct ctl_mounts mounts;
    char names[512] = "";
    *root = NULL;
    errint_t rc = ctl_mounts_find(&mounts, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0, used = 0; i < mounts.count && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", mounts.paths[i]);
    if (mounts.count == 1) {
        *root = mounts.paths[0];
        mounts.count = 0; /* it is the caller's now */
    } else {
        rc = mounts.count ? efs_fail(err, -E2BIG, "which mount? there are %s", names)
                          : efs_fail(err, -ENOENT, "there is no mount of expertfs");
    }
    ctl_mounts_free(&mounts);
    return rc;
}

void ctl_mount_answer(const char *root, char *text, size_t room)
{
    ssize_t n = getxattr(root, CTL_XATTR "answer", text, room - 1);
    text[n < 0 ? 0 : n] = '\0';
}
