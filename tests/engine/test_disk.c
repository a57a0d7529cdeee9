/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order of the I/O thread's reads: demand before read-ahead, read-ahead before spare-time reads; waiting reads can be
 * raised to demand or cancelled. The thread is blocked in complete() while the test queues reads, so that no test
 * depends on timing.
 */
#include <pthread.h>
#include <unistd.h>

#include "test.h"
#include "container.h"
#include "queue.h"
#include "stats.h"
#include "sys.h"

#define SEGMENT (8u << 20)
#define READ_BYTES 4096u
#define LARGE_BYTES (3u << 20) /* two exceed EFS_IO_IDLE_BYTES */
#define READS 8u

struct test_read {
    struct efs_io request;
    struct line *line;
    errint_t error;
    bool ended;
};

struct line {
    struct efs_io_queue *queue;
    struct efs_arena arena;
    struct efs_stats_counters stats;
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct test_read *holder; /* its complete() blocks */
    bool held;                /* the I/O thread is blocked in the holder's complete() */
    unsigned ended;
    struct test_read reads[READS], first;
};

static void read_ended(struct efs_io *request, errint_t error)
{
    struct test_read *r = EFS_CONTAINER(request, struct test_read, request);
    struct line *l = r->line;
    pthread_mutex_lock(&l->lock);
    r->error = error;
    r->ended = true;
    l->ended++;
    l->held = r == l->holder;
    pthread_cond_broadcast(&l->changed);
    while (r == l->holder)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static void submit(struct line *l, struct test_read *r, size_t bytes, enum efs_io_class class)
{
    *r = (struct test_read){.line = l,
                            .request = {.bytes = bytes,
                                        .data = l->arena.segments[l->arena.newest].base,
                                        .segment = l->arena.newest,
                                        .class = class,
                                        .complete = read_ended}};
    efs_io_submit(l->queue, &r->request);
}

static void change(struct line *l, unsigned i, enum efs_io_change to)
{
    atomic_store(&l->reads[i].request.change, to);
    efs_io_apply_changes(l->queue);
}

static void line_wait_held(struct line *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->held)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* The I/O thread is blocked in complete() of a first read until line_go(). */
static struct line *line_begin(void)
{
    char path[] = "/tmp/efs-test-disk-XXXXXX";
    struct line *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->fd = mkstemp(path);
    assert_true(l->fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(l->fd, SEGMENT), 0);
    assert_int_equal(efs_arena_init(&l->arena, SEGMENT, 1), 0);
    assert_int_equal(efs_arena_grow(&l->arena), 0);
    const struct efs_backing_file_options file = {.fd = l->fd, .buffered_fd = l->fd};
    const struct efs_io_options options = {
        .backing = efs_backing_file_new(&file), .arena = &l->arena, .stats = &l->stats};
    assert_int_equal(efs_io_queue_start(&options, &l->queue), 0);
    l->holder = &l->first;
    submit(l, &l->first, READ_BYTES, EFS_IO_DEMAND);
    line_wait_held(l);
    return l;
}

/* Unblocks the thread and waits until it is blocked in complete() of `holder`. */
static void line_hold(struct line *l, struct test_read *holder)
{
    pthread_mutex_lock(&l->lock);
    l->holder = holder;
    l->held = false;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    line_wait_held(l);
}

static void line_go(struct line *l, unsigned reads)
{
    pthread_mutex_lock(&l->lock);
    l->holder = NULL;
    pthread_cond_broadcast(&l->changed);
    while (l->ended < reads + 1)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static void line_end(struct line *l)
{
    efs_io_queue_stop(l->queue);
    efs_io_queue_free(l->queue);
    efs_arena_destroy(&l->arena);
    close(l->fd);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l);
}

static bool begun_before(const struct line *l, unsigned a, unsigned b)
{
    return l->reads[a].request.begin_ns < l->reads[b].request.begin_ns;
}

TEST(demand_before_read_ahead)
{
    struct line *l = line_begin();
    submit(l, &l->reads[0], READ_BYTES, EFS_IO_IDLE);
    submit(l, &l->reads[1], READ_BYTES, EFS_IO_AHEAD);
    submit(l, &l->reads[2], READ_BYTES, EFS_IO_DEMAND);
    line_go(l, 3);
    assert_true(begun_before(l, 2, 1) && begun_before(l, 1, 0));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(l->reads[i].error, 0);
    line_end(l);
}

TEST(idle_reads_only_when_idle)
{
    struct line *l = line_begin();
    submit(l, &l->reads[0], READ_BYTES, EFS_IO_IDLE);
    submit(l, &l->reads[1], READ_BYTES, EFS_IO_IDLE);
    submit(l, &l->reads[2], READ_BYTES, EFS_IO_DEMAND);
    submit(l, &l->reads[3], READ_BYTES, EFS_IO_AHEAD);
    line_go(l, 4);
    for (unsigned spare = 0; spare < 2; spare++)
        for (unsigned other = 2; other < 4; other++)
            assert_true(l->reads[spare].request.begin_ns >= l->reads[other].request.end_ns);
    line_end(l);
}

TEST(idle_reads_large_pieces)
{
    struct line *l = line_begin();
    for (unsigned i = 0; i < 3; i++)
        submit(l, &l->reads[i], LARGE_BYTES, EFS_IO_IDLE);
    line_go(l, 3);
    for (unsigned i = 1; i < 3; i++)
        assert_true(l->reads[i].request.begin_ns >= l->reads[i - 1].request.end_ns);
    line_end(l);
}

/* A read of three pieces, with the first in flight when the thread is blocked: reads submitted then run before the next
 * piece. */
static struct line *line_with_a_piece(void)
{
    struct line *l = line_begin();
    submit(l, &l->reads[0], READ_BYTES, EFS_IO_IDLE);
    submit(l, &l->reads[1], LARGE_BYTES, EFS_IO_IDLE);
    line_hold(l, &l->reads[0]);
    return l;
}

TEST(demand_waits_for_a_piece)
{
    struct line *l = line_with_a_piece();
    submit(l, &l->reads[2], READ_BYTES, EFS_IO_DEMAND);
    line_go(l, 3);
    assert_int_equal(l->reads[1].error, 0);
    assert_true(l->reads[1].request.begin_ns >= l->reads[2].request.end_ns);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 1 + 1 + LARGE_BYTES / EFS_IO_PIECE_BYTES + 1);
    assert_int_equal(atomic_load(&l->stats.disk_bytes), 3 * READ_BYTES + LARGE_BYTES);
    line_end(l);
}

