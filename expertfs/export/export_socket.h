/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_socket.h - where the export socket is: in a directory of its own, which only the user who mounted may enter,
 * below one for all mounts of the user ($EXPERTFS_RUN; else /run/expertfs, $XDG_RUNTIME_DIR/expertfs,
 * /tmp/expertfs-UID). Nobody else can connect, or fill its queue. A lock says that the daemon lives; the directories of
 * those that were killed are taken away by the next.
 */
#ifndef EFSD_EXPORT_SOCKET_H
#define EFSD_EXPORT_SOCKET_H

#include <limits.h>

#include "expertfs.h"

struct efsd_socket {
    int listening; /* not blocking; the rest is the file's own */
    int base, directory;
    char name[48]; /* of the directory, in base */
    char path[PATH_MAX];
};

/* Make the directory and listen. 0, or -errno with nothing left behind and the reason in err. */
errint_t efsd_socket_open(struct efsd_socket *socket, struct efs_error *err);
/* Take socket and directory away. Also of one that could not be opened. */
void efsd_socket_close(struct efsd_socket *socket);

#endif
