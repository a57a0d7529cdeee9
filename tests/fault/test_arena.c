/* SPDX-License-Identifier: Apache-2.0 */
/* The arena when the system refuses addresses, memory or binding: it uses less, or returns -ENOMEM and stays usable. */
#include "test.h"
#include "arena.h"
#include "sys_fault.h"

#include <sys/mman.h>

#define SEGMENT (4u << 20)

static struct efs_numa two_nodes(void)
{
    struct efs_numa numa;
    efs_numa_from("fake:2", &numa);
    return numa;
}

static int teardown(void **state)
{
    (void)state;
    fault_clear();
    return 0;
}

/* Writes and reads all of the arena, then destroys it. */
static void use_and_destroy(struct efs_arena *arena, uint32_t segments)
{
    struct efs_block blocks[16] = {0};
    uint32_t n = 0;
    while (n < 16 && efs_arena_alloc(arena, SEGMENT, n & 1, &blocks[n])) {
        memset(blocks[n].data, (int)n + 1, SEGMENT);
        n++;
    }
    assert_int_equal(n, segments);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(blocks[i].data[0], i + 1);
        assert_int_equal(blocks[i].data[SEGMENT - 1], i + 1);
        efs_arena_free(arena, &blocks[i]);
    }
    efs_arena_destroy(arena);
}

static bool mapped(const void *address)
{
    unsigned char page;
    return mincore((void *)(uintptr_t)address, 4096, &page) == 0;
}

/* Without reserved addresses segments are mapped one by one, on one node or on both. */
TEST_WITH(test_reservation, NULL, teardown)
{
    struct efs_numa numa = two_nodes();
    for (unsigned nth = 1; nth <= 3; nth++) {
        struct efs_arena arena;
        fault_plan(FAULT_MMAP, nth < 3 ? nth : 1, ENOMEM, nth == 3);
        assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 4, &numa), 0);
        assert_true(fault_triggered());
        fault_clear();
        assert_int_equal(arena.nodes[0].reserved, nth == 2);
        assert_int_equal(arena.nodes[1].reserved, nth == 1);
        for (int i = 0; i < 4; i++)
            assert_int_equal(efs_arena_grow(&arena), 0);
        for (uint32_t s = 0; s < 4; s++)
            assert_int_equal((uintptr_t)arena.segments[s].base % (2u << 20), 0);
        uint32_t alone = nth == 2 ? 2 : 0; /* a segment with a separate mapping */
        const uint8_t *base = arena.segments[alone].base;
        arena.segments[alone].base[5] = 1;
        efs_arena_drop(&arena, alone);
        assert_false(mapped(base));
        fault_plan(FAULT_MMAP, 1, ENOMEM, false);
        assert_int_equal(efs_arena_grow(&arena), -ENOMEM);
        assert_int_equal(arena.segment_count, 3);
        fault_clear();
        assert_int_equal(efs_arena_grow(&arena), 0);
        use_and_destroy(&arena, 4);
    }
}

TEST_WITH(test_growth, NULL, teardown)
{
    struct efs_numa numa = two_nodes();
    for (enum fault_call call = 0; call < FAULT_CALLS; call++) {
        if (call != FAULT_MPROTECT && call != FAULT_MEMORY)
            continue;
        struct efs_arena arena;
        assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 4, &numa), 0);
        assert_int_equal(efs_arena_grow(&arena), 0);
        fault_plan(call, 1, ENOMEM, true);
        assert_int_equal(efs_arena_grow(&arena), -ENOMEM);
        assert_true(fault_triggered());
        assert_int_equal(arena.segment_count, 1);
        fault_clear();
        for (int i = 1; i < 4; i++)
            assert_int_equal(efs_arena_grow(&arena), 0);
        use_and_destroy(&arena, 4);
    }
}

TEST_WITH(test_tables, NULL, teardown)
{
    struct efs_numa numa = two_nodes();
    struct efs_arena arena;
    unsigned nth = 1;
    for (errint_t rc = -ENOMEM; rc < 0; nth++) {
        fault_plan(FAULT_MEMORY, nth, ENOMEM, false);
        rc = efs_arena_init_nodes(&arena, SEGMENT, 4, &numa);
        assert_int_equal(rc, fault_triggered() ? -ENOMEM : 0);
        fault_clear();
        if (rc < 0)
            assert_null(arena.segments); /* no memory is left allocated */
    }
    assert_int_equal(nth, 6); /* segments, nodes, one tree per node */
    efs_arena_destroy(&arena);
}

TEST_WITH(test_binding, NULL, teardown)
{
    struct efs_arena arena;
    struct efs_numa numa;
    efs_numa_from(NULL, &numa);
    if (!numa.bind) {
        print_message("skipped: no NUMA here\n");
        skip();
    }
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 3, &numa), 0);
    fault_plan(FAULT_MBIND, 1, EPERM, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    for (uint32_t n = 0; n < arena.node_count; n++) {
        assert_int_equal(arena.nodes[n].bound_count, 0);
        assert_true(arena.nodes[n].bind_error == -EPERM || arena.nodes[n].bind_error == -ENOMEM);
    }
    fault_clear();
    use_and_destroy(&arena, 3);
}

/* A node whose free memory cannot be read counts as having enough. */
TEST_WITH(test_available, NULL, teardown)
{
    fault_plan(FAULT_OPEN, 1, EMFILE, false);
    assert_int_equal(efs_numa_available_bytes(0), UINT64_MAX);
    fault_plan(FAULT_PREAD, 1, EIO, false);
    assert_int_equal(efs_numa_available_bytes(0), UINT64_MAX);
    fault_clear();
}

/* The pages are freed even if the addresses cannot be mapped again. */
TEST_WITH(test_drop, NULL, teardown)
{
    struct efs_numa numa = two_nodes();
    struct efs_arena arena;
    unsigned char pages[SEGMENT / 4096];
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 2, &numa), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    uint8_t *base = arena.segments[0].base;
    memset(base, 1, SEGMENT);
    fault_plan(FAULT_MMAP, 1, ENOMEM, false);
    efs_arena_drop(&arena, 0);
    assert_true(fault_triggered());
    fault_clear();
    assert_int_equal(mincore(base, SEGMENT, pages), 0);
    for (size_t i = 0; i < sizeof(pages); i++)
        assert_int_equal(pages[i] & 1, 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    use_and_destroy(&arena, 2);
}

TEST_WITH(test_huge_unknown, NULL, teardown)
{
    struct efs_numa numa = two_nodes();
    struct efs_arena arena;
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 2, &numa), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    fault_plan(FAULT_HUGE_BYTES, 1, ENOTTY, false);
    efs_arena_populate(&arena, 0);
    if (!fault_triggered()) {
        efs_arena_destroy(&arena);
        print_message("skipped: a kernel before 5.14\n");
        skip();
    }
    assert_true(arena.huge_unknown);
    assert_int_equal(arena.huge_bytes, 0);
    assert_int_equal(arena.populated_bytes, SEGMENT);
    use_and_destroy(&arena, 1);
}

TEST_MAIN(NULL, NULL)
