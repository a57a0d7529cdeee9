/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.h - what is written to a mount: requests of a layer's experts, by .expertfs/want, and guesses of what will be
 * asked for, by .expertfs/hint.
 */
#ifndef EFSD_WANT_H
#define EFSD_WANT_H

#include "mount.h"

/* Is it .expertfs/want or .expertfs/hint, the two files that can be written? By those who may tune. */
bool efsd_is_written(const struct efsd *daemon, uint32_t node);
/* Count what a user has asked for; why it was refused, rc < 0, goes to the log. Returns the answer. */
errint_t efsd_want_told(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err);
/* The same for hints, and for what layers chose. */
errint_t efsd_hint_told(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err);
void efsd_want_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
                     struct fuse_file_info *file);

#endif
