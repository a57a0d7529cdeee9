/* SPDX-License-Identifier: Apache-2.0 */
/* sys_fault.c - see sys_fault.h: the real calls under other names, and wrappers that fail on demand. */
#define fsconfig fault_fsconfig
#define efs_sys_open real_open
#define efs_sys_openat real_openat
#define efs_sys_close real_close
#define efs_sys_fstat real_fstat
#define efs_sys_pread real_pread
#define efs_sys_preadv real_preadv
#define efs_sys_pwrite real_pwrite
#define efs_sys_fsync real_fsync
#define efs_sys_writeback real_writeback
#define efs_sys_ftruncate real_ftruncate
#define efs_sys_fallocate real_fallocate
#define efs_sys_unlinkat real_unlinkat
#define efs_sys_mkdirat real_mkdirat
#define efs_sys_set_mtime real_set_mtime
#define efs_sys_free_bytes real_free_bytes
#define efs_sys_linkat real_linkat
#define efs_sys_renameat real_renameat
#define efs_sys_memfd_create real_memfd_create
#define efs_sys_huge_tmpfs real_huge_tmpfs
#define efs_sys_clone_reading real_clone_reading
#define efs_sys_clone_reading_mounted real_clone_reading_mounted
#define efs_sys_add_seals real_add_seals
#define efs_sys_mmap real_mmap
#define efs_sys_munmap real_munmap
#define efs_sys_madvise real_madvise
#define efs_sys_thread real_thread
#define efs_sys_mprotect real_mprotect
#define efs_sys_mbind real_mbind
#define efs_sys_huge_bytes real_huge_bytes
#define efs_sys_malloc real_malloc
#define efs_sys_calloc real_calloc
#define efs_sys_realloc real_realloc
#define efs_sys_aligned_alloc real_aligned_alloc
#define efs_sys_uring_init real_uring_init
#define efs_sys_uring_pin real_uring_pin
#define efs_sys_uring_submit real_uring_submit
#define efs_sys_uring_files real_uring_files
#define efs_sys_uring_slots real_uring_slots
#define efs_sys_uring_wait real_uring_wait
#define efs_sys_uring_result real_uring_result
#include "../../engine/base/sys.c"
#undef fsconfig
#undef efs_sys_open
#undef efs_sys_openat
#undef efs_sys_close
#undef efs_sys_fstat
#undef efs_sys_pread
#undef efs_sys_preadv
#undef efs_sys_pwrite
#undef efs_sys_fsync
#undef efs_sys_writeback
#undef efs_sys_ftruncate
#undef efs_sys_fallocate
#undef efs_sys_unlinkat
#undef efs_sys_mkdirat
#undef efs_sys_set_mtime
#undef efs_sys_free_bytes
#undef efs_sys_linkat
#undef efs_sys_renameat
#undef efs_sys_memfd_create
#undef efs_sys_huge_tmpfs
#undef efs_sys_clone_reading
#undef efs_sys_clone_reading_mounted
#undef efs_sys_add_seals
#undef efs_sys_mmap
#undef efs_sys_munmap
#undef efs_sys_madvise
#undef efs_sys_thread
#undef efs_sys_mprotect
#undef efs_sys_mbind
#undef efs_sys_huge_bytes
#undef efs_sys_malloc
#undef efs_sys_calloc
#undef efs_sys_realloc
#undef efs_sys_aligned_alloc
#undef efs_sys_uring_init
#undef efs_sys_uring_pin
#undef efs_sys_uring_submit
#undef efs_sys_uring_files
#undef efs_sys_uring_slots
#undef efs_sys_uring_wait
#undef efs_sys_uring_result
#undef EFS_SYS_H
#include "../../engine/base/sys.h"

#include "sys_fault.h"

#include <pthread.h>
#include <stdatomic.h>

#include "sys_power.h"

const char *const fault_names[FAULT_CALLS] = {"open",          "fstat",
                                              "pread",         "pwrite",
                                              "fsync",         "ftruncate",
                                              "link",          "memfd",
                                              "huge tmpfs",    "mmap",
                                              "memory",        "uring init",
                                              "uring pin",     "uring result",
                                              "mprotect",      "mbind",
                                              "huge bytes",    "seals",
                                              "fallocate",     "free bytes",
                                              "clone reading", "clone reading, mounted",
                                              "close",         "unlink",
                                              "mkdir",         "munmap",
                                              "madvise",       "thread",
                                              "uring submit",  "writeback",
                                              "uring files",   "uring slots",
                                              "uring unpin",   "uring wait",
                                              "rename"};

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

void fault_none(void)
{
    plan.armed = false;
}

bool fault_happened(void)
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

void fault_power_some(uint64_t seed)
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

