/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - the life of one mount.
 */
#ifndef EFSD_SERVE_H
#define EFSD_SERVE_H

#include "options.h"

/* Who waits for the mount is told once: that it answers, or that a signal came before (from another thread, and the
 * process ends then). */
struct efsd_starter {
    void (*ready)(void *arg);
    void (*given_up)(void *arg, const char *reason);
    void *arg;
};
/* Everything from a checked command line to the end of the mount. 0 after a clean end, or -errno with the reason in
 * err. */
errint_t efsd_serve(const struct efsd_options *options, const struct efsd_starter *starter, struct efs_error *err);

#endif
