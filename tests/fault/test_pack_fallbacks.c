/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every system call of the packer fails in turn, and filesystems lack features: no nameless files (O_TMPFILE), no
 * O_DIRECT although open(2) accepted it, no hard links, short writes. The result is an error and no store, or the same
 * store; and no temporary file stays.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "newfile.h"
#include "store_write.h"
#include "sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fixture model;
static unsigned char *whole;
static size_t whole_bytes;
static char out[320];
static bool unlink_fails;

static int setup(void **state)
{
    (void)state;
    fault_clear();
    fixture_store(&model, 1, 3, 64, 256);
    whole = fixture_read(model.store, &whole_bytes);
    snprintf(out, sizeof(out), "%s/out.efs", model.directory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    free(whole);
    return 0;
}

static bool has_temporary(const char *directory)
{
    DIR *d = opendir(directory);
    bool found = false;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        found |= strncmp(e->d_name, ".expertfs-", 10) == 0;
    closedir(d);
    return found;
}

static void check_store(const char *path)
{
    size_t bytes;
    unsigned char *data = fixture_read(path, &bytes);
    assert_int_equal(bytes, whole_bytes);
    assert_memory_equal(data, whole, bytes);
    free(data);
}

/* Cleans up as the next writer in this directory does. */
static void clean(void)
{
    fault_clear();
    int dir = open(model.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    efs_newfile_clean(dir);
    close(dir);
}

/* The result is the store, or an error and the file that was there before. */
static errint_t pack_to(bool force, struct efs_error *err)
{
    struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .verify = true, .force = force};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    errint_t rc = efs_pack(model.source, out, &options, report, err);
    free(report);
    if (unlink_fails)
        clean();
    assert_false(has_temporary(model.directory));
    if (rc == 0)
        check_store(out);
    else
        assert_int_equal(access(out, F_OK), force ? 0 : -1);
    return rc;
}

static errint_t pack_new(struct efs_error *err)
{
    return pack_to(false, err);
}

static errint_t pack_over(struct efs_error *err)
{
    return pack_to(true, err);
}

/* Creates a file to be replaced. */
static void put_old(void)
{
    FILE *old = fopen(out, "w");
    assert_non_null(old);
    fclose(old);
}

static errint_t away(const struct sweep *sweep, struct efs_error *err)
{
    (void)sweep, (void)err;
    unlink(out);
    return 0;
}

static const struct sweep new = {"new store", pack_new, NULL, away},
                          over = {"store over a file", pack_over, put_old, away};

TEST(each_call)
{
    sweep(&new, FAULT_OPEN, EACCES);
    sweep(&new, FAULT_FSTAT, EIO);
    sweep(&new, FAULT_PREAD, EIO);
    sweep(&new, FAULT_PREAD, 0);
    sweep_forever(&new, FAULT_PWRITE, ENOSPC);
    sweep(&new, FAULT_FSYNC, EIO);
    sweep(&new, FAULT_FTRUNCATE, EIO);
    sweep(&new, FAULT_LINK, EIO);
    sweep(&new, FAULT_CLOSE, EIO);
    sweep(&new, FAULT_RENAME, EIO);
    unlink_fails = true;
    sweep(&new, FAULT_UNLINK, EACCES);
    unlink_fails = false;
    sweep(&new, FAULT_MADVISE, EINVAL);
    sweep(&new, FAULT_THREAD, EAGAIN);
    sweep_forever(&new, FAULT_THREAD, EAGAIN);
    sweep(&new, FAULT_MMAP, ENOMEM);
    sweep(&new, FAULT_MEMORY, ENOMEM);
}

TEST(no_nameless_files)
{
    assert_true(sweep(&new, FAULT_OPEN, EOPNOTSUPP) > 0);
    assert_true(sweep(&over, FAULT_OPEN, EOPNOTSUPP) > 0);
}

TEST(no_direct_io)
{
    assert_true(sweep(&new, FAULT_OPEN, EINVAL) > 0);
    assert_true(sweep(&new, FAULT_PWRITE, EINVAL) > 0);
    assert_true(sweep(&new, FAULT_PREAD, EINVAL) > 0);
}

TEST(short_writes)
{
    assert_true(sweep(&new, FAULT_PWRITE, 0) > 0);
    assert_true(sweep(&over, FAULT_PWRITE, 0) > 0);
}

/* ENOSPC can come from any write, EIO from any sync, and link or rename can fail. */
TEST(failing_writes)
{
    assert_int_equal(sweep(&new, FAULT_PWRITE, ENOSPC), 0);
    assert_int_equal(sweep(&over, FAULT_PWRITE, EIO), 0);
    fault_no_tmpfile(true);
    assert_int_equal(sweep_forever(&over, FAULT_RENAME, EIO), 0);
    fault_no_tmpfile(false);
}

/* Filesystems without hard links return various errors, also for nameless files: the packer tries a link before it
 * writes the first byte, and falls back to rename(2). */
TEST(no_links)
{
    static const int errors[] = {EIO, EACCES, EXDEV, EINVAL, EPERM, EOPNOTSUPP, EMLINK, ENOSYS, EROFS};
    for (int named = 0; named < 2; named++)
        for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
            struct efs_error err = {""};
            fault_no_tmpfile(named);
            fault_plan(FAULT_LINK, 1, errors[i], true);
            if (pack_new(&err) < 0)
                fail_msg("link fails with %s: %s", strerror(errors[i]), err.text);
            assert_true(fault_triggered());
            assert_int_equal(pack_over(&err), 0);
            struct efs_newfile late; /* a file that got the name meanwhile is not replaced */
            int dir = open(model.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            assert_int_equal(efs_newfile_open(&late, dir, O_RDWR), 0);
            assert_int_equal(efs_newfile_name(&late, "out.efs", false), -EEXIST);
            efs_newfile_close(&late);
            close(dir);
            check_store(out);
            fault_clear();
            away(NULL, &err);
        }
    fault_no_tmpfile(false);
}

/* ---- errors that the kernel reports once ---- */

/* Writes a store of 96 MiB through the page cache, as without O_DIRECT. */
static errint_t write_buffered(struct efs_error *err)
{
    static unsigned char piece[8u << 20];
    struct efs_store_writer writer;
    struct efs_disk_superblock superblock = {.store_bytes = EFS_ALIGN + 12 * sizeof(piece)};
    errint_t rc = efs_store_writer_open(&writer, out, false, err);
    if (rc < 0)
        return rc;
    writer.direct = false;
    for (unsigned i = 0; rc == 0 && i < 12; i++)
        rc = efs_store_writer_append(&writer, piece, sizeof(piece), err);
    if (rc == 0)
        rc = efs_store_writer_finish(&writer, &superblock, err);
    if (rc == 0)
        rc = efs_store_writer_commit(&writer, err);
    efs_store_writer_close(&writer);
    assert_int_equal(access(out, F_OK), rc == 0 ? 0 : -1);
    return rc;
}

static const struct sweep buffered = {"store through the page cache", write_buffered, NULL, away};

/* sync_file_range(2) may report a write error that fsync(2) does not report again. Other errors mean that the call is
 * not supported. */
TEST(failing_writeback)
{
    static const int errors[] = {EIO, ENOSPC, EDQUOT}, absent[] = {ENOSYS, EINVAL, ESPIPE, EPERM};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        assert_int_equal(sweep(&buffered, FAULT_WRITEBACK, errors[i]), 0);
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        assert_true(sweep_forever(&buffered, FAULT_WRITEBACK, absent[i]) > 0);
}

/* Packing works on a filesystem without fsync(2); if close(2) also fails, it creates no store. */
TEST(no_fsync)
{
    assert_true(sweep(&new, FAULT_FSYNC, EINVAL) > 0);
    assert_true(sweep_forever(&new, FAULT_FSYNC, EINVAL) > 0);
    /* except at the two directories, which are closed last */
    assert_int_equal(sweep_forever(&new, FAULT_CLOSE, EDQUOT), 2);
}

/* ---- killed ---- */

/* SIGKILL cannot be handled. */
static bool die(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase)
{
    (void)arg, (void)done_bytes, (void)total_bytes;
    if (strcmp(phase, "syncing") == 0)
        kill(getpid(), SIGKILL);
    return false;
}

/* Runs a packer without nameless files that is killed by SIGKILL. */
static void kill_a_packer(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .progress = die};
        struct efs_pack_report *report = calloc(1, sizeof(*report));
        fault_no_tmpfile(true);
        efs_pack(model.source, out, &options, report, NULL);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void put_empty(const char *name)
{
    fixture_file_below(model.directory, name, "", 0);
}

static bool is_there(const char *name)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", model.directory, name);
    return access(path, F_OK) == 0;
}

