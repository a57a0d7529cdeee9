/* SPDX-License-Identifier: Apache-2.0 */
/* Write-behind thread: it writes all bytes, in order, in pieces whose sizes depend only on the input, and reports
 * errors. */
#include "test.h"
#include "write_behind.h"
#include "layout.h"

#include <unistd.h>

#define FILE_BYTES (100u << 20) /* more than the ring holds */
#define PIECES 64

struct target {
    uint8_t *file;
    uint64_t written; /* end offset of the last write */
    unsigned pieces, fail_at;
    size_t piece_bytes[PIECES];
};

static errint_t to_memory(void *arg, const uint8_t *data, size_t bytes, uint64_t at, struct efs_error *err)
{
    struct target *t = arg;
    assert_int_equal((uintptr_t)data % EFS_ALIGN, 0);
    assert_int_equal(bytes % EFS_ALIGN, 0);
    assert_int_equal(at, t->written);
    assert_true(at + bytes <= FILE_BYTES && bytes <= EFS_WRITE_BEHIND_PIECE && t->pieces < PIECES);
    t->piece_bytes[t->pieces++] = bytes;
    if (t->pieces == t->fail_at)
        return efs_fail(err, -ENOSPC, "full");
    usleep(t->pieces % 3 * 1000); /* so that the ring fills up */
    memcpy(t->file + at, data, bytes);
    t->written = at + bytes;
    return 0;
}

static uint8_t expected(uint64_t offset)
{
    return (uint8_t)(offset * 0x9e3779b97f4a7c15u >> 56);
}

/* Puts the bytes of [begin, end) in pieces of uneven sizes, every seventh as zeros. Stops at an error. */
static errint_t put_all(struct efs_write_behind *b, uint64_t begin, uint64_t end, struct efs_error *err)
{
    static uint8_t data[3u << 20];
    errint_t rc = 0;
    for (uint64_t i = 1; rc == 0 && begin < end; i++) {
        size_t n = (size_t)(i * 517127 % sizeof(data));
        n = end - begin < n ? (size_t)(end - begin) : n;
        for (size_t j = 0; i % 7 && j < n; j++)
            data[j] = expected(begin + j);
        rc = efs_write_behind_append(b, i % 7 ? data : NULL, n, err);
        begin += n;
    }
    return rc;
}

static void check_all(const uint8_t *file, uint64_t begin, uint64_t end)
{
    for (uint64_t i = 1; begin < end; i++) {
        size_t n = (size_t)(i * 517127 % (3u << 20));
        n = end - begin < n ? (size_t)(end - begin) : n;
        for (size_t j = 0; j < n; j++)
            if (file[begin + j] != (i % 7 ? expected(begin + j) : 0))
                fail_msg("byte %llu", (unsigned long long)(begin + j));
        begin += n;
    }
}

TEST(all_bytes_in_the_same_pieces)
{
    const uint64_t begin = 3 * EFS_ALIGN + 192, end = FILE_BYTES - 5 * EFS_ALIGN - 64;
    struct target once = {0};
    for (int round = 0; round < 2; round++) {
        struct target t = {.file = calloc(1, FILE_BYTES), .written = 3 * EFS_ALIGN};
        struct efs_write_behind *b;
        struct efs_error err;
        assert_non_null(t.file);
        assert_int_equal(efs_write_behind_start(begin, to_memory, &t, &b), 0);
        memset(efs_write_behind_page(b), 0x55, begin % EFS_ALIGN);
        assert_int_equal(put_all(b, begin, end, &err), 0);
        assert_int_equal(efs_write_behind_flush(b, &err), 0);
        assert_int_equal(t.written, efs_page_down(end));
        memcpy(t.file + t.written, efs_write_behind_page(b), end % EFS_ALIGN);
        efs_write_behind_stop(b);
        for (uint64_t i = 3 * EFS_ALIGN; i < begin; i++)
            assert_int_equal(t.file[i], 0x55);
        check_all(t.file, begin, end);
        free(t.file);
        if (round == 0)
            once = t;
        assert_int_equal(t.pieces, once.pieces);
        assert_memory_equal(t.piece_bytes, once.piece_bytes, sizeof(t.piece_bytes));
    }
}

/* After a flush inside a piece, writing continues at the page of the flush, and the following pieces have full size. */
TEST(continues_after_flush)
{
    struct target t = {.file = calloc(1, FILE_BYTES)};
    struct efs_write_behind *b;
    struct efs_error err;
    assert_non_null(t.file);
    assert_int_equal(efs_write_behind_start(0, to_memory, &t, &b), 0);
    assert_int_equal(put_all(b, 0, EFS_ALIGN + 100, &err), 0);
    assert_int_equal(efs_write_behind_flush(b, &err), 0);
    assert_int_equal(t.written, EFS_ALIGN);
    assert_int_equal(put_all(b, EFS_ALIGN + 100, 2 * EFS_WRITE_BEHIND_PIECE, &err), 0);
    assert_int_equal(efs_write_behind_flush(b, &err), 0);
    efs_write_behind_stop(b);
    assert_int_equal(t.pieces, 3);
    assert_int_equal(t.piece_bytes[1], EFS_WRITE_BEHIND_PIECE - EFS_ALIGN);
    assert_int_equal(t.piece_bytes[2], EFS_WRITE_BEHIND_PIECE);
    check_all(t.file, 0, EFS_ALIGN + 100);
    check_all(t.file, EFS_ALIGN + 100, 2 * EFS_WRITE_BEHIND_PIECE);
    free(t.file);
}

/* When a write fails, put or flush returns its error, no call blocks, and the thread writes nothing more. */
TEST(failures_are_reported)
{
    for (unsigned nth = 1; nth <= 12; nth++) {
        struct target t = {.file = calloc(1, FILE_BYTES), .fail_at = nth};
        struct efs_write_behind *b;
        struct efs_error err = {""};
        assert_non_null(t.file);
        assert_int_equal(efs_write_behind_start(0, to_memory, &t, &b), 0);
        errint_t rc = 0;
        for (unsigned i = 0; rc == 0 && i < 24; i++)
            rc = efs_write_behind_append(b, NULL, EFS_WRITE_BEHIND_PIECE / 2, &err);
        if (rc == 0)
            rc = efs_write_behind_flush(b, &err);
        assert_int_equal(rc, -ENOSPC);
        assert_string_equal(err.text, "full");
        assert_int_equal(efs_write_behind_append(b, t.file, 1, &err), -ENOSPC);
        assert_int_equal(efs_write_behind_flush(b, &err), -ENOSPC);
        efs_write_behind_stop(b);
        assert_int_equal(t.pieces, nth);
        free(t.file);
    }
}

TEST_MAIN(NULL, NULL)
