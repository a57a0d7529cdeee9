/*
 * Requests for a layer's experts while memory and system calls fail in turn: in process, full and coded; named ahead;
 * by the client of a mount, for which a folder stands. Each time: an error that says something, or the right bytes;
 * nothing leaks, nothing stays leased; and the same works again.
 */
#include "fixture.h"
#include "libexpertfs.h"
#include "sys_fault.h"
#include "waiting.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define EXPERTS 4
#define MIB (1ull << 20)
#define MOST 4000

static struct fixture model;
static char mount[320];
static struct efs *served;
static uint8_t *files[EXPERTS];
static size_t file_bytes[EXPERTS];

static void put(const char *name, const void *data, size_t bytes)
{
    char path[500];
    snprintf(path, sizeof(path), "%s/%s", mount, name);
    for (char *slash = path + strlen(mount) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0777);
    }
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    fclose(out);
}

static struct efs *open_store(void)
{
    struct efs_options options = {
        .budget_bytes = 128 * MIB, .workers = 2, .full_pool = true, .lease_wait = true, .no_state = true};
    struct efs_error err = {""};
    struct efs *fs;
    if (efs_open(model.store, &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

static int setup(void **state)
{
    (void)state;
    fault_none();
    fixture_begin(&model);
    fixture_moe(&model, 1, EXPERTS, 64, 256);
    fixture_pack(&model, NULL);
    snprintf(mount, sizeof(mount), "%s/mnt", model.directory);
    mkdir(mount, 0777);
    put(".expertfs/version", "version: 0\n", 11);
    put(".expertfs/want", "", 0);
    struct efs *fs = open_store();
    for (uint32_t e = 0; e < EXPERTS; e++) {
        struct efs_expert_info info;
        struct efs_file_info file;
        assert_int_equal(efs_expert_info(fs, e, &info), 0);
        assert_int_equal(efs_file_info(fs, info.file, &file), 0);
        files[e] = malloc(file.bytes);
        file_bytes[e] = file.bytes;
        assert_int_equal(read_wait(fs, info.file, NULL, 0, files[e], file.bytes), file.bytes);
        put(file.path, files[e], file.bytes);
    }
    efs_close(fs);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < EXPERTS; e++)
        free(files[e]);
    fixture_end(&model);
    return 0;
}

static void idle(struct efs *fs)
{
    struct efs_stats s;
    do
        efs_stats(fs, &s);
    while (s.inflight);
    assert_int_equal(s.leased_experts, 0);
    assert_int_equal(s.leased_bytes, 0);
    assert_int_equal(s.chunks_damaged, 0);
    assert_true(s.fixed_bytes + s.chunk_pool_bytes + s.full_pool_bytes <= s.budget_bytes);
}

static void check_full(const struct efs_tensor *tensors, uint32_t count, uint32_t expert)
{
    size_t at = file_bytes[expert];
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < count; i++)
        at -= tensors[i].bytes;
    for (uint32_t i = 0; i < count; at += tensors[i++].bytes)
        assert_memory_equal(tensors[i].data, files[expert] + at, tensors[i].bytes);
}

static const struct efs_need needs[EXPERTS] = {{2, 1}, {0, 3}, {3, 1}, {1, 2}};

/* All experts; the first error, and the right bytes of all that came. */
static errint_t request(enum efs_form form, struct efs_error *err)
{
    struct efs_request *r;
    const struct efs_tensor *tensors;
    uint32_t index, count;
    errint_t rc = efs_request_begin(served, needs, EXPERTS, form, &r, err), first = rc;
    if (rc < 0) {
        assert_null(r);
        return rc;
    }
    while ((rc = efs_request_wait_any(r, -1, &index)) != -ENOENT) {
        if (rc == 0)
            rc = efs_request_tensors(r, index, &tensors, &count);
        if (rc == 0 && form == EFS_FORM_FULL)
            check_full(tensors, count, needs[index].expert);
        else if (rc == 0)
            assert_non_null(tensors[0].shards);
        if (rc < 0)
            first = first ? first : efs_fail(err, rc, "told of the expert");
    }
    efs_request_release(r);
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

/* What was named ahead may fail silently: who comes for it tries again. */
static errint_t want_once(struct efs_error *err)
{
    errint_t rc = efs_want(served, "0: 0 1*2 2 3\n", 13, err);
    errint_t then = request(EFS_FORM_FULL, rc < 0 ? NULL : err);
    return rc ? rc : then;
}

static errint_t told_once(struct efs_error *err)
{
    static const char *const what[] = {"trace", "sched", "requests"};
    errint_t first = 0;
    for (unsigned i = 0; i < 3; i++) {
        char *text;
        size_t bytes;
        errint_t rc = efs_describe(served, what[i], &text, &bytes);
        if (rc < 0) {
            assert_null(text);
            first = efs_fail(err, rc, "no memory to tell %s", what[i]);
        } else {
            assert_true(bytes > 0);
            free(text);
        }
    }
    return first;
}

/* A fault after fault of one kind, each on a store that was just opened, until the operation meets none. */
static void sweep(const char *what, errint_t (*operation)(struct efs_error *), bool warm, enum fault_call call,
                  int error)
{
    unsigned fds = fixture_open_fds(), failed = 0, nth = 1;
    for (; nth < MOST; nth++) {
        struct efs_error err = {""};
        served = open_store();
        if (warm)
            assert_int_equal(full_once(&err), 0);
        fault_plan(call, nth, error, false);
        errint_t rc = operation(&err);
        bool hit = fault_happened();
        fault_none();
        if (rc < 0 && !hit)
            fail_msg("%s: %s %u: failed without a fault: %s", what, fault_names[call], nth, err.text);
        if (rc < 0 && !err.text[0])
            fail_msg("%s: %s %u: error %d says nothing", what, fault_names[call], nth, rc);
        idle(served);
        err.text[0] = '\0';
        if (operation(&err) < 0) /* the fault is over */
            fail_msg("%s: %s %u: does not work again: %s", what, fault_names[call], nth, err.text);
        idle(served);
        efs_close(served);
        if (fixture_open_fds() != fds)
            fail_msg("%s: %s %u: descriptors leak", what, fault_names[call], nth);
        failed += rc < 0;
        if (!hit)
            break;
    }
    assert_true(nth < MOST);
    print_message("%s: %s with %s: %u places, %u ended in an error\n", what, fault_names[call],
                  error ? strerror(error) : "a short transfer", nth - 1, failed);
}

static void test_memory(void **state)
{
    (void)state;
    sweep("full", full_once, false, FAULT_MEMORY, ENOMEM);
    sweep("full, again", full_once, true, FAULT_MEMORY, ENOMEM);
    sweep("coded", coded_once, false, FAULT_MEMORY, ENOMEM);
    sweep("named ahead", want_once, false, FAULT_MEMORY, ENOMEM);
    sweep("told", told_once, true, FAULT_MEMORY, ENOMEM);
}

static void test_reads(void **state)
{
    (void)state;
    sweep("full", full_once, false, FAULT_URING_RESULT, EIO);
    sweep("full", full_once, false, FAULT_URING_RESULT, 0);
    sweep("coded", coded_once, false, FAULT_URING_RESULT, EIO);
    sweep("named ahead", want_once, false, FAULT_URING_RESULT, EIO);
}

static void test_room(void **state)
{
    (void)state;
    sweep("full", full_once, false, FAULT_MEMFD, EMFILE);
    sweep("full", full_once, false, FAULT_OPEN, EMFILE);
    sweep("full", full_once, false, FAULT_FTRUNCATE, EIO);
    sweep("full", full_once, false, FAULT_MMAP, ENOMEM);
    sweep("full", full_once, false, FAULT_MPROTECT, ENOMEM);
}

/* ---- of a mount ---- */

static errint_t client_once(struct efs_error *err)
{
    const struct efs_client_options options = {.keep_bytes = file_bytes[0], .threads = 2};
    struct efs_client *client;
    errint_t first = efs_client_open(mount, &options, &client, err);
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
        while ((rc = efs_client_wait_any(r, -1, &index)) != -ENOENT) {
            told++;
            if (rc == 0 && (rc = efs_client_tensors(r, index, &tensors, &count)) == 0)
                check_full(tensors, count, needs[index].expert);
            if (rc < 0)
                first = first ? first : efs_fail(err, rc, "told of the expert");
        }
        assert_int_equal(told, EXPERTS - round);
        efs_client_release(r);
    }
    efs_client_close(client);
    return first;
}

static void sweep_client(enum fault_call call, int error)
{
    unsigned fds = fixture_open_fds(), failed = 0, nth = 1;
    for (; nth < MOST; nth++) {
        struct efs_error err = {""};
        fault_plan(call, nth, error, false);
        errint_t rc = client_once(&err);
        bool hit = fault_happened();
        fault_none();
        if (rc < 0 && !hit)
            fail_msg("client: %s %u: failed without a fault: %s", fault_names[call], nth, err.text);
        if (rc < 0 && !err.text[0])
            fail_msg("client: %s %u: error %d says nothing", fault_names[call], nth, rc);
        if (fixture_open_fds() != fds)
            fail_msg("client: %s %u: descriptors leak", fault_names[call], nth);
        assert_int_equal(client_once(&err), 0);
        failed += rc < 0;
        if (!hit)
            break;
    }
    assert_true(nth < MOST);
    print_message("client: %s with %s: %u places, %u ended in an error\n", fault_names[call],
                  error ? strerror(error) : "a short transfer", nth - 1, failed);
}

static void test_client(void **state)
{
    (void)state;
    sweep_client(FAULT_OPEN, EMFILE);
    sweep_client(FAULT_OPEN, ENOENT);
    sweep_client(FAULT_FSTAT, EIO);
    sweep_client(FAULT_PREAD, EIO);
    sweep_client(FAULT_PREAD, 0);
    sweep_client(FAULT_PWRITE, ENOTCONN);
    sweep_client(FAULT_MMAP, ENOMEM);
    sweep_client(FAULT_MEMORY, ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_reads),
                                       cmocka_unit_test(test_room), cmocka_unit_test(test_client)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
