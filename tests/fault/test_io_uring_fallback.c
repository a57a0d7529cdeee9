/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O thread when a call of io_uring, or O_DIRECT, is refused, at once or later: every read completes with the
 * correct bytes, all pinned memory is unpinned, and each fallback is logged once.
 */
#include "test.h"
#include "arena.h"
#include "container.h"
#include "queue.h"
#include "stats.h"
#include "sys_fault.h"

#include <fcntl.h>
#include <semaphore.h>
#include <unistd.h>

#define SEGMENT (8u << 20)
#define READS 48u              /* more than are in flight at once */
#define READ_BYTES (64u << 10) /* and more than one joined read */

struct line {
    struct efs_io_queue *queue;
    struct efs_arena arena;
    struct efs_stats_counters stats;
    int fd, buffered_fd;
    sem_t ended;
    struct test_read {
        struct efs_io request;
        struct line *line;
        errint_t error;
    } reads[READS];
    char told[200];
};

static void read_ended(struct efs_io *request, errint_t error)
{
    struct test_read *r = EFS_CONTAINER(request, struct test_read, request);
    r->error = error;
    sem_post(&r->line->ended);
}

static void fell_back(void *arg, const char *what, errint_t why)
{
    struct line *l = arg;
    size_t used = strlen(l->told);
    snprintf(l->told + used, sizeof(l->told) - used, "%s %d;", what, why);
}

static uint64_t word_at(uint64_t offset)
{
    return offset * 0x9e3779b97f4a7c15u + 1;
}

static void line_begin(struct line *l)
{
    char path[] = "/tmp/efs-test-refused-XXXXXX";
    memset(l, 0, sizeof(*l));
    sem_init(&l->ended, 0, 0);
    l->buffered_fd = mkstemp(path);
    assert_true(l->buffered_fd >= 0);
    l->fd = open(path, O_RDONLY | O_CLOEXEC); /* a second descriptor suffices: not every filesystem has O_DIRECT */
    unlink(path);
    uint64_t *words = malloc(SEGMENT);
    assert_non_null(words);
    for (size_t i = 0; i < SEGMENT / sizeof(*words); i++)
        words[i] = word_at(i * sizeof(*words));
    assert_int_equal(pwrite(l->buffered_fd, words, SEGMENT, 0), SEGMENT);
    free(words);
    atomic_store(&l->stats.direct_io, 1);
    assert_int_equal(efs_arena_init(&l->arena, SEGMENT, 1), 0);
    assert_int_equal(efs_arena_grow(&l->arena), 0);
    const struct efs_backing_file_options file = {
        .fd = l->fd, .buffered_fd = l->buffered_fd, .fell_back = fell_back, .arg = l};
    const struct efs_io_options options = {
        .backing = efs_backing_file_new(&file), .arena = &l->arena, .stats = &l->stats};
    assert_int_equal(efs_io_queue_start(&options, &l->queue), 0);
}

static void line_end(struct line *l)
{
    efs_io_queue_stop(l->queue);
    efs_io_queue_free(l->queue);
    efs_arena_destroy(&l->arena);
    close(l->fd);
    close(l->buffered_fd);
    sem_destroy(&l->ended);
}

static void wait_for(struct line *l, unsigned count)
{
    while (count > 0)
        count -= sem_wait(&l->ended) == 0;
}

