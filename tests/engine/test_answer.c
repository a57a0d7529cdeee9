/* SPDX-License-Identifier: Apache-2.0 */
/* test_answer.c - answers of servers (engine/remote): what is a range of the file, and what is anything else. */
#include <errno.h>
#include <stdlib.h>

#include "test.h"
#include "address.h"
#include "answer.h"
#include "fixture.h"

#define RANGE "HTTP/1.1 206 Partial Content\r\n"
#define END "\r\n"

static const struct efs_identity unknown = {.etag = ""}, known = {.etag = "\"x\"", .bytes = 1000};

static struct efs_answer parse(const char *text)
{
    struct efs_answer answer = {.status = 0};
    while (*text) {
        size_t bytes = strcspn(text, "\n");
        bytes += text[bytes] == '\n';
        efs_answer_header(&answer, text, bytes);
        text += bytes;
    }
    return answer;
}

/* Answers to a request for bytes 100 to 199. */
TEST(verdicts)
{
    static const struct {
        const char *text;
        enum efs_verdict first, later;
    } answers[] = {
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_RANGE, EFS_ANSWER_RANGE},
        {"HTTP/2 206\r\netag:\"x\"\r\ncontent-range:BYTES 100-199/1000\r\n" END, EFS_ANSWER_RANGE, EFS_ANSWER_RANGE},
        {"HTTP/1.1 100 Continue\r\nETag: \"y\"\r\n\r\n" RANGE
         "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000\r\n" END,
         EFS_ANSWER_RANGE, EFS_ANSWER_RANGE},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-149/150\r\n" END, EFS_ANSWER_RANGE, EFS_ANSWER_CHANGED},
        {RANGE "ETag: \"y\"\r\nContent-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_RANGE, EFS_ANSWER_CHANGED},
        {RANGE "ETag: W/\"x\"\r\nContent-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_NO_ETAG, EFS_ANSWER_CHANGED},
        {RANGE "ETag: \"\"\r\nContent-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_NO_ETAG, EFS_ANSWER_CHANGED},
        {RANGE "ETag: \"x\" \"y\"\r\nContent-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_NO_ETAG,
         EFS_ANSWER_CHANGED},
        {RANGE "Content-Range: bytes 100-199/1000\r\n" END, EFS_ANSWER_NO_ETAG, EFS_ANSWER_CHANGED},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-198/1000\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 99-199/1000\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/*\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/199\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 199-100/1000\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/99999999999999999999999\r\n" END, EFS_ANSWER_NO_RANGES,
         EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/9223372036854775807\r\n" END, EFS_ANSWER_NO_RANGES,
         EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000x\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: pages 1-2/3\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000\r\nContent-Encoding: gzip\r\n" END,
         EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000\r\nContent-Encoding: identity\r\n" END,
         EFS_ANSWER_RANGE, EFS_ANSWER_RANGE},
        {"HTTP/1.1 200 OK\r\nETag: \"x\"\r\n" END, EFS_ANSWER_NO_RANGES, EFS_ANSWER_NO_RANGES},
        {"HTTP/1.1 302 Found\r\n" END, EFS_ANSWER_REDIRECT, EFS_ANSWER_REDIRECT},
        {"HTTP/1.1 304 Not Modified\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {"HTTP/1.1 400\r\n" END, EFS_ANSWER_REFUSED, EFS_ANSWER_REFUSED},
        {"HTTP/1.1 401\r\n" END, EFS_ANSWER_REFUSED, EFS_ANSWER_REFUSED},
        {"HTTP/1.1 404\r\n" END, EFS_ANSWER_MISSING, EFS_ANSWER_MISSING},
        {"HTTP/1.1 412\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_CHANGED},
        {"HTTP/1.1 416\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_CHANGED},
        {"HTTP/1.1 429\r\n" END, EFS_ANSWER_BUSY, EFS_ANSWER_BUSY},
        {"HTTP/1.1 503\r\n" END, EFS_ANSWER_BUSY, EFS_ANSWER_BUSY},
        {"HTTP/1.1 99\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {"HTTP/1.1\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {"GET / HTTP/1.1\r\n" END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
        {END, EFS_ANSWER_WRONG, EFS_ANSWER_WRONG},
    };
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct efs_answer answer = parse(answers[i].text);
        if (efs_answer_judge(&answer, &unknown, 100, 100) != answers[i].first ||
            efs_answer_judge(&answer, &known, 100, 100) != answers[i].later)
            fail_msg("%s", answers[i].text);
    }
    struct efs_answer empty = parse("HTTP/1.1 416\r\n" END);
    assert_int_equal(efs_answer_judge(&empty, &unknown, 0, 100), EFS_ANSWER_EMPTY);
}

/* Bytes are changed at random: an answer that passes for a range is one, of the known file. */
TEST(damaged_headers)
{
    static const char text[] = RANGE "ETag: \"x\"\r\nContent-Range: bytes 100-199/1000\r\n" END;
    uint64_t random = 5;
    for (unsigned round = 0; round < 200000; round++) {
        char changed[sizeof(text)];
        memcpy(changed, text, sizeof(text));
        for (unsigned n = (unsigned)(fixture_random(&random) >> 40) % 4; n > 0; n--)
            changed[(fixture_random(&random) >> 33) % (sizeof(text) - 1)] = (char)(fixture_random(&random) >> 41);
        struct efs_answer answer = parse(changed);
        if (efs_answer_judge(&answer, &known, 100, 100) != EFS_ANSWER_RANGE)
            continue;
        assert_int_equal(answer.status, 206);
        assert_int_equal(answer.first, 100);
        assert_int_equal(answer.last, 199);
        assert_int_equal(answer.total, 1000);
        assert_string_equal(answer.etag, "\"x\"");
    }
}

TEST(origins_and_redirects)
{
    assert_true(efs_address_same_origin("https://Host/a", "https://host/b?c"));
    assert_false(efs_address_same_origin("https://host/a", "http://host/a"));
    assert_false(efs_address_same_origin("https://host/a", "https://host:444/a"));
    assert_false(efs_address_same_origin("https://host/a", "https://host.evil/a"));
    assert_false(efs_address_same_origin("https://host/a", "https://hos/a"));
    assert_true(efs_address_same_origin("https://host:443/a", "https://host/b"));
    assert_true(efs_address_same_origin("http://[::1]/a", "http://[::1]:80/b"));
    assert_false(efs_address_same_origin("https://host:80/a", "https://host/a"));
    assert_false(efs_address_same_origin("https://host:4443/a", "https://host:4/a"));
    assert_null(efs_address_refused("https://a/", "https://b/"));
    assert_null(efs_address_refused("http://localhost/", "https://b/"));
    assert_null(efs_address_refused("http://localhost/", "http://127.0.0.1:81/"));
    unsetenv("EXPERTFS_INSECURE_HTTP");
    assert_string_equal(efs_address_refused("http://localhost/", "http://b/"), "is http:// to another machine");
    assert_string_equal(efs_address_refused("http://localhost/", "http://localhost.b/"),
                        "is http:// to another machine");
    setenv("EXPERTFS_INSECURE_HTTP", "1", 1);
    assert_null(efs_address_refused("http://localhost/", "http://b/"));
    assert_string_equal(efs_address_refused("https://a/", "http://b/"), "is not https://");
    unsetenv("EXPERTFS_INSECURE_HTTP");
    assert_string_equal(efs_address_refused("https://a/", "file:///etc/passwd"), "is not https://");
    assert_string_equal(efs_address_refused("https://a/", "https:///b"), "is not https://");
    assert_string_equal(efs_address_refused("https://a/", "https://user:secret@b/"), "has a password");
    assert_true(efs_address_is_loopback("http://127.0.0.1:80/x"));
    assert_true(efs_address_is_loopback("http://[::1]:80/x"));
    assert_true(efs_address_is_loopback("http://LocalHost/x"));
    assert_false(efs_address_is_loopback("http://127.0.0.1.evil/x"));
    assert_false(efs_address_is_loopback("http://localhost.evil/x"));
    assert_false(efs_address_is_loopback("http://[::1/x"));
}

TEST_MAIN(NULL, NULL)
