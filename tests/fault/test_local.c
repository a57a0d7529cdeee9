/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local copies (engine/local) while calls on the local disk fail, are short, or the power fails: a page that is read is
 * the source's, at most two warnings are given, and after a power failure every page that the map names is there.
 * SEED, EXPERTFS_POWER: as in test_power.c.
 */
#include "test.h"
#include "fixture.h"
#include "local.h"
#include "stats.h"
#include "sweep.h"
#include "tree.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define GROUP_BYTES (6u * EFS_LOCAL_BLOCK)
#define SOURCE_BYTES (6ull * GROUP_BYTES)
#define SIZE (32u * EFS_LOCAL_BLOCK + 64u * 1024)
#define CALLS_MOST 2000

static uint8_t *source;
static struct fixture place;
static char folder[400];
static struct efs_stats_counters stats;
static _Atomic unsigned warnings;

static void warn(void *arg, const char *line)
{
    (void)arg;
    assert_non_null(strstr(line, ": cannot "));
    warnings++;
}

static errint_t open_copy(struct efs_local **local, struct efs_error *err)
{
    const struct efs_local_file file = {.bytes = SOURCE_BYTES, .name = "copy", .identity = "source"};
    const struct efs_local_options options = {
        .folder = folder, .size_bytes = SIZE, .files = &file, .file_count = 1, .stats = &stats, .warn = warn};
    errint_t rc = efs_local_open(&options, local, err);
    return rc;
}

/* Reads what is there; each page is right, or is left to the source. Returns the pages. */
static unsigned compare(struct efs_local *l)
{
    static uint8_t got[EFS_LOCAL_READ_BYTES] __attribute__((aligned(4096)));
    unsigned found = 0;
    for (uint64_t at = 0; at < SOURCE_BYTES;) {
        bool there;
        size_t bytes = efs_local_run(l, at, SOURCE_BYTES - at, &there);
        const struct iovec buffer = {got, bytes < sizeof(got) ? bytes : sizeof(got)};
        errint_t rc = there ? efs_local_read(l, at, &buffer, 1, bytes) : 0;
        if (rc < 0)
            continue; /* pages were dropped: the next run ends before them */
        if (there) {
            assert_memory_equal(got, source + at, bytes);
            found += (unsigned)(bytes / PAGE);
        }
        at += bytes;
    }
    return found;
}

/* All blocks are offered, GROUP at once, until they are written or a write has failed: the last ones need room. */
static void fill(struct efs_local *l)
{
    for (uint64_t at = 0; at < SOURCE_BYTES; at += GROUP_BYTES) {
        const struct iovec buffer = {source + at, GROUP_BYTES};
        bool there = false;
        for (unsigned tries = 0; !there && efs_local_writes(l) && tries < 20000; tries++) {
            if (tries % 500 == 0)
                efs_local_offer(l, at, &buffer, 1, GROUP_BYTES);
            there = efs_local_run(l, at, GROUP_BYTES, &there) == GROUP_BYTES && there;
            if (!there)
                usleep(100);
        }
    }
}

static errint_t use(struct efs_error *err)
{
    struct efs_local *l;
    warnings = 0;
    errint_t rc = open_copy(&l, err);
    if (rc < 0)
        return rc;
    rc = efs_local_start(l);
    if (rc == 0) {
        fill(l);
        compare(l);
        efs_local_forget(l, 5 * PAGE, PAGE);
        compare(l);
    } else {
        efs_fail(err, rc, "no thread");
    }
    efs_local_close(l, false);
    assert_true(warnings <= 2);
    return rc;
}

static void remove_copy(void)
{
    tree_remove(folder);
}

/* Without faults: the copy opens and is read; every fourth time it is filled again. */
static errint_t check_after(const struct sweep *s, struct efs_error *err)
{
    static unsigned fourth;
    struct efs_local *l;
    memset(&stats, 0, sizeof(stats));
    errint_t rc = open_copy(&l, err);
    if (rc < 0)
        return rc;
    compare(l);
    bool again = s && fourth++ % 4 == 0;
    rc = again ? efs_local_start(l) : 0;
    if (again && rc == 0) {
        fill(l);
        assert_true(efs_local_writes(l));
        assert_in_range(compare(l), 12 * 64, 33 * 64);
    }
    efs_local_close(l, false);
    return rc;
}

