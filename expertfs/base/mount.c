/* SPDX-License-Identifier: Apache-2.0 */
/* mount.c - see mount.h. */
#include "mount.h"

#include <errno.h>

#include "daemon.h"

const char *efsd_serving_path(const struct efsd *daemon)
{
    return daemon->kernel.passthrough ? "passthrough" : daemon->direct_io ? "direct_io" : "page_cache";
}

bool efsd_node_of(const struct efsd *daemon, fuse_ino_t ino, uint32_t *node)
{
    if (ino < FUSE_ROOT_ID || ino - FUSE_ROOT_ID >= daemon->tree.count)
        return false;
    *node = (uint32_t)(ino - FUSE_ROOT_ID);
    return true;
}

bool efsd_may_tune(const struct efsd *daemon, fuse_req_t req)
{
    uid_t uid = fuse_req_ctx(req)->uid;
    return uid == 0 || uid == daemon->uid;
}

/* Errors of the store's disk become EIO: ENOTCONN or ESTALE would look like a dead mount to the reader. */
static int errno_of_read(errint_t error)
{
    return error == -EUCLEAN || error == -ENOMEM ? -error : EIO;
}

void efsd_reply_read(struct efsd *daemon, fuse_req_t req, errint_t error, const void *data, size_t bytes)
{
    if (error) {
        efsd_count(&daemon->counters.reply_errors, 1);
        if (req)
            fuse_reply_err(req, errno_of_read(error));
    } else {
        efsd_count(&daemon->counters.reply_bytes, bytes);
        if (req)
            fuse_reply_buf(req, data, bytes);
    }
}
