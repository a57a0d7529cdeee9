/* SPDX-License-Identifier: Apache-2.0 */
/* Routing traces: well-formed ones are read, plain and compressed; malformed ones are refused. */
#include "test.h"
#include "fixture.h"
#include "route.h"
#include "expertfs-profile-private.h"

#include <math.h>
#include <unistd.h>
#include <zstd.h>

enum { LAYERS = 3, EXPERTS = 5, CHOSEN = 2, TOKENS = 7, NAME = 4, WIDTH = 3, HEADER_1 = 40, HEADER_2 = 48 };
enum { HAS_SCORES = 1, HAS_ALL = 2, HAS_STATES = 4, HAS_EMBEDDINGS = 8, HAS_GATES = 16 };
#define ROOM 4096

static const unsigned all_of_it = HAS_ALL | HAS_STATES | HAS_EMBEDDINGS | HAS_GATES; /* of version 2 */

static void put32(unsigned char *p, uint32_t n)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> 8 * i);
}

static unsigned char *put_half(unsigned char *p, unsigned half)
{
    p[0] = (unsigned char)(half & 0xff);
    p[1] = (unsigned char)(half >> 8);
    return p + 2;
}

/* Half precision: 1, 1/2, 0.75, 0, the smallest positive number, 65504. */
static const unsigned short halves[] = {0x3c00, 0x3800, 0x3a00, 0, 1, 0x7bff};
static const float scores[] = {1, 0.5F, 0.75F, 0, 1.0F / (1 << 24), 65504};
/* Integers as halves, of both signs: 0, 1, 2, 3, then -1, -2, -3. */
static const unsigned short whole_halves[] = {0, 0x3c00, 0x4000, 0x4200, 0xbc00, 0xc000, 0xc200};
static const float whole[] = {0, 1, 2, 3, -1, -2, -3};

static unsigned id_of(unsigned token, unsigned layer, unsigned i)
{
    return (token * 2 + layer + i * 3) % EXPERTS;
}

