/* sys.c - the system calls, passed on. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#define RETRY(call)                                                                                                    \
    __extension__({                                                                                                    \
        long r_;                                                                                                       \
        do                                                                                                             \
            r_ = (long)(call);                                                                                         \
        while (r_ < 0 && errno == EINTR);                                                                              \
        r_ < 0 ? (long)-errno : r_;                                                                                    \
    })

int efs_sys_open(const char *path, int flags, mode_t mode)
{
    return (int)RETRY(open(path, flags | O_CLOEXEC, mode));
}

int efs_sys_openat(int dir, const char *path, int flags, mode_t mode)
{
    return (int)RETRY(openat(dir, path, flags | O_CLOEXEC, mode));
}

int efs_sys_close(int fd)
{
    return close(fd) < 0 ? -errno : 0;
}

int efs_sys_fstat(int fd, struct stat *st)
{
    return (int)RETRY(fstat(fd, st));
}

ssize_t efs_sys_pread(int fd, void *buf, size_t bytes, uint64_t offset)
{
    return RETRY(pread(fd, buf, bytes, (off_t)offset));
}

ssize_t efs_sys_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset)
{
    return RETRY(pwrite(fd, buf, bytes, (off_t)offset));
}

ssize_t efs_sys_pwritev(int fd, const struct iovec *iov, int count, uint64_t offset)
{
    return RETRY(pwritev(fd, iov, count, (off_t)offset));
}

int efs_sys_fsync(int fd)
{
    return (int)RETRY(fsync(fd));
}

int efs_sys_writeback(int fd, uint64_t offset, uint64_t bytes, int wait)
{
    unsigned flags = SYNC_FILE_RANGE_WRITE;
    if (wait)
        flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    int rc = (int)RETRY(sync_file_range(fd, (off_t)offset, (off_t)bytes, flags));
    if (rc == 0 && wait)
        posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    return rc;
}

int efs_sys_ftruncate(int fd, uint64_t bytes)
{
    return (int)RETRY(ftruncate(fd, (off_t)bytes));
}

int efs_sys_fallocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    return (int)RETRY(fallocate(fd, mode, (off_t)offset, (off_t)bytes));
}

int efs_sys_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    return (int)RETRY(linkat(from_dir, from, to_dir, to, flags));
}

int efs_sys_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return (int)RETRY(renameat(from_dir, from, to_dir, to));
}

int efs_sys_unlinkat(int dir, const char *path, int flags)
{
    return (int)RETRY(unlinkat(dir, path, flags));
}

int efs_sys_mkdirat(int dir, const char *path, mode_t mode)
{
    return (int)RETRY(mkdirat(dir, path, mode));
}

int efs_sys_memfd_create(const char *name, unsigned flags)
{
    return (int)RETRY(memfd_create(name, flags | MFD_CLOEXEC));
}

int efs_sys_huge_tmpfs(void)
{
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC), mount = -1;
    if (context < 0)
        return -errno;
    if (fsconfig(context, FSCONFIG_SET_STRING, "huge", "within_size", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "size", "0", 0) == 0 && /* the budget is the limit */
        fsconfig(context, FSCONFIG_SET_STRING, "nr_inodes", "0", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID);
    int rc = mount < 0 ? -errno : mount;
    close(context);
    return rc;
}

void *efs_sys_mmap(void *addr, size_t bytes, int prot, int flags, int fd, uint64_t offset)
{
    void *p = mmap(addr, bytes, prot, flags, fd, (off_t)offset);
    return p == MAP_FAILED ? NULL : p;
}

int efs_sys_munmap(void *addr, size_t bytes)
{
    return munmap(addr, bytes) < 0 ? -errno : 0;
}

int efs_sys_madvise(void *addr, size_t bytes, int advice)
{
    return madvise(addr, bytes, advice) < 0 ? -errno : 0;
}

void *efs_sys_malloc(size_t bytes)
{
    return malloc(bytes);
}

void *efs_sys_calloc(size_t count, size_t bytes)
{
    return calloc(count, bytes);
}

void *efs_sys_realloc(void *p, size_t bytes)
{
    return realloc(p, bytes);
}

void *efs_sys_aligned_alloc(size_t alignment, size_t bytes)
{
    void *p;
    return posix_memalign(&p, alignment, bytes) ? NULL : p;
}

int efs_sys_uring_init(struct io_uring *ring, unsigned depth)
{
    /* one thread submits and reaps: completions then need no interrupt of it; older kernels know neither flag */
    int rc = io_uring_queue_init(depth, ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    return rc == -EINVAL ? io_uring_queue_init(depth, ring, 0) : rc;
}

int efs_sys_uring_pin(struct io_uring *ring, unsigned slot, void *base, size_t bytes)
{
    struct iovec iov = {bytes ? base : NULL, bytes};
    __u64 tag = 0;
    int rc = io_uring_register_buffers_update_tag(ring, slot, &iov, &tag, 1);
    return rc < 0 ? rc : 0;
}

int efs_sys_uring_result(int result)
{
    return result;
}

int efs_sys_pread_all(int fd, void *buf, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = efs_sys_pread(fd, (char *)buf + done, bytes - done, offset + done);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

int efs_sys_pwrite_all(int fd, const void *buf, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = efs_sys_pwrite(fd, (const char *)buf + done, bytes - done, offset + done);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -EIO;
        done += (size_t)n;
    }
    return 0;
}
