/*
 * Every system call of the engine fails in turn - the first time, the second time, ... until an operation no longer
 * reaches it. Each time: a clean error that says something, or the right bytes; nothing left behind; and it works
 * again.
 */
#include "fixture.h"
#include "libexpertfs.h"
#include "sys_fault.h"
#include "waiting.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define MOST 4000 /* calls of one kind in one operation: more is a loop that never ends */

static struct fixture model;
static unsigned char *whole;
static size_t whole_bytes;

static int setup(void **state)
{
    (void)state;
    char path[400];
    fault_none();
    fixture_begin(&model);
    fixture_moe(&model, 1, 2, 64, 256);
    fixture_pack(&model, NULL);
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
        memcpy(&header, efs_lease_data(lease), 8);
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
    bool hit = fault_happened();
    if (rc < 0 && hit) { /* the fault is over: the same again must work */
        fault_none();
        assert_int_equal(read_whole(fs), 0);
        assert_int_equal(lease_one(fs), 0);
        snprintf(err->text, sizeof(err->text), "told through the callback");
    }
    efs_close(fs);
    return rc;
}

static unsigned files_in(const char *directory)
{
    DIR *d = opendir(directory);
    unsigned n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static errint_t pack_once(struct efs_error *err)
{
    struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .verify = true};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    char out[320];
    snprintf(out, sizeof(out), "%s/again.efs", model.directory);
    unsigned before = files_in(model.directory);
    errint_t rc = efs_pack(model.source, out, &options, report, err);
    free(report);
    assert_int_equal(files_in(model.directory), before + (rc == 0));
    if (rc == 0) { /* what counts as success is a whole store */
        size_t a, b;
        unsigned char *first = fixture_read(model.store, &a), *second = fixture_read(out, &b);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
        free(first);
        free(second);
        unlink(out);
    }
    return rc;
}

static errint_t unpack_once(struct efs_error *err)
{
    char directory[320], command[700];
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
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    assert_int_equal(system(command), 0);
    return rc;
}

/* Run operation with fault after fault of one kind until it no longer meets one. */
static void sweep(const char *what, errint_t (*operation)(struct efs_error *), enum fault_call call, int error,
                  bool forever)
{
    unsigned fds = fixture_open_fds(), failed = 0, nth = 1;
    for (; nth < MOST; nth++) {
        struct efs_error err = {""};
        fault_plan(call, nth, error, forever);
        errint_t rc = operation(&err);
        bool hit = fault_happened();
        fault_none();
        if (rc < 0 && !hit)
            fail_msg("%s: %s %u: failed without a fault: %s", what, fault_names[call], nth, err.text);
        if (rc < 0 && !err.text[0])
            fail_msg("%s: %s %u: error %d says nothing", what, fault_names[call], nth, rc);
        if (fixture_open_fds() != fds)
            fail_msg("%s: %s %u: descriptors leak", what, fault_names[call], nth);
        failed += rc < 0;
        if (!hit)
            break;
    }
    assert_true(nth < MOST);
    print_message("%s: %s with %s: %u places, %u ended in an error\n", what, fault_names[call],
                  error ? strerror(error) : "a short transfer", nth - 1, failed);
}

static void test_serve(void **state)
{
    (void)state;
    sweep("serve", serve_all, FAULT_OPEN, EACCES, false);
    sweep("serve", serve_all, FAULT_FSTAT, EIO, false);
    sweep("serve", serve_all, FAULT_PREAD, EIO, false);
    sweep("serve", serve_all, FAULT_PREAD, 0, false);
    sweep("serve", serve_all, FAULT_URING_RESULT, EIO, false);
    sweep("serve", serve_all, FAULT_URING_RESULT, 0, false);
    sweep("serve", serve_all, FAULT_URING_INIT, ENOSYS, false);
    sweep("serve", serve_all, FAULT_URING_PIN, ENOMEM, false);
    sweep("serve", serve_all, FAULT_MEMFD, EMFILE, false);
    sweep("serve", serve_all, FAULT_HUGE_TMPFS, EPERM, false);
    sweep("serve", serve_all, FAULT_FTRUNCATE, EIO, false);
    sweep("serve", serve_all, FAULT_MMAP, ENOMEM, false);
    sweep("serve", serve_all, FAULT_MPROTECT, ENOMEM, false);
    sweep("serve", serve_all, FAULT_MBIND, EPERM, false);
    sweep("serve", serve_all, FAULT_HUGE_BYTES, ENOTTY, false);
    sweep("serve", serve_all, FAULT_MEMORY, ENOMEM, false);
}

static void test_pack(void **state)
{
    (void)state;
    sweep("pack", pack_once, FAULT_OPEN, EACCES, false);
    sweep("pack", pack_once, FAULT_FSTAT, EIO, false);
    sweep("pack", pack_once, FAULT_PREAD, EIO, false);
    sweep("pack", pack_once, FAULT_PREAD, 0, false);
    sweep("pack", pack_once, FAULT_PWRITE, ENOSPC, false);
    sweep("pack", pack_once, FAULT_PWRITE, ENOSPC, true);
    sweep("pack", pack_once, FAULT_PWRITE, 0, false);
    sweep("pack", pack_once, FAULT_FSYNC, EIO, false);
    sweep("pack", pack_once, FAULT_FTRUNCATE, EIO, false);
    sweep("pack", pack_once, FAULT_LINK, EIO, false);
    sweep("pack", pack_once, FAULT_MMAP, ENOMEM, false);
    sweep("pack", pack_once, FAULT_MEMORY, ENOMEM, false);
}

static void test_unpack(void **state)
{
    (void)state;
    sweep("unpack", unpack_once, FAULT_OPEN, EACCES, false);
    sweep("unpack", unpack_once, FAULT_PREAD, EIO, false);
    sweep("unpack", unpack_once, FAULT_PREAD, 0, false);
    sweep("unpack", unpack_once, FAULT_PWRITE, ENOSPC, false);
    sweep("unpack", unpack_once, FAULT_PWRITE, 0, false);
    sweep("unpack", unpack_once, FAULT_FSYNC, EIO, false);
    sweep("unpack", unpack_once, FAULT_LINK, EIO, false);
    sweep("unpack", unpack_once, FAULT_MEMORY, ENOMEM, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_serve), cmocka_unit_test(test_pack),
                                       cmocka_unit_test(test_unpack)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
