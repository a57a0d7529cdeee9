/* SPDX-License-Identifier: Apache-2.0 */
/* test_text.c - text formatted without printf() equals that of printf(). */

#include "test.h"
#include "expertfs-private.h"
#include "text.h"

/* The expected result of efs_text_json(), made byte by byte. */
static size_t json(const unsigned char *bytes, size_t count, char *out)
{
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < count; i++)
        if (bytes[i] < 0x20)
            n += (size_t)sprintf(out + n, "\\u%04x", bytes[i]);
        else if (bytes[i] == '"' || bytes[i] == '\\')
            n += (size_t)sprintf(out + n, "\\%c", bytes[i]);
        else
            out[n++] = (char)bytes[i];
    out[n++] = '"';
    return n;
}

/* Each byte at each position of strings of up to 20 bytes, between ordinary and between special bytes. */
TEST(test_json)
{
    static const unsigned char beside[] = {'a', ' ', '!', 0x7f, 0x80, 0xff, '"', '\\', 0x1f, 0};
    for (size_t count = 0; count <= 20; count++)
        for (size_t at = 0; at < count; at++)
            for (size_t b = 0; b < sizeof(beside); b++)
                for (unsigned byte = 0; byte < 256; byte++) {
                    unsigned char bytes[20];
                    char want[160], got[160];
                    memset(bytes, beside[b], sizeof(bytes));
                    bytes[at] = (unsigned char)byte;
                    struct efs_text text = {.data = got, .capacity = sizeof(got)};
                    efs_text_json(&text, "", (const char *)bytes, count);
                    assert_int_equal(text.bytes, json(bytes, count, want));
                    assert_memory_equal(got, want, text.bytes);
                }
}

TEST(test_number)
{
    static const uint64_t values[] = {0, 1, 9, 10, 99, 100, 999, 1000, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        for (unsigned digits = 0; digits <= 20; digits++) {
            char want[32], got[32];
            int n = snprintf(want, sizeof(want), "%0*" PRIu64, (int)digits, values[i]);
            struct efs_text text = {.data = got, .capacity = sizeof(got)};
            efs_text_number(&text, values[i], digits);
            assert_int_equal(text.bytes, n);
            assert_memory_equal(got, want, (size_t)n);
        }
}

TEST(test_word)
{
    static const char *const words[][2] = {{"", ""},
                                           {"/a/b-c_1.efs", "/a/b-c_1.efs"},
                                           {"/new home/m", "'/new home/m'"},
                                           {"it's", "'it'\\''s'"},
                                           {"a\nb'\\", "$'a\\012b\\'\\\\'"}};
    char word[32];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_string_equal(efs_word(words[i][0], word, sizeof(word)), words[i][1]);
    assert_string_equal(efs_word("a b c d", word, 9), "a b c d"); /* quoted it has one byte too many */
    assert_string_equal(efs_word("a b c d", word, 10), "'a b c d'");
    assert_string_equal(efs_word("a b c d", word, 4), "a b");
}

TEST(test_truncation)
{
    char got[] = "........";
    struct efs_text text = {.data = got, .capacity = 4};
    efs_text_string(&text, "ab");
    efs_text_number(&text, 12345, 1);
    assert_int_equal(text.bytes, 7);
    assert_string_equal(got, "ab12....");
}

TEST(nearer_words)
{
    static const struct {
        const char *word, *best, *candidate, *nearer;
    } cases[] = {
        {"bugdet", NULL, "budget", "budget"},
        {"stats", NULL, "status", "status"},
        {"stats", "status", "set", "status"},
        {"gets", "set", "get", "get"},
        {"policy", "policy", "pools", "policy"},
        {"C", NULL, "E", NULL},
        {"", NULL, "ro", NULL},
        {"ro", NULL, "rw", "rw"},
        {"foo", NULL, "log", NULL},
        {"donw", NULL, "down", "down"},
        {"frobnicate", NULL, "prefetch", NULL},
        {"a-word-of-more-than-thirty-one-bytes", NULL, "a-word-of-more-than-thirty-one-bytes", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *nearer = efs_nearer_word(cases[i].word, cases[i].best, cases[i].candidate);
        assert_true(cases[i].nearer ? nearer && strcmp(nearer, cases[i].nearer) == 0 : !nearer);
    }
}

TEST_MAIN(NULL, NULL)
