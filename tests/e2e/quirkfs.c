/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quirkfs.c - FOLDER MNT [QUIRK[=ERRNO]]...: a FUSE filesystem that shows FOLDER, with quirks of other filesystems:
 *
 *   flush    close(2) of a written file fails, and the file is removed, as where an upload fails; there is no fsync(2),
 *            for which the kernel returns 0
 *   direct   open(2) accepts O_DIRECT, but reads and writes then fail
 *   inodes   each stat(2) returns another inode number
 *   late     "direct" after the first SIGUSR1
 *   read     reads fail between SIGUSR1 and SIGUSR2
 *   wait     reads wait between SIGUSR1 and SIGUSR2
 *   blocks   statfs(2) reports 0 of 0 blocks
 */
#define FUSE_USE_VERSION 35
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum quirk { FLUSH, DIRECT, INODES, LATE, BLOCKS, READ, WAIT, QUIRKS };
static const char *const names[QUIRKS] = {"flush", "direct", "inodes", "late", "blocks", "read", "wait"};
static int quirks[QUIRKS]; /* the error; 0: no quirk */
static int root;
static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number == SIGUSR1;
}

static const char *below(const char *path)
{
    return path[1] ? path + 1 : ".";
}

static int result(int rc)
{
    return rc < 0 ? -errno : 0;
}

static int odd_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    static ino_t inode = 1000;
    int rc = fi ? fstat((int)fi->fh, st) : fstatat(root, below(path), st, AT_SYMLINK_NOFOLLOW);
    if (quirks[INODES])
        st->st_ino = inode++;
    return result(rc);
}

static int odd_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *fi,
                       enum fuse_readdir_flags flags)
{
    (void)offset, (void)fi, (void)flags;
    int fd = openat(root, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return -errno;
    for (const struct dirent *entry; (entry = readdir(dir));)
        fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(dir);
    return 0;
}

static int odd_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    int fd = openat(root, below(path), (fi->flags & ~O_DIRECT) | O_CLOEXEC, mode);
    fi->fh = (uint64_t)fd;
    return result(fd);
}

static int odd_open(const char *path, struct fuse_file_info *fi)
{
    return odd_create(path, 0, fi);
}

static int refused(const struct fuse_file_info *fi)
{
    bool now = quirks[DIRECT] || (quirks[LATE] && signalled);
    return now && fi->flags & O_DIRECT ? -(quirks[DIRECT] ? quirks[DIRECT] : quirks[LATE]) : 0;
}

static int odd_read(const char *path, char *data, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
    (void)path;
    while (quirks[WAIT] && signalled)
        usleep(1000);
    int rc = quirks[READ] && signalled ? -quirks[READ] : refused(fi);
    ssize_t n = rc ? rc : pread((int)fi->fh, data, bytes, offset);
    return rc || n >= 0 ? (int)n : -errno;
}

static int odd_write(const char *path, const char *data, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
    (void)path;
    int rc = refused(fi);
    ssize_t n = rc ? rc : pwrite((int)fi->fh, data, bytes, offset);
    return rc || n >= 0 ? (int)n : -errno;
}

static int odd_flush(const char *path, struct fuse_file_info *fi)
{
    if (!quirks[FLUSH] || (fcntl((int)fi->fh, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return 0;
    if (path) /* the file still has a name */
        unlinkat(root, below(path), 0);
    return -quirks[FLUSH];
}

static int odd_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    return result(close((int)fi->fh));
}

static int odd_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)path, (void)data_only;
    return quirks[FLUSH] ? -ENOSYS : result(fsync((int)fi->fh));
}

static int odd_fsyncdir(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)path, (void)data_only, (void)fi;
    return 0;
}

static int odd_unlink(const char *path)
{
    return result(unlinkat(root, below(path), 0));
}

static int odd_rmdir(const char *path)
{
    return result(unlinkat(root, below(path), AT_REMOVEDIR));
}

static int odd_mkdir(const char *path, mode_t mode)
{
    return result(mkdirat(root, below(path), mode));
}

static int odd_rename(const char *from, const char *to, unsigned flags)
{
    return flags ? -EINVAL : result(renameat(root, below(from), root, below(to)));
}

static int odd_link(const char *from, const char *to)
{
    return result(linkat(root, below(from), root, below(to), 0));
}

static int odd_truncate(const char *path, off_t bytes, struct fuse_file_info *fi)
{
    (void)path;
    return fi ? result(ftruncate((int)fi->fh, bytes)) : -ENOSYS;
}

static int odd_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
    return result(fi ? futimens((int)fi->fh, times) : utimensat(root, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int odd_statfs(const char *path, struct statvfs *st)
{
    (void)path;
    int rc = result(fstatvfs(root, st));
    if (quirks[BLOCKS])
        st->f_blocks = st->f_bfree = st->f_bavail = 0;
    return rc;
}

static void *odd_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->use_ino = config->hard_remove = 1;
    config->attr_timeout = config->entry_timeout = quirks[INODES] ? 0 : 1;
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct fuse_operations operations = {.init = odd_init,
                                                      .getattr = odd_getattr,
                                                      .readdir = odd_readdir,
                                                      .create = odd_create,
                                                      .open = odd_open,
                                                      .read = odd_read,
                                                      .write = odd_write,
                                                      .flush = odd_flush,
                                                      .release = odd_release,
                                                      .fsync = odd_fsync,
                                                      .fsyncdir = odd_fsyncdir,
                                                      .unlink = odd_unlink,
                                                      .rmdir = odd_rmdir,
                                                      .mkdir = odd_mkdir,
                                                      .rename = odd_rename,
                                                      .link = odd_link,
                                                      .truncate = odd_truncate,
                                                      .utimens = odd_utimens,
                                                      .statfs = odd_statfs};
    char *arguments[] = {argv[0], (char[]){"-f"}, (char[]){"-s"}, argc > 2 ? argv[2] : NULL, NULL};
    for (int i = 3; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals)
            *equals++ = '\0';
        for (int q = 0; q < QUIRKS; q++)
            if (strcmp(argv[i], names[q]) == 0)
                quirks[q] = equals ? atoi(equals) : 1;
    }
    root = argc > 2 ? open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (root < 0) {
        perror(argc > 2 ? argv[1] : "quirkfs FOLDER MNT [QUIRK[=ERRNO]]...");
        return 2;
    }
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    return fuse_main(4, arguments, &operations, NULL);
}
