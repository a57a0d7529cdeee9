/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.h - tuning by xattrs.
 */
#ifndef EFSD_XATTR_H
#define EFSD_XATTR_H

#include <pthread.h>

#include "mount.h"
#include "options.h"

/* Messages written to a file, or sent over the socket. */
struct efsd_messages {
    uint64_t taken, refused;
    char refused_last[400]; /* why; "": none was */
};

struct efsd_tuning {
    char at_mount[EFSD_TUNABLES][128]; /* what removing an xattr goes back to */
    pthread_mutex_t lock;              /* guards what is below */
    char answer[1400];                 /* what became of the last change or wrong request: "ok", or why not */
    struct efsd_messages wants, hints;
};
/* What is set now is what removing an xattr goes back to. */
errint_t efsd_tuning_init(struct efsd *daemon);
void efsd_answer(struct efsd *daemon, const char *text);

void efsd_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t room);
void efsd_listxattr(fuse_req_t req, fuse_ino_t ino, size_t room);
void efsd_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void efsd_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

#endif
