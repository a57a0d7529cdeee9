/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_mount.h - a mount for one program, in a temporary folder, that ends with the process that made it, however that
 * ends. The supervisor, a child process, unmounts when the pipe from its parent is closed, be it by SIGKILL.
 */
#ifndef EXPERTCTL_RUN_MOUNT_H
#define EXPERTCTL_RUN_MOUNT_H

#include "expertfs.h"

#include <sys/types.h>

struct ctl_run_mount {
    char folder[4096]; /* ours, 0700; "": there is none */
    char path[4104];   /* in it, where the store is mounted */
    pid_t supervisor;
    int life; /* close-on-exec; the supervisor unmounts when this end of the pipe is closed */
};

/* Mount the store, with options as -o takes them (NULL: none). Blocks until the mount is ready. The daemon prints why
 * it fails: -ENODEV then. */
errint_t ctl_run_mount_begin(struct ctl_run_mount *mount, const char *store, const char *options,
                             struct efs_error *err);
/* Unmount, and wait for the daemon. A zeroed one is fine. */
void ctl_run_mount_end(struct ctl_run_mount *mount);

/* The folder that this program is in, "" if that is not known. */
const char *ctl_program_folder(char *path, size_t room);

#endif
