/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses are recorded once, by any kind of access, and described as a routing trace that the trace reader accepts:
 * passes, the widest layer, layers without a request.
 */

#include <pthread.h>

#include "test.h"
#include "efs.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "record.h"
#include "route.h"
#include "sync_calls.h"

#define LAYERS 4
#define EXPERTS 6

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 64, 256);
    return 0;
}

static struct efs *open_store(void)
{
    struct efs_options options = {.budget_bytes = 128 << 20, .workers = 2, .full_pool = true, .no_state = true};
    return fixture_open(&model, options);
}

/* Submits lines as .expertfs/want has them: "3: 17*12 4". */
static void want(struct efs *fs, const char *text)
{
    while (*text) {
        struct efs_need needs[64];
        unsigned count = 0, layer = (unsigned)strtoul(text, (char **)&text, 10);
        struct efs_error err = {""};
        for (assert_int_equal(*text, ':'), text++; *text == ' ';) {
            needs[count] = (struct efs_need){(uint32_t)strtoul(text, (char **)&text, 10), 1};
            if (*text == '*')
                needs[count].tokens = (uint32_t)strtoul(text + 1, (char **)&text, 10);
            count++;
        }
        text += *text == '\n';
        if (fixture_prefetch(fs, layer, needs, count, &err) < 0)
            fail_msg("%s", err.text);
    }
}

static void lease(struct efs *fs, uint32_t layer, uint32_t expert)
{
    fixture_lease_once(fs, fixture_expert_info(fs, layer * EXPERTS + expert).file);
}

/* Reads parts [first, end) of the expert's file, which is divided into `parts`. */
static void read_parts(struct efs *fs, uint32_t layer, uint32_t expert, unsigned first, unsigned end, unsigned parts)
{
    const uint32_t file = fixture_expert_info(fs, layer * EXPERTS + expert).file;
    const uint64_t all = fixture_file_info(fs, file).bytes;
    uint64_t begin = all * first / parts, bytes = all * end / parts - begin;
    uint8_t *data = malloc(bytes);
    assert_int_equal(read_wait(fs, file, NULL, begin, data, bytes), bytes);
    free(data);
}

static void read_expert(struct efs *fs, uint32_t layer, uint32_t expert)
{
    read_parts(fs, layer, expert, 0, 1, 1);
}

static uint64_t uses(struct efs *fs)
{
    struct efs_stats s;
    efs_stats(fs, &s);
    return s.requests_f + s.requests_c + s.requests_s + s.requests_e + s.requests_p + s.requests_m;
}

/* Compares the trace as text, "0 1 | 2 2 | ...\n" for each token, and the kinds unless NULL. Closes the store. */
static void expect_kinds(struct efs *fs, uint32_t chosen, const char *words, const uint8_t *kinds)
{
    char *data, told[4096] = "";
    size_t bytes, used = 0;
    struct efs_route route;
    struct efs_error err = {""};
    assert_int_equal(efs_describe(fs, "trace", &data, &bytes), 0);
    if (efs_route_parse("trace", data, bytes, &route, &err) < 0)
        fail_msg("%s", err.text);
    free(data);
    assert_int_equal(route.layers, LAYERS);
    assert_int_equal(route.experts, EXPERTS);
    assert_int_equal(route.chosen, chosen);
    assert_string_equal(route.name, "model");
    for (uint64_t t = 0; t < route.tokens; t++)
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t i = 0; i < chosen; i++)
                used +=
                    (size_t)snprintf(told + used, sizeof(told) - used, "%u%s", route.ids[(t * LAYERS + l) * chosen + i],
                                     i + 1 < chosen   ? " "
                                     : l + 1 < LAYERS ? " | "
                                                      : "\n");
    for (uint64_t t = 0; kinds && t < route.tokens; t++)
        assert_int_equal(route.kind[t], kinds[t]);
    efs_route_free(&route);
    assert_string_equal(told, words);
    efs_close(fs);
}

static void expect(struct efs *fs, uint32_t chosen, const char *words)
{
    expect_kinds(fs, chosen, words, NULL);
}

