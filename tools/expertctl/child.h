/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - calls that may hang, in a child process. */
#ifndef EXPERTCTL_CHILD_H
#define EXPERTCTL_CHILD_H

#include <stdbool.h>

/*
 * Runs call(arg) in a child process, in which standard output is a pipe and no other file is open, so that a reader of
 * this process's output need not wait for it. Gives up when the child has printed nothing for timeout_ms, and kills it:
 * a call on a mount whose daemon hangs ends only by SIGKILL, and after the daemon has taken the request not even then.
 * *held unless NULL: it did not, and its request keeps the mount in use. *text unless NULL: the child's output, or
 * NULL; the caller frees it. Returns what call() returned, 0 to 255; -ETIMEDOUT; -EIO: a signal ended it; -errno.
 */
int ctl_child_run(int (*call)(const void *arg), const void *arg, int timeout_ms, char **text, bool *held);

#endif
