/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue on a backing with a local copy (engine/io/backing_local.c): the bytes are those of the source at any mixture
 * of pages that are there, missing, evicted meanwhile and damaged. Pages of the copy are not read from the source.
 * Reads fail only by errors of the source, not by those of the local disk.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "test.h"
#include "container.h"
#include "fixture.h"
#include "local.h"
#include "queue.h"
#include "stats.h"
#include "tree.h"

#define PAGE 4096u
#define SOURCE_PAGES 4096u
#define SOURCE_BYTES ((size_t)SOURCE_PAGES * PAGE)
#define READS 300u

/* A source in memory, which answers in wait(), the newest read first. */
struct memory {
    struct efs_backing b;
    struct efs_backing_read *reads[EFS_IO_DEPTH_MAX];
    unsigned count;
    uint64_t read_bytes, bad_page; /* bad_page: reads of it fail */
    _Atomic(void *) fill_data;     /* of reads that fill */
    uint64_t fill_bytes;           /* most bytes of these that were in flight when a demand read was submitted */
    unsigned demands, delayed;     /* demand reads; those that found one in flight */
};

static uint8_t *source;
static struct fixture place;
static char folder[300];

static bool is_fill(struct memory *m, const struct efs_backing_read *read)
{
    return read->buffers[0].iov_base == atomic_load(&m->fill_data);
}

static void memory_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct memory *m = EFS_CONTAINER(b, struct memory, b);
    uint64_t fill_bytes = 0;
    for (unsigned i = 0; i < m->count && !read->idle; i++)
        fill_bytes += is_fill(m, m->reads[i]) ? m->reads[i]->bytes : 0;
    m->fill_bytes = m->fill_bytes < fill_bytes ? fill_bytes : m->fill_bytes;
    m->demands += !read->idle;
    m->delayed += fill_bytes > 0;
    m->reads[m->count++] = read;
}

static ssize_t memory_read(struct memory *m, const struct efs_backing_read *read)
{
    uint64_t at = read->offset, bad = m->bad_page * PAGE;
    if (read->offset <= bad && bad < read->offset + read->bytes)
        return -EIO;
    for (unsigned i = 0; i < read->buffer_count; at += read->buffers[i++].iov_len)
        memcpy(read->buffers[i].iov_base, source + at, read->buffers[i].iov_len);
    assert_int_equal(at - read->offset, read->bytes);
    m->read_bytes += read->bytes;
    return (ssize_t)read->bytes;
}

static void memory_wait(struct efs_backing *b)
{
    struct memory *m = EFS_CONTAINER(b, struct memory, b);
    uint64_t value;
    if (m->count == 0) {
        assert_int_equal(read(b->wake_fd, &value, sizeof(value)), sizeof(value));
        return;
    }
    struct pollfd wake = {.fd = b->wake_fd, .events = POLLIN};
    if (is_fill(m, m->reads[m->count - 1]) && poll(&wake, 1, 2) > 0) { /* it takes long: other reads come meanwhile */
        assert_int_equal(read(b->wake_fd, &value, sizeof(value)), sizeof(value));
        return;
    }
    struct efs_backing_read *answered = m->reads[--m->count];
    efs_backing_read_ended(b, answered, memory_read(m, answered));
}

static void memory_close(struct efs_backing *b, bool in_child)
{
    (void)in_child;
    assert_int_equal(EFS_CONTAINER(b, struct memory, b)->count, 0);
}

struct line {
    struct memory memory; /* the test owns it: it looks at it after close() */
    struct efs_stats_counters stats;
    struct efs_local *local;
    struct efs_io_queue *queue;
    unsigned warnings;
    sem_t ended;
    struct efs_io fill;
    struct test_read {
        struct efs_io io;
        struct line *line;
        errint_t error;
        uint8_t *to;
    } reads[READS];
};

static void warn(void *arg, const char *text)
{
    print_message("%s\n", text);
    ((struct line *)arg)->warnings++;
}

static void fill_ended(struct efs_io *io, errint_t error)
{
    efs_local_filled(((struct line *)io->owner)->local, error);
}

static errint_t fill_read(void *arg, uint64_t address, void *data, size_t bytes)
{
    struct line *l = arg;
    atomic_store(&l->memory.fill_data, data);
    l->fill = (struct efs_io){.offset = address,
                              .bytes = bytes,
                              .data = data,
                              .segment = EFS_NONE,
                              .class = EFS_IO_IDLE,
                              .complete = fill_ended,
                              .owner = l};
    efs_io_submit(l->queue, &l->fill);
    return 0;
}

