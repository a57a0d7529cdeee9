/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_mount.h - a mount for one program: made below the folder for temporary files, and gone with the process that
 * wanted it, however that ends. A keeper, a process of its own, has the daemon as its child and ends it when the pipe
 * from who wanted the mount is closed, be it by SIGKILL.
 */
#ifndef EXPERTCTL_RUN_MOUNT_H
#define EXPERTCTL_RUN_MOUNT_H

#include "expertfs.h"

#include <signal.h>
#include <sys/types.h>

struct ctl_run_mount {
    char folder[4096]; /* ours, 0700; "": there is none */
    char path[4104];   /* in it, where the store is mounted */
    pid_t keeper;
    int life;   /* the keeper ends when nobody has this open; close-on-exec */
    int signal; /* that has come while it was mounted */
};

/*
 * Mount the store, with options as -o has them (NULL: none). The daemon's messages go to standard error, but for those
 * that it mounts and unmounts. mask: the signals that it has blocked. A signal that signal_fd tells of gives up, unless
 * it is SIGCHLD: -EINTR. Blocks until the mount is ready. -ENODEV: the daemon has said why not.
 */
errint_t ctl_run_mount_begin(struct ctl_run_mount *mount, const char *store, const char *options, const sigset_t *mask,
                             int signal_fd, struct efs_error *err);
/* Unmount, and wait until nothing is left. A zeroed one is fine. */
void ctl_run_mount_end(struct ctl_run_mount *mount);

/* The folder that this program is in, "" if that is not known. */
const char *ctl_program_folder(char *path, size_t room);

#endif
