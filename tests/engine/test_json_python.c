/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as Python's json module reads it: accepted extensions of the standard, and refused texts. */
#include "test.h"
#include "expertfs-private.h"

#include <jansson.h>

static const struct {
    const char *text, *value; /* NULL: refused */
} cases[] = {
    {"{\"a\": 1}", "{\"a\":1}"},
    {"\xEF\xBB\xBF{\"a\": 1}", "{\"a\":1}"},
    {"{\"a\": NaN, \"b\": [0.0, Infinity], \"c\": -Infinity}",
     "{\"a\":\"NaN\",\"b\":[0.0,\"Infinity\"],\"c\":\"-Infinity\"}"},
    {"[1e999,-1e999,1e-999]", "[\"Infinity\",\"-Infinity\",0.0]"},
    {"{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\":3,\"b\":2}"},
    {"[1000000000000000019884624838656, 9223372036854775807, -99999999999999999999]",
     "[1e30,9.2233720368547758e18,-1e20]"},
    {"[123456789012345678]", "[123456789012345678]"},
    {"[\"NaN\", \"\\\"Infinity\", \"\\\\\", NaN, \"1e999 \\u0000x\"]",
     "[\"NaN\",\"\\\"Infinity\",\"\\\\\",\"NaN\",\"1e999 \xEF\xBF\xBDx\"]"},
    {"{\"a\\u0000\": \"\\\\u0000\"}", "{\"a\xEF\xBF\xBD\":\"\\\\u0000\"}"},
    /* Unpaired surrogates (nlohmann 4417, rapidjson 1749), and a pair */
    {"[\"\\ud800\", \"\\uDFFFx\", \"\\uD800\\uD801\", \"\\ud83d\xD0\xB5\\udeac\", \"\\ud800\\u0041\", \"\\ud800\"]",
     "[\"\xEF\xBF\xBD\",\"\xEF\xBF\xBDx\",\"\xEF\xBF\xBD\xEF\xBF\xBD\",\"\xEF\xBF\xBD\xD0\xB5\xEF\xBF\xBD\",\"\xEF\xBF"
     "\xBD"
     "A\",\"\xEF\xBF\xBD\"]"},
    {"[\"\\ud83d\\ude00\", \"\\\\ud800\"]", "[\"\xF0\x9F\x98\x80\",\"\\\\ud800\"]"},
    {"[\"\\ud800\\n\\\"\"]", "[\"\xEF\xBF\xBD\\n\\\"\"]"},
    {"[\"\\ud80\"]", NULL},
    {"[\"\\ud800", NULL},
    {"[\"\\", NULL},
    {"[\"\xED\xA0\x80\"]", NULL}, /* a surrogate in UTF-8 */
    {"[true,false,null,-0,1.5E+3]", "[true,false,null,0,1500.0]"},
    {"[nan]", NULL},
    {"[+Infinity]", NULL},
    {"[+1e999]", NULL},
    {"[1e999e]", NULL},
    {"[NaN1]", NULL},
    {"[-NaN]", NULL},
    {"[Infinity", NULL},
    {"\xEF\xBB\xBF\xEF\xBB\xBF{}", NULL},
    {"[01]", NULL},
    {"", NULL},
};

TEST(reads_what_python_reads)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct efs_error err = {""};
        size_t bytes = strlen(cases[i].text);
        char *exact = malloc(bytes + 1); /* no terminator, so that ASan detects a read past the end */
        assert_non_null(exact);
        memcpy(exact, cases[i].text, bytes);
        exact = realloc(exact, bytes ? bytes : 1);
        json_t *json = efs_json_python(exact, bytes, &err);
        free(exact);
        char *dumped = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
        if (!dumped != !cases[i].value || (dumped && strcmp(dumped, cases[i].value) != 0))
            fail_msg("%s: %s, wanted %s", cases[i].text, dumped ? dumped : err.text,
                     cases[i].value ? cases[i].value : "nothing");
        assert_true(json || strncmp(err.text, "line ", 5) == 0);
        free(dumped);
        json_decref(json);
    }
}

/* A text in which every value becomes longer. */
TEST(buffer_fits_longest_output)
{
    enum { COUNT = 10000, WORD = 6 };
    char *text = malloc(COUNT * WORD + 2);

    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 0; i < COUNT; i++)
        memcpy(text + 1 + WORD * i, i % 2 ? "1e309," : " NaN, ", WORD);
    text[COUNT * WORD] = ']';
    json_t *json = efs_json_python(text, COUNT * WORD + 1, NULL);
    assert_int_equal(json_array_size(json), COUNT);
    json_decref(json);
    free(text);
}

/* Python reads integers of at most 4300 digits. */
TEST(reads_integers_of_many_digits)
{
    static const size_t digits[] = {401, 4300, 5000};

    for (size_t i = 0; i < sizeof(digits) / sizeof(digits[0]); i++) {
        char *text = malloc(digits[i] + 2);
        assert_non_null(text);
        memset(text, '1', digits[i] + 2);
        text[0] = '[';
        text[digits[i] + 1] = ']';
        json_t *json = efs_json_python(text, digits[i] + 2, NULL);
        assert_int_equal(json_array_size(json), digits[i] <= 4300);
        json_decref(json);
        free(text);
    }
}

TEST_MAIN(NULL, NULL)
