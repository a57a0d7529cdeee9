/* SPDX-License-Identifier: Apache-2.0 */
/* Routing traces: what is well formed is read, plain and compressed; everything else is refused, never trusted. */
#include "test.h"
#include "fixture.h"
#include "route.h"

#include <math.h>
#include <unistd.h>
#include <zstd.h>

enum { LAYERS = 3, EXPERTS = 5, CHOSEN = 2, TOKENS = 7, NAME = 4, HEADER = 40 };
#define ROOM 4096

static void put32(unsigned char *p, uint32_t n)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> 8 * i);
}

/* Half precision: 1, 1/2, 0.75, 0, the smallest there is, 65504. */
static const unsigned short halves[] = {0x3c00, 0x3800, 0x3a00, 0, 1, 0x7bff};
static const float scores[] = {1, 0.5F, 0.75F, 0, 1.0F / (1 << 24), 65504};

static void put_score(unsigned char *p, unsigned i)
{
    p[0] = (unsigned char)(halves[i % 6] & 0xff);
    p[1] = (unsigned char)(halves[i % 6] >> 8);
}

static unsigned id_of(unsigned token, unsigned layer, unsigned i)
{
    return (token * 2 + layer + i * 3) % EXPERTS;
}

/* A small trace, with probabilities or without. Returns its bytes. */
static size_t make(unsigned char *data, bool probabilities)
{
    const uint32_t numbers[] = {1, LAYERS, EXPERTS, CHOSEN, probabilities, NAME, TOKENS, 0};
    memcpy(data, "MOETRACE", 8);
    for (unsigned i = 0; i < 8; i++)
        put32(data + 8 + 4 * i, numbers[i]);
    unsigned char *p = data + HEADER;
    memcpy(p, "mo\ne", NAME);
    p += NAME;
    for (unsigned t = 0; t < TOKENS; t++) {
        put32(p, t / 3);
        p += 4;
        for (unsigned l = 0; l < LAYERS; l++)
            for (unsigned i = 0; i < CHOSEN; i++, p += 2) {
                p[0] = (unsigned char)id_of(t, l, i);
                p[1] = 0;
            }
        for (unsigned i = 0; probabilities && i < LAYERS * CHOSEN; i++, p += 2)
            put_score(p, i);
    }
    return (size_t)(p - data);
}

static void check_trace(const struct efs_route *route, bool probabilities)
{
    assert_true((route->scores != NULL) == probabilities);
    assert_true(!route->kind && !route->all_scores && !route->gates && !route->states && !route->embeddings);
    for (unsigned i = 0; probabilities && i < TOKENS * LAYERS * CHOSEN; i++)
        assert_true(route->scores[i] == scores[i % (LAYERS * CHOSEN) % 6]);
    assert_int_equal(route->layers, LAYERS);
    assert_int_equal(route->experts, EXPERTS);
    assert_int_equal(route->chosen, CHOSEN);
    assert_int_equal(route->tokens, TOKENS);
    assert_string_equal(route->name, "mo?e"); /* what does not print is not printed */
    for (unsigned t = 0; t < TOKENS; t++) {
        assert_int_equal(route->sequence[t], t / 3);
        for (unsigned l = 0; l < LAYERS; l++)
            for (unsigned i = 0; i < CHOSEN; i++)
                assert_int_equal(route->ids[(t * LAYERS + l) * CHOSEN + i], id_of(t, l, i));
    }
}

TEST(test_well_formed)
{
    unsigned char data[ROOM], packed[ROOM];
    for (int probabilities = 0; probabilities < 2; probabilities++) {
        struct efs_route route;
        struct efs_error err = {""};
        size_t bytes = make(data, probabilities), packed_bytes = ZSTD_compress(packed, ROOM, data, bytes, 3);
        assert_int_equal(efs_route_parse("t", data, bytes, &route, &err), 0);
        check_trace(&route, probabilities);
        efs_route_free(&route);
        assert_false(ZSTD_isError(packed_bytes));
        assert_int_equal(efs_route_parse("t", packed, packed_bytes, &route, &err), 0);
        check_trace(&route, probabilities);
        efs_route_free(&route);
        assert_null(route.ids);
        /* two frames that together are the trace */
        size_t first = ZSTD_compress(packed, ROOM, data, 50, 1);
        size_t second = ZSTD_compress(packed + first, ROOM - first, data + 50, bytes - 50, 1);
        assert_int_equal(efs_route_parse("t", packed, first + second, &route, &err), 0);
        check_trace(&route, probabilities);
        efs_route_free(&route);
    }
}

/* ---- version 2 ---- */