void fault_meanwhile(enum fault_call call, void (*what)(void))
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
    /* a segment is registered where its first read begins, which makes its pages */
    if (call != FAULT_URING_INIT && call != FAULT_URING_FILES && call != FAULT_URING_SLOTS && call != FAULT_URING_PIN &&
        call != FAULT_URING_UNPIN && call != FAULT_URING_SUBMIT && call != FAULT_URING_WAIT &&
        call != FAULT_URING_RESULT && call != FAULT_HUGE_BYTES && call != FAULT_MADVISE)
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

int efs_sys_open(const char *path, int flags, mode_t mode)
{
    return fails(FAULT_OPEN) ? -plan.error : real_open(path, flags, mode);
}

static bool named_files;

void fault_named_files(bool on)
{
    named_files = on;
}

int efs_sys_openat(int dir, const char *path, int flags, mode_t mode)
{
    if (named_files && (flags & O_TMPFILE) == O_TMPFILE)
        return -EOPNOTSUPP;
    return fails(FAULT_OPEN) ? -plan.error : real_openat(dir, path, flags, mode);
}

int efs_sys_fstat(int fd, struct stat *st)
{
    return fails(FAULT_FSTAT) ? -plan.error : real_fstat(fd, st);
}

static size_t half(size_t bytes)
{
    return bytes > 8192 ? bytes / 2 / 4096 * 4096 : bytes / 2;
}

ssize_t efs_sys_pread(int fd, void *buf, size_t bytes, uint64_t offset)
{
    if (!fails(FAULT_PREAD))
        return real_pread(fd, buf, bytes, offset);
    return plan.error ? -plan.error : real_pread(fd, buf, half(bytes), offset);
}

ssize_t efs_sys_preadv(int fd, const struct iovec *buffers, int count, uint64_t offset)
{
    if (!fails(FAULT_PREAD))
        return real_preadv(fd, buffers, count, offset);
    return plan.error ? -plan.error : real_pread(fd, buffers->iov_base, half(buffers->iov_len), offset);
}

ssize_t efs_sys_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset)
{
    power_step();
    power_remember(fd, NULL, offset, bytes);
    if (!fails(FAULT_PWRITE))
        return real_pwrite(fd, buf, bytes, offset);
    return plan.error ? -plan.error : real_pwrite(fd, buf, half(bytes), offset);
}

int efs_sys_fsync(int fd)
{
    power_step();
    int rc = fails(FAULT_FSYNC) ? -plan.error : real_fsync(fd);
    if (rc == 0)
        power_synced(fd);
    return rc;
}

int efs_sys_writeback(int fd, uint64_t offset, uint64_t bytes, int wait)
{
    return fails(FAULT_WRITEBACK) ? -plan.error : real_writeback(fd, offset, bytes, wait);
}

int efs_sys_ftruncate(int fd, uint64_t bytes)
{
    power_step();
    power_remember(fd, NULL, bytes, UINT64_MAX);
    return fails(FAULT_FTRUNCATE) ? -plan.error : real_ftruncate(fd, bytes);
}

int efs_sys_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    power_step();
    int rc = fails(FAULT_LINK) ? -plan.error : real_linkat(from_dir, from, to_dir, to, flags);
    if (rc == 0)
        power_remember(to_dir, to, 0, 0);
    return rc;
}

int efs_sys_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    power_step();
    char *saved = power_save(to_dir, to);
    int rc = fails(FAULT_RENAME) ? -plan.error : real_renameat(from_dir, from, to_dir, to);
    if (rc == 0)
        power_remember_rename(to_dir, to, saved);
    return rc;
}

int efs_sys_fallocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    power_step();
    return fails(FAULT_FALLOCATE) ? -plan.error : real_fallocate(fd, mode, offset, bytes);
}

int efs_sys_unlinkat(int dir, const char *path, int flags)
{
    power_step();
    return fails(FAULT_UNLINK) ? -plan.error : real_unlinkat(dir, path, flags);
}

int efs_sys_mkdirat(int dir, const char *path, mode_t mode)
{
    power_step();
    return fails(FAULT_MKDIR) ? -plan.error : real_mkdirat(dir, path, mode);
}

int efs_sys_set_mtime(int fd, const struct timespec *mtime)
{
    power_step();
    return real_set_mtime(fd, mtime);
}

int efs_sys_free_bytes(int fd, uint64_t *bytes, uint32_t *block_bytes)
{
    bool none = fails(FAULT_FREE_BYTES);
    int rc = real_free_bytes(fd, bytes, block_bytes);
    if (none && !plan.error)
        *bytes = 0;
    return none && plan.error ? -plan.error : rc;
}

int efs_sys_memfd_create(const char *name, unsigned flags)
{
    return fails(FAULT_MEMFD) ? -plan.error : real_memfd_create(name, flags);
}

int efs_sys_add_seals(int fd, int seals)
{
    return fails(FAULT_SEALS) ? -plan.error : real_add_seals(fd, seals);
}

static struct {
    bool sized;
    int fd;
} tmpfs;

extern int fsconfig(int context, unsigned command, const char *key, const void *value, int number);

