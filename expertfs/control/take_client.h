/* SPDX-License-Identifier: Apache-2.0 */
/*
 * take_client.h - .expertfs/handout is written by a program that cannot reach the socket of the mount, as in a
 * container in which only the mount is visible: with the number of one end of a socketpair(2), which the daemon then
 * takes from it.
 */
#ifndef EFSD_TAKE_CLIENT_H
#define EFSD_TAKE_CLIENT_H

#include "mount.h"

/* Takes the descriptor that the caller of the request names, and gives it to the socket's thread. text: a decimal
 * number. -EINVAL: no number, or not such a socket; -EPERM: the kernel refuses it to this user; -errno. Does not block.
 */
errint_t efsd_take_client(struct efsd *daemon, fuse_req_t req, const char *text, size_t bytes);

#endif