enum { WIDTH = 3, HEADER_2 = 48, HAS_SCORES = 1, HAS_ALL = 2, HAS_STATES = 4, HAS_EMBEDDINGS = 8, HAS_GATES = 16 };

static const unsigned all_of_it = HAS_ALL | HAS_STATES | HAS_EMBEDDINGS | HAS_GATES;

static unsigned char *put_half(unsigned char *p, unsigned half)
{
    p[0] = (unsigned char)(half & 0xff);
    p[1] = (unsigned char)(half >> 8);
    return p + 2;
}

/* Halves that are whole numbers, of one sign and the other: 0, 1, 2, 3, then -1, -2, -3. */
static const unsigned short whole_halves[] = {0, 0x3c00, 0x4000, 0x4200, 0xbc00, 0xc000, 0xc200};
static const float whole[] = {0, 1, 2, 3, -1, -2, -3};

static size_t make_2(unsigned char *data, unsigned has)
{
    const uint32_t width = has & (HAS_STATES | HAS_EMBEDDINGS | HAS_GATES) ? WIDTH : 0;
    const uint32_t numbers[] = {2, LAYERS, EXPERTS, CHOSEN, has, NAME, TOKENS, 0, width, 0};
    memcpy(data, "MOETRACE", 8);
    for (unsigned i = 0; i < 10; i++)
        put32(data + 8 + 4 * i, numbers[i]);
    unsigned char *p = data + HEADER_2;
    memcpy(p, "mo\ne", NAME);
    p += NAME;
    for (unsigned i = 0; has & HAS_GATES && i < LAYERS * EXPERTS * WIDTH; i++)
        p = put_half(p, whole_halves[i % 7]);
    for (unsigned t = 0; t < TOKENS; t++) {
        put32(p, t / 3);
        put32(p + 4, t % EFS_ROUTE_KINDS);
        p += 8;
        for (unsigned i = 0; i < LAYERS * CHOSEN; i++)
            p = put_half(p, id_of(t, i / CHOSEN, i % CHOSEN));
        for (unsigned i = 0; has & HAS_SCORES && i < LAYERS * CHOSEN; i++)
            p = put_half(p, halves[i % 6]);
        for (unsigned i = 0; has & HAS_ALL && i < LAYERS * EXPERTS; i++)
            p = put_half(p, halves[(t + i) % 6]);
        for (unsigned i = 0; has & HAS_STATES && i < LAYERS * WIDTH; i++)
            p = put_half(p, whole_halves[(t + i) % 7]);
        for (unsigned i = 0; has & HAS_EMBEDDINGS && i < WIDTH; i++)
            p = put_half(p, whole_halves[(t + 2 * i) % 7]);
    }
    return (size_t)(p - data);
}

static void check_scores(const struct efs_route *r, unsigned has, unsigned t)
{
    for (unsigned i = 0; i < LAYERS * CHOSEN; i++) {
        unsigned all = i / CHOSEN * EXPERTS + id_of(t, i / CHOSEN, i % CHOSEN);
        if (has & (HAS_SCORES | HAS_ALL))
            assert_true(r->scores[t * LAYERS * CHOSEN + i] == scores[(has & HAS_ALL ? t + all : i) % 6]);
    }
    for (unsigned i = 0; has & HAS_ALL && i < LAYERS * EXPERTS; i++)
        assert_true(r->all_scores[t * LAYERS * EXPERTS + i] == scores[(t + i) % 6]);
}

static void check_trace_2(const struct efs_route *r, unsigned has)
{
    assert_true((r->scores != NULL) == ((has & (HAS_SCORES | HAS_ALL)) != 0));
    assert_true((r->all_scores != NULL) == ((has & HAS_ALL) != 0));
    assert_true((r->states != NULL) == ((has & HAS_STATES) != 0));
    assert_true((r->embeddings != NULL) == ((has & HAS_EMBEDDINGS) != 0));
    assert_true((r->gates != NULL) == ((has & HAS_GATES) != 0));
    assert_int_equal(r->width, has & (HAS_STATES | HAS_EMBEDDINGS | HAS_GATES) ? WIDTH : 0);
    assert_int_equal(r->tokens, TOKENS);
    assert_string_equal(r->name, "mo?e");
    for (unsigned i = 0; r->gates && i < LAYERS * EXPERTS * WIDTH; i++)
        assert_true(r->gates[i] == whole[i % 7]);
    for (unsigned t = 0; t < TOKENS; t++) {
        assert_int_equal(r->sequence[t], t / 3);
        assert_int_equal(r->kind[t], t % EFS_ROUTE_KINDS);
        for (unsigned i = 0; i < LAYERS * CHOSEN; i++)
            assert_int_equal(r->ids[t * LAYERS * CHOSEN + i], id_of(t, i / CHOSEN, i % CHOSEN));
        check_scores(r, has, t);
        for (unsigned i = 0; r->states && i < LAYERS * WIDTH; i++)
            assert_true(efs_route_half(r->states[t * LAYERS * WIDTH + i]) == whole[(t + i) % 7]);
        for (unsigned i = 0; r->embeddings && i < WIDTH; i++)
            assert_true(efs_route_half(r->embeddings[t * WIDTH + i]) == whole[(t + 2 * i) % 7]);
    }
}

