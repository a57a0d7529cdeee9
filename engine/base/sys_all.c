/* SPDX-License-Identifier: Apache-2.0 */
/* sys_all.c - loops over short reads and writes, and other functions built on sys.h alone, so that tests can inject
 * faults into each call. */
#include "sys.h"

#include <errno.h>
#include <sys/mman.h>

int efs_sys_pread_least(int fd, void *buf, size_t bytes, size_t least, uint64_t offset)
{
    for (size_t done = 0; done < least;) {
        ssize_t n = efs_sys_pread(fd, (char *)buf + done, bytes - done, offset + done);
        if (n <= 0)
            return n < 0 ? (int)n : -ENODATA;
        done += (size_t)n;
    }
    return 0;
}

int efs_sys_pread_all(int fd, void *buf, size_t bytes, uint64_t offset)
{
    return efs_sys_pread_least(fd, buf, bytes, bytes, offset);
}

int efs_sys_pwrite_all(int fd, const void *buf, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = efs_sys_pwrite(fd, (const char *)buf + done, bytes - done, offset + done);
        if (n <= 0)
            return n < 0 ? (int)n : -EIO;
        done += (size_t)n;
    }
    return 0;
}

bool efs_sys_no_direct(ssize_t rc)
{
    return rc == -EINVAL || rc == -EOPNOTSUPP;
}

int efs_sys_sync(int fd)
{
    int rc = efs_sys_fsync(fd);
    if (rc < 0 && rc != -EINVAL && rc != -ENOSYS && rc != -EOPNOTSUPP)
        return rc;
    int copy = efs_sys_dup(fd);
    return copy < 0 ? copy : efs_sys_close(copy);
}

int efs_sys_sync_directory(int fd)
{
    int rc = efs_sys_fsync(fd);
    return rc == -EINVAL || rc == -EOPNOTSUPP || rc == -ENOSYS || rc == -ENOTTY || rc == -EBADF ? 0 : rc;
}

int efs_sys_populate(void *addr, size_t bytes, bool *populated)
{
    int rc = efs_sys_madvise(addr, bytes, MADV_POPULATE_WRITE);
    if (populated)
        *populated = rc == 0;
    return rc == 0 || rc == -EINVAL ? 0 : -ENOMEM;
}

void efs_sys_advise_huge(void *memory, size_t bytes)
{
    const uintptr_t huge = (uintptr_t)2 << 20;
    uintptr_t begin = ((uintptr_t)memory + huge - 1) & ~(huge - 1), end = ((uintptr_t)memory + bytes) & ~(huge - 1);
    if (begin < end)
        efs_sys_madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
}
