/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for a layer's experts while memory and system calls fail in turn: in process, full and coded; prefetched by
 * name; by a client of a mount, which is a plain directory here. Each time: an error with a message, or the correct
 * bytes; no leak and no lease left; and the same works again.
 */
#include "test.h"
#include "fixture_mount.h"
#include "expertfs-private.h"
#include "sweep.h"

#include <time.h>

#define EXPERTS 4
#define MIB (1ull << 20)

static struct fixture model;
static struct fixture_mount mount;
static struct efs *served;

static struct efs_options options_of(bool warm)
{
    return (struct efs_options){.budget_bytes = 128 * MIB,
                                .workers = 2,
                                .full_pool = true,
                                .lease_wait = true,
                                .warm = warm ? "always" : NULL,
                                .no_state = true};
}

static void open_store(void)
{
    served = fixture_open(&model, options_of(false));
}

static int setup(void **state)
{
    (void)state;
    fault_clear();
    fixture_mount_begin_moe(&mount, &model, 1, EXPERTS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&mount, &model);
    return 0;
}

static void idle(struct efs *fs)
{
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.leased_experts, 0);
    assert_int_equal(s.leased_bytes, 0);
    assert_int_equal(s.chunks_damaged, 0);
    assert_true(s.fixed_bytes + s.chunk_pool_bytes + s.full_pool_bytes <= s.budget_bytes);
}

static const struct efs_need needs[EXPERTS] = {{2, 1}, {0, 3}, {3, 1}, {1, 2}};

/* Requests all experts. Returns the first error; checks the bytes of all that arrived. */
static errint_t request(enum efs_form form, struct efs_error *err)
{
    struct efs_client_request *r;
    const struct efs_tensor *tensors;
    uint32_t index, count;
    errint_t rc = efs_request_submit(served, needs, EXPERTS, &(struct efs_request_how){.form = form}, &r, err),
             first = rc;
    if (rc < 0) {
        assert_null(r);
        return rc;
    }
    while (efs_client_wait_any(r, -1, &index, &rc) == 1) {
        if (rc == 0)
            rc = efs_client_tensors(r, index, &tensors, &count);
        if (rc == 0 && form == EFS_FORM_FULL)
            fixture_mount_check(&mount, needs[index].expert, tensors, count);
        else if (rc == 0)
            assert_non_null(tensors[0].shards);
        if (rc < 0)
            first = first ? first : efs_fail(err, rc, "told of the expert");
    }
    efs_client_release(r);
    return first;
}

static errint_t full_once(struct efs_error *err)
{
    return request(EFS_FORM_FULL, err);
}

static errint_t coded_once(struct efs_error *err)
{
    return request(EFS_FORM_CODED, err);
}

/* A prefetch by name may fail silently: the later request retries. */
static errint_t want_once(struct efs_error *err)
{
    static const struct efs_need named[] = {{0, 1}, {1, 2}, {2, 1}, {3, 1}};
    errint_t rc = fixture_prefetch(served, 0, named, EXPERTS, err);
    errint_t then = request(EFS_FORM_FULL, rc < 0 ? NULL : err);
    return rc ? rc : then;
}

static errint_t told_once(struct efs_error *err)
{
    char *text;
    size_t bytes;
    errint_t rc = efs_describe(served, "trace", &text, &bytes);
    if (rc < 0) {
        assert_null(text);
        return efs_fail(err, rc, "no memory for the trace");
    }
    assert_true(bytes > 0);
    free(text);
    return 0;
}

static void open_warm(void)
{
    struct efs_error err = {""};
    open_store();
    assert_int_equal(full_once(&err), 0);
}

/* Waits until no lease is left and no read is in flight, repeats the operation without faults, and closes. */
static errint_t again_and_close(const struct sweep *sweep, struct efs_error *err)
{
    idle(served);
    errint_t rc = sweep->operation(err);
    idle(served);
    efs_close(served);
    return rc;
}

static const struct sweep full = {"full", full_once, open_store, again_and_close},
                          full_warm = {"full, again", full_once, open_warm, again_and_close},
                          coded = {"coded", coded_once, open_store, again_and_close},
                          ahead = {"named ahead", want_once, open_store, again_and_close},
                          describing = {"told", told_once, open_warm, again_and_close};

TEST(test_memory)
{
    sweep(&full, FAULT_MEMORY, ENOMEM);
    sweep(&full_warm, FAULT_MEMORY, ENOMEM);
    sweep(&coded, FAULT_MEMORY, ENOMEM);
    sweep(&ahead, FAULT_MEMORY, ENOMEM);
    sweep(&describing, FAULT_MEMORY, ENOMEM);
}

TEST(test_reads)
{
    sweep(&full, FAULT_URING_RESULT, EIO);
    sweep(&full, FAULT_URING_RESULT, 0);
    sweep(&coded, FAULT_URING_RESULT, EIO);
    sweep(&ahead, FAULT_URING_RESULT, EIO);
}

/* Reads that the kernel does not accept at once are submitted together later, each to its destination. EINTR, because
 * any other error ends the use of io_uring (test_io_uring_fallback). */
TEST(test_submit)
{
    struct efs_error err = {""};
    struct efs_stats s;
    open_store();
    fault_plan(FAULT_URING_SUBMIT, 1, EINTR, true);
    errint_t rc = full_once(&err);
    bool met = fault_triggered();
    fault_clear();
    efs_stats(served, &s);
    assert_int_equal(again_and_close(&full, &err), 0);
    if (rc < 0)
        fail_msg("a read that was to be submitted later: %s", err.text);
    assert_int_equal(met, s.io_uring);
    if (!met) {
        print_message("no io_uring here: nothing is submitted\n");
        skip();
    }
}

