/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that back full experts in clients, created in each possible way: in a read-only clone of the engine's own
 * tmpfs, cloned directly or, for kernels before 6.15, from a namespace in which it is mounted; or as memfds, where the
 * tmpfs or the clone is not available. A client can open the file only for reading, and finds the expert's bytes in it.
 * Only a window in a memfd can be opened for writing by root.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "fetch.h"
#include "sweep.h"
#include "sys.h"
#include "sync_calls.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define EXPERTS 8u

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fault_clear();
    fixture_store(&model, 1, EXPERTS, 64, 256);
    return 0;
}

static int reset(void **state)
{
    (void)state;
    fault_clear();
    fault_old_kernel(false);
    return 0;
}

static struct efs *open_store(void)
{
    return fixture_open(
        &model, (struct efs_options){
                    .budget_bytes = 64 * MIB, .workers = 2, .full_pool = true, .exports = true, .no_state = true});
}

/* Takes the right to ignore file modes from this thread, as ordinary users lack it, or gives it back. */
static void ignore_modes(bool ignores)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct now[_LINUX_CAPABILITY_U32S_3];
    assert_int_equal(syscall(SYS_capget, &header, now), 0);
    now[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER);
    if (ignores)
        now[0].effective = now[0].permitted;
    assert_int_equal(syscall(SYS_capset, &header, now), 0);
}

/* Tries every way to write to the file of a descriptor that was passed to a client. */
static void check_reading_only(int fd)
{
    static const int flags[] = {O_RDWR, O_WRONLY, O_RDONLY | O_TRUNC, O_RDWR | O_APPEND};
    char link[40];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        int again = open(link, flags[i] | O_CLOEXEC);
        int granted = again < 0 ? -1 : flags[i] & O_TRUNC ? 0 : (int)pwrite(again, "x", 1, 0);
        void *p = again < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        if (again >= 0)
            close(again); /* a memfd can be opened for writing, but its seals prevent writes */
        assert_true(granted < 0);
        assert_ptr_equal(p, MAP_FAILED);
    }
    assert_true(truncate(link, 0) < 0);
    assert_true(ftruncate(fd, 0) < 0);
    assert_true(pwrite(fd, "x", 1, 0) < 0);
    assert_true(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    int reading = open(link, O_RDONLY | O_CLOEXEC);
    assert_true(reading >= 0);
    assert_true(ftruncate(reading, 0) < 0);
    close(reading);
}

static void check_bytes(struct efs *fs, uint32_t file, uint64_t bytes, int fd)
{
    unsigned char *want = malloc(bytes);
    assert_non_null(want);
    assert_int_equal(read_wait(fs, file, NULL, 0, want, bytes), bytes);
    const void *got = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(got, MAP_FAILED);
    assert_memory_equal(got, want, bytes);
    munmap((void *)(uintptr_t)got, bytes);
    free(want);
}