TEST(cancel_or_raise_between_pieces)
{
    struct line *l = line_with_a_piece();
    change(l, 1, EFS_IO_CANCEL);
    line_go(l, 2);
    assert_int_equal(l->reads[1].error, -ECANCELED);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 1 + 1 + 1);
    line_end(l);
    l = line_with_a_piece();
    change(l, 1, EFS_IO_RAISE);
    line_go(l, 2);
    assert_int_equal(l->reads[1].error, 0);
    assert_int_equal(l->reads[1].request.class, EFS_IO_DEMAND);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 1 + 1 + 2); /* the two remaining pieces are one read */
    line_end(l);
}

TEST(raised_read_is_demand)
{
    struct line *l = line_begin();
    for (unsigned i = 0; i < 5; i++)
        submit(l, &l->reads[i], READ_BYTES, i >= 2 ? EFS_IO_IDLE : EFS_IO_AHEAD);
    change(l, 1, EFS_IO_RAISE);
    change(l, 4, EFS_IO_RAISE);
    line_go(l, 5);
    for (unsigned raised = 1; raised <= 4; raised += 3) {
        assert_int_equal(l->reads[raised].error, 0);
        assert_true(begun_before(l, raised, 0) && begun_before(l, raised, 2) && begun_before(l, raised, 3));
        assert_int_equal(l->reads[raised].request.class, EFS_IO_DEMAND);
    }
    line_end(l);
}

/* Read pages [first, first + pages) of the file to page `to` of the segment. */
static void submit_pages(struct line *l, unsigned i, unsigned first, unsigned pages, unsigned to)
{
    l->reads[i] = (struct test_read){.line = l,
                                     .request = {.offset = first * (uint64_t)READ_BYTES,
                                                 .bytes = pages * (size_t)READ_BYTES,
                                                 .data = l->arena.segments[0].base + to * (size_t)READ_BYTES,
                                                 .complete = read_ended}};
    efs_io_submit(l->queue, &l->reads[i].request);
}

/* Write its number to the start of each page of the file. */
static void line_number_pages(struct line *l)
{
    for (uint32_t page = 0; page < SEGMENT / READ_BYTES; page++)
        assert_int_equal(pwrite(l->fd, &page, sizeof(page), (off_t)page * READ_BYTES), sizeof(page));
}

