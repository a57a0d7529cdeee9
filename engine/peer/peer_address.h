/* SPDX-License-Identifier: Apache-2.0 */
/* peer_address.h - sockets of HOST:PORT. A host may be a name, 10.0.0.1, or [::1]. */
#ifndef EFS_PEER_ADDRESS_H
#define EFS_PEER_ADDRESS_H

#include "expertfs.h"

#include <time.h>

/* Both are non-blocking. A host of several addresses: the first that works. */
errint_t efs_peer_listen(const char *address, int *fd, struct efs_error *err);
errint_t efs_peer_connect(const char *address, const struct timespec *until, int *fd, struct efs_error *err);
unsigned efs_peer_port(int fd); /* 0: not known */

#endif
