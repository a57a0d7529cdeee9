/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys.h - wrappers of the system calls whose failure tests inject.
 *
 * base/ wraps the operating system (system calls, threads, clocks, new files, /proc) and has the text, error and
 * counter helpers that the rooms share. All rooms of the engine call it; the daemon and the tools call its public
 * functions, such as efs_fail(). It never calls another room and never takes efs.lock.
 *
 * sys.c implements the wrappers; the fault tests (tests/fault/) link another object with the same symbols. Unless
 * stated otherwise they return the result or -errno. They repeat a call that fails with EINTR, except close(2).
 */
#ifndef EFS_SYS_H
#define EFS_SYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

int efs_sys_open(const char *path, int flags, mode_t mode);
int efs_sys_openat(int dir, const char *path, int flags, mode_t mode);
int efs_sys_close(int fd);
int efs_sys_dup(int fd);
int efs_sys_fstat(int fd, struct stat *st);
int efs_sys_has_acl(int fd); /* 1 if the file has a POSIX access ACL beyond its mode, else 0 */
/* Extended attribute of a path below the directory dir, which may be O_PATH; does not open the file. Returns the
 * size of the value. */
ssize_t efs_sys_getxattrat(int dir, const char *path, const char *name, void *value, size_t bytes);
int efs_sys_flock(int fd, int operation); /* LOCK_NB: -EWOULDBLOCK if it is locked */
ssize_t efs_sys_pread(int fd, void *buf, size_t bytes, uint64_t offset);
struct iovec;
ssize_t efs_sys_preadv(int fd, const struct iovec *buffers, int count, uint64_t offset);
ssize_t efs_sys_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset);
int efs_sys_fsync(int fd);
/* Starts writeback of the dirty pages of the range. wait: also waits for its completion and drops the pages from the
 * page cache. */
int efs_sys_writeback(int fd, uint64_t offset, uint64_t bytes, int wait);
int efs_sys_ftruncate(int fd, uint64_t bytes);
int efs_sys_fallocate(int fd, int mode, uint64_t offset, uint64_t bytes);
int efs_sys_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int efs_sys_renameat(int from_dir, const char *from, int to_dir, const char *to);
int efs_sys_unlinkat(int dir, const char *path, int flags);
int efs_sys_mkdirat(int dir, const char *path, mode_t mode);
/* Sets the modification time; the access time does not change. */
int efs_sys_set_mtime(int fd, const struct timespec *mtime);
/* Bytes of the file system available to unprivileged processes, and its allocation unit. INT64_MAX: the file system has
 * no blocks, so it does not report what is free. */
int efs_sys_free_bytes(int fd, uint64_t *bytes, uint32_t *block_bytes);
/* Type of the file's file system: a magic number of linux/magic.h. */
int64_t efs_sys_filesystem(int fd);
/* Whether a file is on a network file system, or on one that a program serves by FUSE. */
bool efs_sys_is_remote(int fd);
/* Whether st_ctim of the file is known to change with its bytes. Not in a tmpfs, which ignores writes through mappings;
 * not where it is a time that an image or a program has made up (squashfs, FUSE, an overlay of one), so that files of
 * two images may share inode number and times, and their device number, too. */
bool efs_sys_has_change_time(int fd);
/* Offset of the first hole at or after offset; the end of the file if it has none. */
int64_t efs_sys_seek_hole(int fd, uint64_t offset);
/* Offset of the first data at or after offset; -ENXIO: there is none. */
int64_t efs_sys_seek_data(int fd, uint64_t offset);
struct fiemap;
int efs_sys_fiemap(int fd, struct fiemap *map); /* FS_IOC_FIEMAP: the file's extents */
/* Writes all dirty data of the file system; some file systems release freed blocks only then. */
int efs_sys_syncfs(int fd);
/* Drops clean pages of the range from the page cache, so that the next read is from disk. */
int efs_sys_drop_cache(int fd, uint64_t offset, uint64_t bytes);
/* 0 if the file has no open descriptor or mapping other than fd, in any process; -EAGAIN if it has; another -errno
 * if the kernel or file system does not support the check. */
int efs_sys_is_sole_user(int fd);
/* Of mode 0400: other users, and processes of this user by mistake, cannot reopen it for writing. */
int efs_sys_memfd_create(const char *name, unsigned flags);
int efs_sys_add_seals(int fd, int seals);
/* Creates a private tmpfs with huge pages that is not mounted anywhere. Returns a descriptor of its root. Requires
 * CAP_SYS_ADMIN. */
