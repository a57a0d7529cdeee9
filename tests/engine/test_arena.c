/* The arena against a plain model: blocks never overlap, what is freed can be had again, segments come and go. */
#include "arena.h"
#include "fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEGMENT (2u << 20)

static void test_random(void **state)
{
    (void)state;
    struct efs_arena arena;
    struct efs_block blocks[64] = {0};
    unsigned char tags[64];
    uint64_t rnd = 1, used = 0;
    unsigned placed = 0, refused = 0;
    assert_int_equal(efs_arena_init(&arena, SEGMENT, 3), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(efs_arena_grow(&arena), -ENOMEM);
    for (int step = 0; step < 20000; step++) {
        unsigned i = (unsigned)(fixture_random(&rnd) % 64);
        if (blocks[i].data) {
            for (size_t b = 0; b < blocks[i].granules * (size_t)EFS_GRANULE; b += 511)
                assert_int_equal(blocks[i].data[b], tags[i]);
            used -= blocks[i].granules * (uint64_t)EFS_GRANULE;
            efs_arena_free(&arena, &blocks[i]);
            assert_null(blocks[i].data);
        } else {
            size_t bytes = 1 + (size_t)(fixture_random(&rnd) % (SEGMENT / 6));
            if (efs_arena_alloc(&arena, bytes, fixture_random(&rnd) & 1, &blocks[i])) {
                placed++;
                assert_true(blocks[i].granules * (size_t)EFS_GRANULE >= bytes);
                assert_int_equal((uintptr_t)blocks[i].data % EFS_GRANULE, 0);
                tags[i] = (unsigned char)step;
                memset(blocks[i].data, tags[i], blocks[i].granules * (size_t)EFS_GRANULE);
                used += blocks[i].granules * (uint64_t)EFS_GRANULE;
            } else {
                refused++;
            }
        }
        assert_int_equal(arena.used_bytes, used);
    }
    assert_true(placed > 1000 && refused > 10);
    for (int i = 0; i < 64; i++)
        efs_arena_free(&arena, &blocks[i]);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(efs_arena_segment_empty(&arena, i));
    efs_arena_destroy(&arena);
}

static void test_whole_segment(void **state)
{
    (void)state;
    struct efs_arena arena;
    struct efs_block all = {0}, one = {0};
    assert_int_equal(efs_arena_init(&arena, SEGMENT, 2), 0);
    assert_false(efs_arena_alloc(&arena, 1, false, &one)); /* no segment yet */
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_false(efs_arena_alloc(&arena, SEGMENT + 1, false, &all));
    assert_true(efs_arena_alloc(&arena, SEGMENT, true, &all));
    assert_false(efs_arena_alloc(&arena, 1, false, &one));
    efs_arena_free(&arena, &all);
    arena.segments[0].retiring = true;
    assert_false(efs_arena_alloc(&arena, 1, false, &one));
    efs_arena_drop(&arena, 0);
    assert_int_equal(arena.segment_count, 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_true(efs_arena_alloc(&arena, 1, true, &one));
    assert_ptr_equal(one.data, arena.segments[0].base + SEGMENT - EFS_GRANULE); /* from the high end */
    efs_arena_destroy(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_whole_segment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
