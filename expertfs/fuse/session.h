/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - the connection to the kernel: mount and INIT exchange, receiving threads, unmount.
 *
 * fuse/ answers the requests of the kernel: session, operations, opens, reads, passthrough. Only expertfs/serve.c calls
 * it, to start and stop it. It never waits for a read of the store (a worker of the engine answers later), and is never
 * called by another room.
 */
#ifndef EFSD_SESSION_H
#define EFSD_SESSION_H

#include "mount.h"

/* Checks the usual reasons why a mount on options.mountpoint is refused, without a store. 0, or -errno with the reason
 * and a hint in err. */
errint_t efsd_session_check(const struct efsd *daemon, struct efs_error *err);
errint_t efsd_session_mount(struct efsd *daemon, struct efs_error *err);
errint_t efsd_session_start(struct efsd *daemon, struct efs_error *err);
/* Stops and joins the receiving threads. Replies can still be sent. */
void efsd_session_stop(struct efsd *daemon);

/* unmount.c: raises the soft limit of open files to the hard limit (an expert that is open by passthrough has a
 * descriptor, and each client), minus a few that are reserved for the unmount. */
void efsd_session_limit_files(void);
/* Sets daemon->device, which identifies the mount in the mount table. */
void efsd_session_identify(struct efsd *daemon);
/* Lazily unmounts the mount at all its paths: open files are still served. A mount that is hidden by another mount
 * cannot be unmounted: its path is logged. No effect without a session. */
void efsd_session_detach(const struct efsd *daemon);
/* Ends the connection, so that reads of open files fail, and frees the session. */
void efsd_session_end(struct efsd *daemon);

/* readahead.c: sets the mount's read-ahead if allowed, and readahead_bytes and readahead_note. Sends no request to the
 * mount, so it can be called before the receiving threads are started. */
void efsd_raise_readahead(struct efsd *daemon);

#endif