/* Writes a small trace; version 1 has at most scores. Returns its size in bytes. */
static size_t make(unsigned char *data, unsigned version, unsigned has)
{
    const uint32_t width = has & (HAS_STATES | HAS_EMBEDDINGS | HAS_GATES) ? WIDTH : 0;
    const uint32_t numbers[] = {version, LAYERS, EXPERTS, CHOSEN, has, NAME, TOKENS, 0, width, 0};
    memcpy(data, "MOETRACE", 8);
    unsigned char *p = data + 8;
    for (unsigned i = 0; i < (version == 1 ? 8 : 10); i++, p += 4)
        put32(p, numbers[i]);
    memcpy(p, "mo\ne", NAME);
    p += NAME;
    for (unsigned i = 0; has & HAS_GATES && i < LAYERS * EXPERTS * WIDTH; i++)
        p = put_half(p, whole_halves[i % 7]);
    for (unsigned t = 0; t < TOKENS; t++) {
        put32(p, t / 3);
        put32(p + 4, t % EFS_ROUTE_KINDS);
        p += version == 1 ? 4 : 8; /* without the kind */
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

static void check_trace(const struct efs_route *r, unsigned version, unsigned has)
{
    assert_true((r->scores != NULL) == ((has & (HAS_SCORES | HAS_ALL)) != 0));
    assert_true((r->all_scores != NULL) == ((has & HAS_ALL) != 0));
    assert_true((r->states != NULL) == ((has & HAS_STATES) != 0));
    assert_true((r->embeddings != NULL) == ((has & HAS_EMBEDDINGS) != 0));
    assert_true((r->gates != NULL) == ((has & HAS_GATES) != 0));
    assert_true((r->kind != NULL) == (version > 1));
    assert_int_equal(r->width, has & (HAS_STATES | HAS_EMBEDDINGS | HAS_GATES) ? WIDTH : 0);
    assert_int_equal(r->layers, LAYERS);
    assert_int_equal(r->experts, EXPERTS);
    assert_int_equal(r->chosen, CHOSEN);
    assert_int_equal(r->tokens, TOKENS);
    assert_string_equal(r->name, "mo?e"); /* unprintable characters are replaced */
    for (unsigned i = 0; r->gates && i < LAYERS * EXPERTS * WIDTH; i++)
        assert_true(r->gates[i] == whole[i % 7]);
    for (unsigned t = 0; t < TOKENS; t++) {
        assert_int_equal(r->sequence[t], t / 3);
        assert_int_equal(r->kind ? r->kind[t] : t % EFS_ROUTE_KINDS, t % EFS_ROUTE_KINDS);
        for (unsigned i = 0; i < LAYERS * CHOSEN; i++)
            assert_int_equal(r->ids[t * LAYERS * CHOSEN + i], id_of(t, i / CHOSEN, i % CHOSEN));
        check_scores(r, has, t);
        for (unsigned i = 0; r->states && i < LAYERS * WIDTH; i++)
            assert_true(efs_route_half(r->states[t * LAYERS * WIDTH + i]) == whole[(t + i) % 7]);
        for (unsigned i = 0; r->embeddings && i < WIDTH; i++)
            assert_true(efs_route_half(r->embeddings[t * WIDTH + i]) == whole[(t + 2 * i) % 7]);
    }
}

static void parsed(const unsigned char *data, size_t bytes, unsigned version, unsigned has)
{
    struct efs_route route;
    struct efs_error err = {""};
    if (efs_route_parse("t", data, bytes, &route, &err) < 0)
        fail_msg("version %u, %x: %s", version, has, err.text);
    check_trace(&route, version, has);
    efs_route_free(&route);
    assert_null(route.ids);
}

/* Plain, compressed, and as two frames that together are the trace. */
TEST(test_well_formed)
{
    unsigned char data[ROOM], packed[ROOM];
    for (unsigned version = 1; version <= 2; version++)
        for (unsigned has = 0; has <= (version == 1 ? HAS_SCORES : (HAS_GATES << 1) - 1); has++) {
            if ((has & (HAS_SCORES | HAS_ALL)) == (HAS_SCORES | HAS_ALL))
                continue;
            size_t bytes = make(data, version, has);
            parsed(data, bytes, version, has);
            parsed(packed, ZSTD_compress(packed, ROOM, data, bytes, 3), version, has);
            size_t first = ZSTD_compress(packed, ROOM, data, 50, 1);
            size_t second = ZSTD_compress(packed + first, ROOM - first, data + 50, bytes - 50, 1);
            parsed(packed, first + second, version, has);
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
    enum { IDS_2 = HEADER_2 + NAME + 2 * LAYERS * EXPERTS * WIDTH + 8 };
    static const struct {
        unsigned version, offset;
        uint32_t number;
    } bad[] = {{1, 0, 0},
               {1, 8, 3},
               {1, 12, 0},
               {1, 12, 1025},
               {1, 12, UINT32_MAX},
               {1, 16, 0},
               {1, 16, 1},
               {1, 16, 4},
               {1, 16, 4097},
               {1, 16, UINT32_MAX},
               {1, 20, 0},
               {1, 20, 6},
               {1, 20, UINT32_MAX},
               {1, 24, 2},
               {1, 24, 1},
               {1, 28, ROOM},
               {1, 28, UINT32_MAX},
               {1, 28, UINT32_MAX - 39},
               {1, 32, 0},
               {1, 32, TOKENS + 1},
               {1, 32, UINT32_MAX},
               {1, 36, 1},
               {1, 36, UINT32_MAX},
               {1, HEADER_1 + NAME + 4, 5}, /* an expert */
               {1, HEADER_1 + NAME + 4, 0xffff},
               {2, 8, 1},
               {2, 12, 1025},
               {2, 12, UINT32_MAX},
               {2, 16, 4},
               {2, 16, 4096},
               {2, 16, UINT32_MAX},
               {2, 20, 6},
               {2, 24, HAS_ALL | HAS_SCORES},
               {2, 24, 32},
               {2, 24, UINT32_MAX},
               {2, 24, HAS_ALL}, /* a width without data that has one */
               {2, 28, ROOM},
               {2, 28, UINT32_MAX},
               {2, 28, UINT32_MAX - 47},
               {2, 32, 0},
               {2, 32, TOKENS + 1},
               {2, 36, UINT32_MAX},
               {2, 40, 0},
               {2, 40, WIDTH + 1},
               {2, 40, 65536},
               {2, 40, UINT32_MAX},
               {2, 44, 1},
               {2, HEADER_2 + NAME, 0x7c00}, /* a gate's weight */
               {2, IDS_2 - 4, 4},            /* the kind of a token */
               {2, IDS_2, EXPERTS},
               {2, IDS_2 + 2 * LAYERS * CHOSEN, 0x8000}}; /* a score */
    unsigned char data[ROOM];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t bytes = make(data, bad[i].version, bad[i].version == 1 ? 0 : all_of_it);
        put32(data + bad[i].offset, bad[i].number);
        refused(data, bytes);
    }
    for (size_t back = 2; back <= 2 * (WIDTH + 1); back += 2) { /* embedding, then hidden state */
        size_t bytes = make(data, 2, all_of_it);
        put_half(data + bytes - back, 0xfc00);
        refused(data, bytes);
    }
    size_t bytes = make(data, 2, HAS_SCORES); /* a width without data that has one */
    put32(data + 40, WIDTH);
    refused(data, bytes);
}

/* Infinite, NaN and negative numbers are no valid scores. */
TEST(test_bad_scores)
{
    static const unsigned char high[] = {0x7c, 0x7e, 0xfc, 0xbc, 0x80};
    unsigned char data[ROOM];
    for (size_t i = 0; i < sizeof(high); i++) {
        size_t bytes = make(data, 1, HAS_SCORES);
        data[bytes - 1] = high[i];
        refused(data, bytes);
    }
}

TEST(test_cut)
{
    unsigned char data[ROOM], packed[ROOM];
    for (unsigned version = 1; version <= 2; version++) {
        size_t bytes = make(data, version, version == 1 ? HAS_SCORES : all_of_it);
        size_t packed_bytes = ZSTD_compress(packed, ROOM, data, bytes, 3);
        for (size_t n = 0; n < bytes; n++) {
            unsigned char *exact = malloc(n + 1); /* so that a sanitizer detects reads past the end */
            assert_non_null(exact);
            memcpy(exact, data, n);
            refused(exact, n);
            free(exact);
        }
        for (size_t n = 0; n < packed_bytes; n++)
            refused(packed, n);
    }
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
    fixture_file(&f, "a.route", data, make(data, 1, HAS_SCORES));
    snprintf(path, sizeof(path), "%s/a.route", f.source);
    assert_int_equal(efs_route_read(path, &route, &err), 0);
    check_trace(&route, 1, HAS_SCORES);
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
