/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - run the daemon in the background. The parent process waits on a pipe until the child reports that it
 * is ready or why it failed, and exits with the matching status.
 */
#ifndef EFSD_BACKGROUND_H
#define EFSD_BACKGROUND_H

#include "expertfs.h"

/* Forks. In the child: returns 0 with *status_fd set to the write end of the pipe to the parent, or -errno of
 * chdir("/"). In the parent: does not return; it waits, and exits 0 when the child is ready, or prints the reason and
 * exits 1 when the child failed or died. -errno also if no child could be created. Call before starting threads. */
errint_t efsd_background_begin(int *status_fd, struct efs_error *err);
/* Call once, in the child: reports that the daemon is ready, so the parent exits 0. Redirects standard input, output
 * and error to /dev/null. */
void efsd_background_ready(int status_fd);
/* Call once, in the child: reports a failure. The parent prints reason and exits 1. */
void efsd_background_failed(int status_fd, const char *reason);

/* Installs handler for SIGINT, SIGTERM and SIGHUP, except those that are ignored, as by nohup(1). */
void efsd_signals_handle(void (*handler)(int number));

#endif
