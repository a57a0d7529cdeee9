/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refusals.c - what a mount that never changes answers to who would change it.
 *
 * The kernel does not know that nothing can be written: to a mount with the option ro it would also refuse the xattrs
 * and the file `want`, which tune it. So every request that would change a file or a name comes here and gets EROFS,
 * whoever asks. For the same reason the daemon, not the kernel, judges by modes (no default_permissions): who is not
 * root would get EACCES before EROFS, and the owner could not set the xattrs of files that are 0444. Only where others
 * may use the mount (allow_other) and not all of them may read the store does the kernel judge: it knows all groups of
 * who asks, and names and sizes that it has looked up before are kept from those who may not see them, too.
 */
#include <errno.h>
#include <unistd.h>

#include "daemon.h"
#include "ops.h"
#include "want.h"

#define REFUSE(what, ...)                                                                                              \
    void efsd_refuse_##what(fuse_req_t req, __VA_ARGS__)                                                               \
    {                                                                                                                  \
        fuse_reply_err(req, EROFS);                                                                                    \
    }
#define A(type, n) type a##n __attribute__((unused))

REFUSE(mknod, A(fuse_ino_t, 1), A(const char *, 2), A(mode_t, 3), A(dev_t, 4))
REFUSE(mkdir, A(fuse_ino_t, 1), A(const char *, 2), A(mode_t, 3))
REFUSE(remove, A(fuse_ino_t, 1), A(const char *, 2))
REFUSE(symlink, A(const char *, 1), A(fuse_ino_t, 2), A(const char *, 3))
REFUSE(rename, A(fuse_ino_t, 1), A(const char *, 2), A(fuse_ino_t, 3), A(const char *, 4), A(unsigned, 5))
REFUSE(link, A(fuse_ino_t, 1), A(fuse_ino_t, 2), A(const char *, 3))
REFUSE(create, A(fuse_ino_t, 1), A(const char *, 2), A(mode_t, 3), A(struct fuse_file_info *, 4))
REFUSE(fallocate, A(fuse_ino_t, 1), A(int, 2), A(off_t, 3), A(off_t, 4), A(struct fuse_file_info *, 5))

void efsd_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *file)
{
    struct efsd *daemon = fuse_req_userdata(req);
    uint32_t node;
    (void)file;
    /* `>want` of a shell cuts the file before it writes */
    bool cut = (set & FUSE_SET_ATTR_SIZE) && st->st_size == 0 &&
               !(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID));
    if (!efsd_node_of(daemon, ino, &node) || !efsd_is_written(daemon, node) || !cut) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (!efsd_may_tune(daemon, req)) {
        fuse_reply_err(req, EACCES);
        return;
    }
    struct stat now;
    efsd_attributes(daemon, node, &now);
    fuse_reply_attr(req, &now, EFSD_KEEP_SECONDS);
}
