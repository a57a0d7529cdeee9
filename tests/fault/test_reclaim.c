/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing with the source reclaimed is killed, or the power fails, at each call that changes a file; then it is
 * resumed, which must give the store, or undone, which must give the source. The same when calls fail.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "sweep.h"
#include "tree.h"
#include "expertfs-packing-private.h"

#include <sys/wait.h>
#include <unistd.h>

#define KILLS_MOST 1000 /* more calls mean an endless loop */

static struct fixture model;
static char out[320], folder[340], copy[300];
static struct efs_pack_report report;
static unsigned char *packed; /* the store of ordinary packing */
static size_t packed_bytes;

/* In addition to the common files: one where steps free the start long before they read the end. */
static int setup(void **state)
{
    static const struct fixture_tensor dense[] = {
        {"model.layers.0.self_attn.k_proj.weight", "BF16", 2, {160, 128}, 40960},
        {"model.layers.0.self_attn.q_proj.weight", "BF16", 2, {160, 128}, 40960},
        {"model.layers.0.self_attn.v_proj.weight", "BF16", 2, {160, 128}, 40960},
    };
    *state = &model;
    fault_clear();
    fixture_begin(&model);
    fixture_spread(&model);
    fixture_safetensors(&model, "model-3.safetensors", dense, 3, 3);
    fixture_pack(&model, NULL);
    snprintf(out, sizeof(out), "%s/out.efs", model.directory);
    snprintf(folder, sizeof(folder), "%s.reclaim", out);
    snprintf(copy, sizeof(copy), "%s/copy", model.directory);
    tree_copy(model.source, copy);
    packed = fixture_read(model.store, &packed_bytes);
    return 0;
}

static int teardown(void **state)
{
    free(packed);
    return fixture_teardown(state);
}

static void begin_anew(void)
{
    tree_remove(model.source);
    tree_remove(out);
    tree_remove(folder);
    tree_copy(copy, model.source);
}

/* ---- operations that are killed ------------------------------------------------------------------------------- */

static uint64_t told_bytes; /* the last reported value; without progress the same value is reported again */

/* Counts steps, not calls: on a busy machine there were seven calls before the first step. */
static bool cancel_after(void *arg, uint64_t done, uint64_t total, const char *phase)
{
    unsigned *left = arg;
    (void)total, (void)phase;
    if (done == told_bytes)
        return false;
    told_bytes = done;
    return *left > 0 && --*left == 0;
}

static struct efs_pack_options in_small_steps(unsigned *left)
{
    told_bytes = 0;
    return (struct efs_pack_options){
        .threads = 1, .shard_elements = 8192, .reclaim_step_bytes = 1, .progress = cancel_after, .progress_arg = left};
}

static errint_t forward(struct efs_error *err)
{
    unsigned never = 0;
    struct efs_pack_options options = in_small_steps(&never);
    return efs_reclaim(model.source, out, &options, &report, err);
}

static errint_t resume(struct efs_error *err)
{
    unsigned never = 0;
    struct efs_pack_options options = in_small_steps(&never);
    return efs_reclaim_resume(NULL, out, &options, &report, err);
}

static errint_t undo(struct efs_error *err)
{
    unsigned never = 0;
    struct efs_pack_options options = in_small_steps(&never);
    return efs_reclaim_undo(NULL, out, &options, err);
}

static void nothing(void)
{
}

static void some_steps(void)
{
    unsigned left = 7;
    struct efs_error err = {""};
    struct efs_pack_options options = in_small_steps(&left);
    assert_int_equal(efs_reclaim(model.source, out, &options, &report, &err), -ECANCELED);
}

/* ---- recovery ------------------------------------------------------------------------------------------------- */

static bool source_is_whole(void)
{
    return access(model.source, F_OK) == 0 && tree_same(copy, model.source);
}

static bool is_packed(void)
{
    size_t bytes;
    unsigned char *data = fixture_read(out, &bytes);
    bool same = bytes == packed_bytes && memcmp(data, packed, bytes) == 0;
    free(data);
    return same && access(folder, F_OK) < 0 && access(model.source, F_OK) < 0;
}

static uint64_t some_seed; /* seed that selects which unsynced changes are lost; 0: all */