static struct line *line_begin(uint64_t size)
{
    static const struct efs_backing_ops ops = {.submit = memory_submit, .wait = memory_wait, .close = memory_close};
    struct line *l = calloc(1, sizeof(*l));
    struct efs_error err;
    assert_non_null(l);
    l->memory.b = (struct efs_backing){
        .ops = &ops, .info = {.align = 1, .best_bytes = 1u << 20, .depth = 16, .joins = true}, .direct_fd = -1};
    l->memory.bad_page = UINT32_MAX;
    const struct efs_local_file file = {.bytes = SOURCE_BYTES, .name = "copy", .identity = "source"};
    const struct efs_local_options options = {.folder = folder,
                                              .size_bytes = size,
                                              .files = &file,
                                              .file_count = 1,
                                              .stats = &l->stats,
                                              .warn = warn,
                                              .read = fill_read,
                                              .arg = l};
    assert_int_equal(efs_local_open(&options, &l->local, &err), 0);
    assert_int_equal(efs_local_start(l->local), 0);
    sem_init(&l->ended, 0, 0);
    const struct efs_io_options io = {.backing = efs_backing_local_new(&l->memory.b, l->local), .stats = &l->stats};
    assert_int_equal(efs_io_queue_start(&io, &l->queue), 0);
    assert_int_equal(efs_io_direct_fd(l->queue), -1);
    return l;
}

/* Without the copy of the line before. */
static struct line *new_line(uint64_t size)
{
    tree_remove(folder);
    return line_begin(size);
}

static void line_end(struct line *l)
{
    efs_local_fill(l->local, EFS_LOCAL_FILL_OFF);
    efs_io_queue_stop(l->queue);
    efs_io_queue_free(l->queue);
    efs_local_close(l->local, false);
    sem_destroy(&l->ended);
    free(l);
}

static void read_ended(struct efs_io *io, errint_t error)
{
    struct test_read *r = EFS_CONTAINER(io, struct test_read, io);
    r->error = error;
    sem_post(&r->line->ended);
}

/* Reads of random pages, all at once; compares them. Returns how many failed. */
static unsigned read_random(struct line *l, uint64_t random)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < READS; i++) {
        struct test_read *r = &l->reads[i];
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t pages = 1 + (random >> 40) % (i % 4 ? 20 : 700), page = (random >> 20) % (SOURCE_PAGES - pages);
        if (i % 3 == 2 && (r - 1)->io.offset + (r - 1)->io.bytes + pages * PAGE <= SOURCE_BYTES)
            page = ((r - 1)->io.offset + (r - 1)->io.bytes) / PAGE; /* a neighbour, to be joined */
        *r = (struct test_read){.line = l, .to = aligned_alloc(PAGE, pages * PAGE)};
        assert_non_null(r->to);
        r->io = (struct efs_io){.offset = page * PAGE,
                                .bytes = pages * PAGE,
                                .data = r->to,
                                .segment = EFS_NONE,
                                .class = i % 7 == 6 ? EFS_IO_IDLE : EFS_IO_DEMAND,
                                .complete = read_ended};
        efs_io_submit(l->queue, &r->io);
    }
    for (unsigned i = 0; i < READS;)
        i += sem_wait(&l->ended) == 0;
    for (unsigned i = 0; i < READS; i++) {
        struct test_read *r = &l->reads[i];
        if (r->error == 0)
            assert_memory_equal(r->to, source + r->io.offset, r->io.bytes);
        else
            assert_int_equal(r->error, -EIO);
        failed += r->error < 0;
        free(r->to);
    }
    return failed;
}

/* Reads everything, until the copy has all pages. */
static void fill(struct line *l)
{
    for (unsigned tries = 0; tries == 0 || efs_local_bytes(l->local) < SOURCE_BYTES; tries++) {
        assert_true(tries < 10000);
        for (uint64_t at = 0; at < SOURCE_BYTES; at += 1u << 20) {
            uint8_t *to = aligned_alloc(PAGE, 1u << 20);
            assert_non_null(to);
            assert_int_equal(efs_io_read_sync(l->queue, at, to, 1u << 20), 0);
            assert_memory_equal(to, source + at, 1u << 20);
            free(to);
        }
    }
}

