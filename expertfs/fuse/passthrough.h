/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough.h - what libfuse 3.14 does not know: the INIT exchange with its newer flags, backing files.
 */
#ifndef EFSD_PASSTHROUGH_H
#define EFSD_PASSTHROUGH_H

#include "mount.h"

/* What the kernel's side of the connection can do; known after the INIT exchange, constant after it. */
struct efsd_kernel {
    uint64_t init_unique;     /* id of the INIT request */
    uint64_t offered;         /* FUSE_* flags, 64 bits */
    uint32_t minor;           /* of the protocol, 7.minor */
    bool answered;            /* the INIT reply went out */
    bool direct_mmap;         /* a file opened with direct_io can be mapped */
    bool passthrough;         /* the kernel takes backing files, tried with one */
    char no_passthrough[160]; /* why not; "" when passthrough */
};

/* Attach to the session in place of libfuse's own reading and writing. After fuse_session_mount(). */
errint_t efsd_kernel_attach(struct efsd *daemon);
/* Look at a request before libfuse does: learns from INIT. */
void efsd_kernel_request(struct efsd *daemon, const void *request, size_t bytes);
/* May this process register backing files at all (CAP_SYS_ADMIN)? Known before there is a mount. */
bool efsd_kernel_privileged(void);
/* After INIT: register a memfd for a try, and fill in passthrough and the reason. */
void efsd_kernel_probe(struct efsd *daemon);
/* Register fd (a regular file) as a backing file: an id > 0, or -errno. */
int efsd_backing_open(struct efsd *daemon, int fd);
void efsd_backing_close(struct efsd *daemon, int backing_id);
/* Answer an open request so that the kernel serves the file from the backing. 0 or -errno (-ENOENT: the caller gave
 * up, there will be no release). */
int efsd_reply_backed(fuse_req_t req, uint64_t handle, int backing_id);

#endif
