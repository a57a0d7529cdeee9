/* SPDX-License-Identifier: Apache-2.0 */
/* mount_choose.c - the mount that an argument names, and whether its daemon answers. */
#include "mountpoint.h"

#include "child.h"
#include "expertctl.h"

#include "cleanup.h"
#include "expertfs-private.h"
#include "hub_name.h"
#include "store_sources.h"
#include "store_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ANSWER_MS 3000

/* ---- whether a daemon answers ------------------------------------------------------------------------------------ */

static int ask(const void *path)
{
    return getxattr(path, CTL_XATTR "answer", NULL, 0) >= 0 ? 0 : errno;
}

errint_t ctl_mount_state(const char *path, int timeout_ms, bool *held)
{
    const int status = ctl_child_run(ask, path, timeout_ms, NULL, held);
    return status < 0 ? status : -status;
}

errint_t ctl_mount_check(const char *root, struct efs_error *err)
{
    errint_t rc = ctl_mount_state(root, ANSWER_MS, NULL);
    if (rc == -ENOTCONN)
        return efs_fail(err, rc,
                        "%s: the daemon of this mount has ended\nhint: `expertctl down %s` removes the mount, "
                        "`expertctl up` makes it again",
                        root, EFS_WORD(root));
    if (rc == -ETIMEDOUT)
        return efs_fail(err, rc,
                        "%s: the daemon of this mount does not answer\nhint: `expertctl down %s` removes the mount",
                        root, EFS_WORD(root));
    return 0;
}

bool ctl_mount_was_unmounted(const char *root)
{
    errint_t rc = ctl_mount_state(root, ANSWER_MS, NULL);
    bool was = rc == -ENOENT || rc == -ENODATA || rc == -EOPNOTSUPP; /* nothing of ours is at its path */
    fflush(stdout);
    if (was)
        ctl_print_line(stderr, "expertctl: %s was unmounted", root);
    return was;
}

/* ---- which mount ------------------------------------------------------------------------------------------------- */

/* An absolute path without a call on its last part, which may be a mount whose daemon hangs; "": no such folder. */
static const char *absolute_path(const char *given, char *path, size_t room)
{
    char copy[4096], any;
    size_t bytes = strlen(given);
    while (bytes > 1 && given[bytes - 1] == '/')
        bytes--;
    *path = '\0';
    if (bytes >= sizeof(copy))
        return path;
    snprintf(copy, sizeof(copy), "%.*s", (int)bytes, given);
    if (readlink(copy, &any, 1) >= 0) { /* a mount point is a directory */
        char *real = realpath(copy, NULL);
        snprintf(path, room, "%s", real ? real : "");
        free(real);
        return path;
    }
    char *slash = strrchr(copy, '/');
    if (slash)
        *slash = '\0';
    char *above = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (above)
        snprintf(path, room, "%s/%s", above[1] ? above : "", slash ? slash + 1 : copy);
    free(above);
    return path;
}

static bool path_has_name(const char *path, const char *name, bool of_store)
{
    char is[256];
    const char *last = strrchr(path, '/');
    return last &&
           (strcmp(last + 1, name) == 0 || (of_store && strcmp(ctl_store_name(last, is, sizeof(is)), name) == 0));
}

/* The absolute text of a path, without a call on it; "": the directory has none, or it does not fit. */
static const char *path_text(const char *given, char *path, size_t room)
{
    char here[4096] = "";
    const bool relative = *given != '/';
    if ((relative && !getcwd(here, sizeof(here))) ||
        (size_t)snprintf(path, room, "%s%s%s", here, relative ? "/" : "", given) >= room)
        *path = '\0';
    for (size_t bytes = strlen(path); bytes > 1 && path[bytes - 1] == '/';)
        path[--bytes] = '\0';
    return path;
}

/* Whether a path has "..", whose meaning depends on links. */
static bool path_has_up(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")); at += 2)
        if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/'))
            return true;
    return false;
}

/* The innermost mount at the path, or that contains it. */
static const struct ctl_mount *mount_around(const struct ctl_mounts *mounts, const char *path)
{
    const struct ctl_mount *best = NULL;
    for (size_t i = 0; i < mounts->count; i++) {
        const size_t bytes = strlen(mounts->mount[i].path);
        if (strncmp(path, mounts->mount[i].path, bytes) == 0 && (!path[bytes] || path[bytes] == '/') &&
            (!best || bytes >= strlen(best->path)))
            best = &mounts->mount[i];
    }
    return best;
}

const struct ctl_mount *ctl_mount_at(const struct ctl_mounts *mounts, const char *path)
{
    const struct ctl_mount *around = mount_around(mounts, path);
    return around && strcmp(around->path, path) == 0 ? around : NULL;
}

bool ctl_mount_is_of_address(const struct ctl_mount *mount, const char *given)
{
    char shown[4400];
    if (!efs_is_address(given))
        return false;
    snprintf(shown, sizeof(shown), "%s", given);
    efs_hide_secret(shown);
    return strcmp(mount->source, shown) == 0;
}