TEST(test_version_2)
{
    unsigned char data[ROOM], packed[ROOM];
    for (unsigned has = 0; has <= (HAS_GATES << 1) - 1; has++) {
        struct efs_route route;
        struct efs_error err = {""};
        size_t bytes = make_2(data, has), packed_bytes = ZSTD_compress(packed, ROOM, data, bytes, 3);
        if ((has & (HAS_SCORES | HAS_ALL)) == (HAS_SCORES | HAS_ALL))
            continue;
        if (efs_route_parse("t", data, bytes, &route, &err) < 0)
            fail_msg("%x: %s", has, err.text);
        check_trace_2(&route, has);
        efs_route_free(&route);
        assert_int_equal(efs_route_parse("t", packed, packed_bytes, &route, &err), 0);
        check_trace_2(&route, has);
        efs_route_free(&route);
        assert_null(route.gates);
    }
}

TEST(test_halves)
{
    for (unsigned i = 0; i < 6; i++)
        assert_true(efs_route_half(halves[i]) == scores[i]);
    for (unsigned i = 0; i < 7; i++)
        assert_true(efs_route_half(whole_halves[i]) == whole[i]);
    assert_true(efs_route_half(0x8001) == -1.0F / (1 << 24));
    assert_true(isinf(efs_route_half(0x7c00)) && efs_route_half(0xfc00) < 0 && isnan(efs_route_half(0x7e00)));
}

static void refused(const unsigned char *data, size_t bytes)
{
    struct efs_route route;
    struct efs_error err = {""};
    assert_int_equal(efs_route_parse("bad.route", data, bytes, &route, &err), -EUCLEAN);
    assert_memory_equal(err.text, "bad.route: ", 11);
    assert_null(route.ids);
    assert_null(route.sequence);
}

TEST(test_numbers_out_of_bounds)
{
    static const struct {
        unsigned offset;
        uint32_t number;
    } bad[] = {{0, 0},
               {8, 3},
               {12, 0},
               {12, 1025},
               {12, UINT32_MAX},
               {16, 0},
               {16, 1},
               {16, 4},
               {16, 4097},
               {16, UINT32_MAX},
               {20, 0},
               {20, 6},
               {20, UINT32_MAX},
               {24, 2},
               {24, 1},
               {28, ROOM},
               {28, UINT32_MAX},
               {28, UINT32_MAX - 39},
               {32, 0},
               {32, TOKENS + 1},
               {32, UINT32_MAX},
               {36, 1},
               {36, UINT32_MAX},
               {HEADER + NAME + 4, 5},
               {HEADER + NAME + 4, 0xffff}};
    unsigned char data[ROOM];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t bytes = make(data, false);
        put32(data + bad[i].offset, bad[i].number);
        refused(data, bytes);
    }
}

TEST(test_numbers_out_of_bounds_2)
{
    static const struct {
        unsigned offset;
        uint32_t number;
    } bad[] = {{8, 1},
               {12, 1025},
               {12, UINT32_MAX},
               {16, 4},
               {16, 4096},
               {16, UINT32_MAX},
               {20, 6},
               {24, HAS_ALL | HAS_SCORES},
               {24, 32},
               {24, UINT32_MAX},
               {24, HAS_ALL}, /* a width, and nothing that has one */
               {28, ROOM},
               {28, UINT32_MAX},
               {28, UINT32_MAX - 47},
               {32, 0},
               {32, TOKENS + 1},
               {36, UINT32_MAX},
               {40, 0},
               {40, WIDTH + 1},
               {40, 65536},
               {40, UINT32_MAX},
               {44, 1},
               {HEADER_2 + NAME, 0x7c00},                                     /* a gate's weight */
               {HEADER_2 + NAME + 2 * LAYERS * EXPERTS * WIDTH + 4, 4},       /* the kind of a token */
               {HEADER_2 + NAME + 2 * LAYERS * EXPERTS * WIDTH + 8, EXPERTS}, /* an expert */
               {HEADER_2 + NAME + 2 * LAYERS * EXPERTS * WIDTH + 8 + 2 * LAYERS * CHOSEN, 0x8000}};
    unsigned char data[ROOM];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t bytes = make_2(data, all_of_it);
        put32(data + bad[i].offset, bad[i].number);
        refused(data, bytes);
    }
    for (size_t back = 2; back <= 2 * (WIDTH + 1); back += 2) { /* embedding, then hidden state */
        size_t bytes = make_2(data, all_of_it);
        put_half(data + bytes - back, 0xfc00);
        refused(data, bytes);
    }
    size_t bytes = make_2(data, HAS_SCORES); /* a width, and nothing that has one */
    put32(data + 40, WIDTH);
    refused(data, bytes);
}