/* One that is made without a size can be given none later. */
int fault_fsconfig(int context, unsigned command, const char *key, const void *value, int number)
{
    return fsconfig(context, command, key, tmpfs.sized && key && strcmp(key, "size") == 0 ? "1t" : value, number);
}

int efs_sys_huge_tmpfs(void)
{
    return tmpfs.fd = fails(FAULT_HUGE_TMPFS) ? -plan.error : real_huge_tmpfs();
}

void fault_tmpfs_room(uint64_t bytes)
{
    struct statvfs now;
    char size[24] = "1t";
    tmpfs.sized = true;
    if (tmpfs.fd <= 0 || fstatvfs(tmpfs.fd, &now) < 0)
        return;
    if (bytes != UINT64_MAX) { /* 0 would be no limit */
        unsigned long long used = (now.f_blocks - now.f_bfree) * now.f_bsize;
        snprintf(size, sizeof(size), "%llu", used + bytes ? used + bytes : 1ull);
    }
    int context = fspick(tmpfs.fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
    if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
        fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0) {
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

int efs_sys_clone_reading(int mount)
{
    if (old_kernel)
        return -EINVAL;
    return fails(FAULT_CLONE_READING) ? -plan.error : real_clone_reading(mount);
}

int efs_sys_clone_reading_mounted(int mount)
{
    return fails(FAULT_CLONE_READING_MOUNTED) ? -plan.error : real_clone_reading_mounted(mount);
}

void *efs_sys_mmap(void *addr, size_t bytes, int prot, int flags, int fd, uint64_t offset)
{
    if (!fails(FAULT_MMAP))
        return real_mmap(addr, bytes, prot, flags, fd, offset);
    errno = plan.error;
    return NULL;
}

int efs_sys_close(int fd)
{
    bool failed = fails(FAULT_CLOSE);
    tmpfs.fd = fd == tmpfs.fd ? -1 : tmpfs.fd;
    int rc = real_close(fd);
    return failed ? -plan.error : rc;
}

int efs_sys_munmap(void *addr, size_t bytes)
{
    return fails(FAULT_MUNMAP) ? -plan.error : real_munmap(addr, bytes);
}

int efs_sys_madvise(void *addr, size_t bytes, int advice)
{
    return fails(FAULT_MADVISE) ? -plan.error : real_madvise(addr, bytes, advice);
}

int efs_sys_thread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return fails(FAULT_THREAD) ? -plan.error : real_thread(thread, attr, run, arg);
}

int efs_sys_mprotect(void *addr, size_t bytes, int prot)
{
    return fails(FAULT_MPROTECT) ? -plan.error : real_mprotect(addr, bytes, prot);
}

int efs_sys_mbind(void *addr, size_t bytes, uint32_t node)
{
    return fails(FAULT_MBIND) ? -plan.error : real_mbind(addr, bytes, node);
}

int64_t efs_sys_huge_bytes(const void *addr, size_t bytes)
{
    return fails(FAULT_HUGE_BYTES) ? -plan.error : real_huge_bytes(addr, bytes);
}

void *efs_sys_malloc(size_t bytes)
{
    return fails(FAULT_MEMORY) ? NULL : real_malloc(bytes);
}

void *efs_sys_calloc(size_t count, size_t bytes)
{
    return fails(FAULT_MEMORY) ? NULL : real_calloc(count, bytes);
}

void *efs_sys_realloc(void *p, size_t bytes)
{
    return fails(FAULT_MEMORY) ? NULL : real_realloc(p, bytes);
}

void *efs_sys_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(FAULT_MEMORY) ? NULL : real_aligned_alloc(alignment, bytes);
}

int efs_sys_uring_init(struct io_uring *ring, unsigned depth)
{
    return fails(FAULT_URING_INIT) ? -plan.error : real_uring_init(ring, depth);
}

int efs_sys_uring_pin(struct io_uring *ring, unsigned memfile, void *base, size_t bytes)
{
    return fails(bytes ? FAULT_URING_PIN : FAULT_URING_UNPIN) ? -plan.error
                                                              : real_uring_pin(ring, memfile, base, bytes);
}

int efs_sys_uring_submit(struct io_uring *ring)
{
    return fails(FAULT_URING_SUBMIT) ? -plan.error : real_uring_submit(ring);
}

int efs_sys_uring_files(struct io_uring *ring, const int *fds, unsigned count)
{
    return fails(FAULT_URING_FILES) ? -plan.error : real_uring_files(ring, fds, count);
}

int efs_sys_uring_slots(struct io_uring *ring, unsigned count)
{
    return fails(FAULT_URING_SLOTS) ? -plan.error : real_uring_slots(ring, count);
}

int efs_sys_uring_wait(struct io_uring *ring)
{
    return fails(FAULT_URING_WAIT) ? -plan.error : real_uring_wait(ring);
}

int efs_sys_uring_result(int result)
{
    if (!fails(FAULT_URING_RESULT))
        return real_uring_result(result);
    return plan.error ? -plan.error : result > 4096 ? result / 2 / 4096 * 4096 : result;
}
