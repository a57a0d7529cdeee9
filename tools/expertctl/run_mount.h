/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_mount.h - a mount in a temporary folder that is unmounted when the process that made it ends, even by SIGKILL:
 * the supervisor, a child process, unmounts when the kernel closes the pipe from its parent.
 */
#ifndef EXPERTCTL_RUN_MOUNT_H
#define EXPERTCTL_RUN_MOUNT_H

#include "expertfs.h"

#include <signal.h>
#include <sys/types.h>

struct ctl_run_mount {
    char folder[4096]; /* temporary, mode 0700; "": no mount */
    char path[4104];   /* the mount point, in folder */
    pid_t supervisor;
    int life; /* close-on-exec; the supervisor unmounts when this end of the pipe is closed */
};

/* Mounts the store with options as of -o (NULL: none). Blocks until the mount is ready. -ENODEV: the daemon failed and
 * has printed the reason; else -errno. */
errint_t ctl_run_mount_begin(struct ctl_run_mount *mount, const char *store, const char *options,
                             struct efs_error *err);
/* Unmounts and waits for the supervisor, which waits up to 30 s for the daemon. Does nothing for a zeroed struct. */
void ctl_run_mount_end(struct ctl_run_mount *mount);

/* Whether this user can open /dev/fuse, and unmount what they mount: fusermount3 (3.14) mounts without /etc/mtab, but
 * does not unmount, and libfuse finds it outside PATH. 0 or -errno. */
errint_t ctl_check_mount(struct efs_error *err);
/* The first half of it. */
errint_t ctl_check_device(struct efs_error *err);
enum ctl_program_how {
    CTL_PROGRAM_PLAIN = 0,
    CTL_PROGRAM_QUIET = 1,  /* without its standard output */
    CTL_PROGRAM_SESSION = 2 /* in a session of its own: signals of the terminal do not reach it */
};
/* Runs a program of expertfs, words[0], from this program's folder or PATH, with this signal mask, and waits for it.
 * Returns its wait status, -1 if fork() failed. Prints why exec failed, and which signal has ended the program. */
int ctl_program_run(const char *const *words, const sigset_t *mask, enum ctl_program_how how);
/* The folder of this program's file, by /proc/self/exe; "": unknown. Returns path. */
const char *ctl_program_folder(char *path, size_t room);

#endif
