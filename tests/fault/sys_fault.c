/* SPDX-License-Identifier: Apache-2.0 */
/* sys_fault.c - see sys_fault.h: wrappers that fail as planned, or call the real function. */
#include "sys_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "sys.h"
#include "sys_power.h"
#include "wrapped.h"

const char *const fault_names[FAULT_CALLS] = {
#define FAULT_NAME(kind, name) name,
    FAULT_KINDS(FAULT_NAME)
#undef FAULT_NAME
};

static struct {
    enum fault_call call;
    unsigned nth;
    int error;
    bool forever, armed;
    _Atomic unsigned seen, hits;
} plan;

void fault_plan(enum fault_call call, unsigned nth, int error, bool forever)
{
    plan.call = call;
    plan.nth = nth;
    plan.error = error;
    plan.forever = forever;
    plan.seen = plan.hits = 0;
    plan.armed = true;
}

void fault_clear(void)
{
    plan.armed = false;
}

bool fault_triggered(void)
{
    return plan.hits > 0;
}

void fault_power(unsigned nth, bool lose)
{
    power.nth = nth;
    power.lose = lose;
    power.seen = power.count = 0;
    power.armed = true;
}

void fault_power_partial(uint64_t seed)
{
    power.seed = seed;
}

void fault_power_signal(int number)
{
    power.number = number;
}

unsigned fault_power_calls(void)
{
    power.armed = false;
    return power.seen;
}

static struct {
    enum fault_call call;
    void (*_Atomic what)(void);
} meanwhile;

void fault_run_before(enum fault_call call, void (*what)(void))
{
    meanwhile.call = call;
    meanwhile.what = what;
}

static _Atomic unsigned disk_calls;

unsigned fault_disk_calls(void)
{
    return atomic_exchange(&disk_calls, 0);
}

static void count_disk_call(void)
{
    char name[16] = "";
    if (pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && strcmp(name, "efs-disk") == 0)
        atomic_fetch_add(&disk_calls, 1);
}

static bool fails(enum fault_call call)
{
    void (*what)(void) = meanwhile.what;
    if (call < FAULT_URING_INIT)
        count_disk_call();
    if (what && meanwhile.call == call && atomic_compare_exchange_strong(&meanwhile.what, &what, NULL))
        what();
    if (!plan.armed || plan.call != call)
        return false;
    unsigned n = atomic_fetch_add(&plan.seen, 1) + 1;
    bool hit = n == plan.nth || (plan.forever && n > plan.nth);
    if (hit)
        atomic_fetch_add(&plan.hits, 1);
    return hit;
}