TEST(test_nothing)
{
    struct efs *fs = open_store();
    char *data;
    size_t bytes;
    assert_int_equal(efs_describe(fs, "trace", &data, &bytes), 0);
    assert_int_equal(bytes, 0);
    free(data);
    assert_int_equal(efs_describe(fs, "traces", &data, &bytes), -ENODATA);
    assert_null(data);
    want(fs, "2: 1"); /* one layer of four is not a pass */
    assert_int_equal(efs_describe(fs, "trace", &data, &bytes), 0);
    assert_int_equal(bytes, 0);
    free(data);
    efs_close(fs);
}

/* In order of decreasing tokens. The widest layer gives the width; layers with fewer experts repeat the last one. */
TEST(test_named)
{
    struct efs *fs = open_store();
    want(fs, "0: 1 2*3\n1: 4*2 5*7\n2: 3\n3: 0 1*2 2*3\n");
    want(fs, "0: 5\n1: 5\n2: 5\n3: 5\n");
    expect_kinds(fs, 3, "2 1 1 | 5 4 4 | 3 3 3 | 2 1 0\n5 5 5 | 5 5 5 | 5 5 5 | 5 5 5\n",
                 (const uint8_t[]){EFS_ROUTE_SEVERAL, EFS_ROUTE_UNKNOWN});
}

/* A second request for the same layer starts the next pass. */
TEST(test_again)
{
    struct efs *fs = open_store();
    want(fs, "0: 1\n1: 1\n2: 1\n3: 1\n3: 2\n0: 4\n1: 4\n2: 4\n3: 4\n");
    expect(fs, 1, "1 | 1 | 1 | 1\n4 | 4 | 4 | 4\n");
}

/* A layer without a request has the experts of its last request, or, at the start, of its first one. */
TEST(test_gaps)
{
    struct efs *fs = open_store();
    want(fs, "0: 1\n1: 2\n0: 3\n3: 4\n1: 5\n3: 1\n");
    expect(fs, 1, "1 | 2 | 0 | 4\n3 | 2 | 0 | 4\n3 | 5 | 0 | 1\n");
}

/* Leases and reads without a request are recorded one by one; those that follow a request are not recorded again. */
TEST(test_unnamed)
{
    struct efs *fs = open_store();
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            lease(fs, l, (pass + l) % EXPERTS);
            lease(fs, l, (pass + l + 2) % EXPERTS);
        }
    for (uint32_t l = 0; l < LAYERS; l++) {
        char line[32];
        snprintf(line, sizeof(line), "%u: %u %u", l, l, (l + 1) % EXPERTS);
        want(fs, line);
        lease(fs, l, l);
        lease(fs, l, (l + 1) % EXPERTS);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        read_expert(fs, l, 5);
    expect(fs, 2,
           "0 2 | 1 3 | 2 4 | 3 5\n1 3 | 2 4 | 3 5 | 4 0\n0 1 | 1 2 | 2 3 | 3 4\n"
           "5 5 | 5 5 | 5 5 | 5 5\n");
}

/* A second request without a read in between is another use. */
TEST(test_named_again)
{
    struct efs *fs = open_store();
    want(fs, "0: 1\n1: 1\n2: 1\n3: 1\n");
    want(fs, "0: 1\n1: 1\n2: 1\n3: 1\n");
    assert_int_equal(uses(fs), 8);
    expect(fs, 1, "1 | 1 | 1 | 1\n1 | 1 | 1 | 1\n");
}

/* A pass is requested as a whole when the one before has ended, in its last layers. Reads of it are not counted again.
 */
TEST(test_named_then_read)
{
    struct efs *fs = open_store();
    for (uint32_t pass = 0; pass < 3; pass++) {
        want(fs, "0: 1\n1: 1\n2: 1\n3: 1\n");
        for (uint32_t l = 0; l < LAYERS; l++)
            read_expert(fs, l, 1);
    }
    assert_int_equal(uses(fs), 12);
    expect(fs, 1, "1 | 1 | 1 | 1\n1 | 1 | 1 | 1\n1 | 1 | 1 | 1\n");
}

