/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h - a connection that is encrypted by TLS 1.3 with a key that both ends know. */
#ifndef EFS_TLS_H
#define EFS_TLS_H

#include "expertfs.h"

#include <time.h>

#define EFS_PEER_KEY_BYTES 64u /* most; 16 at least */

struct efs_peer_key {
    uint8_t bytes[EFS_PEER_KEY_BYTES];
    unsigned count;
};

struct efs_tls; /* a connection; one thread at a time */

/* Reads a key: a file of 32 to 128 hexadecimal digits, which no other user can read. -EACCES: another user can;
 * -EINVAL. */
errint_t efs_peer_key_read(const char *path, struct efs_peer_key *key, struct efs_error *err);
/* Loads GnuTLS. -ENOSYS: it is not installed. */
errint_t efs_tls_load(struct efs_error *err);
/* Agrees on keys with the other end of a connected non-blocking socket, which stays the caller's, until a time.
 * -EACCES: the other end has another key; -ETIMEDOUT, -EPROTO, -ENOSYS (GnuTLS is not installed), -ENOMEM. */
errint_t efs_tls_new(int fd, bool server, const struct efs_peer_key *key, const struct timespec *until,
                     struct efs_tls **tls, struct efs_error *err);
void efs_tls_free(struct efs_tls *tls); /* before the socket is closed; NULL is fine */
/* Bytes that were received and not taken yet: poll(2) does not know of them. */
size_t efs_tls_pending(const struct efs_tls *tls);
/* Sends or receives all of it. until: NULL for no limit. 0; -ETIMEDOUT, -ECONNRESET (the other end has closed), -EIO,
 * -EBADMSG (only a part was received): the connection can then not be used any more. */
errint_t efs_tls_send(struct efs_tls *tls, const void *bytes, size_t count, const struct timespec *until);
errint_t efs_tls_receive(struct efs_tls *tls, void *bytes, size_t count, const struct timespec *until);

#endif
