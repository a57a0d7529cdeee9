/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of the public headers that are smaller or larger than ours: programs of other versions. */
#include "test.h"
#include "fixture.h"
#include "sized.h"

struct grown {
    uint32_t size, first;
    uint64_t second;
};

TEST(test_in)
{
    const struct grown whole = {sizeof(whole), 7, 8};
    struct grown ours = {0};
    struct efs_error err = {""};
    assert_int_equal(efs_sized_in("grown", &whole, &ours, sizeof(ours), &err), 0);
    assert_memory_equal(&ours, &whole, sizeof(ours));
    struct grown old = {8, 7, 8}; /* second was not there yet: what lies there is not its */
    assert_int_equal(efs_sized_in("grown", &old, &ours, sizeof(ours), &err), 0);
    assert_int_equal(ours.size, sizeof(ours));
    assert_int_equal(ours.first, 7);
    assert_int_equal(ours.second, 0);
    for (uint32_t size = 0; size <= 4; size++) {
        old.size = size;
        err.text[0] = '\0';
        assert_int_equal(efs_sized_in("grown", &old, &ours, sizeof(ours), &err), -EINVAL);
        assert_non_null(strstr(err.text, "sizeof(struct grown)"));
    }
    struct {
        struct grown known;
        char later[24];
    } later = {.known = {sizeof(later), 1, 2}};
    assert_int_equal(efs_sized_in("grown", &later, &ours, sizeof(ours), &err), 0);
    assert_int_equal(ours.size, sizeof(ours));
    assert_int_equal(ours.second, 2);
    later.later[23] = 1;
    assert_int_equal(efs_sized_in("grown", &later, &ours, sizeof(ours), &err), -E2BIG);
    assert_non_null(strstr(err.text, "struct grown"));
}

TEST(test_array)
{
    struct one {
        uint32_t first, second;
    };
    const struct one same[] = {{1, 2}, {3, 4}};
    const uint32_t smaller[] = {1, 3};
    uint32_t larger[] = {1, 2, 0, 3, 4, 0};
    const void *ours;
    void *copy;
    struct efs_error err = {""};
    assert_int_equal(efs_sized_array("one", same, sizeof(same[0]), 2, sizeof(same[0]), &ours, &copy, &err), 0);
    assert_ptr_equal(ours, same);
    assert_null(copy);
    assert_int_equal(efs_sized_array("one", smaller, 4, 2, sizeof(same[0]), &ours, &copy, &err), 0);
    assert_memory_equal(ours, ((const struct one[]){{1, 0}, {3, 0}}), sizeof(same));
    free(copy);
    assert_int_equal(efs_sized_array("one", larger, 12, 2, sizeof(same[0]), &ours, &copy, &err), 0);
    assert_memory_equal(ours, same, sizeof(same));
    free(copy);
    larger[5] = 1;
    assert_int_equal(efs_sized_array("one", larger, 12, 2, sizeof(same[0]), &ours, &copy, &err), -E2BIG);
    assert_null(copy);
    assert_int_equal(efs_sized_array("one", larger, 12, 1, sizeof(same[0]), &ours, &copy, &err), 0);
    free(copy);
    assert_int_equal(efs_sized_array("one", same, 0, 2, sizeof(same[0]), &ours, &copy, &err), -EINVAL);
    assert_non_null(strstr(err.text, "sizeof(struct one)"));
}

TEST(test_out)
{
    const char ours[] = {'1', '2', '3', '4', '5', '6', '7', '8'};
    for (size_t bytes = 0; bytes <= 16; bytes++) {
        char theirs[17];
        memset(theirs, 'x', sizeof(theirs));
        efs_sized_out(theirs, bytes, ours, sizeof(ours));
        for (size_t i = 0; i < sizeof(theirs); i++)
            assert_int_equal(theirs[i], i >= bytes ? 'x' : i < 8 ? ours[i] : 0);
    }
}

/* Through the calls: options without a size, and of an older program; counters for older and later ones. */
TEST(test_calls)
{
    struct fixture model;
    struct efs *fs;
    struct efs_error err = {""};
    fixture_store(&model, 1, 4, 64, 64);
    struct efs_options options = {.budget_bytes = 64 << 20, .workers = 1, .no_state = true, .prefetch = "nonsense"};
    assert_int_equal(efs_open(model.store, &options, &fs, &err), -EINVAL);
    assert_non_null(strstr(err.text, "sizeof(struct efs_options)"));
    assert_null(fs);
    options.size = sizeof(options);
    assert_int_equal(efs_open(model.store, &options, &fs, &err), -EINVAL);
    options.size = offsetof(struct efs_options, prefetch); /* of before there was prefetch */
    assert_int_equal(efs_open(model.store, &options, &fs, &err), 0);
    struct {
        struct efs_stats known;
        uint64_t later[4];
    } stats;
    memset(&stats, 0xFF, sizeof(stats));
    efs_stats(fs, &stats.known, offsetof(struct efs_stats, io_uring)); /* what is behind it is not touched */
    assert_int_equal(stats.known.budget_bytes, 64 << 20);
    assert_true(stats.known.io_uring == UINT64_MAX && stats.later[0] == UINT64_MAX);
    efs_stats(fs, &stats.known, sizeof(stats));
    assert_true(stats.known.io_uring <= 1 && stats.later[0] == 0 && stats.later[3] == 0);
    struct efs_expert_info expert;
    struct efs_file_info file;
    memset(&expert, 0xFF, sizeof(expert));
    assert_int_equal(efs_expert_info(fs, efs_id(2), &expert, offsetof(struct efs_expert_info, touches)), 0);
    assert_int_equal(expert.expert, 2);
    assert_true(expert.touches == UINT64_MAX);
    assert_int_equal(efs_file_info(fs, expert.file, &file, sizeof(file)), 0);
    assert_int_equal(file.kind, EFS_FILE_EXPERT);
    efs_close(fs);
    fixture_end(&model);
}

TEST_MAIN(NULL, NULL)
