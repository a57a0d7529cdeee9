/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local copies (engine/local): pages are kept, evicted within a size and checked; a copy of another source is refused;
 * what is missing is filled; and a process that is killed at any moment while it fills and evicts leaves no wrong page.
 * EXPERTFS_KILLS: number of kills (50); SEED.
 */
#include "test.h"
#include "fixture.h"
#include "local.h"
#include "stats.h"
#include "tree.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define BLOCKS 100u
#define SOURCE_BYTES ((uint64_t)BLOCKS * EFS_LOCAL_BLOCK - 1000) /* the last page is not whole */
#define SMALLEST (32u * EFS_LOCAL_BLOCK + 64u * 1024)            /* size that holds 32 blocks and the map */

static uint8_t *source; /* whole blocks: zeros after SOURCE_BYTES */
static struct fixture place;
static char folder[300];
static struct efs_stats_counters stats;
static unsigned warnings;

static void warn(void *arg, const char *line)
{
    (void)arg;
    print_message("%s\n", line);
    warnings++;
}

static struct efs_local_file described(const char *identity)
{
    struct efs_local_file f = {.address = PAGE, .bytes = SOURCE_BYTES, .name = "0123456789abcdef"};
    snprintf(f.identity, sizeof(f.identity), "%s", identity);
    return f;
}

static struct {
    _Atomic bool pending;
    uint64_t address;
    void *data;
    size_t bytes;
} wanted; /* the read that fills */

static errint_t want(void *arg, uint64_t address, void *data, size_t bytes)
{
    (void)arg;
    assert_false(atomic_load(&wanted.pending));
    wanted.address = address;
    wanted.data = data;
    wanted.bytes = bytes;
    atomic_store(&wanted.pending, true);
    return 0;
}

static bool worth_by_number(void *arg, double *worth)
{
    (void)arg;
    for (unsigned i = 0; i < BLOCKS; i++)
        worth[i] = i == 70 ? (double)INFINITY : -(double)i;
    return true;
}

static errint_t try_open(const char *identity, uint64_t size, struct efs_local **local, struct efs_error *err)
{
    struct efs_local_file file = described(identity);
    const struct efs_local_options options = {.folder = folder,
                                              .size_bytes = size,
                                              .files = &file,
                                              .file_count = 1,
                                              .stats = &stats,
                                              .warn = warn,
                                              .units = BLOCKS,
                                              .rank = worth_by_number,
                                              .read = want};
    err->text[0] = '\0';
    return efs_local_open(&options, local, err);
}

