/* SPDX-License-Identifier: Apache-2.0 */
/* sys.c - wrappers of the system calls of sys.h. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <liburing.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <numaif.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
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

int efs_sys_dup(int fd)
{
    return (int)RETRY(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

int efs_sys_fstat(int fd, struct stat *st)
{
    return (int)RETRY(fstat(fd, st));
}

int efs_sys_has_acl(int fd)
{
    return fgetxattr(fd, "system.posix_acl_access", NULL, 0) > 0;
}

ssize_t efs_sys_getxattrat(int dir, const char *path, const char *name, void *value, size_t bytes)
{
    char all[PATH_MAX];
    int length = snprintf(all, sizeof(all), "/proc/self/fd/%d/%s", dir, path);
    if (length < 0 || (size_t)length >= sizeof(all))
        return -ENAMETOOLONG;
    return RETRY(getxattr(all, name, value, bytes));
}

int efs_sys_flock(int fd, int operation)
{
    return (int)RETRY(flock(fd, operation));
}

ssize_t efs_sys_pread(int fd, void *buf, size_t bytes, uint64_t offset)
{
    return RETRY(pread(fd, buf, bytes, (off_t)offset));
}

ssize_t efs_sys_preadv(int fd, const struct iovec *buffers, int count, uint64_t offset)
{
    return RETRY(preadv(fd, buffers, count, (off_t)offset));
}

ssize_t efs_sys_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset)
{
    return RETRY(pwrite(fd, buf, bytes, (off_t)offset));
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

int efs_sys_set_mtime(int fd, const struct timespec *mtime)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *mtime};
    return (int)RETRY(futimens(fd, times));
}

int efs_sys_free_bytes(int fd, uint64_t *bytes, uint32_t *block_bytes)
{
    struct statvfs st;
    int rc = (int)RETRY(fstatvfs(fd, &st));
    if (rc < 0)
        return rc;
    *bytes = st.f_blocks ? (uint64_t)st.f_bavail * st.f_frsize : INT64_MAX;
    *block_bytes = st.f_frsize ? (uint32_t)st.f_frsize : 4096;
    return 0;
}

int64_t efs_sys_filesystem(int fd)
{
    struct statfs st;
    int rc = (int)RETRY(fstatfs(fd, &st));
    return rc < 0 ? rc : (int64_t)(uint32_t)st.f_type; /* some magic numbers have bit 31 set */
}

bool efs_sys_is_remote(int fd)
{
    static const uint32_t types[] = {NFS_SUPER_MAGIC,  CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC, CEPH_SUPER_MAGIC,
                                     FUSE_SUPER_MAGIC, V9FS_MAGIC,       AFS_SUPER_MAGIC,  AFS_FS_MAGIC};
    const int64_t type = efs_sys_filesystem(fd);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (type == types[i])
            return true;
    return false;
}

bool efs_sys_has_change_time(int fd)
{
    const uint32_t zfs = 0x2fc12fc1, bcachefs = 0xca451a4e;
    const uint32_t known[] = {
        EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, NFS_SUPER_MAGIC, CEPH_SUPER_MAGIC, zfs,
        bcachefs};
    const int64_t type = efs_sys_filesystem(fd);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (type == known[i])
            return true;
    return false;
}

int64_t efs_sys_seek_hole(int fd, uint64_t offset)
{
    return RETRY(lseek(fd, (off_t)offset, SEEK_HOLE));
}

int64_t efs_sys_seek_data(int fd, uint64_t offset)
{
    return RETRY(lseek(fd, (off_t)offset, SEEK_DATA));
}

int efs_sys_fiemap(int fd, struct fiemap *map)
{
    return (int)RETRY(ioctl(fd, FS_IOC_FIEMAP, map));
}

int efs_sys_syncfs(int fd)
{
    return (int)RETRY(syncfs(fd));
}

int efs_sys_drop_cache(int fd, uint64_t offset, uint64_t bytes)
{
    return -posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}

int efs_sys_is_sole_user(int fd)
{
    fcntl(fd, F_SETSIG, SIGURG); /* if the lease is broken: SIGURG (ignored by default), not SIGIO (fatal) */
    if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
        return -errno;
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return 0;
}

