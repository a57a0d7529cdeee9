/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - runs one mount.
 */
#ifndef EFSD_SERVE_H
#define EFSD_SERVE_H

#include "options.h"

/*
 * Runs a mount from the checked command line until it is unmounted. Until the file system is mounted SIGTERM, SIGINT
 * and SIGHUP have their default action, so they kill the process even while it waits for a file system that does not
 * respond. status_fd: pipe on which efsd_background_ready() reports that the mount is ready; negative: none. 0 after a
 * clean end, or -errno with the reason in err: status_fd is then still open and unused.
 */
errint_t efsd_serve(const struct efsd_options *options, int status_fd, struct efs_error *err);

#endif
