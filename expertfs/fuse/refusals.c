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

void efsd_refuse_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
    (void)parent, (void)name, (void)mode, (void)device;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    (void)parent, (void)name, (void)mode;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    (void)target, (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_rename(fuse_req_t req, fuse_ino_t from, const char *name, fuse_ino_t to, const char *new_name,
                        unsigned flags)
{
    (void)from, (void)name, (void)to, (void)new_name, (void)flags;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    (void)ino, (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
    (void)parent, (void)name, (void)mode, (void)file;
    fuse_reply_err(req, EROFS);
}

void efsd_refuse_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                           struct fuse_file_info *file)
{
    (void)ino, (void)mode, (void)offset, (void)length, (void)file;
    fuse_reply_err(req, EROFS);
}

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