/* Runs the operation that the user can run; then the store is complete, or the source is. */
static void finish(errint_t (*operation)(struct efs_error *), const char *what, unsigned nth)
{
    struct efs_error err = {""}, again = {""};
    errint_t rc = operation(&err);
    if (rc < 0 && access(out, F_OK) == 0) /* too late to undo: the rest is cleaned up */
        rc = resume(&again);
    if (rc < 0 && rc != -ENOENT && rc != -ENODATA && rc != -EEXIST)
        fail_msg("%s, killed at call %u, SEED=%" PRIu64 ": %s; %s", what, nth, some_seed, err.text, again.text);
    if (access(folder, F_OK) == 0)
        fail_msg("%s, killed at call %u, SEED=%" PRIu64 ": the folder stays: %s", what, nth, some_seed, err.text);
    if (!(access(out, F_OK) == 0 ? is_packed() : source_is_whole()))
        fail_msg("%s, killed at call %u, SEED=%" PRIu64 ": bytes are lost", what, nth, some_seed);
}

/* Kills at every second place; at every place with EXPERTFS_POWER. With a sanitizer each of hundreds of forks and
 * packings takes several times as long, so there at one in five. */
static unsigned kill_each(void)
{
    if (SANITIZED)
        return 5;
    return getenv("EXPERTFS_POWER") ? 1 : some_seed ? 5 : 2;
}

static unsigned killed(const char *what, void (*before)(void), errint_t (*operation)(struct efs_error *),
                       errint_t (*after)(struct efs_error *), bool lose)
{
    int status = 0;
    unsigned nth = 1;
    const unsigned each = kill_each();
    for (; nth < KILLS_MOST; nth += each) {
        begin_anew();
        before();
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            struct efs_error err = {""};
            fault_power_partial(some_seed ? some_seed * 10007 + nth : 0);
            fault_power(nth, lose);
            errint_t rc = operation(&err);
            if (rc < 0)
                fprintf(stderr, "%s\n", err.text);
            _exit(rc < 0 ? 1 : 0);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 0)
            break;
        assert_int_equal(WEXITSTATUS(status), POWER_EXIT);
        finish(after, what, nth);
    }
    assert_int_equal(status, 0);
    print_message("%s%s: %u places\n", what,
                  some_seed ? ", some of what was not synced is lost"
                  : lose    ? ", what was not synced is lost"
                            : "",
                  nth - 1);
    return nth - 1;
}

TEST(killed_forward)
{
    assert_true(killed("reclaim, then resume", nothing, forward, resume, false) > 60);
    assert_true(killed("reclaim, then undo", nothing, forward, undo, false) > 60);
}

TEST(power_lost_forward)
{
    assert_true(killed("reclaim, then resume", nothing, forward, resume, true) > 60);
    assert_true(killed("reclaim, then undo", nothing, forward, undo, true) > 60);
}

/* A disk may have done any part of the unsynced changes. SEED: the first seed (default 1); EXPERTFS_POWER: number of
 * seeds, at all places (default 1, at one in five). */
TEST(power_lost_in_part)
{
    const char *seed = getenv("SEED"), *count = getenv("EXPERTFS_POWER");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, last = first + (count ? strtoull(count, NULL, 10) : 1);
    for (some_seed = first; some_seed < last; some_seed++) {
        assert_true(killed("reclaim, then resume", nothing, forward, resume, true) > 60);
        assert_true(killed("reclaim, then undo", nothing, forward, undo, true) > 60);
        assert_true(killed("resume, then undo", some_steps, resume, undo, true) > 25);
        assert_true(killed("undo, then resume", some_steps, undo, resume, true) > 15);
    }
    some_seed = 0;
}

TEST(killed_resume)
{
    assert_true(killed("resume, then resume", some_steps, resume, resume, true) > 25);
    assert_true(killed("resume, then undo", some_steps, resume, undo, true) > 25);
}

TEST(killed_undo)
{
    assert_true(killed("undo, then undo", some_steps, undo, undo, true) > 15);
    assert_true(killed("undo, then resume", some_steps, undo, resume, true) > 15);
    assert_true(killed("undo, then undo", some_steps, undo, undo, false) > 15);
}

/* ---- calls that fail ------------------------------------------------------------------------------------------ */

