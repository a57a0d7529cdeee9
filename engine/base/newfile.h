/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.h - a file that is linked under its name only when it is complete, and is discarded otherwise.
 *
 * Until then it has no name (O_TMPFILE) where the file system supports that, else the name .expertfs-PID-N.tmp. Only a
 * killed process leaves such a name behind; efs_newfile_clean() removes it.
 */
#ifndef EFS_NEWFILE_H
#define EFS_NEWFILE_H

#include "expertfs.h"

struct efs_newfile {
    int dir, fd;   /* dir: of the caller, open until efs_newfile_close(); fd: -1 if closed */
    bool reopened; /* the lock is held by lock_fd instead of fd */
    int lock_fd;
    char temporary[48]; /* name in dir; "" if nameless or already named */
};

/* Creates a file in the directory dir. flags: O_RDWR or O_WRONLY, optionally O_DIRECT. 0 or -errno; on failure fd is
 * -1. */
errint_t efs_newfile_open(struct efs_newfile *file, int dir, int flags);
/* Replaces fd with a new descriptor of the file, opened with other flags. */
errint_t efs_newfile_reopen(struct efs_newfile *file, int flags);
/* Writes all data to disk. Call it before efs_newfile_name(): after a failed upload no file has the name. */
errint_t efs_newfile_sync(const struct efs_newfile *file);
/* Links the file under `name`. replace: replaces an existing file; else -EEXIST if the name exists. Does not sync. */
errint_t efs_newfile_name(struct efs_newfile *file, const char *name, bool replace);
/* Links a file under an additional name; where link(2) fails, renames it. -EEXIST if the name exists. */
errint_t efs_newfile_link(int from_dir, const char *from, int dir, const char *name);
/* Closes fd, but not dir; discards a file that was not named. Returns the first error of close(2). */
errint_t efs_newfile_close(struct efs_newfile *file);
/* Removes temporary files in dir that killed processes of this user left; files in use are locked and stay. Returns
 * the number of files removed. */
unsigned efs_newfile_clean(int dir);

#endif