/* A request during a read: the rest of the read belongs to the request. The next pass is one more use. */
TEST(test_named_while_read)
{
    struct efs *fs = open_store();
    read_parts(fs, 0, 1, 0, 1, 2);
    want(fs, "0: 1");
    read_parts(fs, 0, 1, 1, 2, 2);
    assert_int_equal(uses(fs), 2);
    read_expert(fs, 3, 1);
    read_expert(fs, 0, 1);
    assert_int_equal(uses(fs), 4);
    efs_close(fs);
}

/* The first open or read after a request belongs to it; further ones are uses. */
TEST(test_named_once)
{
    struct efs *fs = open_store();
    want(fs, "0: 1 2");
    lease(fs, 0, 1);
    read_parts(fs, 0, 2, 0, 1, 2);
    assert_int_equal(uses(fs), 2);
    lease(fs, 0, 1);
    lease(fs, 0, 2);
    assert_int_equal(uses(fs), 4);
    read_parts(fs, 0, 2, 1, 2, 2);
    assert_int_equal(uses(fs), 4);
    read_expert(fs, 0, 1);
    assert_int_equal(uses(fs), 5);
    efs_close(fs);
}

/* The ring wraps around: the trace has the last requests. */
TEST(test_many)
{
    struct efs *fs = open_store();
    char *data;
    size_t bytes;
    struct efs_route route;
    for (uint32_t n = 0; n < 12000; n++) {
        char text[64];
        snprintf(text, sizeof(text), "0: %u\n1: %u\n2: %u\n3: %u\n", n % EXPERTS, n / EXPERTS % EXPERTS,
                 n / EXPERTS / EXPERTS % EXPERTS, n / EXPERTS / EXPERTS / EXPERTS % EXPERTS);
        want(fs, text);
    }
    assert_int_equal(efs_describe(fs, "trace", &data, &bytes), 0);
    assert_int_equal(efs_route_parse("trace", data, bytes, &route, NULL), 0);
    free(data);
    assert_true(route.tokens > 4000 && route.tokens < 12000);
    for (uint32_t t = 0; t < route.tokens; t++) {
        uint32_t n = 12000 - (uint32_t)route.tokens + t;
        for (uint32_t l = 0; l < LAYERS; l++, n /= EXPERTS)
            assert_int_equal(route.ids[t * LAYERS + l], n % EXPERTS);
    }
    efs_route_free(&route);
    efs_close(fs);
}

struct recorder {
    struct efs *fs;
    _Atomic bool stop;
};

static void *record_passes(void *arg)
{
    struct recorder *r = arg;
    for (uint32_t n = 0; !r->stop; n++)
        for (uint32_t l = 0, left = n; l < LAYERS; l++, left /= EXPERTS) {
            efs_lock(r->fs);
            efs_record_request(r->fs, l, &(uint32_t){left % EXPERTS}, NULL, 1, true);
            efs_unlock(r->fs);
        }
    return NULL;
}

static uint32_t number_of_pass(const uint16_t ids[LAYERS])
{
    uint32_t n = 0;
    for (uint32_t l = LAYERS; l-- > 0;)
        n = n * EXPERTS + ids[l];
    return n;
}

/* The ring is overwritten while it is copied: the trace has whole requests, in order. Its first and last pass may be
 * parts of one. */
TEST(test_described_meanwhile)
{
    struct recorder recorder = {.fs = open_store()};
    pthread_t thread;
    uint32_t all = 1;
    for (uint32_t l = 0; l < LAYERS; l++)
        all *= EXPERTS;
    assert_int_equal(pthread_create(&thread, NULL, record_passes, &recorder), 0);
    for (unsigned round = 0; round < 30; round++) {
        char *data;
        size_t bytes;
        struct efs_route route = {.tokens = 0};
        assert_int_equal(efs_describe(recorder.fs, "trace", &data, &bytes), 0);
        if (bytes)
            assert_int_equal(efs_route_parse("trace", data, bytes, &route, NULL), 0);
        free(data);
        for (uint64_t t = 2; t + 1 < route.tokens; t++)
            assert_int_equal(number_of_pass(&route.ids[t * LAYERS]),
                             (number_of_pass(&route.ids[(t - 1) * LAYERS]) + 1) % all);
        efs_route_free(&route);
    }
    recorder.stop = true;
    pthread_join(thread, NULL);
    efs_close(recorder.fs);
}

TEST_MAIN(setup, fixture_teardown)