errint_t ctl_mount_choose(const struct ctl_mounts *mounts, const char *given, const struct ctl_mount **mount,
                          struct efs_error *err)
{
    char path[8192], names[512] = "", hub[512];
    const char *best = NULL, *name = ctl_hub_name(given, hub, sizeof(hub)) ? hub : given;
    size_t found = 0;
    const struct ctl_mount *around =
        path_has_up(given) ? NULL : mount_around(mounts, path_text(given, path, sizeof(path)));
    if (!around)
        around = mount_around(mounts, absolute_path(given, path, sizeof(path)));
    if (around && strcmp(around->path, path) == 0) {
        *mount = around;
        return 0;
    }
    for (int of_store = 0; of_store < 2 && !found && !strchr(name, '/'); of_store++) /* mount points before stores */
        for (size_t i = 0; i < mounts->count; i++) {
            const struct ctl_mount *is = &mounts->mount[i];
            const char *last = strrchr(is->path, '/');
            if (!is->usable && geteuid() != 0) /* of another user */
                continue;
            best = last ? efs_nearer_word(name, best, last + 1) : best;
            if (!path_has_name(of_store ? is->source : is->path, name, of_store))
                continue;
            ctl_list_add(names, sizeof(names), is->path);
            found++;
            *mount = is;
        }
    if (found == 1)
        return 0;
    if (found)
        return efs_fail(err, -E2BIG, "%s: which mount? there are %s", given, names);
    for (size_t i = 0; i < mounts->count; i++)
        if (ctl_mount_is_of_address(&mounts->mount[i], given) ||
            ctl_sources_is_of(mounts->mount[i].source, given)) { /* packed from a model of another name */
            *mount = &mounts->mount[i];
            return 0;
        }
    errint_t rc = around ? ctl_mount_state(path, ANSWER_MS, NULL) : -ENOENT;
    if (rc != -ENOENT && rc != -ENOTDIR) {
        *mount = around;
        return 0;
    }
    snprintf(path, sizeof(path), "%s", given);
    efs_hide_secret(path);
    if (best)
        return efs_fail(err, -ENOENT, "%s: no mount of expertfs\nhint: did you mean %s?", path, best);
    return efs_fail(err, -ENOENT, "%s: no mount of expertfs\nhint: `expertctl ls` lists the mounts", path);
}

errint_t ctl_mount_check_above(const char *given, struct efs_error *err)
{
    char path[8192];
    struct ctl_mounts mounts;
    struct efs_error ignored;
    if (ctl_mounts_find(&mounts, &ignored) < 0) /* no /proc: the mount is found by the device of its folders */
        return 0;
    const struct ctl_mount *around = mount_around(&mounts, path_text(given, path, sizeof(path)));
    errint_t rc = around ? ctl_mount_check(around->path, err) : 0;
    ctl_mounts_free(&mounts);
    return rc;
}

/* The root of the mount that contains path, by the device of the folders above it. */
static errint_t mount_above(const char *path, char **root, struct efs_error *err)
{
    struct stat here, above;
    cleanup_free char *at = NULL;
    char *slash;
    errint_t rc = efs_absolute_path(path, &at, err);
    if (rc < 0)
        return rc;
    cleanup_free char *up = strdup(at);
    if (!up || stat(at, &here) < 0) {
        rc = -errno;
        return efs_fail(err, rc, "%s: %s%s", path, strerror(-rc),
                        rc == -EACCES ? "\nhint: without -o allow_other only the user who mounted it may use a mount"
                                      : "");
    }
    while (up[1] && (slash = strrchr(up, '/'))) {
        slash[slash == up] = '\0';
        if (stat(up, &above) < 0 || above.st_dev != here.st_dev)
            break;
        strcpy(at, up);
    }
    if (!ctl_is_mount(at))
        return efs_fail(err, -ENODEV, "%s: not in a mount of expertfs\nhint: %s`expertctl ls` shows the mounts", path,
                        S_ISREG(here.st_mode) ? "a store is mounted first: expertfs STORE MOUNTPOINT; " : "");
    *root = tools_steal(&at);
    return 0;
}

errint_t ctl_mount_of(const char *given, char **root, struct efs_error *err)
{
    struct ctl_mounts mounts;
    const struct ctl_mount *mount;
    struct efs_error why;
    *root = NULL;
    errint_t rc = ctl_mount_check_above(given, err);
    if (rc == 0)
        rc = mount_above(given, root, err);
    if ((rc != -ENODEV && rc != -ENOENT) || ctl_mounts_find(&mounts, &why) < 0)
        return rc;
    errint_t named = ctl_mount_choose(&mounts, given, &mount, &why);
    if (named == 0) {
        rc = ctl_mount_check(mount->path, err);
        *root = rc == 0 ? strdup(mount->path) : NULL;
        if (rc == 0 && !*root)
            rc = efs_fail(err, -ENOMEM, "no memory");
    } else if (named == -E2BIG || (rc == -ENOENT && !strchr(given, '/'))) {
        rc = named;
        *err = why;
    }
    ctl_mounts_free(&mounts);
    return rc;
}

errint_t ctl_mount_only(char **root, struct efs_error *err)
{
    struct ctl_mounts mounts;
    char names[512] = "";
    size_t usable = 0;
    *root = NULL;
    errint_t rc = ctl_mounts_find(&mounts, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < mounts.count; i++) {
        if (!mounts.mount[i].usable)
            continue;
        ctl_list_add(names, sizeof(names), mounts.mount[i].path);
        if (usable++ == 0)
            *root = strdup(mounts.mount[i].path);
    }
    if (usable != 1 || !*root) {
        rc = usable > 1 ? efs_fail(err, -E2BIG, "which mount? there are %s", names)
             : usable == 1
                 ? efs_fail(err, -ENOMEM, "no memory")
                 : efs_fail(err, -ENOENT, "there is no mount of expertfs%s", mounts.count ? " that you may read" : "");
    }
    ctl_mounts_free(&mounts);
    if (rc == 0)
        rc = ctl_mount_check(*root, err);
    if (rc < 0) {
        free(*root);
        *root = NULL;
    }
    return rc;
}
