/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - the life of one mount.
 */
#ifndef EFSD_SERVE_H
#define EFSD_SERVE_H

#include "options.h"

/* Everything from a checked command line to the end of the mount. Until it is mounted SIGTERM, SIGINT and SIGHUP do
 * what they do by default: they end the process at once, also while it waits for a file system that does not answer.
 * status_fd: who waits for the mount is told there that it is ready (background.h); negative: nobody. 0 after a clean
 * end, or -errno with the reason in err: then status_fd was not used. */
errint_t efsd_serve(const struct efsd_options *options, int status_fd, struct efs_error *err);

#endif
