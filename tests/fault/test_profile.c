/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring and saving a profile while system calls fail: an error with a message, or a profile; no temporary file
 * stays. */
#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "sys_fault.h"

#include <dirent.h>

#define MEASURES 8u /* calls of a kind that fail in turn while measuring, which reads until its time is up */

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fault_clear();
    fixture_store(&model, 1, 2, 64, 256);
    setenv("EXPERTFS_STATE", model.directory, 1);
    return 0;
}

TEST(measuring)
{
    static const struct {
        enum fault_call call;
        int error;
    } faults[] = {{FAULT_MEMORY, ENOMEM}, {FAULT_MMAP, ENOMEM}, {FAULT_URING_INIT, ENOSYS}, {FAULT_URING_RESULT, EIO}};
    struct efs_store *store;
    struct efs_error err = {""};
    unsigned failed = 0;
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    unsigned fds = fixture_open_fds();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        bool hit = true;
        for (unsigned n = 1; n <= MEASURES && hit; n++) {
            struct efs_profile profile;
            err.text[0] = '\0';
            fault_plan(faults[i].call, n, faults[i].error, false);
            errint_t rc = efs_profile_measure(store, 2, 0.1, &profile, &err);
            hit = fault_triggered();
            fault_clear();
            assert_true(rc == 0 || (hit && err.text[0] != '\0'));
            assert_true(rc < 0 || profile.disk_bytes_per_second > 0);
            assert_int_equal(fixture_open_fds(), fds);
            failed += rc < 0;
        }
    }
    assert_true(failed > 0);
    efs_store_close(store);
}

/* Number of profiles and temporary files in the state directory. */
static unsigned profiles(void)
{
    DIR *d = opendir(model.directory);
    unsigned count = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += strncmp(e->d_name, "profile-", 8) == 0 || strncmp(e->d_name, ".expertfs-", 10) == 0;
    closedir(d);
    return count;
}

TEST(saving)
{
    static const struct {
        enum fault_call call;
        int error;
    } faults[] = {{FAULT_OPEN, EACCES}, {FAULT_OPEN, EOPNOTSUPP}, {FAULT_PWRITE, ENOSPC},
                  {FAULT_PWRITE, 0},    {FAULT_FSYNC, EIO},       {FAULT_LINK, EIO}};
    struct efs_store *store;
    struct efs_profile profile, loaded;
    struct efs_error err = {""};
    char path[400];
    unsigned failed = 0, well = 0;
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    assert_int_equal(efs_profile_measure(store, 1, 0.1, &profile, &err), 0);
    efs_store_close(store);
    assert_int_equal(efs_profile_path(profile.content_hash, path, sizeof(path), &err), 0);
    assert_int_equal(efs_profile_save(&profile, &err), 0);
    unsigned fds = fixture_open_fds();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        bool hit = true;
        for (unsigned n = 1; hit; n++) {
            err.text[0] = '\0';
            assert_true(n < 100);
            fault_plan(faults[i].call, n, faults[i].error, false);
            errint_t rc = efs_profile_save(&profile, &err);
            hit = fault_triggered();
            fault_clear();
            assert_true(rc == 0 ||
                        (hit && strstr(err.text, getenv("EXPERTFS_STATE")))); /* the file, or its directory */
            assert_int_equal(profiles(), 1); /* the old one or the new one, and no other file */
            assert_int_equal(efs_profile_load(path, &loaded, &err), 0);
            assert_int_equal(fixture_open_fds(), fds);
            failed += rc < 0;
            well += hit && rc == 0;
        }
    }
    assert_true(failed >= 4 && well >= 1);
}

TEST_MAIN(setup, fixture_teardown)
