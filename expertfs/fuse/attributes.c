/* SPDX-License-Identifier: Apache-2.0 */
/* attributes.c - see ops.h: attributes of nodes, and access(2). */
#include "ops.h"

#include <errno.h>
#include <unistd.h>

#include "daemon.h"
#include "want.h"

void efsd_attributes(const struct efsd *daemon, uint32_t node, struct stat *st)
{
    const struct efsd_node *n = &daemon->tree.nodes[node];
    bool directory = n->kind == EFSD_DIRECTORY;
    mode_t mode = daemon->mode;
    if (directory)
        mode |= mode >> 2; /* search permission where there is read permission */
    /* If the kernel checks modes, the owner needs write permission to set xattrs; writes to files still get EROFS. */
    if (efsd_is_writable(daemon, node) || (daemon->restricted && daemon->uid != 0))
        mode |= 0200;
    *st = (struct stat){
        .st_ino = (ino_t)node + FUSE_ROOT_ID,
        .st_mode = (directory ? S_IFDIR : S_IFREG) | mode,
        .st_nlink = directory ? 2 + n->id : 1,
        .st_uid = daemon->uid,
        .st_gid = daemon->gid,
        .st_size = (off_t)n->bytes,
        /* An expert's file repeats bytes of the checkpoint: du(1) must not count them twice. Not 0, which GNU tar
         * --sparse (1.34) takes for a file of zeros. */
        .st_blocks = n->kind == EFSD_EXPERT ? 1 : (blkcnt_t)((n->bytes + 511) / 512),
        .st_blksize = directory || n->kind == EFSD_CONTROL ? EFSD_BLOCK_BYTES : EFSD_IO_BYTES,
        .st_atim = daemon->mtime,
        .st_mtim = daemon->mtime,
        .st_ctim = daemon->mtime,
    };
}

void efsd_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
    const struct efsd *daemon = fuse_req_userdata(req);
    uint32_t node;
    int error = 0;
    if (!efsd_node_of(daemon, ino, &node))
        error = ENOENT;
    else if (mask & W_OK)
        error = !efsd_is_writable(daemon, node) ? EROFS : efsd_may_tune(daemon, req) ? 0 : EACCES;
    if (!error && (mask & X_OK) && daemon->tree.nodes[node].kind != EFSD_DIRECTORY)
        error = EACCES;
    fuse_reply_err(req, error);
}
