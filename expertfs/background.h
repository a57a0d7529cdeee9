/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - leave the terminal, but tell whoever started us first how it went: the parent waits on a pipe for
 * readiness or the reason of failure, and exits accordingly.
 */
#ifndef EFSD_BACKGROUND_H
#define EFSD_BACKGROUND_H

#include "expertfs.h"

/*
 * Fork. In the child: 0, with *status_fd the pipe to the parent. The parent does not return from this: it waits, and
 * exits 0 when the child is ready, or prints the reason and exits 1 when it failed or died. -errno: no child.
 * Call it before there are threads.
 */
errint_t efsd_background_begin(int *status_fd, struct efs_error *err);
/* In the child, once: ready. The parent exits 0; the child's terminal is gone. */
void efsd_background_ready(int status_fd);
/* In the child, once: failed. The parent prints reason and exits 1. */
void efsd_background_failed(int status_fd, const char *reason);

/* Handle SIGINT, SIGTERM and SIGHUP so, but those that are ignored, as nohup(1) has it. */
void efsd_signals_handle(void (*handler)(int number));

#endif
