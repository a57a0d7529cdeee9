/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading counts while system calls fail: an error with the path, and the old file or the new one. */
#include "test.h"
#include "counts.h"
#include "fixture.h"
#include "sys_fault.h"
#include "expertfs-profile-private.h"

#include <dirent.h>
#include <unistd.h>

#define HASH UINT64_C(77)

static char home[64], path[200];

static int setup(void **state)
{
    struct efs_error err = {""};
    (void)state;
    fault_clear();
    snprintf(home, sizeof(home), "/tmp/expertfs-counts-XXXXXX");
    assert_non_null(mkdtemp(home));
    setenv("EXPERTFS_STATE", home, 1);
    assert_int_equal(efs_counts_path(HASH, path, sizeof(path), &err), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fault_clear();
    unlink(path);
    rmdir(home);
    return 0;
}

static unsigned files(void)
{
    DIR *d = opendir(home);
    unsigned count = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return count;
}

TEST_WITH(saving, setup, teardown)
{
    static const struct {
        enum fault_call call;
        int error;
    } faults[] = {{FAULT_OPEN, EACCES}, {FAULT_OPEN, EROFS}, {FAULT_OPEN, EOPNOTSUPP}, {FAULT_PWRITE, ENOSPC},
                  {FAULT_PWRITE, 0},    {FAULT_FSYNC, EIO},  {FAULT_LINK, EIO},        {FAULT_MEMORY, ENOMEM}};
    struct efs_history h, loaded;
    struct efs_error err = {""};
    unsigned failed = 0, well = 0;
    assert_int_equal(efs_history_init(&h, 2, 3), 0);
    assert_int_equal(efs_history_request(&h, 0, &(uint32_t){2}, NULL, 1), 0);
    assert_int_equal(efs_counts_save(HASH, &h, &err), 0);
    unsigned fds = fixture_open_fds();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        bool hit = true;
        for (unsigned n = 1; hit; n++) {
            uint32_t before = h.counts[2];
            assert_true(n < 50);
            assert_int_equal(efs_history_request(&h, 0, &(uint32_t){2}, NULL, 1), 0);
            err.text[0] = '\0';
            fault_plan(faults[i].call, n, faults[i].error, false);
            errint_t rc = efs_counts_save(HASH, &h, &err);
            hit = fault_triggered();
            fault_clear();
            assert_true(rc == 0 || (hit && strstr(err.text, home))); /* the file, or its directory */
            assert_int_equal(files(), 1);
            assert_int_equal(fixture_open_fds(), fds);
            assert_int_equal(efs_counts_load(HASH, 2, 3, &loaded, &err), 0);
            assert_int_equal(loaded.counts[2], rc == 0 ? before + 1 : before);
            efs_history_free(&loaded);
            if (rc < 0) /* so that the file and the counts in memory are equal again */
                assert_int_equal(efs_counts_save(HASH, &h, &err), 0);
            failed += rc < 0;
            well += hit && rc == 0;
        }
    }
    assert_true(failed >= 6 && well >= 1);
    efs_history_free(&h);
}

TEST_WITH(loading, setup, teardown)
{
    static const struct {
        enum fault_call call;
        int error, rc;
    } faults[] = {{FAULT_OPEN, EACCES, -EACCES},
                  {FAULT_FSTAT, EIO, -EIO},
                  {FAULT_PREAD, EIO, -EIO},
                  {FAULT_MEMORY, ENOMEM, -ENOMEM}};
    struct efs_history h, loaded;
    struct efs_error err = {""};
    assert_int_equal(efs_history_init(&h, 2, 3), 0);
    assert_int_equal(efs_counts_save(HASH, &h, &err), 0);
    unsigned fds = fixture_open_fds();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        err.text[0] = '\0';
        fault_plan(faults[i].call, 1, faults[i].error, false);
        assert_int_equal(efs_counts_load(HASH, 2, 3, &loaded, &err), faults[i].rc);
        assert_true(fault_triggered());
        fault_clear();
        assert_non_null(strstr(err.text, path));
        assert_int_equal(fixture_open_fds(), fds);
        efs_history_free(&loaded);
    }
    fault_plan(FAULT_PREAD, 1, 0, false); /* a short read is continued */
    assert_int_equal(efs_counts_load(HASH, 2, 3, &loaded, &err), 0);
    assert_true(fault_triggered());
    efs_history_free(&loaded);
    efs_history_free(&h);
}

TEST_MAIN(NULL, NULL)