static void pack_once(void)
{
    struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .force = true};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    struct efs_error err = {""};
    assert_int_equal(efs_pack(model.source, out, &options, report, &err), 0);
    free(report);
    check_store(out);
}

/* The next packer removes the files of a killed one, with and without nameless files; files of other programs and files
 * being written stay. */
TEST(killed)
{
    static const char *const others[] = {".expertfs-1-0.tmp.bak", ".expertfs-x-0.tmp", ".expertfs-01-0.tmp",
                                         ".expertfs-1-0", "a.tmp"};
    fault_clear();
    for (unsigned named = 0; named < 2; named++) {
        kill_a_packer();
        assert_true(has_temporary(model.directory));
        assert_int_equal(access(out, F_OK), -1);
        fault_no_tmpfile(named);
        pack_once();
        fault_no_tmpfile(false);
        assert_false(has_temporary(model.directory));
        unlink(out);
    }
    put_empty(".expertfs-1-0.tmp"); /* as if another process were writing it: that process holds the lock */
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        put_empty(others[i]);
    char path[400];
    snprintf(path, sizeof(path), "%s/.expertfs-1-0.tmp", model.directory);
    int held = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX), 0);
    pack_once();
    assert_true(is_there(".expertfs-1-0.tmp"));
    close(held);
    pack_once();
    assert_false(is_there(".expertfs-1-0.tmp"));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_true(is_there(others[i]));
        snprintf(path, sizeof(path), "%s/%s", model.directory, others[i]);
        unlink(path);
    }
    unlink(out);
}

TEST_MAIN(setup, teardown)
