/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of settings: which are accepted, which are refused and with what message; a printed value parses to itself. */
#include "test.h"
#include "expertfs-private.h"
#include "policy.h"
#include "tune_text.h"

static void says(const struct efs_error *err, const char *words, const char *text)
{
    if (!strstr(err->text, words))
        fail_msg("\"%s\": \"%s\" does not say \"%s\"", text, err->text, words);
}

TEST(sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"65536", 65536},
        {"1K", 1024},
        {"1k", 1024},
        {"8G", 8ul << 30},
        {"8g", 8ul << 30},
        {"2GiB", 2u << 30},
        {"2GB", 2u << 30},
        {"1.5G", 3u << 29},
        {"0.5K", 512},
        {"1T", 1ul << 40},
        {"1.25M", 5u << 18},
        {"1.0000001K", 1024},
        {"16777215T", 16777215ul << 40},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        uint64_t bytes = 7;
        assert_int_equal(efs_parse_size(good[i].text, &bytes), 0);
        assert_true(bytes == good[i].bytes);
    }
    static const char *const bad[] = {"",    " 1",  "-1", "G",    "1X",  "1 G",   "1GG",  "1.G", "1.5",
                                      ".5G", "1e9", "+1", "0x10", "1Gi", "8GiBs", "1KBB", "1 ",  "1\xc3\xa9"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        uint64_t bytes;
        assert_int_equal(efs_parse_size(bad[i], &bytes), -EINVAL);
    }
    static const char *const large[] = {"18446744073709551616", "16777216T", "99999999999999999999999G"};
    for (size_t i = 0; i < sizeof(large) / sizeof(*large); i++) {
        uint64_t bytes;
        assert_int_equal(efs_parse_size(large[i], &bytes), -ERANGE);
    }
}

TEST(budgets)
{
    uint64_t bytes = 1;
    char text[EFS_TUNE_TEXT];
    assert_int_equal(efs_parse_budget("auto", &bytes, NULL), 0);
    assert_int_equal(bytes, 0);
    efs_tune_print_budget(bytes, text, sizeof(text));
    assert_string_equal(text, "auto");
    assert_int_equal(efs_parse_budget("1.5G", &bytes, NULL), 0);
    efs_tune_print_budget(bytes, text, sizeof(text));
    assert_string_equal(text, "1610612736");
    static const char *const bad[] = {"", "0", "0G", "Auto", "much", "-1", "99999999999999999999", "1G "};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct efs_error err = {.text = ""};
        bytes = 77;
        assert_int_equal(efs_parse_budget(bad[i], &bytes, &err), -EINVAL);
        says(&err, "allowed are auto and sizes", bad[i]);
        assert_int_equal(bytes, 77);
    }
}

TEST(pools)
{
    static const struct {
        const char *text, *printed;
    } good[] = {{"FCSE", "FCSE"}, {"C", "C"}, {"ESC", "CSE"}, {"fc", "FC"}, {"eF", "FE"}};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        unsigned bits = 0;
        char text[EFS_TUNE_TEXT];
        assert_int_equal(efs_tune_pools(good[i].text, &bits, NULL), 0);
        efs_tune_print_pools(bits, text, sizeof(text));
        assert_string_equal(text, good[i].printed);
    }
    static const char *const bad[] = {"", "M", "FCSEM", "FF", "F,C", "F C", "FcC", "7", "F ", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct efs_error err = {.text = ""};
        unsigned bits = 77;
        assert_int_equal(efs_tune_pools(bad[i], &bits, &err), -EINVAL);
        says(&err, "allowed are FCSE", bad[i]);
        assert_int_equal(bits, 77);
    }
}