int efs_sys_memfd_create(const char *name, unsigned flags)
{
    int fd = (int)RETRY(memfd_create(name, flags | MFD_CLOEXEC));
    if (fd >= 0 && fchmod(fd, 0400) < 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

int efs_sys_add_seals(int fd, int seals)
{
    return (int)RETRY(fcntl(fd, F_ADD_SEALS, seals));
}

int efs_sys_huge_tmpfs(void)
{
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC), mount = -1;
    if (context < 0)
        return -errno;
    if (fsconfig(context, FSCONFIG_SET_STRING, "huge", "within_size", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "size", "0", 0) == 0 && /* no size limit: the budget limits it */
        fsconfig(context, FSCONFIG_SET_STRING, "nr_inodes", "0", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID);
    int rc = mount < 0 ? -errno : mount;
    close(context);
    return rc;
}

int efs_sys_clone_readonly(int mount)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
    int clone = open_tree(mount, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (clone < 0)
        return -errno;
    int rc = mount_setattr(clone, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0 ? -errno : clone;
    if (rc < 0)
        close(clone);
    return rc;
}

/* Thread function. arg: in, the descriptor of a mount; out, that of its clone or -errno. */
static void *clone_in_namespace(void *arg)
{
    int *fd = arg, mount = *fd;
    if (unshare(CLONE_FS | CLONE_NEWNS) < 0 ||
        mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &(struct mount_attr){.propagation = MS_PRIVATE},
                      sizeof(struct mount_attr)) < 0 ||
        move_mount(mount, "", AT_FDCWD, "/tmp", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        *fd = -errno;
    else
        *fd = efs_sys_clone_readonly(mount);
    return NULL;
}

int efs_sys_clone_readonly_mounted(int mount)
{
    pthread_t thread;
    int fd = mount, rc = efs_sys_thread(&thread, NULL, clone_in_namespace, &fd);
    if (rc < 0)
        return rc;
    pthread_join(thread, NULL);
    return fd;
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

int efs_sys_thread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return -pthread_create(thread, attr, run, arg);
}

int efs_sys_mprotect(void *addr, size_t bytes, int prot)
{
    return mprotect(addr, bytes, prot) < 0 ? -errno : 0;
}

int efs_sys_mbind(void *addr, size_t bytes, uint32_t node)
{
    unsigned long mask[EFS_SYS_NODES / (8 * sizeof(unsigned long))] = {0};
    if (node >= EFS_SYS_NODES)
        return -EINVAL;
    mask[node / (8 * sizeof(mask[0]))] = 1ul << (node % (8 * sizeof(mask[0])));
    /* the kernel uses maxnode - 1 bits of the mask */
    return mbind(addr, bytes, MPOL_BIND, mask, EFS_SYS_NODES + 1, 0) < 0 ? -errno : 0;
}

/* PAGEMAP_SCAN of linux/fs.h, missing in kernel headers before 6.7. */
struct pagemap_region {
    uint64_t start, end, categories;
};
struct pagemap_scan {
    uint64_t size, flags, start, end, walk_end, regions, region_count, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_CALL _IOWR('f', 16, struct pagemap_scan)
#define PAGEMAP_IS_HUGE (1u << 6)

int64_t efs_sys_huge_bytes(const void *addr, size_t bytes)
{
    struct pagemap_region regions[64];
    struct pagemap_scan scan = {.size = sizeof(scan),
                                .start = (uintptr_t)addr,
                                .end = (uintptr_t)addr + bytes,
                                .regions = (uintptr_t)regions,
                                .region_count = sizeof(regions) / sizeof(regions[0]),
                                .category_mask = PAGEMAP_IS_HUGE,
                                .return_mask = PAGEMAP_IS_HUGE};
    int64_t huge = 0;
    int fd = efs_sys_open("/proc/self/pagemap", O_RDONLY, 0);
    if (fd < 0)
        return fd;
    while (scan.start < scan.end) {
        long found = RETRY(ioctl(fd, PAGEMAP_SCAN_CALL, &scan));
        if (found < 0 || scan.walk_end <= scan.start) {
            huge = found < 0 ? found : -EIO;
            break;
        }
        for (long i = 0; i < found; i++)
            huge += (int64_t)(regions[i].end - regions[i].start);
        scan.start = scan.walk_end;
    }
    close(fd);
    return huge;
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

int efs_sys_uring_init(struct io_uring *ring, unsigned depth, bool any_thread)
{
    if (any_thread)
        return io_uring_queue_init(depth, ring, 0);
    /* One thread submits and reaps, so completions need not interrupt it. Older kernels reject the flags (-EINVAL). */
    int rc = io_uring_queue_init(depth, ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    return rc == -EINVAL ? io_uring_queue_init(depth, ring, 0) : rc;
}

int efs_sys_uring_files(struct io_uring *ring, const int *fds, unsigned count)
{
    return io_uring_register_files(ring, fds, count);
}

int efs_sys_uring_slots(struct io_uring *ring, unsigned count)
{
    return io_uring_register_buffers_sparse(ring, count);
}

int efs_sys_uring_register(struct io_uring *ring, unsigned slot, void *base, size_t bytes)
{
    struct iovec iov = {bytes ? base : NULL, bytes};
    __u64 tag = 0;
    int rc = io_uring_register_buffers_update_tag(ring, slot, &iov, &tag, 1);
    return rc < 0 ? rc : 0;
}

int efs_sys_uring_submit(struct io_uring *ring)
{
    return io_uring_submit(ring);
}

int efs_sys_uring_wait(struct io_uring *ring, unsigned count)
{
    return io_uring_submit_and_wait(ring, count);
}

int efs_sys_uring_result(int result)
{
    return result;
}
