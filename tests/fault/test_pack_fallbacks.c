/*
 * Filesystems that cannot do all that the packer would like: no nameless files (O_TMPFILE), no O_DIRECT although open
 * took it, no hard links, short writes. The store is the same, and no temporary file stays behind.
 */
#include "fixture.h"
#include "libexpertfs.h"
#include "sweep.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct fixture model;
static unsigned char *whole;
static size_t whole_bytes;
static char out[320];

static int setup(void **state)
{
    (void)state;
    fault_none();
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

/* The store, or an error and what was there before. */
static errint_t pack_to(bool force, struct efs_error *err)
{
    struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .verify = true, .force = force};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    errint_t rc = efs_pack(model.source, out, &options, report, err);
    free(report);
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

/* Something to be replaced. */
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

static void no_nameless_files(void **state)
{
    (void)state;
    assert_true(sweep(&new, FAULT_OPEN, EOPNOTSUPP) > 0);
    assert_true(sweep(&over, FAULT_OPEN, EOPNOTSUPP) > 0);
}

static void no_direct_io(void **state)
{
    (void)state;
    assert_true(sweep(&new, FAULT_OPEN, EINVAL) > 0);
    assert_true(sweep(&new, FAULT_PWRITE, EINVAL) > 0);
    assert_true(sweep(&new, FAULT_PREAD, EINVAL) > 0);
}

static void short_writes(void **state)
{
    (void)state;
    assert_true(sweep(&new, FAULT_PWRITE, 0) > 0);
    assert_true(sweep(&over, FAULT_PWRITE, 0) > 0);
}

/* ENOSPC may come from any write, EIO from any sync, and naming may fail. */
static void failing_writes(void **state)
{
    (void)state;
    assert_int_equal(sweep(&new, FAULT_PWRITE, ENOSPC), 0);
    assert_int_equal(sweep(&over, FAULT_PWRITE, EIO), 0);
    assert_int_equal(sweep(&new, FAULT_LINK, EIO), 0);
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
