/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rename replaces the store during the open, at each of its reads: the engine serves the first store, never the index
 * of one and the chunks of the other.
 */
#include <fcntl.h>
#include <unistd.h>

#include "test.h"
#include "fixture.h"
#include "sys.h"

static struct fixture model;
static char other[400];
static int reads_until; /* the rename is at this read from now on; 0: none */

static int read_and_replace(int fd, void *data, size_t bytes, uint64_t offset)
{
    if (reads_until && --reads_until == 0)
        assert_int_equal(rename(other, model.store), 0);
    return efs_sys_pread_all(fd, data, bytes, offset);
}

#define efs_sys_pread_all read_and_replace
#include "../../engine/store/store.c" /* replaces the library's */

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, 1, 2, 64, 256);
    return 0;
}

static void copy_store(void)
{
    size_t bytes;
    unsigned char *data = fixture_read(model.store, &bytes);
    snprintf(other, sizeof(other), "%s/other.efs", model.directory);
    fixture_file_below(model.directory, "other.efs", data, bytes);
    free(data);
}

TEST(test_replaced)
{
    for (int at = 1; at <= 2; at++) {
        struct efs_store *store;
        struct efs_error err = {""};
        struct stat one, two;
        copy_store();
        reads_until = at;
        assert_int_equal(efs_store_open(model.store, &store, &err), 0);
        assert_int_equal(reads_until, 0);
        assert_int_equal(fstat(store->fd, &one), 0);
        if (store->direct_fd < 0) { /* without O_DIRECT, no second descriptor */
            efs_store_close(store);
            continue;
        }
        assert_int_equal(fstat(store->direct_fd, &two), 0);
        assert_true(one.st_dev == two.st_dev && one.st_ino == two.st_ino);
        assert_true(fcntl(store->direct_fd, F_GETFL) & O_DIRECT);
        efs_store_close(store);
    }
}

TEST_MAIN(setup, fixture_teardown)
