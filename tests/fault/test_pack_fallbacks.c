/*
 * Filesystems that cannot do all that the packer would like: no nameless files (O_TMPFILE), no O_DIRECT although open
 * took it, no hard links, short writes. The store is the same, and no temporary file stays behind.
 */
#include "fixture.h"
#include "libexpertfs.h"
#include "sys_fault.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 4000

static struct fixture model;
static unsigned char *whole;
static size_t whole_bytes;

static int setup(void **state)
{
    (void)state;
    fault_none();
    fixture_begin(&model);
    fixture_moe(&model, 1, 3, 64, 256);
    fixture_pack(&model, NULL);
    whole = fixture_read(model.store, &whole_bytes);
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

static errint_t pack_to(const char *out, bool force, struct efs_error *err)
{
    struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .verify = true, .force = force};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    err->text[0] = '\0';
    errint_t rc = efs_pack(model.source, out, &options, report, err);
    free(report);
    assert_false(has_temporary(model.directory));
    return rc;
}

static void check_store(const char *path)
{
    size_t bytes;
    unsigned char *data = fixture_read(path, &bytes);
    assert_int_equal(bytes, whole_bytes);
    assert_memory_equal(data, whole, bytes);
    free(data);
}

/* The nth call of a kind fails with error, for every n: each time a clean error and nothing there, or the store.
 * Returns how often it was the store. */
static unsigned sweep(enum fault_call call, int error, bool force)
{
    char out[320];
    unsigned well = 0, n = 1;
    snprintf(out, sizeof(out), "%s/out.efs", model.directory);
    for (;; n++) {
        struct efs_error err;
        assert_true(n < MOST);
        if (force) { /* something to be replaced */
            FILE *old = fopen(out, "w");
            assert_non_null(old);
            fclose(old);
        }
        fault_plan(call, n, error, false);
        errint_t rc = pack_to(out, force, &err);
        bool hit = fault_happened();
        fault_none();
        if (rc == 0) {
            check_store(out);
            well += hit;
        } else {
            assert_true(hit);
            assert_true(err.text[0] != '\0');
            assert_int_equal(access(out, F_OK), force ? 0 : -1);
        }
        unlink(out);
        if (!hit)
            return well;
    }
}

static void no_nameless_files(void **state)
{
    (void)state;
    for (int force = 0; force < 2; force++)
        assert_true(sweep(FAULT_OPEN, EOPNOTSUPP, force) > 0);
}

static void no_direct_io(void **state)
{
    (void)state;
    assert_true(sweep(FAULT_OPEN, EINVAL, false) > 0);
    assert_true(sweep(FAULT_PWRITE, EINVAL, false) > 0);
    assert_true(sweep(FAULT_PREAD, EINVAL, false) > 0);
}

static void short_writes(void **state)
{
    (void)state;
    for (int force = 0; force < 2; force++)
        assert_true(sweep(FAULT_PWRITE, 0, force) > 0);
}

/* ENOSPC may come from any write, EIO from any sync, and naming may fail. */
static void failing_writes(void **state)
{
    (void)state;
    assert_int_equal(sweep(FAULT_PWRITE, ENOSPC, false), 0);
    assert_int_equal(sweep(FAULT_PWRITE, EIO, true), 0);
    assert_int_equal(sweep(FAULT_LINK, EIO, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_nameless_files),
        cmocka_unit_test(no_direct_io),
        cmocka_unit_test(short_writes),
        cmocka_unit_test(failing_writes),
    };
    return cmocka_run_group_tests_name("pack fallbacks", tests, setup, teardown);
}