static errint_t mend(const struct sweep *sweep, struct efs_error *err)
{
    (void)sweep;
    if (efs_reclaim_unfinished(out)) {
        errint_t rc = resume(err);
        if (rc < 0 && rc != -ENODATA)
            return rc;
    }
    if (!(access(out, F_OK) == 0 ? is_packed() : source_is_whole()))
        return efs_fail(err, -EUCLEAN, "bytes are lost");
    return 0;
}

static errint_t mend_back(const struct sweep *sweep, struct efs_error *err)
{
    (void)sweep;
    if (efs_reclaim_unfinished(out)) {
        errint_t rc = undo(err);
        if (rc < 0 && rc != -ENODATA)
            return rc;
    }
    return source_is_whole() ? 0 : efs_fail(err, -EUCLEAN, "bytes are lost");
}

static void begin_some_steps(void)
{
    begin_anew();
    some_steps();
}

static const struct sweep packing = {"reclaim", forward, begin_anew, mend},
                          going_on = {"resume", resume, begin_some_steps, mend},
                          going_back = {"undo", undo, begin_some_steps, mend_back};

TEST(failing_writes)
{
    sweep(&packing, FAULT_PWRITE, ENOSPC);
    sweep(&packing, FAULT_PWRITE, 0);
    sweep(&packing, FAULT_FSYNC, EIO);
    sweep(&packing, FAULT_FTRUNCATE, EIO);
    sweep(&packing, FAULT_LINK, EIO);
    sweep(&packing, FAULT_FALLOCATE, ENOSPC);
    sweep(&packing, FAULT_FREE_BYTES, 0);
    sweep(&going_on, FAULT_PWRITE, ENOSPC);
    sweep(&going_on, FAULT_FSYNC, EIO);
    sweep(&going_on, FAULT_FALLOCATE, EIO);
    sweep(&going_back, FAULT_PWRITE, ENOSPC);
    sweep(&going_back, FAULT_PWRITE, 0);
    sweep(&going_back, FAULT_FSYNC, EIO);
}

TEST(failing_reads)
{
    sweep(&packing, FAULT_PREAD, EIO);
    sweep(&packing, FAULT_OPEN, EIO);
    if (!SANITIZED) { /* as many places again, with the same handling */
        sweep(&packing, FAULT_PREAD, 0);
        sweep(&packing, FAULT_PREAD, EINVAL);
        sweep(&packing, FAULT_OPEN, EINVAL);
    }
    sweep(&packing, FAULT_FSTAT, EIO);
    sweep(&going_on, FAULT_PREAD, EIO);
    sweep(&going_on, FAULT_OPEN, EIO);
    sweep(&going_back, FAULT_PREAD, EIO);
    sweep(&going_back, FAULT_OPEN, EIO);
}

TEST(no_memory)
{
    sweep(&packing, FAULT_MEMORY, ENOMEM);
    sweep(&going_on, FAULT_MEMORY, ENOMEM);
    sweep(&going_back, FAULT_MEMORY, ENOMEM);
}

/* A filesystem without holes is reported before any file is changed. */
TEST(no_holes)
{
    struct efs_error err = {""};
    begin_anew();
    fault_plan(FAULT_FALLOCATE, 1, EOPNOTSUPP, true);
    errint_t rc = forward(&err);
    fault_clear();
    assert_int_equal(rc, -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "holes"));
    assert_false(efs_reclaim_unfinished(out));
    assert_true(source_is_whole());
}

/* A full disk is reported before any file is changed; later it stops the packing in a state that can be resumed. */
TEST(no_room)
{
    struct efs_error err = {""};
    begin_anew();
    fault_plan(FAULT_FREE_BYTES, 1, 0, true);
    errint_t rc = forward(&err);
    fault_clear();
    assert_int_equal(rc, -ENOSPC);
    assert_false(efs_reclaim_unfinished(out));
    some_steps();
    fault_plan(FAULT_FREE_BYTES, 1, 0, true);
    rc = resume(&err);
    fault_clear();
    assert_int_equal(rc, -ENOSPC);
    assert_true(efs_reclaim_unfinished(out));
    assert_int_equal(resume(&err), 0);
    assert_true(is_packed());
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* for thousands of syncs */
        setenv("TMPDIR", "/dev/shm", 0);
    return TEST_RUN(setup, teardown);
}
