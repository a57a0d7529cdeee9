/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regular.h - opens files named by the user. Opening a FIFO blocks until a writer opens it, and opening a device can
 * have side effects: anything but a regular file is rejected before it is opened for reading.
 */
#ifndef EFS_REGULAR_H
#define EFS_REGULAR_H

#include "expertfs.h"

#include <sys/stat.h>

/*
 * Opens path relative to the directory dir (or AT_FDCWD) for reading if it is a regular file; follows links. flags:
 * O_DIRECT and the like, or 0. Never blocks on a FIFO or device. *st: fstat(2) of the opened file. Returns the
 * descriptor; -EISDIR for a directory, -EINVAL for any other kind of file (st->st_mode is set in both cases), or
 * -errno.
 */
int efs_regular_open(int dir, const char *path, int flags, struct stat *st);
/* As efs_regular_open() with AT_FDCWD and no flags; err: "PATH: reason". */
int efs_regular_open_path(const char *path, struct stat *st, struct efs_error *err);
/* Opens the file of fd again, with other flags: the same file even if path was replaced. Returns the descriptor or
 * -errno; -ESTALE: /proc is not mounted and path leads to another file. */
int efs_regular_reopen(int fd, const char *path, int flags);

#endif