static void check_pages(const struct line *l, unsigned i)
{
    const struct efs_io *r = &l->reads[i].request;
    assert_int_equal(l->reads[i].error, 0);
    for (size_t at = 0; at < r->bytes; at += READ_BYTES) {
        uint32_t page;
        memcpy(&page, r->data + at, sizeof(page));
        assert_int_equal(page, (r->offset + at) / READ_BYTES);
    }
}

TEST(adjacent_reads_are_merged)
{
    struct line *l = line_begin();
    line_number_pages(l);
    submit_pages(l, 0, 10, 3, 0);
    submit_pages(l, 1, 100, 1, 20);
    submit_pages(l, 2, 12, 2, 30); /* starts with the last page of read 0 */
    submit_pages(l, 3, 15, 2, 40); /* not adjacent to the previous read */
    submit_pages(l, 4, 14, 1, 50);
    line_go(l, 5);
    for (unsigned i = 0; i < 5; i++)
        check_pages(l, i);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 1 + 2);
    assert_int_equal(atomic_load(&l->stats.disk_bytes), (1 + 7 + 1) * READ_BYTES);
    line_end(l);
    l = line_begin(); /* at most info.best_bytes */
    line_number_pages(l);
    for (unsigned i = 0; i < 3; i++)
        submit_pages(l, i, i * 200, 200, i * 200);
    line_go(l, 3);
    for (unsigned i = 0; i < 3; i++)
        check_pages(l, i);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 1 + 2);
    line_end(l);
}

/* The file ends in the middle of the joined read. */
TEST(merged_read_fails_alone)
{
    struct line *l = line_begin();
    line_number_pages(l);
    assert_int_equal(ftruncate(l->fd, 22 * READ_BYTES), 0);
    submit_pages(l, 0, 18, 3, 0);
    submit_pages(l, 1, 20, 4, 10);
    submit_pages(l, 2, 24, 2, 20);
    line_go(l, 3);
    check_pages(l, 0);
    assert_int_equal(l->reads[1].error, -EIO);
    assert_int_equal(l->reads[2].error, -EIO);
    assert_int_equal(atomic_load(&l->stats.disk_errors), 2);
    line_end(l);
}

/* A raised read keeps its place in the order of submission: demand submitted later does not overtake it. */
TEST(raised_read_keeps_its_position)
{
    struct line *l = line_begin();
    submit(l, &l->reads[0], READ_BYTES, EFS_IO_IDLE);
    atomic_store(&l->reads[0].request.change, EFS_IO_RAISE); /* not received yet: no look needed */
    submit(l, &l->reads[1], READ_BYTES, EFS_IO_DEMAND);
    line_go(l, 2);
    assert_true(begun_before(l, 0, 1));
    line_end(l);
}

TEST(cancelled_read_is_not_submitted)
{
    struct line *l = line_begin();
    for (unsigned i = 0; i < 4; i++)
        submit(l, &l->reads[i], READ_BYTES, i >= 2 ? EFS_IO_IDLE : EFS_IO_AHEAD);
    change(l, 0, EFS_IO_CANCEL);
    change(l, 3, EFS_IO_CANCEL);
    line_go(l, 4);
    assert_int_equal(l->reads[0].error, -ECANCELED);
    assert_int_equal(l->reads[1].error, 0);
    assert_int_equal(l->reads[2].error, 0);
    assert_int_equal(l->reads[3].error, -ECANCELED);
    assert_int_equal(atomic_load(&l->stats.disk_reads), 3);
    assert_int_equal(atomic_load(&l->stats.disk_errors), 0);
    line_end(l);
}

/* Only efs_io_apply_changes() wakes the thread, which otherwise waits for the read in flight. */
TEST(reevaluation_wakes_the_thread)
{
    struct line *l = line_begin();
    line_go(l, 0);
    for (unsigned i = 0; i < 3; i++)
        submit(l, &l->reads[i], LARGE_BYTES, EFS_IO_IDLE);
    change(l, 1, EFS_IO_RAISE);
    change(l, 2, EFS_IO_CANCEL);
    line_go(l, 3);
    assert_int_equal(l->reads[1].error, 0);
    line_end(l);
}

TEST_MAIN(NULL, NULL)