/* Submits all reads at once, as pairs of neighbours; a quarter of them speculative. */
static void read_all(struct line *l)
{
    memset(l->arena.segments[0].base, 0, READS * (size_t)READ_BYTES);
    for (unsigned i = 0; i < READS; i++) {
        l->reads[i] = (struct test_read){.line = l,
                                         .request = {.offset = (i + i / 2) * (uint64_t)READ_BYTES,
                                                     .bytes = READ_BYTES,
                                                     .data = l->arena.segments[0].base + i * (size_t)READ_BYTES,
                                                     .class = i % 4 == 3 ? EFS_IO_IDLE : EFS_IO_DEMAND,
                                                     .complete = read_ended}};
        l->reads[i].request.next = i + 1 < READS ? &l->reads[i + 1].request : NULL;
    }
    efs_io_submit(l->queue, &l->reads[0].request);
    wait_for(l, READS);
    for (unsigned i = 0; i < READS; i++) {
        uint64_t words[READ_BYTES / sizeof(uint64_t)];
        assert_int_equal(l->reads[i].error, 0);
        memcpy(words, l->reads[i].request.data, READ_BYTES);
        for (size_t w = 0; w < READ_BYTES / sizeof(uint64_t); w++)
            assert_true(words[w] == word_at(l->reads[i].request.offset + w * sizeof(uint64_t)));
    }
}

static void unpin(struct line *l)
{
    l->reads[0] = (struct test_read){.line = l, .request = {.complete = read_ended}};
    efs_io_submit(l->queue, &l->reads[0].request);
    wait_for(l, 1);
    assert_false(l->arena.segments[0].registered);
}

static bool has_ring(void)
{
    struct line l;
    fault_clear();
    line_begin(&l);
    read_all(&l);
    bool has = atomic_load(&l.stats.io_uring);
    assert_string_equal(l.told, "");
    line_end(&l);
    return has;
}

/* The nth call and all later ones fail. */
TEST(test_io_uring_enter)
{
    static const enum fault_call calls[] = {FAULT_URING_SUBMIT, FAULT_URING_WAIT};
    if (!has_ring())
        skip();
    for (unsigned c = 0; c < 2; c++)
        for (unsigned nth = 1; nth <= 12; nth++) {
            struct line l;
            fault_plan(calls[c], nth, EPERM, true);
            line_begin(&l);
            read_all(&l);
            read_all(&l);
            unpin(&l);
            line_end(&l);
            assert_true(fault_triggered() || nth > 2);
            assert_int_equal(atomic_load(&l.stats.io_uring), !fault_triggered());
            assert_string_equal(l.told, fault_triggered() ? "io_uring -1;" : "");
            fault_clear();
        }
}

TEST(test_buffer_unregister)
{
    struct line l;
    if (!has_ring())
        skip();
    line_begin(&l);
    read_all(&l);
    bool pinned = l.arena.segments[0].registered;
    fault_plan(FAULT_URING_UNPIN, 1, ENOSYS, true);
    unpin(&l);
    assert_int_equal(atomic_load(&l.stats.io_uring), !pinned);
    read_all(&l);
    line_end(&l);
    fault_clear();
    assert_string_equal(l.told, pinned ? "io_uring -38;" : "");
}

TEST(test_o_direct)
{
    struct line l;
    fault_plan(FAULT_URING_RESULT, 1, EINVAL, false);
    line_begin(&l);
    read_all(&l);
    assert_int_equal(atomic_load(&l.stats.direct_io), !fault_triggered());
    line_end(&l);
    assert_string_equal(l.told, fault_triggered() ? "O_DIRECT -22;" : "");

    fault_plan(FAULT_URING_RESULT, 5, EOPNOTSUPP, true); /* and O_DIRECT fails first */
    line_begin(&l);
    read_all(&l);
    line_end(&l);
    assert_string_equal(l.told, fault_triggered() ? "O_DIRECT -95;io_uring -95;" : "");
    fault_clear();
}

/* Only pread(2) is left. */
TEST(test_o_direct_without_ring)
{
    struct line l;
    fault_plan(FAULT_URING_INIT, 1, EPERM, true);
    line_begin(&l);
    read_all(&l);
    fault_plan(FAULT_PREAD, 3, EINVAL, false);
    read_all(&l);
    assert_true(fault_triggered());
    fault_clear();
    assert_int_equal(atomic_load(&l.stats.direct_io), 0);
    line_end(&l);
    assert_string_equal(l.told, "O_DIRECT -22;");
}

TEST_MAIN(NULL, NULL)
