/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - the FUSE operations.
 */
#ifndef EFSD_OPS_H
#define EFSD_OPS_H

#include "mount.h"

#define EFSD_BLOCK_BYTES 4096u

extern const struct fuse_lowlevel_ops efsd_ops; /* userdata is struct efsd */

/* Answers a read request, possibly later and from another thread (reads.c). */
void efsd_read(struct efsd *daemon, fuse_req_t req, const struct fuse_file_info *file, size_t bytes, uint64_t offset);

/* readonly_ops.c: reply EROFS to operations that would change a file or a name. */
void efsd_refuse_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device);
void efsd_refuse_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void efsd_refuse_remove(fuse_req_t req, fuse_ino_t parent, const char *name);
void efsd_refuse_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void efsd_refuse_rename(fuse_req_t req, fuse_ino_t from, const char *name, fuse_ino_t to, const char *new_name,
                        unsigned flags);
void efsd_refuse_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void efsd_refuse_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file);
void efsd_refuse_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                           struct fuse_file_info *file);
/* The same, but truncating want or hint to zero bytes succeeds. */
void efsd_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *file);

/* attributes.c */
void efsd_attributes(const struct efsd *daemon, uint32_t node, struct stat *st);
/* Answers access(2). */
void efsd_access(fuse_req_t req, fuse_ino_t ino, int mask);

#endif
