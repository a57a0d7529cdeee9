/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - experts for processes of this machine over a socket, without a file each: efs_export_ask and
 * efs_export_answer of expertfs-protocol.h. Who mounted it, and root, may connect.
 */
#ifndef EFSD_EXPORT_H
#define EFSD_EXPORT_H

#include "expertfs.h"

struct efsd;
struct efsd_export;

/* Make the socket, before the mount: its folder may be below the mountpoint, and a look-up on a mount that is not
 * served yet is never answered. -errno with the reason in err. */
errint_t efsd_export_open(struct efsd *daemon, struct efsd_export **export, struct efs_error *err);
/* Take clients. */
errint_t efsd_export_start(struct efsd_export *export);
/* No call into the engine is made any more, but of those whose lease comes. Before efs_close(). */
void efsd_export_stop(struct efsd_export *export);
/* After efs_close(). NULL is fine. */
void efsd_export_free(struct efsd_export *export);
/* The path of the socket; "-": there is none. */
const char *efsd_export_address(const struct efsd_export *export);

#endif