int efs_sys_huge_tmpfs(void);
/* Returns a descriptor of the root of a clone of the mount; files opened through it are read-only. Before Linux 6.15
 * only a mounted tree can be cloned (-EINVAL): the second function mounts it in the private mount namespace of a
 * temporary thread first. */
int efs_sys_clone_readonly(int mount);
int efs_sys_clone_readonly_mounted(int mount);
void *efs_sys_mmap(void *addr, size_t bytes, int prot, int flags, int fd,
                   uint64_t offset); /* NULL on failure, with errno */
int efs_sys_munmap(void *addr, size_t bytes);
int efs_sys_madvise(void *addr, size_t bytes, int advice);
/*
 * Requests huge pages (MADV_HUGEPAGE) for memory that has not been written yet, so that a table of tens of MiB has
 * fewer page faults when filled and fewer TLB misses when read. Applies only to whole huge pages inside the range, so
 * it does not use more memory. If no huge page is available, the kernel uses small ones.
 */
void efs_sys_advise_huge(void *memory, size_t bytes);
/* Populates a mapped range of whole pages. -ENOMEM: the kernel cannot provide them (the tmpfs is full, or the
 * overcommit limit is reached), and accessing them would raise SIGBUS. Before Linux 5.14 it does nothing and returns
 * 0; pages are then allocated on first access. *populated (may be NULL): whether the pages are populated. */
int efs_sys_populate(void *addr, size_t bytes, bool *populated);
/* pthread_create(3). 0 or -errno. */
int efs_sys_thread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int efs_sys_mprotect(void *addr, size_t bytes, int prot);
/* Pages of the range that are not allocated yet will be allocated on this memory node (< EFS_SYS_NODES) only. */
#define EFS_SYS_NODES 1024
int efs_sys_mbind(void *addr, size_t bytes, uint32_t node);
/* Bytes of the range that are mapped by huge pages. -ENOTTY, -EINVAL: not supported (before Linux 6.7). */
int64_t efs_sys_huge_bytes(const void *addr, size_t bytes);
/* Allocation: NULL on failure. */
void *efs_sys_malloc(size_t bytes);
void *efs_sys_calloc(size_t count, size_t bytes);
void *efs_sys_realloc(void *p, size_t bytes);
void *efs_sys_aligned_alloc(size_t alignment, size_t bytes);

/* io_uring: set up the ring, register files and buffer slots (each 0 or -errno); submit and wait return the number
 * of submitted requests or -errno, and requests that were not submitted remain in the queue. efs_sys_uring_result()
 * returns the result of a completed read; tests inject failed and short reads there. */
struct io_uring;
int efs_sys_uring_init(struct io_uring *ring, unsigned depth,
                       bool any_thread); /* else only the calling thread uses it */
int efs_sys_uring_files(struct io_uring *ring, const int *fds, unsigned count);
int efs_sys_uring_slots(struct io_uring *ring, unsigned count); /* empty slots, for efs_sys_uring_register() */
int efs_sys_uring_register(struct io_uring *ring, unsigned slot, void *base, size_t bytes); /* bytes 0: unregister */
int efs_sys_uring_submit(struct io_uring *ring);
int efs_sys_uring_wait(struct io_uring *ring, unsigned count); /* also submits; blocks until there are `count`
                                                                  completions, or a signal */
int efs_sys_uring_result(int result);

/* Reads exactly `bytes` bytes, or at least `least` of them: 0, -errno, or -ENODATA at an early end of the file. */
int efs_sys_pread_all(int fd, void *buf, size_t bytes, uint64_t offset);
int efs_sys_pread_least(int fd, void *buf, size_t bytes, size_t least, uint64_t offset);
int efs_sys_pwrite_all(int fd, const void *buf, size_t bytes, uint64_t offset);
/* fsync(2), then close(2) of a duplicate of fd: file systems that upload at close, or have no fsync(2), report write
 * errors (EDQUOT, EIO) only there. 0: the data is stored. */
int efs_sys_sync(int fd);
/* fsync(2) of a directory. 0, also if its file system does not support that: EINVAL, EOPNOTSUPP, ENOSYS, ENOTTY, or
 * EBADF as from CIFS. */
int efs_sys_sync_directory(int fd);
/* Whether rc means that the file does not support O_DIRECT: FUSE file systems reject it at read and write, not at
 * open(2). */
bool efs_sys_no_direct(ssize_t rc);

#endif
