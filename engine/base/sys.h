/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys.h - every system call of the engine, and nothing else, so that tests can make each fail in turn.
 *
 * sys.c passes the calls on. The fault tests link another object with the same names (tests/fault/). All return the
 * result or -errno; none retries, but for EINTR.
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
int efs_sys_has_acl(int fd); /* 1: it has more than a mode (POSIX), 0 */
/* Of a path below a directory that may be O_PATH; the file is not opened. The bytes of the value. */
ssize_t efs_sys_getxattrat(int dir, const char *path, const char *name, void *value, size_t bytes);
int efs_sys_flock(int fd, int operation); /* with LOCK_NB it never waits: -EWOULDBLOCK, another process has it */
ssize_t efs_sys_pread(int fd, void *buf, size_t bytes, uint64_t offset);
struct iovec;
ssize_t efs_sys_preadv(int fd, const struct iovec *buffers, int count, uint64_t offset);
ssize_t efs_sys_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset);
int efs_sys_fsync(int fd);
/* Start writing dirty pages of the range to disk; wait: also wait until they are there and drop them from memory. */
int efs_sys_writeback(int fd, uint64_t offset, uint64_t bytes, int wait);
int efs_sys_ftruncate(int fd, uint64_t bytes);
int efs_sys_fallocate(int fd, int mode, uint64_t offset, uint64_t bytes);
int efs_sys_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int efs_sys_renameat(int from_dir, const char *from, int to_dir, const char *to);
int efs_sys_unlinkat(int dir, const char *path, int flags);
int efs_sys_mkdirat(int dir, const char *path, mode_t mode);
/* Set the time of the last change, and leave that of the last use. */
int efs_sys_set_mtime(int fd, const struct timespec *mtime);
/* Bytes that this process may still write to the filesystem of a file or directory, and the unit that it gives out. */
int efs_sys_free_bytes(int fd, uint64_t *bytes, uint32_t *block_bytes);
/* What kind of filesystem a file is of, as linux/magic.h numbers them. */
int64_t efs_sys_filesystem(int fd);
/* Where the first hole at or after offset begins, which is the end of a file that has none. */
int64_t efs_sys_seek_hole(int fd, uint64_t offset);
/* Everything of the filesystem to disk, which is when some of them give freed blocks back. */
int efs_sys_syncfs(int fd);
/* Drop clean pages of the range from memory, so that it is read from the disk. */
int efs_sys_drop_cache(int fd, uint64_t offset, uint64_t bytes);
/* Whether others have the file of fd open or mapped: 0 nobody, -EAGAIN somebody, else it cannot be told. Descriptors of
 * this process count, but for fd itself. */
int efs_sys_alone(int fd);
int efs_sys_memfd_create(const char *name, unsigned flags);
int efs_sys_add_seals(int fd, int seals);
/* A tmpfs of our own, mounted nowhere, whose files get huge pages: a descriptor of its root. Needs CAP_SYS_ADMIN. */
int efs_sys_huge_tmpfs(void);
/* A descriptor of the root of a clone of it that is read-only for whoever comes to a file by it. Before Linux 6.15 only
 * what is mounted somewhere can be cloned (-EINVAL): that is then done in a namespace that a thread of its own has. */
int efs_sys_clone_reading(int mount);
int efs_sys_clone_reading_mounted(int mount);
void *efs_sys_mmap(void *addr, size_t bytes, int prot, int flags, int fd,
                   uint64_t offset); /* NULL: failed, see errno */
int efs_sys_munmap(void *addr, size_t bytes);
int efs_sys_madvise(void *addr, size_t bytes, int advice);
/*
 * Ask for huge pages in memory that nobody has written yet: a table of tens of megabytes then has few page faults while
 * it is filled, and few misses in translation while it is walked. Only huge pages that lie in it whole: it takes no
 * more memory for that. A kernel that has none to give gives small ones.
 */
void efs_sys_ask_huge(void *memory, size_t bytes);
/* Have the pages of a mapped range (whole pages). -ENOMEM: they cannot be had (a tmpfs may be full, the system may
 * promise no more memory than it has), and who touched them would get SIGBUS. 0 before Linux 5.14, which cannot tell:
 * *there (may be NULL) is false then, and pages come when they are touched. */
int efs_sys_have_pages(void *addr, size_t bytes, bool *there);
/* pthread_create(3): 0 or -errno. */
int efs_sys_thread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int efs_sys_mprotect(void *addr, size_t bytes, int prot);
/* Pages of the range that are not there yet come from this memory node alone (< EFS_SYS_NODES). */
#define EFS_SYS_NODES 1024
int efs_sys_mbind(void *addr, size_t bytes, uint32_t node);
/* How many bytes of the range are mapped by huge pages now. -ENOTTY, -EINVAL: the kernel (before 6.7) does not tell. */
int64_t efs_sys_huge_bytes(const void *addr, size_t bytes);
/* Memory: NULL when there is none. */
void *efs_sys_malloc(size_t bytes);
void *efs_sys_calloc(size_t count, size_t bytes);
void *efs_sys_realloc(void *p, size_t bytes);
void *efs_sys_aligned_alloc(size_t alignment, size_t bytes);

/* io_uring: set up (0 or -errno), register a buffer in a slot (0 or -errno), submit (how many, or -errno; what was not
 * taken stays), and what a completed read returned, which is where tests put failed and short reads. */
struct io_uring;
int efs_sys_uring_init(struct io_uring *ring, unsigned depth);
int efs_sys_uring_files(struct io_uring *ring, const int *fds, unsigned count);
int efs_sys_uring_slots(struct io_uring *ring, unsigned count);                        /* for efs_sys_uring_pin() */
int efs_sys_uring_pin(struct io_uring *ring, unsigned slot, void *base, size_t bytes); /* bytes 0: unpin */
int efs_sys_uring_submit(struct io_uring *ring);
int efs_sys_uring_wait(struct io_uring *ring); /* submits as well; until one completion is there */
int efs_sys_uring_result(int result);

/* Read exactly bytes bytes, or of them at least so many: 0, -errno, or -ENODATA when the file ends before. */
int efs_sys_pread_all(int fd, void *buf, size_t bytes, uint64_t offset);
int efs_sys_pread_least(int fd, void *buf, size_t bytes, size_t least, uint64_t offset);
int efs_sys_pwrite_all(int fd, const void *buf, size_t bytes, uint64_t offset);
/* fsync(2), then close(2) of a copy of fd: filesystems that upload at close, or have no fsync(2), report errors of
 * writing (EDQUOT, EIO) only there. 0: the data is stored. */
int efs_sys_sync(int fd);
/* Whether a read or write of a file with O_DIRECT failed for that: FUSE filesystems refuse it there, and not at
 * open(2). */
bool efs_sys_no_direct(ssize_t rc);

#endif
