/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.h - a file that gets its name when all of it is written, and is gone if it never does.
 *
 * It has no name meanwhile (O_TMPFILE) where the filesystem can do so; else it is called .expertfs-PID-N.tmp, which
 * only a killed process leaves behind. The next that writes there takes it away.
 */
#ifndef EFS_NEWFILE_H
#define EFS_NEWFILE_H

#include "expertfs.h"

struct efs_newfile {
    int dir, fd;   /* dir belongs to the caller until efs_newfile_close(); fd -1: none */
    bool reopened; /* lock_fd holds the lock in place of fd */
    int lock_fd;
    char temporary[48]; /* name in dir; "" for a nameless file or one that got its name */
};

/* Create it in the directory dir. flags: O_RDWR or O_WRONLY, O_DIRECT. 0 or -errno; then fd is -1. */
errint_t efs_newfile_open(struct efs_newfile *file, int dir, int flags);
/* Open it once more, with other flags, in place of fd. */
errint_t efs_newfile_reopen(struct efs_newfile *file, int flags);
/* All that was written to disk. Call it before the file gets its name: a failed upload then leaves no file. */
errint_t efs_newfile_sync(const struct efs_newfile *file);
/* Name it. replace: over what has that name; else -EEXIST when something has. Does not sync. */
errint_t efs_newfile_name(struct efs_newfile *file, const char *name, bool replace);
/* Give a file a further name that nothing has; where link(2) is refused, in place of the one that it has. -EEXIST. */
errint_t efs_newfile_link(int from_dir, const char *from, int dir, const char *name);
/* Close fd, not dir; a file that was not named is gone. Returns the first error of close(2). */
errint_t efs_newfile_close(struct efs_newfile *file);
/* Take away what killed processes of this user left in dir, not what others are writing. How many that were. */
unsigned efs_newfile_clean(int dir);

#endif
