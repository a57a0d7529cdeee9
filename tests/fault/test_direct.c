/* SPDX-License-Identifier: Apache-2.0 */
/* Reads by the calling thread (engine/io/direct.c) while calls fail: the right bytes or an error, and the next read
 * succeeds. Without io_uring they are made by pread(2). */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "direct.h"
#include "sys_fault.h"

#define PAGE 4096u
#define PIECES 3u

static uint8_t bytes[16 * PAGE], got[PIECES][2 * PAGE];
static int fd;

static int setup(void **state)
{
    char path[] = "/tmp/efs-direct-XXXXXX";
    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 31 + i / PAGE);
    fd = mkstemp(path);
    unlink(path);
    return fd >= 0 && write(fd, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return close(fd);
}

/* Reads `count` pieces; a success has the right bytes. */
static errint_t read_pieces(struct efs_direct *direct, unsigned count)
{
    struct efs_io io[PIECES];
    memset(got, 0, sizeof(got));
    for (unsigned i = 0; i < count; i++)
        io[i] = (struct efs_io){.next = i + 1 < count ? &io[i + 1] : NULL,
                                .offset = (2 + 5 * i) * PAGE,
                                .bytes = (1 + i % 2) * PAGE,
                                .data = got[i]};
    errint_t rc = efs_direct_read(direct, fd, io);
    for (unsigned i = 0; rc == 0 && i < count; i++)
        assert_memory_equal(got[i], bytes + io[i].offset, io[i].bytes);
    return rc;
}

TEST(test_reads)
{
    struct efs_direct direct = {0};
    fault_clear();
    for (unsigned count = 1; count <= PIECES; count++)
        assert_int_equal(read_pieces(&direct, count), 0);
    efs_direct_close(&direct);
    efs_direct_close(&direct);
}

TEST(test_faults)
{
    static const enum fault_call calls[] = {FAULT_URING_INIT, FAULT_URING_WAIT, FAULT_URING_RESULT, FAULT_PREAD};
    for (unsigned c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
        for (unsigned nth = 1; nth <= 4; nth++)
            for (int error = 0; error <= EIO; error += EIO) {
                struct efs_direct direct = {0};
                fault_plan(calls[c], nth, error ? error : calls[c] < FAULT_URING_INIT ? 0 : EPERM, false);
                errint_t rc = read_pieces(&direct, nth % 2 ? PIECES : 1);
                assert_true(rc == 0 || fault_triggered());
                fault_clear();
                assert_int_equal(read_pieces(&direct, PIECES), 0);
                efs_direct_close(&direct);
            }
}

TEST(test_without_ring)
{
    struct efs_direct direct = {0};
    fault_plan(FAULT_URING_INIT, 1, ENOSYS, true);
    assert_int_equal(read_pieces(&direct, PIECES), 0);
    assert_int_equal(direct.state, EFS_DIRECT_PREAD);
    assert_true(fault_triggered());
    fault_clear();
    efs_direct_close(&direct);
}

/* A read over the end of the file is short. */
TEST(test_end)
{
    struct efs_direct direct = {0};
    struct efs_io io[2] = {{.next = &io[1], .offset = 0, .bytes = PAGE, .data = got[0]},
                           {.offset = sizeof(bytes) - PAGE, .bytes = 2 * PAGE, .data = got[1]}};
    fault_clear();
    assert_int_equal(efs_direct_read(&direct, fd, io), -EIO);
    assert_int_equal(efs_direct_read(&direct, fd, &io[1]), -EIO);
    efs_direct_close(&direct);
}

TEST_MAIN(setup, teardown)
