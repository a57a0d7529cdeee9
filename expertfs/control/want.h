/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.h - the writable files: .expertfs/want takes requests for experts of a layer, .expertfs/hint takes predictions
 * of later requests. take_client.h has the third.
 */
#ifndef EFSD_WANT_H
#define EFSD_WANT_H

#include "mount.h"

/* True if node is one of these. Users who may tune the mount can write to these files; no other files are writable. */
bool efsd_is_writable(const struct efsd *daemon, uint32_t node);
/* Counts a request of user; if it was refused (rc < 0), logs the reason and stores it for control files and xattrs. */
void efsd_want_finish(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err);
/* The same for hints and for observed routing. */
void efsd_hint_finish(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err);
void efsd_want_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
                     struct fuse_file_info *file);

#endif