/* A call that fails with -errno. */
#define FAILING(type, call, kind, parameters, arguments)                                                               \
    WRAPPED(type, call, parameters)                                                                                    \
    {                                                                                                                  \
        return fails(FAULT_##kind) ? -plan.error : __real_##call arguments;                                            \
    }
/* A call that changes files. */
#define FAILING_CHANGE(call, kind, parameters, arguments)                                                              \
    WRAPPED(int, call, parameters)                                                                                     \
    {                                                                                                                  \
        power_step();                                                                                                  \
        return fails(FAULT_##kind) ? -plan.error : __real_##call arguments;                                            \
    }
/* A call that returns memory, or NULL with errno. */
#define FAILING_MEMORY(call, kind, parameters, arguments)                                                              \
    WRAPPED(void *, call, parameters)                                                                                  \
    {                                                                                                                  \
        if (!fails(FAULT_##kind))                                                                                      \
            return __real_##call arguments;                                                                            \
        errno = plan.error;                                                                                            \
        return NULL;                                                                                                   \
    }

FAILING(int, efs_sys_open, OPEN, (const char *path, int flags, mode_t mode), (path, flags, mode))
FAILING(int, efs_sys_fstat, FSTAT, (int fd, struct stat *st), (fd, st))
FAILING(int, efs_sys_writeback, WRITEBACK, (int fd, uint64_t offset, uint64_t bytes, int wait),
        (fd, offset, bytes, wait))
FAILING(int, efs_sys_memfd_create, MEMFD, (const char *name, unsigned flags), (name, flags))
FAILING(int, efs_sys_is_sole_user, SOLE_USER, (int fd), (fd))
FAILING(int, efs_sys_add_seals, SEALS, (int fd, int seals), (fd, seals))
FAILING(int, efs_sys_clone_readonly_mounted, CLONE_READING_MOUNTED, (int mount), (mount))
FAILING(int, efs_sys_munmap, MUNMAP, (void *addr, size_t bytes), (addr, bytes))
FAILING(int, efs_sys_madvise, MADVISE, (void *addr, size_t bytes, int advice), (addr, bytes, advice))
FAILING(int, efs_sys_thread, THREAD, (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
        (thread, attr, run, arg))
FAILING(int, efs_sys_mprotect, MPROTECT, (void *addr, size_t bytes, int prot), (addr, bytes, prot))
FAILING(int, efs_sys_mbind, MBIND, (void *addr, size_t bytes, uint32_t node), (addr, bytes, node))
FAILING(int64_t, efs_sys_huge_bytes, HUGE_BYTES, (const void *addr, size_t bytes), (addr, bytes))
FAILING(int, efs_sys_uring_init, URING_INIT, (struct io_uring * ring, unsigned depth, bool any_thread),
        (ring, depth, any_thread))
FAILING(int, efs_sys_uring_submit, URING_SUBMIT, (struct io_uring * ring), (ring))
FAILING(int, efs_sys_uring_files, URING_FILES, (struct io_uring * ring, const int *fds, unsigned count),
        (ring, fds, count))
FAILING(int, efs_sys_uring_slots, URING_SLOTS, (struct io_uring * ring, unsigned count), (ring, count))
FAILING(int, efs_sys_uring_wait, URING_WAIT, (struct io_uring * ring, unsigned count), (ring, count))
FAILING_CHANGE(efs_sys_fallocate, FALLOCATE, (int fd, int mode, uint64_t offset, uint64_t bytes),
               (fd, mode, offset, bytes))
FAILING_CHANGE(efs_sys_unlinkat, UNLINK, (int dir, const char *path, int flags), (dir, path, flags))
FAILING_CHANGE(efs_sys_mkdirat, MKDIR, (int dir, const char *path, mode_t mode), (dir, path, mode))
FAILING_MEMORY(efs_sys_mmap, MMAP, (void *addr, size_t bytes, int prot, int flags, int fd, uint64_t offset),
               (addr, bytes, prot, flags, fd, offset))
FAILING_MEMORY(efs_sys_malloc, MEMORY, (size_t bytes), (bytes))
FAILING_MEMORY(efs_sys_calloc, MEMORY, (size_t count, size_t bytes), (count, bytes))
FAILING_MEMORY(efs_sys_realloc, MEMORY, (void *p, size_t bytes), (p, bytes))
FAILING_MEMORY(efs_sys_aligned_alloc, MEMORY, (size_t alignment, size_t bytes), (alignment, bytes))

static bool named_files;

void fault_no_tmpfile(bool on)
{
    named_files = on;
}

WRAPPED(int, efs_sys_openat, (int dir, const char *path, int flags, mode_t mode))
{
    if (named_files && (flags & O_TMPFILE) == O_TMPFILE)
        return -EOPNOTSUPP;
    return fails(FAULT_OPEN) ? -plan.error : __real_efs_sys_openat(dir, path, flags, mode);
}

static size_t half(size_t bytes)
{
    return bytes > 8192 ? bytes / 2 / 4096 * 4096 : bytes / 2;
}

WRAPPED(ssize_t, efs_sys_pread, (int fd, void *buf, size_t bytes, uint64_t offset))
{
    if (!fails(FAULT_PREAD))
        return __real_efs_sys_pread(fd, buf, bytes, offset);
    return plan.error ? -plan.error : __real_efs_sys_pread(fd, buf, half(bytes), offset);
}

WRAPPED(ssize_t, efs_sys_preadv, (int fd, const struct iovec *buffers, int count, uint64_t offset))
{
    if (!fails(FAULT_PREAD))
        return __real_efs_sys_preadv(fd, buffers, count, offset);
    return plan.error ? -plan.error : __real_efs_sys_pread(fd, buffers->iov_base, half(buffers->iov_len), offset);
}

WRAPPED(ssize_t, efs_sys_pwrite, (int fd, const void *buf, size_t bytes, uint64_t offset))
{
    power_step();
    power_remember(fd, NULL, offset, bytes);
    if (!fails(FAULT_PWRITE))
        return __real_efs_sys_pwrite(fd, buf, bytes, offset);
    return plan.error ? -plan.error : __real_efs_sys_pwrite(fd, buf, half(bytes), offset);
}

WRAPPED(int, efs_sys_fsync, (int fd))
{
    power_step();
    int rc = fails(FAULT_FSYNC) ? -plan.error : __real_efs_sys_fsync(fd);
    if (rc == 0)
        power_synced(fd);
    return rc;
}

WRAPPED(int, efs_sys_ftruncate, (int fd, uint64_t bytes))
{
    power_step();
    power_remember(fd, NULL, bytes, UINT64_MAX);
    return fails(FAULT_FTRUNCATE) ? -plan.error : __real_efs_sys_ftruncate(fd, bytes);
}

WRAPPED(int, efs_sys_linkat, (int from_dir, const char *from, int to_dir, const char *to, int flags))
{
    power_step();
    int rc = fails(FAULT_LINK) ? -plan.error : __real_efs_sys_linkat(from_dir, from, to_dir, to, flags);
    if (rc == 0)
        power_remember(to_dir, to, 0, 0);
    return rc;
}

WRAPPED(int, efs_sys_renameat, (int from_dir, const char *from, int to_dir, const char *to))
{
    power_step();
    char *saved = power_save(to_dir, to);
    int rc = fails(FAULT_RENAME) ? -plan.error : __real_efs_sys_renameat(from_dir, from, to_dir, to);
    if (rc == 0)
        power_remember_rename(to_dir, to, saved);
    return rc;
}

WRAPPED(int, efs_sys_set_mtime, (int fd, const struct timespec *mtime))
{
    power_step();
    return __real_efs_sys_set_mtime(fd, mtime);
}

WRAPPED(int, efs_sys_free_bytes, (int fd, uint64_t *bytes, uint32_t *block_bytes))
{
    bool none = fails(FAULT_FREE_BYTES);
    int rc = __real_efs_sys_free_bytes(fd, bytes, block_bytes);
    if (none && !plan.error)
        *bytes = 0;
    return none && plan.error ? -plan.error : rc;
}

static struct {
    bool sized;
    int fd;
} tmpfs;

/* A tmpfs mounted without a size cannot get one later, so it is mounted with 1 TiB. */
WRAPPED(int, fsconfig, (int context, unsigned command, const char *key, const void *value, int number))
{
    return __real_fsconfig(context, command, key, tmpfs.sized && key && strcmp(key, "size") == 0 ? "1t" : value,
                           number);
}

WRAPPED(int, efs_sys_huge_tmpfs, (void))
{
    return tmpfs.fd = fails(FAULT_HUGE_TMPFS) ? -plan.error : __real_efs_sys_huge_tmpfs();
}

void fault_tmpfs_free(uint64_t bytes)
{
    struct statvfs now;
    char size[24] = "1t";
    tmpfs.sized = true;
    if (tmpfs.fd <= 0 || fstatvfs(tmpfs.fd, &now) < 0)
        return;
    if (bytes != UINT64_MAX) { /* size=0 would mean unlimited */
        unsigned long long used = (now.f_blocks - now.f_bfree) * now.f_bsize;
        snprintf(size, sizeof(size), "%llu", used + bytes ? used + bytes : 1ull);
    }
    int context = fspick(tmpfs.fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
    if (context < 0 || __real_fsconfig(context, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
        __real_fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0) {
        perror("the size of a tmpfs");
        abort();
    }
    close(context);
}

static bool old_kernel;

void fault_old_kernel(bool on)
{
    old_kernel = on;
}

WRAPPED(int, efs_sys_clone_readonly, (int mount))
{
    if (old_kernel)
        return -EINVAL;
    return fails(FAULT_CLONE_READING) ? -plan.error : __real_efs_sys_clone_readonly(mount);
}

WRAPPED(int, efs_sys_close, (int fd))
{
    bool failed = fails(FAULT_CLOSE);
    tmpfs.fd = fd == tmpfs.fd ? -1 : tmpfs.fd;
    int rc = __real_efs_sys_close(fd);
    return failed ? -plan.error : rc;
}

WRAPPED(int, efs_sys_uring_register, (struct io_uring * ring, unsigned memfile, void *base, size_t bytes))
{
    return fails(bytes ? FAULT_URING_PIN : FAULT_URING_UNPIN)
               ? -plan.error
               : __real_efs_sys_uring_register(ring, memfile, base, bytes);
}

WRAPPED(int, efs_sys_uring_result, (int result))
{
    if (!fails(FAULT_URING_RESULT))
        return __real_efs_sys_uring_result(result);
    return plan.error ? -plan.error : result > 4096 ? result / 2 / 4096 * 4096 : result;
}