/* Infinite, not a number, negative: no score. */
TEST(test_bad_scores)
{
    static const unsigned char high[] = {0x7c, 0x7e, 0xfc, 0xbc, 0x80};
    unsigned char data[ROOM];
    for (size_t i = 0; i < sizeof(high); i++) {
        size_t bytes = make(data, true);
        data[bytes - 1] = high[i];
        refused(data, bytes);
    }
}

TEST(test_cut)
{
    unsigned char data[ROOM], packed[ROOM];
    for (int version = 1; version <= 2; version++) {
        size_t bytes = version == 1 ? make(data, true) : make_2(data, all_of_it);
        size_t packed_bytes = ZSTD_compress(packed, ROOM, data, bytes, 3);
        for (size_t n = 0; n < bytes; n++) {
            unsigned char *exact = malloc(n + 1); /* so that a sanitizer sees a byte too many */
            assert_non_null(exact);
            memcpy(exact, data, n);
            refused(exact, n);
            free(exact);
        }
        for (size_t n = 0; n < packed_bytes; n++)
            refused(packed, n);
    }
}

/* Bytes changed at random: what is still taken keeps to its own bounds. */
TEST(test_mutations)
{
    unsigned char data[ROOM], packed[ROOM];
    uint64_t rnd = 3;
    unsigned taken = 0, not_taken = 0;
    for (unsigned round = 0; round < 20000; round++) {
        struct efs_route route;
        size_t bytes = round & 2 ? make_2(data, all_of_it) : make(data, round & 1);
        bool pack = round % 8 > 5;
        if (pack)
            bytes = ZSTD_compress(packed, ROOM, data, bytes, 3);
        unsigned char *exact = malloc(bytes);
        assert_non_null(exact);
        memcpy(exact, pack ? packed : data, bytes);
        for (uint64_t n = 1 + fixture_random(&rnd) % 4; n > 0; n--)
            exact[fixture_random(&rnd) % (fixture_random(&rnd) & 1 ? bytes : HEADER)] =
                (unsigned char)(fixture_random(&rnd) >> (fixture_random(&rnd) & 7));
        errint_t rc = efs_route_parse("t", exact, bytes, &route, NULL);
        free(exact);
        if (rc < 0) {
            assert_true(rc == -EUCLEAN || rc == -EFBIG || rc == -ENOMEM);
            assert_null(route.ids);
            not_taken++;
            continue;
        }
        assert_true(route.chosen >= 1 && route.chosen <= route.experts && route.layers >= 1 && route.tokens >= 1);
        for (uint64_t i = 0; i < route.tokens * route.layers * route.chosen; i++)
            assert_true(route.ids[i] < route.experts);
        efs_route_free(&route);
        taken++;
    }
    assert_true(taken > 500 && not_taken > 500);
}

TEST(test_files)
{
    struct fixture f;
    struct efs_route route;
    struct efs_error err;
    unsigned char data[ROOM];
    char path[400];
    fixture_begin(&f);
    unsigned fds = fixture_open_fds();
    fixture_file(&f, "a.route", data, make(data, true));
    snprintf(path, sizeof(path), "%s/a.route", f.source);
    assert_int_equal(efs_route_read(path, &route, &err), 0);
    check_trace(&route, true);
    efs_route_free(&route);
    assert_int_equal(efs_route_read(f.source, &route, &err), -EISDIR);
    assert_non_null(strstr(err.text, f.source));
    snprintf(path, sizeof(path), "%s/missing", f.source);
    assert_int_equal(efs_route_read(path, &route, &err), -ENOENT);
    assert_non_null(strstr(err.text, path));
    snprintf(path, sizeof(path), "%s/large", f.source);
    fixture_file(&f, "large", "", 0);
    assert_int_equal(truncate(path, (1l << 30) + 1), 0);
    assert_int_equal(efs_route_read(path, &route, &err), -EFBIG);
    assert_int_equal(fixture_open_fds(), fds);
    fixture_end(&f);
}

TEST_MAIN(NULL, NULL)