TEST(plans)
{
    static const struct {
        const char *text, *printed;
    } good[] = {
        {"auto", "auto"},
        {"F=10:C=70:S=10:E=10", "F=10:C=70:S=10:E=10"},
        {"F=10:C=70,S=10:E=10", "F=10:C=70:S=10:E=10"},
        {"C=100", "F=0:C=100:S=0:E=0"},
        {"e=12.5%,f=25", "F=25:C=0:S=0:E=12.5"},
        {"F=33.3,C=33.3,S=33.4", "F=33.3:C=33.3:S=33.4:E=0"},
        {"F=0,C=1", "F=0:C=1:S=0:E=0"},
        {"C=0.00001", "F=0:C=0.00001:S=0:E=0"}, /* no exponent: it would be refused */
        {"F=33.33335,C=33.33335,S=33.3333", "F=33.33335:C=33.33335:S=33.3333:E=0"},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct efs_tune_plan plan, again;
        char text[EFS_TUNE_TEXT], more[EFS_TUNE_TEXT];
        assert_int_equal(efs_tune_plan(good[i].text, &plan, NULL), 0);
        efs_tune_print_plan(&plan, text, sizeof(text));
        assert_string_equal(text, good[i].printed);
        assert_int_equal(efs_tune_plan(text, &again, NULL), 0);
        efs_tune_print_plan(&again, more, sizeof(more));
        assert_string_equal(more, text);
    }
    static const char *const bad[] = {
        "",
        "F",
        "F=",
        "F=-1",
        "F=101",
        "F=60,C=60",
        "F=10,F=10",
        "M=10",
        "F=10,",
        ",F=10",
        "F=10;C=1",
        "F=10:",
        "F=1::C=1",
        "F=0",
        "F=10 ,C=5",
        "F=1e1",
        "F=nan",
        "F=inf",
        "F=.5",
        "F=1.",
        "automatic",
        "F=10,,C=1",
        "F=0x10",
        "F=99.9,C=0.2",
        "f=1%%",
        "F=0.0000001",
        "F=10000000000000000000000000000000000000000000000000000000000000000000000000000000000"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct efs_error err = {.text = ""};
        struct efs_tune_plan plan = {.ratio = {0.25}};
        if (efs_tune_plan(bad[i], &plan, &err) != -EINVAL)
            fail_msg("plan=%s was taken", bad[i]);
        says(&err, "allowed are auto and shares", bad[i]);
        assert_true(plan.ratio[0] == 0.25 && !plan.automatic);
    }
}

TEST(choices)
{
    for (size_t i = 0; i < EFS_TUNABLES; i++) {
        const struct efs_tunable *t = &efs_tunables[i];
        struct efs_error err = {.text = ""};
        char name[EFS_TUNE_TEXT];
        unsigned choice, count = 1;
        assert_ptr_equal(efs_tunable_find(t->name), t);
        if (!t->choose)
            continue;
        for (const char *p = t->values; *p; p++)
            count += *p == '|';
        for (unsigned c = 0; c < count; c++) {
            efs_choice_name(t->values, c, name, sizeof(name));
            assert_int_equal(efs_choice_parse(t->name, t->values, name, &choice, NULL), 0);
            assert_int_equal(choice, c);
        }
        assert_int_equal(efs_choice_parse(t->name, t->values, t->start, &choice, NULL), 0);
        static const char *const bad[] = {"", "|", "lruu", "LRU", "zip", "ios", "oracle", "auto|", "off|auto"};
        for (size_t b = 0; b < sizeof(bad) / sizeof(*bad); b++)
            assert_int_equal(efs_choice_parse(t->name, t->values, bad[b], &choice, &err), -EINVAL);
        assert_true(choice < count);
    }
    struct efs_error err = {.text = ""};
    unsigned choice;
    assert_int_equal(efs_choice_parse("goal", efs_tunables[EFS_TUNE_goal].values, "speed", &choice, &err), -EINVAL);
    assert_string_equal(err.text, "goal=speed: allowed are makespan, io");
    assert_null(efs_tunable_find("budgets"));
    for (int kind = 0; kind < EFS_POLICY_KINDS; kind++) {
        char name[EFS_TUNE_TEXT];
        efs_choice_name(efs_tunables[EFS_TUNE_policy].values, (unsigned)kind, name, sizeof(name));
        assert_string_equal(name, efs_policy_name((enum efs_policy_kind)kind));
    }
}

TEST_MAIN(NULL, NULL)
