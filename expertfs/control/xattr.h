/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.h - tuning through extended attributes.
 */
#ifndef EFSD_XATTR_H
#define EFSD_XATTR_H

#include <pthread.h>

#include "mount.h"
#include "options.h"

/* Counts of the messages that were written to a file or sent over the socket. */
struct efsd_messages {
    uint64_t accepted, refused;
    char refused_last[400]; /* reason of the last refusal; "": none */
};

struct efsd_tuning {
    char at_mount[EFS_TUNABLES][128]; /* values that removexattr(2) restores */
    pthread_mutex_t lock;             /* guards the fields below */
    char answer[1400];                /* result of the last change or invalid request: "ok", a note, or the error */
    struct efsd_messages wants, hints;
};
/* Stores the current settings as the values that removexattr(2) restores. 0 or -errno. */
errint_t efsd_tuning_init(struct efsd *daemon);
void efsd_answer(struct efsd *daemon, const char *text);

void efsd_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t room);
void efsd_listxattr(fuse_req_t req, fuse_ino_t ino, size_t room);
void efsd_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void efsd_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

#endif
