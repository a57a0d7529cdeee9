/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough.h - features that libfuse 3.14 lacks: newer flags of the INIT exchange, backing files.
 */
#ifndef EFSD_PASSTHROUGH_H
#define EFSD_PASSTHROUGH_H

#include "mount.h"

/* Features of the kernel's side of the connection. Known after the INIT exchange and efsd_kernel_probe(), then
 * constant. */
struct efsd_kernel {
    uint64_t init_unique;     /* id of the INIT request */
    uint64_t offered;         /* FUSE_* flags, 64 bits */
    uint32_t minor;           /* of the protocol, 7.minor */
    bool answered;            /* the INIT reply was sent */
    bool direct_mmap;         /* a file opened with direct_io can be mapped */
    bool passthrough;         /* the kernel accepts backing files; one was tried */
    char no_passthrough[160]; /* why not; "" when passthrough */
};

/* Replaces libfuse's functions that read and write the FUSE device. Call after fuse_session_mount(). */
errint_t efsd_kernel_attach(struct efsd *daemon);
/* Inspects a request before libfuse does: reads the features from INIT. */
void efsd_kernel_request(struct efsd *daemon, const void *request, size_t bytes);
/* True if this process may register backing files (CAP_SYS_ADMIN). Can be called before the mount. */
bool efsd_kernel_privileged(void);
/* After INIT: tries to register a memfd, and sets passthrough, or no_passthrough to the reason. */
void efsd_kernel_probe(struct efsd *daemon);
/* Registers fd (a regular file) as a backing file: an id > 0, or -errno. */
int efsd_backing_open(struct efsd *daemon, int fd);
void efsd_backing_close(struct efsd *daemon, int backing_id);
/* Answers an open request so that the kernel serves the file from the backing file. 0 or -errno (-ENOENT: the open was
 * interrupted, no release will follow). */
int efsd_reply_backed(fuse_req_t req, uint64_t handle, int backing_id);

#endif
