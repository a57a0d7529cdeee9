/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every system call of the engine fails in turn - the first, the second, ... - until serving or unpacking makes no call
 * that fails; for packing, see test_pack_fallbacks.c. Each time: an error with a message, or the correct bytes; no file
 * or descriptor left behind; and the next attempt works.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "sweep.h"
#include "tree.h"
#include "sync_calls.h"

#include <fcntl.h>
#include <unistd.h>

#define MIB (1ull << 20)

static struct fixture model;
static unsigned char *whole;
static size_t whole_bytes;

static int setup(void **state)
{
    (void)state;
    char path[400];
    fault_clear();
    fixture_store(&model, 1, 2, 64, 256);
    snprintf(path, sizeof(path), "%s/model.safetensors", model.source);
    whole = fixture_read(path, &whole_bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    free(whole);
    return 0;
}

static errint_t read_whole(struct efs *fs)
{
    struct efs_file_info info;
    uint32_t file = 0;
    while (efs_file_info(fs, file, &info) == 0 && strcmp(info.path, "model.safetensors") != 0)
        file++;
    unsigned char *got = malloc(whole_bytes);
    ssize_t bytes = read_wait(fs, file, NULL, 0, got, whole_bytes);
    if (bytes >= 0) {
        assert_int_equal(bytes, whole_bytes);
        assert_memory_equal(got, whole, whole_bytes);
    }
    free(got);
    return bytes < 0 ? (errint_t)bytes : 0;
}

static errint_t lease_one(struct efs *fs)
{
    struct efs_file_info info;
    struct efs_lease *lease;
    uint32_t file = 0;
    while (efs_file_info(fs, file, &info) == 0 && info.kind != EFS_FILE_EXPERT)
        file++;
    errint_t rc = lease_wait(fs, file, &lease);
    if (rc == 0) {
        uint64_t header;
        memcpy(&header, lease_data(lease), 8);
        assert_int_equal(header, 4096 - 8);
        efs_lease_release(lease);
    }
    return rc;
}

static errint_t serve_all(struct efs_error *err)
{
    struct efs_options options = {.budget_bytes = 128 * MIB, .workers = 2, .full_pool = true, .no_state = true};
    struct efs *fs;
    errint_t rc = efs_open(model.store, &options, &fs, err);
    if (rc < 0)
        return rc;
    rc = read_whole(fs);
    errint_t leased = lease_one(fs);
    rc = rc ? rc : leased;
    bool hit = fault_triggered();
    if (rc < 0 && hit) { /* without the fault the same calls must work */
        fault_clear();
        assert_int_equal(read_whole(fs), 0);
        assert_int_equal(lease_one(fs), 0);
        snprintf(err->text, sizeof(err->text), "told through the callback");
    }
    efs_close(fs);
    return rc;
}

static errint_t unpack_once(struct efs_error *err)
{
    char directory[320];
    struct efs_store *store;
    errint_t rc = efs_store_open(model.store, &store, err);
    if (rc < 0)
        return rc;
    uint64_t damaged = 0;
    rc = efs_store_verify(store, true, 2, NULL, NULL, NULL, &damaged, err);
    snprintf(directory, sizeof(directory), "%s/out", model.directory);
    if (rc == 0)
        rc = efs_store_unpack(store, directory, false, 2, NULL, NULL, err);
    efs_store_close(store);
    if (rc == 0) {
        size_t bytes;
        char path[400];
        snprintf(path, sizeof(path), "%s/model.safetensors", directory);
        unsigned char *got = fixture_read(path, &bytes);
        assert_int_equal(bytes, whole_bytes);
        assert_memory_equal(got, whole, bytes);
        free(got);
    }
    tree_remove(directory);
    return rc;
}

static const struct sweep serving = {"serve", serve_all, NULL, NULL}, unpacking = {"unpack", unpack_once, NULL, NULL};

/* A fallback replaces the refused call, so no reader sees an error. */
static errint_t serve_well(struct efs_error *err)
{
    errint_t rc = serve_all(err);
    if (rc < 0)
        fail_msg("a reader saw the fault: %s", err->text);
    return rc;
}

static const struct sweep refusing = {"serve", serve_well, NULL, NULL};

TEST(test_serve_without_io_uring)
{
    static const enum fault_call calls[] = {FAULT_URING_INIT,  FAULT_URING_FILES,  FAULT_URING_SLOTS, FAULT_URING_PIN,
                                            FAULT_URING_UNPIN, FAULT_URING_SUBMIT, FAULT_URING_WAIT};
    static const int errors[] = {EPERM, ENOSYS, EAGAIN};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
            sweep(&refusing, calls[i], errors[e]);
            sweep_forever(&refusing, calls[i], errors[e]);
        }
    sweep(&refusing, FAULT_URING_RESULT, EINVAL); /* an operation that the kernel does not support */
    sweep_forever(&refusing, FAULT_URING_RESULT, EINVAL);
}