TEST(test_room)
{
    sweep(&full, FAULT_MEMFD, EMFILE);
    sweep(&full, FAULT_OPEN, EMFILE);
    sweep(&full, FAULT_FTRUNCATE, EIO);
    sweep(&full, FAULT_MMAP, ENOMEM);
    sweep(&full, FAULT_MPROTECT, ENOMEM);
    sweep(&full, FAULT_MADVISE, ENOMEM);
    sweep(&coded, FAULT_MADVISE, ENOMEM);
}

/* ---- clients of a mount ---- */

static errint_t client_once(struct efs_error *err)
{
    struct efs_client *client;
    errint_t first = efs_client_open(mount.directory, NULL, &client, err);
    if (first < 0)
        return first;
    for (unsigned round = 0; round < 3; round++) {
        struct efs_client_request *r;
        const struct efs_tensor *tensors;
        uint32_t index, count, told = 0;
        errint_t rc = efs_client_begin(client, "", 0, needs, EXPERTS - round, EFS_FORM_FULL, &r, err);
        if (rc < 0) {
            assert_null(r);
            first = first ? first : rc;
            continue;
        }
        while (efs_client_wait_any(r, -1, &index, &rc) == 1) {
            told++;
            if (rc == 0 && (rc = efs_client_tensors(r, index, &tensors, &count)) == 0)
                fixture_mount_check(&mount, needs[index].expert, tensors, count);
            if (rc < 0)
                first = first ? first : efs_fail(err, rc, "told of the expert");
        }
        assert_int_equal(told, EXPERTS - round);
        efs_client_release(r);
    }
    efs_client_close(client);
    return first;
}

/* The daemon ends at any moment while a client connects: not a lack of permission. */
TEST(test_daemon_ends)
{
    struct efs_error err;
    struct efs_client *client;
    unsigned met = 0;
    for (bool triggered = true; triggered; met += triggered) {
        fault_plan(FAULT_FSTAT, met + 1, ENOTCONN, false);
        errint_t rc = efs_client_open(mount.directory, NULL, &client, &err);
        triggered = fault_triggered();
        fault_clear();
        assert_int_equal(rc, triggered ? -ENOTCONN : 0);
        if (rc == 0)
            efs_client_close(client);
    }
    assert_true(met > 0);
}

static errint_t again(const struct sweep *sweep, struct efs_error *err)
{
    return sweep->operation(err);
}

static const struct sweep client = {"client", client_once, NULL, again};

TEST(test_client)
{
    sweep(&client, FAULT_OPEN, EMFILE);
    sweep(&client, FAULT_OPEN, ENOENT);
    sweep(&client, FAULT_FSTAT, EIO);
    sweep(&client, FAULT_PREAD, EIO);
    sweep(&client, FAULT_PREAD, 0);
    sweep(&client, FAULT_PWRITE, ENOTCONN);
    sweep(&client, FAULT_MMAP, ENOMEM);
    sweep(&client, FAULT_MUNMAP, ENOMEM);
    sweep(&client, FAULT_MADVISE, EFAULT);
    sweep(&client, FAULT_MADVISE, ENOMEM);
    sweep(&client, FAULT_CLOSE, EIO);
    sweep(&client, FAULT_THREAD, EAGAIN);
    sweep_forever(&client, FAULT_THREAD, EAGAIN);
    sweep(&client, FAULT_MEMORY, ENOMEM);
}

/* Opening fails, or warming does: later requests get the correct bytes. */
static struct {
    unsigned met, while_read; /* runs with a fault; of these, runs in which warming had read extents */
    bool io_uring;
} warming;

static errint_t warm_once(struct efs_error *err)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct efs_options options = options_of(true);
    struct efs_stats s = {0};
    errint_t rc = efs_open(model.store, &options, &served, err);
    /* a plan that failed does not appear; warming starts shortly after the plan is counted */
    for (unsigned tries = 0; rc == 0 && tries < (fault_triggered() ? 200 : PATIENCE_MS) &&
                             (s.plans == 0 || s.inflight || (s.warmed_extents == 0 && !fault_triggered()));
         tries++) {
        efs_stats(served, &s);
        nanosleep(&pause, NULL);
    }
    warming.met += fault_triggered();
    warming.while_read += fault_triggered() && s.warmed_extents > 0;
    warming.io_uring = warming.io_uring || s.io_uring;
    return rc;
}

static errint_t ask_and_close(const struct sweep *sweep, struct efs_error *err)
{
    (void)sweep;
    if (!served)
        return 0;
    idle(served); /* a request that joins a load that has failed gets its error */
    errint_t rc = full_once(err);
    idle(served);
    efs_close(served);
    return rc;
}

static const struct sweep warm = {"warm", warm_once, NULL, ask_and_close};

static void sweep_warming(enum fault_call call, int error, bool forever)
{
    memset(&warming, 0, sizeof(warming));
    sweep_calls(&warm, call, error, forever);
    if (call == FAULT_URING_RESULT && !warming.io_uring) {
        print_message("no io_uring here: nothing to fail\n");
        return;
    }
    assert_true(warming.met > 0 && (warming.while_read > 0 || call != FAULT_URING_RESULT));
}

TEST(test_warming)
{
    sweep_warming(FAULT_URING_RESULT, EIO, false);
    sweep_warming(FAULT_URING_RESULT, EIO, true);
    sweep_warming(FAULT_URING_RESULT, 0, false);
    sweep_warming(FAULT_MPROTECT, ENOMEM, false);
    sweep_warming(FAULT_MEMORY, ENOMEM, false);
}

TEST_MAIN(setup, teardown)
