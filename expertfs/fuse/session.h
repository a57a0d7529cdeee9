/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - the connection to the kernel: mount and exchange INIT; then threads; then the end.
 */
#ifndef EFSD_SESSION_H
#define EFSD_SESSION_H

#include "mount.h"

/* May this process mount on options.mountpoint? What a mount is usually refused for, known without a store. */
errint_t efsd_session_check(const struct efsd *daemon, struct efs_error *err);
errint_t efsd_session_mount(struct efsd *daemon, struct efs_error *err);
errint_t efsd_session_start(struct efsd *daemon, struct efs_error *err);
/* Ask the threads to end and join them. Replies can still be sent. */
void efsd_session_stop(struct efsd *daemon);
/* Unmount, also with open files (lazily: their readers get errors from now on), and free the session. */
void efsd_session_end(struct efsd *daemon);

/* readahead.c: raise the mount's read-ahead where allowed; fills device, readahead_bytes and readahead_note. Asks the
 * mount for nothing, so that it can be called before there are receiving threads. */
void efsd_raise_readahead(struct efsd *daemon);

#endif
