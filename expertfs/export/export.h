/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - the export socket.
 *
 * export/ passes experts to processes of this machine over a socket. Only
 * expertfs/serve.c calls it, to start and stop it. It never calls libfuse, and never blocks on a client: packets are
 * sent and received with MSG_DONTWAIT.
 *
 * The packets are those of expertfs-protocol.h. Root and the user who mounted may connect; with allow_other, the users
 * that may read the files. Names that users see have
 * the word handout instead of export: the file .expertfs/handout, the socket and the counters.
 */
#ifndef EFSD_EXPORT_H
#define EFSD_EXPORT_H

#include <stdio.h>

#include "expertfs.h"

struct efsd;
struct efsd_export;

/* Creates the socket. Call before the mount: the socket's directory may be below the mountpoint, and a look-up in a
 * mount that is not yet served never returns. -errno with the reason in err. */
errint_t efsd_export_open(struct efsd *daemon, struct efsd_export **export, struct efs_error *err);
/* Starts the thread that serves clients. 0 or -errno. */
errint_t efsd_export_start(struct efsd_export *export);
/* Stops the thread and shuts down all connections. Afterwards the export calls into the engine only in completions of
 * requests in flight. Call before efs_close(). NULL: no effect. */
void efsd_export_stop(struct efsd_export *export);
/* Call after efs_close(). NULL: no effect. */
void efsd_export_free(struct efsd_export *export);
/* Connects a client of this user by a descriptor, which this call takes: a socket as the listening one has, which the
 * client has made. Else it is closed. -EAGAIN: too many are on the way. Any thread; does not block. */
errint_t efsd_export_take(struct efsd_export *export, int fd, uid_t user);
/* Prints a row for each connected client: pid, uid, time of connecting, experts requested and held. Any thread. */
void efsd_export_print_clients(struct efsd_export *export, FILE *out);
/* Memory of a mount with this budget for packets that clients do not read; bytes. */
size_t efsd_export_unsent_max(uint64_t budget_bytes);
/* Path of the socket; "-" if export is NULL. */
const char *efsd_export_address(const struct efsd_export *export);

#endif
