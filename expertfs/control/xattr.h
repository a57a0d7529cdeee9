/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.h - tuning by xattrs.
 */
#ifndef EFSD_XATTR_H
#define EFSD_XATTR_H

#include <pthread.h>

#include "mount.h"
#include "options.h"

struct efsd_tuning {
    char at_mount[EFSD_TUNABLES][128];         /* what removing an xattr goes back to */
    pthread_mutex_t lock;                      /* guards the texts below */
    char answer[1400];                         /* what became of the last change or wrong request: "ok", or why not */
    char want_refused[400], hint_refused[400]; /* why the last message that was refused was; "": none was */
};
/* What is set now is what removing an xattr goes back to. */
errint_t efsd_tuning_init(struct efsd *daemon);
void efsd_answer(struct efsd *daemon, const char *text);
/* Why a message to want, or to hint, was refused last, into text of room bytes; "-": none was. */
void efsd_refusal_get(struct efsd *daemon, bool hint, char *text, size_t room);
void efsd_refusal_set(struct efsd *daemon, bool hint, const char *text);

void efsd_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t room);
void efsd_listxattr(fuse_req_t req, fuse_ino_t ino, size_t room);
void efsd_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void efsd_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

#endif
