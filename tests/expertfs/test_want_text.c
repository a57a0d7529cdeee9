/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as text: accepted lines and refused ones. */

#include "test.h"
#include "want_text.h"
#include "expertfs-protocol.h"

static int next(const char **text, size_t *bytes, struct efsd_want *want)
{
    struct efs_error err = {.text = ""};
    int got = efsd_want_next(text, bytes, want, &err);
    assert_true(got >= 0 || (got == -EINVAL && strstr(err.text, "3: 17*12 4 9*2")));
    return got;
}

/* Parses a copy without terminator, so that sanitizers detect reads past its end. */
static int one(const char *line, struct efsd_want *want)
{
    size_t bytes = strlen(line), left = bytes;
    char *copy = malloc(bytes + !bytes);
    memcpy(copy, line, bytes);
    const char *text = copy;
    int got = next(&text, &left, want);
    assert_true(text == copy + (bytes - left));
    free(copy);
    return got;
}

TEST(lines)
{
    static const char all[] = "3: 17*12 4 9*2\n\n  \nL07:0\nencoder-L03:\t1*1  2 \n12 :4294967295*4294967295";
    const char *text = all;
    size_t bytes = strlen(all);
    struct efsd_want want;
    assert_int_equal(next(&text, &bytes, &want), 1);
    assert_string_equal(want.stack, "");
    assert_true(want.layer == 3 && want.count == 3);
    assert_true(want.needs[0].expert == 17 && want.needs[0].tokens == 12);
    assert_true(want.needs[1].expert == 4 && want.needs[1].tokens == 1);
    assert_true(want.needs[2].expert == 9 && want.needs[2].tokens == 2);
    assert_int_equal(next(&text, &bytes, &want), 1);
    assert_true(want.layer == 7 && want.count == 1 && want.needs[0].expert == 0);
    assert_int_equal(next(&text, &bytes, &want), 1);
    assert_string_equal(want.stack, "encoder");
    assert_true(want.layer == 3 && want.count == 2 && want.needs[1].expert == 2 && want.needs[1].tokens == 1);
    assert_int_equal(next(&text, &bytes, &want), 1);
    assert_true(want.layer == 12 && want.needs[0].expert == UINT32_MAX && want.needs[0].tokens == UINT32_MAX);
    assert_int_equal(next(&text, &bytes, &want), 0);
    assert_int_equal(bytes, 0);
}

TEST(blank)
{
    struct efsd_want want;
    assert_int_equal(one("", &want), 0);
    assert_int_equal(one("\n", &want), 0);
    assert_int_equal(one(" \t\n\n ", &want), 0);
}

TEST(refused)
{
    static const char *const bad[] = {
        "3",
        "3:",
        "3: ",
        ":",
        ": 1",
        "3 1",
        "x: 1",
        "3: x",
        "3: 1,2",
        "3: 1*",
        "3: 1*0",
        "3: *2",
        "3: 1 1",
        "3: 1*2 1*3",
        "-3: 1",
        "3: -1",
        "3: 1*-1",
        "3: 1.5",
        "3: 0x1",
        "+3: 1",
        "3:: 1",
        "3: 1:",
        "3: 1\r\n",
        "l3: 1",
        "LL3: 1",
        "L: 1",
        "encoder-: 1",
        "3: 1*2*3",
        "3: 1 *2",
        "3: 1* 2",
        "3: 4294967296",
        "4294967296: 1",
        "3: 1*4294967296",
        "3: 99999999999999999999",
        "a-stack-whose-name-is-longer-than-any-L03: 1",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct efsd_want want;
        if (one(bad[i], &want) != -EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
    }
    struct efsd_want want;
    const char *text = "3: 1\0 2";
    size_t bytes = 7;
    assert_int_equal(next(&text, &bytes, &want), -EINVAL);
}

TEST(limits)
{
    struct efsd_want want;
    char line[EFS_WANT_LINE_BYTES + 2];
    size_t used = (size_t)sprintf(line, "3:");
    for (unsigned i = 0; i < EFSD_WANT_EXPERTS; i++)
        used += (size_t)sprintf(line + used, " %u", i);
    assert_int_equal(one(line, &want), 1);
    assert_int_equal(want.count, EFSD_WANT_EXPERTS);
    sprintf(line + used, " %u", EFSD_WANT_EXPERTS);
    assert_int_equal(one(line, &want), -EINVAL);
    memset(line, ' ', sizeof(line));
    memcpy(line, "3: 1", 4);
    line[EFS_WANT_LINE_BYTES] = '\0';
    assert_int_equal(one(line, &want), 1);
    line[EFS_WANT_LINE_BYTES] = ' ';
    line[EFS_WANT_LINE_BYTES + 1] = '\0';
    assert_int_equal(one(line, &want), -EINVAL);
}

static int hinted(const char *text, struct efsd_hint *hint)
{
    struct efs_error err;
    size_t bytes = strlen(text);
    return efsd_hint_next(&text, &bytes, hint, &err);
}

TEST(hints)
{
    struct efsd_hint hint;
    assert_int_equal(hinted("5: 17?0.62 4?0.3", &hint), 1);
    assert_int_equal(hint.layer, 5);
    assert_int_equal(hint.count, 2);
    assert_int_equal(hint.experts[0], 17);
    assert_float_equal(hint.probabilities[0], 0.62, 1e-6);
    assert_int_equal(hint.experts[1], 4);
    assert_float_equal(hint.probabilities[1], 0.3, 1e-6);
    assert_int_equal(hinted("\n encoder-L03: 1 2?1 3?0 4?1.000000\n", &hint), 1);
    assert_string_equal(hint.stack, "encoder");
    assert_int_equal(hint.count, 4);
    assert_float_equal(hint.probabilities[0], 1, 0);
    assert_float_equal(hint.probabilities[2], 0, 0);
    assert_int_equal(hinted(" \n", &hint), 0);
    static const char *const bad[] = {
        "5:",        "5: 1?",  "5: 1?1.1",     "5: 1?2", "5: 1?0.1234567", "5: 1?-0.5", "5: 1?.5",  "5: 1?0.",
        "5: 1?1e-3", "5: 1*2", "5: 1?0.5?0.5", "5: 1 1", "5: 1?0.5,2",     "5: 1 ?0.5", "5: 1?nan", "5: 4294967296"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (hinted(bad[i], &hint) != -EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
}

TEST_MAIN(NULL, NULL)