static struct efs_local *open_copy(uint64_t size)
{
    struct efs_local *local;
    struct efs_error err;
    errint_t rc = try_open("one", size, &local, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(efs_local_start(local), 0);
    return local;
}

/* Offers pages of the source as one read and, with wait, until they are there. */
static void offer(struct efs_local *l, uint64_t page, unsigned count, bool wait)
{
    struct iovec buffer = {.iov_base = source + page * PAGE, .iov_len = (size_t)count * PAGE};
    bool there = false;
    for (unsigned tries = 0; !there && tries < PATIENCE_MS; tries++) {
        if (tries % 100 == 0)
            efs_local_offer(l, PAGE + page * PAGE, &buffer, 1, buffer.iov_len);
        if (!wait)
            return;
        there = efs_local_run(l, PAGE + page * PAGE, buffer.iov_len, &there) == buffer.iov_len && there;
        if (!there)
            usleep(1000);
    }
    assert_true(there);
}

static bool has(struct efs_local *l, uint64_t page)
{
    bool there;
    efs_local_run(l, PAGE + page * PAGE, PAGE, &there);
    return there;
}

/* Reads all that is there and compares it. Returns its pages. */
static unsigned compare_all(struct efs_local *l, bool damaged)
{
    static uint8_t got[EFS_LOCAL_READ_BYTES] __attribute__((aligned(4096)));
    const uint64_t pages = (SOURCE_BYTES + PAGE - 1) / PAGE;
    unsigned found = 0;
    for (uint64_t page = 0; page < pages;) {
        bool there;
        size_t bytes = efs_local_run(l, PAGE + page * PAGE, (size_t)(pages - page) * PAGE, &there);
        assert_true(bytes >= PAGE && bytes % PAGE == 0);
        if (there) {
            struct iovec buffers[2] = {{got, PAGE}, {got + PAGE, bytes - PAGE}};
            memset(got, 0xa5, bytes);
            errint_t rc = efs_local_read(l, PAGE + page * PAGE, buffers, bytes > PAGE ? 2 : 1, bytes);
            if (rc == 0 && memcmp(got, source + page * PAGE, bytes) != 0)
                fail_msg("wrong bytes from page %llu on", (unsigned long long)page);
            assert_true(rc == 0 || (damaged && rc == -EAGAIN));
            found += rc == 0 ? (unsigned)(bytes / PAGE) : 0;
        }
        page += bytes / PAGE;
    }
    return found;
}

static char *path_of(const char *name)
{
    static char path[400];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void remove_copy(void)
{
    tree_remove(folder);
    warnings = 0;
    memset(&stats, 0, sizeof(stats));
}

TEST(a_complete_copy_is_the_file)
{
    remove_copy();
    struct efs_local *l = open_copy(2 * SOURCE_BYTES);
    assert_true(efs_local_writes(l));
    for (unsigned b = 0; b < BLOCKS; b++)
        offer(l, b * 64, 64, true);
    assert_int_equal(compare_all(l, false) * (uint64_t)PAGE, (SOURCE_BYTES + PAGE - 1) / PAGE * PAGE);
    assert_int_equal(efs_local_bytes(l), atomic_load(&stats.local_written_bytes));
    efs_local_close(l, false);
    struct stat st;
    uint8_t *copy = malloc(SOURCE_BYTES);
    int fd = open(path_of("0123456789abcdef"), O_RDONLY);
    assert_true(copy && fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(st.st_size, SOURCE_BYTES);
    assert_int_equal(read(fd, copy, SOURCE_BYTES), SOURCE_BYTES);
    assert_memory_equal(copy, source, SOURCE_BYTES);
    close(fd);
    free(copy);
    l = open_copy(2 * SOURCE_BYTES);
    assert_int_equal(compare_all(l, false) * (uint64_t)PAGE, (SOURCE_BYTES + PAGE - 1) / PAGE * PAGE);
    efs_local_close(l, false);
    assert_int_equal(warnings, 0);
}

TEST(parts_of_blocks)
{
    remove_copy();
    struct efs_local *l = open_copy(SMALLEST);
    offer(l, 3, 5, true);
    offer(l, 60, 10, true);
    offer(l, 6, 4, true);
    static const struct {
        unsigned page, run;
        bool there;
    } runs[] = {{0, 3, false}, {3, 7, true}, {10, 50, false}, {60, 10, true}, {70, 1024, false}};
    for (unsigned i = 0; i < 5; i++) {
        bool there;
        assert_int_equal(efs_local_run(l, PAGE + runs[i].page * PAGE, 8u << 20, &there), runs[i].run * PAGE);
        assert_int_equal(there, runs[i].there);
    }
    assert_int_equal(compare_all(l, false), 17);
    efs_local_forget(l, PAGE + 4 * PAGE + 100, 2 * PAGE);
    assert_true(has(l, 3) && !has(l, 4) && !has(l, 5) && !has(l, 6) && has(l, 7));
    efs_local_close(l, false);
    l = open_copy(SMALLEST);
    assert_int_equal(compare_all(l, false), 14);
    bool there = true;
    assert_int_equal(efs_local_run(l, 0, PAGE, &there), PAGE); /* before the file */
    assert_false(there);
    efs_local_close(l, false);
}

static uint64_t disk_bytes(void)
{
    struct stat st;
    assert_int_equal(stat(path_of("0123456789abcdef"), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

TEST(the_least_recently_used_goes_first)
{
    remove_copy();
    struct efs_local *l = open_copy(SMALLEST);
    for (unsigned b = 0; b < 31; b++)
        offer(l, b * 64, 64, true);
    for (unsigned b = 0; b < 31; b++)
        assert_true(has(l, b * 64) || b == 0);
    assert_true(has(l, 0)); /* used last */
    for (unsigned b = 31; b < 40; b++)
        offer(l, b * 64, 64, true);
    assert_true(has(l, 0) && !has(l, 64));
    assert_true(efs_local_bytes(l) <= SMALLEST && disk_bytes() <= SMALLEST);
    assert_true(atomic_load(&stats.local_evicted_bytes) >= 8 * EFS_LOCAL_BLOCK);
    assert_int_equal(atomic_load(&stats.local_written_bytes) - atomic_load(&stats.local_evicted_bytes),
                     efs_local_bytes(l));
    assert_true(compare_all(l, false) >= 30 * 64);
    efs_local_close(l, false);
    assert_int_equal(warnings, 0);
}

/* Units 0 to 99, one a block: the highest number is worth least, but 70 is pinned and block 90 stays. */
TEST(the_unit_of_least_worth_goes_first)
{
    remove_copy();
    struct efs_local *l;
    struct efs_error err;
    assert_int_equal(try_open("one", SMALLEST, &l, &err), 0);
    for (unsigned b = 0; b < BLOCKS; b++)
        efs_local_mark(l, PAGE + (uint64_t)b * EFS_LOCAL_BLOCK, EFS_LOCAL_BLOCK, b);
    efs_local_mark(l, PAGE + (uint64_t)90 * EFS_LOCAL_BLOCK + 5000, 100, EFS_LOCAL_STAYS);
    assert_int_equal(efs_local_start(l), 0);
    for (unsigned b = BLOCKS; b-- > 0;)
        offer(l, b * 64, 64, true);
    assert_true(has(l, 90 * 64) && has(l, 70 * 64));
    for (unsigned b = 0; b < 28; b++)
        assert_true(has(l, b * 64));
    efs_local_close(l, false);
}

/* When all that is there stays, nothing more is stored. */
TEST(what_stays_is_not_evicted)
{
    remove_copy();
    struct efs_local *l;
    struct efs_error err;
    assert_int_equal(try_open("one", SMALLEST, &l, &err), 0);
    efs_local_mark(l, PAGE, SOURCE_BYTES, EFS_LOCAL_STAYS);
    assert_int_equal(efs_local_start(l), 0);
    for (unsigned b = 0; b < 32; b++)
        offer(l, b * 64, 64, true);
    for (unsigned b = 32; b < BLOCKS; b++)
        offer(l, b * 64, 64, false);
    efs_local_close(l, false);
    assert_int_equal(atomic_load(&stats.local_evicted_bytes), 0);
    l = open_copy(SMALLEST);
    assert_true(has(l, 0) && has(l, 31 * 64) && !has(l, 40 * 64));
    efs_local_close(l, false);
}

/* With a smaller size than before it is cut at once; what stays goes last. */
TEST(a_smaller_size_drops_at_the_next_start)
{
    remove_copy();
    struct efs_local *l = open_copy(2 * SOURCE_BYTES);
    struct efs_error err;
    for (unsigned b = 0; b < BLOCKS; b++)
        offer(l, b * 64, 64, true);
    efs_local_close(l, false);
    for (unsigned stays = 10; stays <= 50; stays += 40) {
        assert_int_equal(try_open("one", SMALLEST, &l, &err), 0);
        efs_local_mark(l, PAGE, (uint64_t)stays * EFS_LOCAL_BLOCK, EFS_LOCAL_STAYS);
        assert_int_equal(efs_local_start(l), 0);
        for (unsigned tries = 0; tries < PATIENCE_MS && efs_local_bytes(l) > SMALLEST; tries++)
            usleep(1000);
        assert_in_range(efs_local_bytes(l), 30 * EFS_LOCAL_BLOCK, SMALLEST);
        efs_local_close(l, false);
        assert_true(disk_bytes() <= SMALLEST);
        l = open_copy(2 * SOURCE_BYTES);
        assert_true(stays > 10 || (has(l, 0) && has(l, 9 * 64)));
        for (unsigned b = 0; b < BLOCKS; b++)
            offer(l, b * 64, 64, true);
        efs_local_close(l, false);
    }
    assert_int_equal(warnings, 0);
}

/* Answers a read that fills, if there is one; drop: as if it had found no room. Returns its pages. */
static uint64_t answer(struct efs_local *l, bool drop)
{
    if (!atomic_load(&wanted.pending))
        return 0;
    const struct iovec buffer = {wanted.data, wanted.bytes};
    assert_true(wanted.bytes <= EFS_LOCAL_FILL_BYTES);
    memcpy(wanted.data, source + wanted.address - PAGE, wanted.bytes);
    if (!drop)
        efs_local_offer(l, wanted.address, &buffer, 1, wanted.bytes);
    atomic_store(&wanted.pending, false);
    efs_local_filled(l, 0);
    return buffer.iov_len / PAGE;
}

/* Answers all reads until filling is off; of the first every fifth is dropped. Returns the pages of the rest. */
static uint64_t answer_fill(struct efs_local *l, enum efs_local_fill fill)
{
    uint64_t pages = 0;
    unsigned reads = 0;
    efs_local_fill(l, fill);
    while (efs_local_filling(l) != EFS_LOCAL_FILL_OFF) {
        bool drop = reads < 20 && reads % 5 == 4;
        uint64_t got = answer(l, drop);
        reads += got > 0;
        pages += drop ? 0 : got;
        if (got == 0)
            usleep(100);
    }
    return pages;
}

TEST(what_is_missing_is_filled)
{
    const uint64_t all = (SOURCE_BYTES + PAGE - 1) / PAGE;
    struct efs_local *l;
    struct efs_error err;
    remove_copy();
    assert_int_equal(try_open("one", 2 * SOURCE_BYTES, &l, &err), 0);
    efs_local_mark(l, PAGE + 50 * EFS_LOCAL_BLOCK, EFS_LOCAL_BLOCK, EFS_LOCAL_TABLES);
    efs_local_mark(l, PAGE + 50 * EFS_LOCAL_BLOCK + 8, 8, 7); /* part of an expert in its last page */
    efs_local_mark(l, PAGE + SOURCE_BYTES - 10, 10, EFS_LOCAL_TABLES);
    assert_int_equal(efs_local_start(l), 0);
    uint64_t tables = answer_fill(l, EFS_LOCAL_FILL_TABLES);
    assert_int_equal(tables, 64 + all - (BLOCKS - 1) * 64);
    assert_int_equal(efs_local_bytes(l), tables * PAGE);
    assert_true(has(l, 50 * 64) && has(l, 50 * 64 + 63) && has(l, all - 1) && !has(l, 0));
    offer(l, 5, 3, true);
    offer(l, 64, 150, true);
    assert_int_equal(answer_fill(l, EFS_LOCAL_FILL_ALL), all - tables - 153); /* nothing is read twice */
    assert_int_equal(compare_all(l, false), all);
    assert_int_equal(answer_fill(l, EFS_LOCAL_FILL_ALL), 0);
    efs_local_forget(l, PAGE + 4 * PAGE, PAGE);
    assert_int_equal(answer_fill(l, EFS_LOCAL_FILL_ALL), 1);
    efs_local_forget(l, PAGE + 4 * PAGE, PAGE);
    efs_local_fill(l, EFS_LOCAL_FILL_ALL);
    while (!atomic_load(&wanted.pending))
        usleep(100);
    atomic_store(&wanted.pending, false);
    efs_local_filled(l, -EIO);
    assert_int_equal(efs_local_filling(l), EFS_LOCAL_FILL_OFF);
    efs_local_close(l, false);
    assert_int_equal(warnings, 0);
}

/* It ends before something would be evicted. In a second process it is off. */
TEST(filling_evicts_nothing)
{
    remove_copy();
    struct efs_local *l = open_copy(SMALLEST), *second = open_copy(SMALLEST);
    offer(l, 99 * 64 - 100, 100, true);
    answer_fill(l, EFS_LOCAL_FILL_ALL);
    assert_in_range(efs_local_bytes(l), SMALLEST - 2 * EFS_LOCAL_FILL_BYTES, SMALLEST);
    assert_int_equal(atomic_load(&stats.local_evicted_bytes), 0);
    assert_true(has(l, 0) && has(l, 99 * 64 - 1) && !has(l, 60 * 64));
    assert_int_equal(answer_fill(second, EFS_LOCAL_FILL_ALL), 0);
    efs_local_close(second, false);
    efs_local_close(l, false);
}

/* A byte of a page, of a checksum, and the end of the copy. */
TEST(damage_is_found)
{
    remove_copy();
    struct efs_local *l = open_copy(SMALLEST);
    offer(l, 0, 128, true);
    fixture_damage(path_of("0123456789abcdef"), 5 * PAGE + 77);
    fixture_damage(path_of("0123456789abcdef.map"), PAGE + 9 * sizeof(uint32_t));
    assert_int_equal(compare_all(l, true), 0); /* one read: the rest is found by the next one */
    assert_true(!has(l, 5) && !has(l, 9) && has(l, 8));
    assert_int_equal(atomic_load(&stats.local_damaged), 2);
    assert_int_equal(compare_all(l, false), 126);
    offer(l, 0, 128, true);
    assert_int_equal(compare_all(l, false), 128);
    assert_int_equal(truncate(path_of("0123456789abcdef"), 100 * PAGE), 0);
    compare_all(l, true);
    compare_all(l, false);
    efs_local_close(l, false);
    assert_int_equal(warnings, 0);
    l = open_copy(SMALLEST);
    compare_all(l, true);
    compare_all(l, false);
    efs_local_close(l, false);
}

static void refused(const char *identity, uint64_t size, errint_t why, const char *text)
{
    struct efs_local *l;
    struct efs_error err;
    assert_int_equal(try_open(identity, size, &l, &err), why);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, err.text);
}

TEST(what_is_no_copy_of_this_source_is_refused)
{
    remove_copy();
    efs_local_close(open_copy(SMALLEST), false);
    refused("another", SMALLEST, -EEXIST, "a local copy of another source");
    refused("one", SMALLEST - EFS_LOCAL_BLOCK, -EINVAL, "below the minimum");
    fixture_damage(path_of("0123456789abcdef.map"), 30);
    refused("one", SMALLEST, -EEXIST, "not the map of a local copy, or damaged");
    unlink(path_of("0123456789abcdef.map"));
    refused("one", SMALLEST, -EEXIST, "it has no map");
    assert_int_equal(access(path_of("0123456789abcdef"), F_OK), 0); /* it is not touched */
    unlink(path_of("0123456789abcdef"));
    assert_int_equal(symlink("/dev/zero", path_of("0123456789abcdef.map")), 0);
    refused("one", SMALLEST, -EEXIST, "not a regular file of this user");
    unlink(path_of("0123456789abcdef.map"));
    struct efs_local *l = open_copy(SMALLEST);
    offer(l, 0, 64, true);
    efs_local_close(l, false);
    unlink(path_of("0123456789abcdef")); /* only the map is left: nothing is there */
    l = open_copy(SMALLEST);
    assert_int_equal(compare_all(l, false), 0);
    offer(l, 0, 64, true);
    assert_int_equal(compare_all(l, false), 64);
    efs_local_close(l, false);
}

TEST(a_second_process_only_reads)
{
    remove_copy();
    struct efs_local *l = open_copy(SMALLEST), *second = open_copy(SMALLEST);
    assert_true(efs_local_writes(l) && !efs_local_writes(second));
    offer(l, 0, 64, true);
    offer(second, 0, 64, true); /* it reads the map again */
    assert_int_equal(compare_all(second, false), 64);
    for (unsigned b = 1; b < 60; b++)
        offer(l, b * 64, 64, true); /* evicts */
    assert_int_equal(compare_all(second, true), 0);
    efs_local_close(l, false);
    assert_false(efs_local_writes(second));
    efs_local_close(second, false);
    assert_int_equal(atomic_load(&stats.local_damaged), 0);
}

#define PARTS 6u

static errint_t open_parts(struct efs_local **local)
{
    struct efs_local_file parts[PARTS];
    struct efs_error err = {.text = ""};
    for (unsigned i = 0; i < PARTS; i++) {
        parts[i] = (struct efs_local_file){.address = PAGE + i * 4ull * EFS_LOCAL_BLOCK, .bytes = EFS_LOCAL_BLOCK};
        snprintf(parts[i].name, sizeof(parts[i].name), "part%u", i);
        snprintf(parts[i].identity, sizeof(parts[i].identity), "part %u", i);
    }
    const struct efs_local_options options = {
        .folder = folder, .size_bytes = SMALLEST, .files = parts, .file_count = PARTS, .stats = &stats, .warn = warn};
    errint_t rc = efs_local_open(&options, local, &err);
    if (rc < 0)
        print_message("%s\n", err.text);
    return rc < 0 ? rc : efs_local_start(*local);
}

static pthread_barrier_t together;

static void *open_together(void *local)
{
    pthread_barrier_wait(&together);
    return open_parts(local) < 0 ? local : NULL;
}

TEST(one_of_two_that_start_together_writes)
{
    pthread_barrier_init(&together, NULL, 2);
    for (unsigned round = 0; round < 40; round++) {
        struct efs_local *locals[2];
        pthread_t threads[2];
        void *failed[2];
        remove_copy();
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, open_together, &locals[i]), 0);
        for (unsigned i = 0; i < 2; i++)
            pthread_join(threads[i], &failed[i]);
        assert_true(!failed[0] && !failed[1]);
        assert_int_equal(efs_local_writes(locals[0]) + efs_local_writes(locals[1]), 1);
        efs_local_close(locals[0], false);
        efs_local_close(locals[1], false);
    }
    pthread_barrier_destroy(&together);
}

/* One that cannot write opens a copy before its writer has created it, and finds its pages later. */
TEST(a_copy_that_is_not_there_yet)
{
    struct efs_local *second, *l;
    remove_copy();
    assert_int_equal(open_parts(&l), 0);
    efs_local_close(l, false);
    int map = open(path_of("part0.map"), O_RDWR);
    assert_true(map >= 0 && flock(map, LOCK_EX | LOCK_NB) == 0);
    unlink(path_of("part0"));
    unlink(path_of("part5"));
    assert_int_equal(open_parts(&second), 0);
    assert_true(!efs_local_writes(second) && efs_local_bytes(second) == 0);
    close(map);
    assert_int_equal(open_parts(&l), 0); /* the other one holds no lock */
    assert_true(efs_local_writes(l));
    offer(l, 0, 64, true);
    offer(second, 0, 64, true);
    assert_int_equal(efs_local_bytes(second), EFS_LOCAL_BLOCK);
    static uint8_t got[EFS_LOCAL_BLOCK] __attribute__((aligned(4096)));
    const struct iovec buffer = {got, sizeof(got)};
    assert_int_equal(efs_local_read(second, PAGE, &buffer, 1, sizeof(got)), 0);
    assert_memory_equal(got, source, sizeof(got));
    efs_local_close(second, false);
    efs_local_close(l, false);
}

/* ---- kills ---- */

/* Offers runs of pages in random order and fills until it is killed; writes a byte to the pipe after each. */
static void fill_until_killed(uint64_t random, int pipe)
{
    struct efs_local *l = open_copy(SMALLEST);
    for (;;) {
        efs_local_fill(l, EFS_LOCAL_FILL_ALL);
        answer(l, false);
        uint64_t page = fixture_random(&random) % ((BLOCKS - 1) * 64);
        offer(l, page, 1 + (unsigned)(fixture_random(&random) % 400) % (unsigned)((BLOCKS - 1) * 64 - page), false);
        if (fixture_random(&random) % 8 == 0)
            efs_local_forget(l, PAGE + page * PAGE, PAGE);
        if (write(pipe, "", 1) != 1)
            _exit(1);
        usleep((useconds_t)(fixture_random(&random) % 2000));
    }
}

TEST(names_the_way_out_where_the_parent_is_missing)
{
    struct efs_local *local;
    struct efs_error err;
    char expected[400], parent[300];
    remove_copy();
    strcpy(parent, folder);
    strcat(folder, "/a b/copy");
    snprintf(expected, sizeof(expected),
             "%s: cannot open the folder of local copies: No such file or directory\nhint: mkdir -p '%s'", folder,
             folder);
    assert_int_equal(try_open("one", SMALLEST, &local, &err), -ENOENT);
    assert_string_equal(err.text, expected);
    strcpy(folder, parent);
    assert_int_equal(access(folder, F_OK), -1);
}

TEST(a_kill_leaves_no_wrong_page)
{
    const char *kills = getenv("EXPERTFS_KILLS"), *seed = getenv("SEED");
    uint64_t random = (seed ? strtoull(seed, NULL, 10) : 1) * 2654435761u + 1, pages = 0;
    const unsigned count = kills ? (unsigned)atoi(kills) : 50;
    remove_copy();
    for (unsigned i = 0; i < count; i++) {
        int ends[2], status;
        char byte;
        uint64_t child_random = fixture_random(&random), progress = 1 + fixture_random(&random) % 40;
        assert_int_equal(pipe(ends), 0);
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(ends[0]);
            fill_until_killed(child_random, ends[1]);
        }
        close(ends[1]);
        for (uint64_t n = 0; n < progress; n++)
            if (read(ends[0], &byte, 1) != 1)
                fail_msg("kill %u: the process ended by itself", i);
        usleep((useconds_t)(fixture_random(&random) % 3000));
        kill(child, SIGKILL);
        assert_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        close(ends[0]);
        struct efs_local *l = open_copy(SMALLEST);
        assert_true(disk_bytes() <= SMALLEST + 2 * EFS_LOCAL_BLOCK);
        pages += compare_all(l, false);
        efs_local_close(l, false);
    }
    assert_int_equal(atomic_load(&stats.local_damaged), 0);
    print_message("%u kills, %llu pages compared after them\n", count, (unsigned long long)pages);
    assert_true(pages > count);
}

static int setup(void **state)
{
    (void)state;
    fixture_begin(&place);
    snprintf(folder, sizeof(folder), "%s/local", place.directory);
    source = fixture_noise(BLOCKS * EFS_LOCAL_BLOCK);
    memset(source + SOURCE_BYTES, 0, BLOCKS * EFS_LOCAL_BLOCK - SOURCE_BYTES);
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
