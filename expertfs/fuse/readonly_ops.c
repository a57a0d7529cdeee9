/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readonly_ops.c - replies to requests that would change the mount, which is never written.
 *
 * It is mounted rw: with ro the kernel would also refuse the xattrs and the files want and hint, which tune the mount.
 * So every request that would change a file or a name arrives here and gets EROFS, from every user. For the same reason
 * the daemon, not the kernel, checks modes (no default_permissions): users other than root would get EACCES before
 * EROFS, and the owner could not set xattrs of files with mode 0444. Only if all users may use the mount (allow_other)
 * and not all of them may read the store does the kernel check modes: it knows all groups of the caller, and hides
 * names and sizes that it has cached from users who may not see them.
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
    /* `>want` in a shell truncates the file before it writes */
    bool cut = (set & FUSE_SET_ATTR_SIZE) && st->st_size == 0 &&
               !(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID));
    if (!efsd_node_of(daemon, ino, &node) || !efsd_is_writable(daemon, node) || !cut) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (!efsd_may_tune(daemon, req)) {
        fuse_reply_err(req, EACCES);
        return;
    }
    struct stat now;
    efsd_attributes(daemon, node, &now);
    fuse_reply_attr(req, &now, EFSD_ENTRY_TIMEOUT_SECONDS);
}
