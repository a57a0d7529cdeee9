/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regular.h - opening what a user names as a file. Opening a FIFO waits for a writer, opening a device may do things,
 * and a directory is no store: what is not a regular file is refused before it is opened for reading.
 */
#ifndef EFS_REGULAR_H
#define EFS_REGULAR_H

#include "expertfs.h"

#include <sys/stat.h>

/*
 * Open path below the directory dir (AT_FDCWD: as it is) for reading, if it is a regular file, links followed; flags:
 * O_DIRECT and the like, or 0. *st is of what was opened. Never waits for anybody. The descriptor; -EISDIR for a
 * directory, -EINVAL for what else is no file (st then says what it is), -errno.
 */
int efs_regular_open(int dir, const char *path, int flags, struct stat *st);
/* The same of a path, with the message "PATH: why" in err. */
int efs_regular_open_path(const char *path, struct stat *st, struct efs_error *err);
/* Open the file of fd once more, with other flags: the file that fd has, not what path leads to by now. The descriptor
 * or -errno; -ESTALE: path leads elsewhere, and there is no other way here (no /proc). */
int efs_regular_reopen(int fd, const char *path, int flags);

#endif
