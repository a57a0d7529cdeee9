/* SPDX-License-Identifier: Apache-2.0 */
/* down.c - expertctl down MNT|NAME|--all: unmounts, and waits for the daemon to end. */
#include "expertctl.h"

#include "daemon.h"
#include "expertfs-private.h"
#include "mountpoint.h"
#include "mountpoint_lock.h"
#include "options.h"
#include "run_mount.h"
#include "stores.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

struct arguments {
    struct tools_arguments given; /* MNT|NAME... */
    bool all, lazy, json;
};

static void check_arguments(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (a->all && a->given.count)
        argp_error(state, "%s: --all takes no mount", a->given.word[0]);
    if (!a->all && !a->given.count)
        argp_error(state, "MNT is needed");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"all", 'a', NULL, "Unmount all mounts of this user", TOOLS_FLAG, .at = AT(all)},
    {"lazy", 'l', NULL, "Detach a mount that is in use; it ends when the last program closes its files", TOOLS_FLAG,
     .at = AT(lazy)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[MNT|NAME]...",
    .help =
        "Unmount, and wait until the daemon has saved what it learned. MNT is a mount point or a path in a mount, NAME "
        "the last part of a mount point, or the name of a store. Nothing is printed when all is done.\v"
        "Examples:\n"
        "  expertctl down Qwen--Qwen3-30B-A3B\n"
        "  expertctl down --lazy /mnt\n"
        "  expertctl down --all",
    .at = AT(given),
    .finish = check_arguments};

/* ---- unmounting -------------------------------------------------------------------------------------------------- */

/* Whether it was unmounted meanwhile, such as by another `down`. */
static bool mount_is_gone(const struct ctl_mount *mount)
{
    struct ctl_mounts now;
    struct efs_error ignored;
    if (ctl_mounts_find(&now, &ignored) < 0)
        return false;
    bool gone = true;
    for (size_t i = 0; i < now.count; i++)
        gone = gone && now.mount[i].device != mount->device;
    ctl_mounts_free(&now);
    return gone;
}

static errint_t unmount_once(const struct ctl_mount *mount, bool lazy)
{
    const char *const words[] = {"fusermount3", lazy ? "-uzq" : "-uq", "--", mount->path, NULL};
    if (umount2(mount->path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
        return 0;
    errint_t rc = -errno;
    if (rc != -EPERM || mount->user != geteuid())
        return rc;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    return ctl_program_run(words, &mask, CTL_PROGRAM_QUIET) == 0 ? 0 : -EBUSY; /* it says no more */
}

/* Another `down`, `status` or df(1) is in the mount for an instant, and two that unmount it at once are in each other's
 * way: so a mount that is in use is tried again, for .6 seconds in all. */
static errint_t unmount(const struct ctl_mount *mount, bool lazy, bool hangs, struct efs_error *err)
{
    errint_t rc = unmount_once(mount, lazy);
    for (useconds_t pause = 10000; rc == -EBUSY && !hangs && pause <= 320000 && !mount_is_gone(mount); pause *= 2) {
        usleep(pause);
        rc = unmount_once(mount, lazy);
    }
    if (rc == 0 || mount_is_gone(mount))
        return 0;
    if (rc == -EPERM)
        return efs_fail(err, rc, "%s: only the user who mounted it, and root, may unmount it", mount->path);
    if (rc == -EBUSY)
        return efs_fail(err, rc,
                        "%s: in use%s\nhint: `fuser -vm %s` names the programs; --lazy detaches it until they end",
                        mount->path, hangs ? ", and its daemon does not answer" : "", EFS_WORD(mount->path));
    return efs_fail(err, rc, "%s: %s", mount->path, strerror(-rc));
}

/* Removes the mount point that `up` made: an empty folder in a default folder of stores, or next to its store with the
 * name of the store, with or without the checksum. */
static void mountpoint_remove(const struct ctl_mount *mount)
{
    char folder[4096] = "", own[4096], name[256];
    struct efs_error ignored;
    const char *slash = strrchr(mount->path, '/'), *store = strrchr(mount->source, '/');
    size_t above = slash ? (size_t)(slash - mount->path) : 0;
    bool beside = slash && store && (size_t)(store - mount->source) == above &&
                  strncmp(mount->path, mount->source, above) == 0 &&
                  (strcmp(ctl_store_name(mount->source, name, sizeof(name)), slash + 1) == 0 ||
                   strcmp(ctl_store_stem(mount->source, name, sizeof(name)), slash + 1) == 0);
    if (!beside)
        ctl_stores_folder(NULL, folder, sizeof(folder), &ignored);
    ctl_stores_own(folder, false, own, sizeof(own));
    if (beside || (strlen(folder) == above && strncmp(mount->path, folder, above) == 0) ||
        (strlen(own) == above && strncmp(mount->path, own, above) == 0))
        ctl_mountpoint_remove(mount->path);
}

/* The mount of a daemon that hangs is detached if it is in use by the request that asked whether it hangs: the daemon
 * has taken that request, which then cannot be cancelled. */
errint_t ctl_mount_end(const struct ctl_mount *mount, bool lazy, struct efs_error *err)
{
    struct ctl_daemon daemon = {.pidfd = -1};
    if (!lazy)
        ctl_daemon_find(mount, &daemon);
    errint_t rc = unmount(mount, lazy, daemon.hangs, err);
    if (rc == -EBUSY && daemon.holds_probe)
        rc = unmount(mount, true, true, err);
    if (rc == 0 && daemon.pidfd >= 0)
        ctl_daemon_wait(mount, &daemon);
    else if (rc == 0 && daemon.hangs)
        ctl_print_line(stderr,
                       "expertctl: warning: %s: unmounted, but its daemon, which does not answer, may still run",
                       mount->path);
    if (daemon.pidfd >= 0)
        close(daemon.pidfd);
    if (rc == 0)
        mountpoint_remove(mount);
    return rc;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int down_run(int argc, char **argv)
{
    struct arguments a = {.all = false};
    struct ctl_mounts mounts;
    struct efs_error err = {""};
    int status = CTL_OK;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_mounts_find(&mounts, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    json_t *done = json_array();
    for (size_t i = a.all ? mounts.count : a.given.count; i-- > 0;) { /* a mount inside another one was made later */
        const struct ctl_mount *mount = a.all ? &mounts.mount[i] : NULL;
        if (a.all && mount->user != geteuid())
            continue;
        rc = a.all ? 0 : ctl_mount_choose(&mounts, a.given.word[i], &mount, &err);
        if (rc == 0)
            rc = ctl_mount_end(mount, a.lazy, &err);
        if (rc < 0)
            status = ctl_fail(rc, &err);
        else
            json_array_append_new(done, json_pack("{s:o, s:o}", "mountpoint", ctl_json_text(mount->path), "store",
                                                  ctl_json_text(mount->source)));
    }
    ctl_mounts_free(&mounts);
    if (a.json && ctl_print_json(json_pack("{s:O}", "unmounted", done)) != CTL_OK)
        status = CTL_FAILED;
    json_decref(done);
    return status;
}

const struct ctl_command ctl_down = {"down", "unmount", down_run};
