/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_socket.h - the export socket. It is in a directory of mode 0700 for this mount, below a directory for all
 * mounts of the user ($EXPERTFS_RUN; else /run/expertfs for root, $XDG_RUNTIME_DIR/expertfs, or /tmp/expertfs-UID).
 * Other users, except root, can neither connect nor fill its queue. With allow_other the mode of both directories is
 * 0711, and export.c checks which users connect; $XDG_RUNTIME_DIR, which only its user may enter, is not used. The
 * daemon holds a lock on the directory; a later daemon removes directories without lock, whose daemons were killed.
 */
#ifndef EFSD_EXPORT_SOCKET_H
#define EFSD_EXPORT_SOCKET_H

#include <limits.h>
#include <stdbool.h>

#include "expertfs.h"

#define EFSD_SOCKET_CLIENTS 128 /* connections, and as many that accept(2) has not taken yet */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

struct efsd_socket {
    int listening;            /* non-blocking */
    bool refuses_descriptors; /* the kernel lets clients send none: Linux 6.16 */
    /* private: */
    int base, directory;
    char name[48]; /* name of directory in base */
    char path[PATH_MAX];
};

/* Creates the directory and the socket, and listens. allow_other: other users may connect. 0, or -errno with all
 * removed and the reason in err. */
errint_t efsd_socket_open(struct efsd_socket *socket, bool allow_other, struct efs_error *err);
/* Removes socket and directory. Allowed after efsd_socket_open() failed. */
void efsd_socket_close(struct efsd_socket *socket);

#endif