TEST(test_serve)
{
    sweep(&serving, FAULT_OPEN, EACCES);
    sweep(&serving, FAULT_FSTAT, EIO);
    sweep(&serving, FAULT_PREAD, EIO);
    sweep(&serving, FAULT_PREAD, 0);
    sweep(&serving, FAULT_URING_RESULT, EIO);
    sweep(&serving, FAULT_URING_RESULT, 0);
    sweep(&serving, FAULT_URING_INIT, ENOSYS);
    sweep(&serving, FAULT_URING_PIN, ENOMEM);
    sweep(&serving, FAULT_MEMFD, EMFILE);
    sweep(&serving, FAULT_HUGE_TMPFS, EPERM);
    sweep(&serving, FAULT_SEALS, EPERM);
    sweep(&serving, FAULT_CLONE_READING, EINVAL); /* and see test_memory_files.c */
    sweep(&serving, FAULT_FTRUNCATE, EIO);
    sweep(&serving, FAULT_MMAP, ENOMEM);
    sweep(&serving, FAULT_MPROTECT, ENOMEM);
    sweep_forever(&serving, FAULT_MPROTECT, ENOMEM);           /* no further segments: errors, and a clean close */
    assert_true(sweep(&serving, FAULT_FALLOCATE, ENOMEM) > 0); /* one call for a full expert's pages, or a fallback */
    sweep(&serving, FAULT_MBIND, EPERM);
    sweep(&serving, FAULT_HUGE_BYTES, ENOTTY);
    sweep(&serving, FAULT_MADVISE, ENOMEM);
    sweep_forever(&serving, FAULT_MADVISE, EINVAL); /* as on an older kernel */
    sweep(&serving, FAULT_MUNMAP, ENOMEM);
    sweep(&serving, FAULT_CLOSE, EIO);
    sweep(&serving, FAULT_THREAD, EAGAIN);
    sweep_forever(&serving, FAULT_THREAD, EAGAIN);
    sweep(&serving, FAULT_MEMORY, ENOMEM);
    sweep_forever(&serving, FAULT_MEMORY, ENOMEM);
}

TEST(test_unpack)
{
    sweep(&unpacking, FAULT_OPEN, EACCES);
    sweep(&unpacking, FAULT_PREAD, EIO);
    sweep(&unpacking, FAULT_PREAD, 0);
    sweep(&unpacking, FAULT_PWRITE, ENOSPC);
    sweep(&unpacking, FAULT_PWRITE, 0);
    sweep(&unpacking, FAULT_FSYNC, EIO);
    sweep(&unpacking, FAULT_LINK, EIO);
    sweep(&unpacking, FAULT_MKDIR, EACCES);
    sweep(&unpacking, FAULT_UNLINK, EACCES);
    sweep(&unpacking, FAULT_CLOSE, EIO);
    sweep(&unpacking, FAULT_THREAD, EAGAIN);
    sweep_forever(&unpacking, FAULT_THREAD, EAGAIN);
    sweep(&unpacking, FAULT_MEMORY, ENOMEM);
}

TEST_MAIN(setup, teardown)
