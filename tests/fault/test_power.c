/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The power fails at each call that changes files, and all unsynced changes are lost, or some, chosen by a seed: a
 * store packed over another one is then the complete old store or the new one, or no file where none was before; the
 * same for files of the state directory. SEED: the first seed (default 1); EXPERTFS_POWER: number of seeds (default 3).
 */
#include "test.h"
#include "counts.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "sys_fault.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS_MOST 1000 /* more calls mean an endless loop */

static struct fixture model, other;
static unsigned char *old_store, *new_store;
static size_t old_bytes, new_bytes;
static char target[400], state_path[4096];

static errint_t pack(void)
{
    struct efs_error err = {""};
    struct efs_pack_report report;
    const struct efs_pack_options options = {.threads = 1, .shard_elements = 8192, .force = true};
    errint_t rc = efs_pack(other.source, target, &options, &report, &err);
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    return rc;
}

static errint_t save(uint64_t passes)
{
    struct efs_error err = {""};
    struct efs_history history;
    errint_t rc = efs_history_init(&history, 2, 4);
    if (rc == 0) {
        history.passes[0] = passes;
        rc = efs_counts_save(1, &history, &err);
    }
    efs_history_free(&history);
    return rc;
}

static errint_t save_again(void)
{
    return save(2);
}

/* True if the file has one of these two contents; a NULL: or does not exist. */
static bool is_one_of(const char *path, const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    if (access(path, F_OK) < 0)
        return !a;
    size_t bytes;
    unsigned char *now = fixture_read(path, &bytes);
    bool same =
        (a && bytes == a_bytes && memcmp(now, a, bytes) == 0) || (b && bytes == b_bytes && memcmp(now, b, bytes) == 0);
    free(now);
    return same;
}

static void put(const char *path, const unsigned char *data, size_t bytes)
{
    unlink(path);
    if (!data)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && fsync(fd) == 0);
    close(fd);
}

/* old: the bytes of the file before, or NULL for no file. */
static void power_lost(const char *what, const char *path, errint_t (*operation)(void), const unsigned char *old,
                       size_t old_size, const unsigned char *made, size_t made_size)
{
    const char *given = getenv("SEED"), *many = getenv("EXPERTFS_POWER");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1, count = many ? strtoull(many, NULL, 10) : 3;
    unsigned places = 0;
    for (uint64_t seed = 0; seed <= count; seed++) /* seed 0: all unsynced changes are lost */
        for (unsigned nth = 1;; nth++) {
            int status;
            assert_true(nth < CALLS_MOST);
            put(path, old, old_size);
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                fault_power_partial(seed ? (first + seed - 1) * 10007 + nth : 0);
                fault_power(nth, true);
                _exit(operation() < 0 ? 1 : 0);
            }
            assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
            if (!is_one_of(path, old, old_size, made, made_size))
                fail_msg("%s, call %u, SEED=%" PRIu64 " EXPERTFS_POWER=1: neither the old file nor the new one", what,
                         nth, seed ? first + seed - 1 : 0);
            if (WEXITSTATUS(status) == 0) {
                assert_true(is_one_of(path, made, made_size, NULL, 0));
                break;
            }
            assert_int_equal(WEXITSTATUS(status), POWER_EXIT);
            places++;
        }
    print_message("%s: %u places\n", what, places);
    assert_true(places > 2 * count);
}

TEST(power_lost_while_repacking)
{
    power_lost("a store over another", target, pack, old_store, old_bytes, new_store, new_bytes);
    power_lost("a store", target, pack, NULL, 0, new_store, new_bytes);
    fault_no_tmpfile(true);
    power_lost("a store over another, without nameless files", target, pack, old_store, old_bytes, new_store,
               new_bytes);
    power_lost("a store, without nameless files", target, pack, NULL, 0, new_store, new_bytes);
    fault_no_tmpfile(false);
}

TEST(power_lost_while_saving_counts)
{
    size_t before_bytes, after_bytes;
    assert_int_equal(save(1), 0);
    unsigned char *before = fixture_read(state_path, &before_bytes);
    assert_int_equal(save(2), 0);
    unsigned char *after = fixture_read(state_path, &after_bytes);
    power_lost("counts over others", state_path, save_again, before, before_bytes, after, after_bytes);
    free(before);
    free(after);
}

static int setup(void **state)
{
    (void)state;
    struct efs_error err = {""};
    fixture_begin(&model);
    fixture_begin(&other);
    fixture_spread(&model);
    fixture_moe(&other, 1, 2, 64, 128);
    fixture_pack(&model, NULL);
    old_store = fixture_read(model.store, &old_bytes);
    snprintf(target, sizeof(target), "%s/target.efs", model.directory);
    setenv("EXPERTFS_STATE", model.directory, 1);
    if (efs_counts_path(1, state_path, sizeof(state_path), &err) < 0 || pack() < 0)
        return -1;
    new_store = fixture_read(target, &new_bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    fixture_end(&other);
    free(old_store);
    free(new_store);
    return 0;
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* for thousands of syncs */
        setenv("TMPDIR", "/dev/shm", 0);
    return TEST_RUN(setup, teardown);
}