/* Passes out every expert, as a file or as a window, and checks the possible accesses. Returns the number of memfds. */
static unsigned give_out_all(struct efs *fs, bool as_window)
{
    struct efs_file_info info;
    unsigned memfds = 0, experts = 0, fds = 0;
    for (uint32_t file = 0; efs_file_info(fs, file, &info) == 0; file++) {
        if (info.kind != EFS_FILE_EXPERT)
            continue;
        struct efs_lease *lease;
        struct efs_window window = {.fd = -1};
        assert_int_equal(lease_wait(fs, file, &lease), 0);
        fds = fds ? fds : fixture_open_fds(); /* the I/O thread has set up its ring by now */
        if (as_window)
            assert_int_equal(efs_lease_window(lease, true, &window), 0);
        int fd = as_window ? window.fd : efs_lease_fd(lease);
        struct statvfs st;
        experts++;
        assert_true(fd >= 0);
        assert_int_equal(fstatvfs(fd, &st), 0);
        int seals = fcntl(fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
        bool memfd = !(st.f_flag & ST_RDONLY);
        if (memfd)
            assert_int_equal(seals, as_window ? wanted : wanted | F_SEAL_FUTURE_WRITE);
        memfds += memfd;
        ignore_modes(!(memfd && as_window));
        check_reading_only(fd);
        ignore_modes(true);
        check_bytes(fs, file, info.bytes, fd);
        const void *data = lease_data(lease);
        if (as_window) {
            close(fd);
        } else { /* again after it was closed */
            efs_lease_release(lease);
            assert_int_equal(lease_wait(fs, file, &lease), 0);
            assert_ptr_equal(lease_data(lease), data);
            fd = efs_lease_fd(lease);
            assert_true(fd >= 0);
            check_reading_only(fd);
            check_bytes(fs, file, info.bytes, fd);
        }
        efs_lease_release(lease);
    }
    assert_int_equal(experts, EXPERTS);
    if (!memfds)
        assert_int_equal(fixture_open_fds(), fds); /* all descriptors were closed with their leases */
    return memfds;
}

/* Passes out all experts as files, and in a second engine as windows. Returns the number of memfds. */
static unsigned give_out(void)
{
    unsigned fds = fixture_open_fds();
    struct efs *fs = open_store();
    unsigned memfds = give_out_all(fs, false);
    efs_close(fs);
    assert_int_equal(fixture_open_fds(), fds);
    fs = open_store();
    assert_int_equal(give_out_all(fs, true), memfds);
    efs_close(fs);
    assert_int_equal(fixture_open_fds(), fds);
    return memfds;
}

/* A tmpfs of the engine needs the right to mount. */
static void need_tmpfs(void)
{
    int tmpfs = efs_sys_huge_tmpfs();
    if (tmpfs < 0) {
        print_message("# SKIP no tmpfs of our own: %s\n", strerror(-tmpfs));
        skip();
    }
    efs_sys_close(tmpfs);
}

TEST_WITH(test_clone, NULL, reset)
{
    need_tmpfs();
    fault_plan(FAULT_CLONE_READING_MOUNTED, 1, EPERM, true);
    unsigned memfds = give_out();
    if (fault_triggered()) {
        print_message("# SKIP this kernel clones only what is mounted\n");
        skip();
    }
    assert_int_equal(memfds, 0);
}

/* Mounts can only be made private from a mount point, which the root of a chroot need not be. */
static void need_root_of_mount(void)
{
    struct statx root;
    assert_int_equal(statx(AT_FDCWD, "/", 0, 0, &root), 0);
    if (!(root.stx_attributes & STATX_ATTR_MOUNT_ROOT)) {
        print_message("# SKIP the root is a folder of a chroot, whose mounts cannot be made private\n");
        skip();
    }
}

TEST_WITH(test_clone_in_namespace, NULL, reset)
{
    struct stat before, after;
    need_tmpfs();
    need_root_of_mount();
    assert_int_equal(stat("/tmp", &before), 0);
    fault_old_kernel(true);
    assert_int_equal(give_out(), 0);
    /* the mount in the namespace does not change /tmp for other processes */
    struct efs *fs = open_store();
    assert_int_equal(stat("/tmp", &after), 0);
    assert_true(before.st_dev == after.st_dev && before.st_ino == after.st_ino);
    efs_close(fs);
}

TEST_WITH(test_no_clone, NULL, reset)
{
    need_tmpfs();
    fault_old_kernel(true);
    fault_plan(FAULT_CLONE_READING_MOUNTED, 1, EPERM, true);
    assert_int_equal(give_out(), EXPERTS);
    assert_true(fault_triggered());
}

TEST_WITH(test_memfd, NULL, reset)
{
    fault_plan(FAULT_HUGE_TMPFS, 1, EPERM, true);
    assert_int_equal(give_out(), EXPERTS);
}

/* A file that cannot be sealed is not passed out, because a client could write to it. */
TEST_WITH(test_no_seals, NULL, reset)
{
    unsigned given = 0, refused = 0;
    struct efs_file_info info;
    fault_plan(FAULT_HUGE_TMPFS, 1, EPERM, true);
    struct efs *fs = open_store();
    fault_plan(FAULT_SEALS, 1, EPERM, true);
    for (uint32_t file = 0; efs_file_info(fs, file, &info) == 0; file++) {
        struct efs_lease *lease;
        if (info.kind != EFS_FILE_EXPERT)
            continue;
        assert_int_equal(lease_wait(fs, file, &lease), 0);
        int fd = efs_lease_fd(lease);
        given += fd >= 0;
        refused += fd < 0;
        efs_lease_release(lease);
    }
    assert_int_equal(given, 0);
    assert_int_equal(refused, EXPERTS);
    assert_true(fault_triggered());
    efs_close(fs);
}

static uint64_t leased(struct efs *fs)
{
    struct efs_stats s;
    efs_stats(fs, &s);
    return s.leased_experts;
}

/* Maps the file by an open of its own, as the kernel does for a reader, and does not use it. */
static void *map_and_close(int fd)
{
    char link[40];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int other = open(link, O_RDONLY | O_CLOEXEC);
    assert_true(other >= 0);
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    close(other);
    return map;
}

/* An expert that is still mapped after its release stays leased, and is not evicted for others. */
TEST_WITH(test_mapped, NULL, reset)
{
    struct efs_lease *lease;
    struct efs_file_info info;
    unsigned char header[8];
    uint32_t file = 0;
    need_tmpfs();
    struct efs *fs = open_store();
    while (efs_file_info(fs, file, &info) == 0 && info.kind != EFS_FILE_EXPERT)
        file++;
    assert_int_equal(lease_wait(fs, file, &lease), 0);
    void *map = map_and_close(efs_lease_fd(lease));
    const void *data = lease_data(lease);
    efs_lease_release(lease);
    assert_int_equal(leased(fs), 1);
    for (unsigned turn = 0; turn < 3; turn++) { /* again, once without its descriptor */
        assert_int_equal(lease_wait(fs, file, &lease), 0);
        assert_ptr_equal(lease_data(lease), data);
        assert_true(turn == 1 || efs_lease_fd(lease) >= 0);
        efs_lease_release(lease);
        assert_int_equal(leased(fs), 1);
        assert_int_equal(efs_set(fs, "budget", turn ? "64M" : "48M", NULL, NULL), 0); /* looks for mappings */
        assert_int_equal(leased(fs), 1);
    }
    assert_int_equal(read_wait(fs, file, NULL, 0, header, sizeof(header)), sizeof(header));
    assert_memory_equal(map, header, sizeof(header));
    munmap(map, 4096);
    assert_int_equal(efs_set(fs, "budget", "64M", NULL, NULL), 0);
    assert_int_equal(leased(fs), 0);
    assert_int_equal(lease_wait(fs, file, &lease), 0);
    map = map_and_close(efs_lease_fd(lease));
    efs_lease_release(lease);
    munmap(map, 4096);
    for (unsigned tries = 0; tries < 500 * PATIENCE_SECONDS && leased(fs); tries++) /* the plan thread looks, too */
        usleep(2000);
    assert_int_equal(leased(fs), 0);
    assert_int_equal(lease_wait(fs, file, &lease), 0);
    map = map_and_close(efs_lease_fd(lease));
    efs_lease_release(lease);
    efs_close(fs); /* while it is mapped */
    assert_memory_equal(map, header, sizeof(header));
    munmap(map, 4096);
}

/* Where the kernel refuses the check, an expert counts as mapped: a seccomp filter (EPERM), fs.leases-enable=0
 * (EINVAL), no memory for a lease (ENOMEM). It is released when the kernel answers again. */
TEST_WITH(test_mapped_unknown, NULL, reset)
{
    static const int errors[] = {EPERM, EINVAL, ENOSYS, ENOMEM};
    struct efs_file_info info;
    uint32_t file = 0;
    need_tmpfs();
    struct efs *fs = open_store();
    while (efs_file_info(fs, file, &info) == 0 && info.kind != EFS_FILE_EXPERT)
        file++;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        struct efs_lease *lease;
        fault_plan(FAULT_SOLE_USER, 1, errors[i], true);
        assert_int_equal(lease_wait(fs, file, &lease), 0);
        assert_true(efs_lease_fd(lease) >= 0);
        efs_lease_release(lease);
        assert_true(fault_triggered());
        assert_int_equal(leased(fs), 1);
        assert_int_equal(efs_set(fs, "budget", "48M", NULL, NULL), 0); /* looks for mappings */
        assert_int_equal(leased(fs), 1);
        fault_clear();
        assert_int_equal(efs_set(fs, "budget", "64M", NULL, NULL), 0);
        assert_int_equal(leased(fs), 0);
    }
    assert_int_equal(efs_leases_probe(), 0);
    fault_plan(FAULT_SOLE_USER, 1, EINVAL, true);
    assert_int_equal(efs_leases_probe(), -EINVAL);
    fault_clear();
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
