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

/* unmount.c: as many open files as this process may have (an expert that is open by passthrough has one, and each
 * client), but for some that are kept for the unmount. */
void efsd_session_limit_files(void);
/* Sets daemon->device, by which the mount is found again. */
void efsd_session_identify(struct efsd *daemon);
/* Unmount wherever the mount is now, also with open files (lazily: they are still served). What is hidden by another
 * mount cannot be unmounted: the log has its path. Nothing where there is no session. */
void efsd_session_detach(const struct efsd *daemon);
/* End the connection, so that readers of what is still open get errors, and free the session. */
void efsd_session_end(struct efsd *daemon);

/* readahead.c: raise the mount's read-ahead where allowed; fills readahead_bytes and readahead_note. Asks the
 * mount for nothing, so that it can be called before there are receiving threads. */
void efsd_raise_readahead(struct efsd *daemon);

#endif