TEST(what_is_there_is_not_read_from_the_source)
{
    struct line *l = new_line(2 * SOURCE_BYTES);
    assert_int_equal(read_random(l, 1), 0);
    fill(l);
    uint64_t before = l->memory.read_bytes, disk = atomic_load(&l->stats.disk_bytes);
    l->memory.bad_page = 5;
    assert_int_equal(read_random(l, 2), 0);
    assert_int_equal(l->memory.read_bytes, before);
    assert_int_equal(disk - before, atomic_load(&l->stats.local_bytes) - (atomic_load(&l->stats.disk_bytes) - disk));
    line_end(l);
    l = line_begin(2 * SOURCE_BYTES); /* and after a restart */
    assert_int_equal(read_random(l, 3), 0);
    assert_int_equal(l->memory.read_bytes, 0);
    assert_int_equal(l->warnings, 0);
    line_end(l);
}

/* The size holds a half: pages are evicted while they are read. */
TEST(pages_come_and_go)
{
    struct line *l = new_line(SOURCE_BYTES / 2 + (1u << 20));
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(read_random(l, 10 + i), 0);
    assert_true(atomic_load(&l->stats.local_evicted_bytes) > 0 && atomic_load(&l->stats.local_bytes) > 0);
    assert_int_equal(atomic_load(&l->stats.local_bytes) + l->memory.read_bytes, atomic_load(&l->stats.disk_bytes));
    assert_int_equal(atomic_load(&l->stats.disk_errors), 0);
    assert_int_equal(atomic_load(&l->stats.local_damaged), 0);
    line_end(l);
}

TEST(damage_is_read_from_the_source)
{
    char path[400];
    struct line *l = new_line(2 * SOURCE_BYTES);
    fill(l);
    uint64_t before = l->memory.read_bytes;
    snprintf(path, sizeof(path), "%s/copy", folder);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(pwrite(fd, "damage", 6, (off_t)(i * 100 + 7) * PAGE + 100), 6);
    assert_int_equal(read_random(l, 4), 0);
    fill(l);
    assert_int_equal(atomic_load(&l->stats.local_damaged), 20);
    assert_true(l->memory.read_bytes > before && l->memory.read_bytes < before + SOURCE_BYTES / 4);
    close(fd);
    line_end(l);
}

/* While the copy is filled, a read of the source finds at most one read that fills in flight. */
TEST(filling_delays_no_read)
{
    struct line *l = new_line(2 * SOURCE_BYTES);
    efs_local_fill(l->local, EFS_LOCAL_FILL_ALL);
    for (unsigned i = 0; efs_local_filling(l->local) != EFS_LOCAL_FILL_OFF; i++)
        assert_int_equal(read_random(l, 100 + i), 0);
    assert_true(efs_local_bytes(l->local) > SOURCE_BYTES / 2); /* all but what never found a slot */
    print_message("%u reads of the source, %u of them found a read that fills, of at most %llu bytes\n",
                  l->memory.demands, l->memory.delayed, (unsigned long long)l->memory.fill_bytes);
    assert_in_range(l->memory.fill_bytes, 0, EFS_LOCAL_FILL_BYTES);
    line_end(l);
}

/* A failed read ends filling. */
TEST(filling_a_bad_page)
{
    struct line *l = new_line(2 * SOURCE_BYTES);
    l->memory.bad_page = 1000;
    efs_local_fill(l->local, EFS_LOCAL_FILL_ALL);
    while (efs_local_filling(l->local) != EFS_LOCAL_FILL_OFF)
        usleep(100);
    assert_int_equal(efs_local_bytes(l->local), 1000u / 256 * 256 * PAGE);
    assert_int_equal(l->warnings, 0);
    line_end(l);
}

/* Reads fail if and only if they need a bad page of the source. */
TEST(errors_of_the_source)
{
    struct line *l = new_line(2 * SOURCE_BYTES);
    l->memory.bad_page = 1000;
    unsigned failed = read_random(l, 5);
    assert_in_range(failed, 1, READS / 3);
    assert_int_equal(atomic_load(&l->stats.disk_errors), failed);
    l->memory.bad_page = UINT32_MAX;
    assert_int_equal(read_random(l, 5), 0);
    line_end(l);
}

static int setup(void **state)
{
    (void)state;
    fixture_begin(&place);
    snprintf(folder, sizeof(folder), "%s/local", place.directory);
    source = fixture_noise(SOURCE_BYTES);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&place);
    free(source);
    return 0;
}

TEST_MAIN(setup, teardown)