TEST(each_call_fails)
{
    static const struct {
        enum fault_call call;
        int error;
    } faults[] = {{FAULT_OPEN, EACCES},   {FAULT_FSTAT, EIO},    {FAULT_PREAD, EIO},     {FAULT_PREAD, 0},
                  {FAULT_PWRITE, ENOSPC}, {FAULT_FSYNC, EIO},    {FAULT_FTRUNCATE, EIO}, {FAULT_FALLOCATE, EOPNOTSUPP},
                  {FAULT_LINK, EIO},      {FAULT_MKDIR, EACCES}, {FAULT_MEMORY, ENOMEM}, {FAULT_THREAD, EAGAIN},
                  {FAULT_CLOSE, EIO}};
    const struct sweep s = {.what = "a local copy", .operation = use, .before = remove_copy, .after = check_after};
    for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sweep(&s, faults[i].call, faults[i].error);
    for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        if (faults[i].error && (faults[i].call == FAULT_PREAD || faults[i].call == FAULT_FALLOCATE)) {
            remove_copy();
            fault_plan(faults[i].call, 10, faults[i].error, true);
            struct efs_error err = {""};
            use(&err);
            fault_clear();
        }
    for (unsigned nth = 1; nth < 80; nth += 1 + nth / 2) { /* a short write of the header, of pages, of entries */
        struct efs_error err = {""};
        remove_copy();
        fault_plan(FAULT_PWRITE, nth, 0, false);
        assert_int_equal(use(&err), 0);
        fault_clear();
        assert_int_equal(warnings, 0);
        assert_int_equal(check_after(NULL, &err), 0);
    }
}

/* A full disk: one warning, and what is there is still read. */
TEST(a_full_disk)
{
    struct efs_local *l;
    struct efs_error err;
    remove_copy();
    warnings = 0;
    assert_int_equal(open_copy(&l, &err), 0);
    assert_int_equal(efs_local_start(l), 0);
    fault_plan(FAULT_PWRITE, 21, ENOSPC, true);
    fill(l);
    while (efs_local_writes(l) || warnings == 0) /* the thread stops writing before it warns */
        usleep(100);
    fault_clear();
    assert_int_equal(warnings, 1);
    unsigned pages = compare(l);
    assert_true(pages >= 5 * 64 && pages < 32 * 64);
    fault_plan(FAULT_PREAD, 1, EIO, true);
    assert_int_equal(compare(l), 0);
    fault_clear();
    assert_int_equal(warnings, 2);
    assert_int_equal(compare(l), 0); /* the disk fails: it is not read any more */
    efs_local_close(l, false);
}

TEST(power_lost)
{
    const char *given = getenv("SEED"), *many = getenv("EXPERTFS_POWER");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1, count = many ? strtoull(many, NULL, 10) : 1;
    unsigned places = 0;
    for (uint64_t seed = 0; seed <= count; seed++) /* seed 0: all unsynced changes are lost */
        for (unsigned nth = 1, ended = 0; !ended; nth += 1 + (unsigned)((nth * 7 + seed) % 9)) {
            int status;
            assert_true(nth < CALLS_MOST);
            remove_copy();
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                struct efs_error err = {""};
                fault_power_partial(seed ? (first + seed - 1) * 10007 + nth : 0);
                fault_power(nth, true);
                _exit(use(&err) < 0 ? 1 : 0);
            }
            assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
            assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == POWER_EXIT);
            ended = WEXITSTATUS(status) == 0;
            struct efs_error err = {""};
            if (check_after(NULL, &err) < 0 || atomic_load(&stats.local_damaged) > 0)
                fail_msg("call %u, SEED=%" PRIu64 " EXPERTFS_POWER=1: %s", nth, seed ? first + seed - 1 : 0,
                         err.text[0] ? err.text : "the map names a page that is not there");
            places += !ended;
        }
    print_message("%u places\n", places);
    assert_true(places > 10 * count);
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

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* for thousands of syncs */
        setenv("TMPDIR", "/dev/shm", 0);
    return TEST_RUN(setup, teardown);
}
