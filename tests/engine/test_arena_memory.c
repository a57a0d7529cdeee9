/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the arena's segments: addresses are stable, pages are allocated and returned, slots and bindings per node.
 */
#include "test.h"
#include "arena.h"
#include "sys.h"

#include <numaif.h>
#include <sys/mman.h>

#define SEGMENT (4u << 20)

/* ---- a mock machine ---- */

static struct {
    unsigned calls;
    void *memory[32];
    uint32_t id[32];
    errint_t result;
} binds;
static uint64_t available[8]; /* by node id */

static errint_t note_bind(void *memory, size_t bytes, uint32_t id)
{
    assert_int_equal(bytes, SEGMENT);
    assert_true(binds.calls < 32);
    binds.memory[binds.calls] = memory;
    binds.id[binds.calls++] = id;
    return binds.result;
}

static uint64_t say_available(uint32_t id)
{
    return available[id];
}

static struct efs_numa machine(uint32_t nodes, const uint64_t *memory_bytes)
{
    struct efs_numa numa = {.kind = "mock", .node_count = nodes, .bind = note_bind, .available_bytes = say_available};
    for (uint32_t n = 0; n < nodes; n++) {
        numa.nodes[n] = (struct efs_numa_node){2 * n + 1, memory_bytes[n]};
        available[2 * n + 1] = UINT64_MAX;
    }
    memset(&binds, 0, sizeof(binds));
    return numa;
}

static uint64_t resident_bytes(void *memory, size_t bytes)
{
    unsigned char pages[SEGMENT / 4096];
    uint64_t n = 0;
    assert_true(bytes <= SEGMENT);
    assert_int_equal(mincore(memory, bytes, pages), 0); /* ENOMEM if the range is not mapped */
    for (size_t i = 0; i < bytes / 4096; i++)
        n += (pages[i] & 1u) * 4096u;
    return n;
}

/* ---- */

TEST(test_shares)
{
    static const uint64_t sizes[3] = {96ull << 30, 32ull << 30, 1ull << 20};
    struct efs_numa numa = machine(3, sizes);
    struct efs_arena arena;
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 16, &numa), 0);
    assert_string_equal(arena.numa_kind, "mock");
    assert_int_equal(arena.nodes[0].slots, 11); /* 16 * 0.749, rounded down */
    assert_int_equal(arena.nodes[1].slots, 4);
    assert_int_equal(arena.nodes[2].slots, 1); /* the remaining slot */
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(efs_arena_grow(&arena), -ENOMEM);
    assert_int_equal(arena.nodes[0].segment_count, 11);
    efs_arena_destroy(&arena);

    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 1, &numa), 0); /* fewer slots than nodes */
    assert_int_equal(arena.node_count, 1);
    assert_int_equal(arena.nodes[0].slots, 1);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(binds.id[16], arena.nodes[0].numa.id);
    efs_arena_destroy(&arena);
}

TEST(test_addresses)
{
    static const uint64_t sizes[2] = {1ull << 30, 1ull << 30};
    struct efs_numa numa = machine(2, sizes);
    struct efs_arena arena;
    struct efs_block block = {0};
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 6, &numa), 0);
    uint8_t *first[2];
    for (uint32_t n = 0; n < 2; n++) {
        assert_true(arena.nodes[n].reserved);
        assert_int_equal(arena.nodes[n].slots, 3);
        first[n] = arena.nodes[n].base;
        assert_int_equal((uintptr_t)first[n] % (2u << 20), 0);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(resident_bytes(first[n] + i * (size_t)SEGMENT, SEGMENT), 0);
    }
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    for (uint32_t s = 0; s < 6; s++) {
        assert_int_equal(arena.segments[s].node, s / 3);
        assert_ptr_equal(arena.segments[s].base, first[s / 3] + s % 3 * (size_t)SEGMENT);
    }
    while (efs_arena_alloc(&arena, SEGMENT, false, &block))
        memset(block.data, 0xa5, SEGMENT);
    assert_int_equal(resident_bytes(first[1] + SEGMENT, SEGMENT), SEGMENT);
    struct efs_block middle = {first[1] + SEGMENT, SEGMENT / EFS_GRANULE, 4};
    efs_arena_free(&arena, &middle);
    efs_arena_drop(&arena, 4);
    assert_int_equal(resident_bytes(first[1] + SEGMENT, SEGMENT), 0); /* pages freed, addresses reserved */
    assert_int_equal(resident_bytes(first[1], SEGMENT), SEGMENT);
    assert_int_equal(resident_bytes(first[1] + 2 * (size_t)SEGMENT, SEGMENT), SEGMENT);
    assert_int_equal(arena.nodes[1].segment_count, 2);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_true(efs_arena_alloc(&arena, SEGMENT, false, &block));
    assert_ptr_equal(block.data, first[1] + SEGMENT);
    for (size_t b = 0; b < SEGMENT; b += 4096)
        assert_int_equal(block.data[b], 0); /* fresh pages */
    efs_arena_destroy(&arena);
    unsigned char page;
    assert_int_equal(mincore(first[0], 4096, &page), -1); /* the destroyed arena has unmapped its addresses */
}

/* 20 GiB of slots reserve addresses, but use no memory. */
TEST(test_large)
{
    struct efs_arena arena;
    struct efs_numa numa;
    struct efs_block block;
    efs_numa_from("fake:2", &numa);
    assert_int_equal(efs_arena_init_nodes(&arena, 16u << 20, 1280, &numa), 0);
    assert_true(arena.nodes[0].reserved && arena.nodes[1].reserved);
    assert_false(efs_arena_alloc(&arena, 1, true, &block));
    for (int i = 0; i < 1280; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(arena.segment_count, 1280);
    assert_true(efs_arena_alloc_on(&arena, 1, 1, true, &block));
    assert_int_equal(block.segment, 640);
    efs_arena_destroy(&arena);
}

TEST(test_binding)
{
    static const uint64_t sizes[2] = {64ull << 20, 64ull << 20};
    struct efs_numa numa = machine(2, sizes);
    struct efs_arena arena;
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 12, &numa), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(binds.calls, 2); /* round robin */
    assert_int_equal(binds.id[0], 1);
    assert_int_equal(binds.id[1], 3);
    assert_ptr_equal(binds.memory[1], arena.nodes[1].base);
    assert_true(arena.segments[0].bound && arena.segments[6].bound);

    available[1] = (1u << 20) + SEGMENT - 1; /* node 1 keeps 1/64 of its memory free: one byte too few */
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(arena.nodes[1].segment_count, 2);
    assert_ptr_equal(binds.memory[2], arena.nodes[1].base + SEGMENT);
    available[1]++;
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(arena.nodes[0].segment_count, 2);
    assert_int_equal(arena.nodes[0].bind_error, 0);

    available[1] = available[3] = 0; /* all nodes are full: the segment is not bound */
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(binds.calls, 4);
    assert_int_equal(arena.nodes[0].segment_count, 3);
    assert_int_equal(arena.nodes[0].bound_count, 2);
    assert_int_equal(arena.nodes[0].bind_error, -ENOMEM);
    assert_false(arena.segments[2].bound);

    available[1] = available[3] = UINT64_MAX;
    binds.result = -EPERM; /* the segment is used without the binding */
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(arena.nodes[1].bind_error, -EPERM);
    assert_int_equal(arena.nodes[1].bound_count, 2);
    assert_int_equal(arena.nodes[1].segment_count, 3);
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    efs_arena_describe(&arena, out);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "numa: mock\nnuma_nodes: 2\nnuma_bytes: N1=12582912 N3=12582912\n"
                              "numa_bound_bytes: N1=8388608 N3=8388608\n"
                              "numa_reason: N1: the node is full; N3: Operation not permitted\n"
                              "populated_bytes: 0\nhuge_bytes: 0\n");
    free(text);
    efs_arena_drop(&arena, 8);
    assert_int_equal(arena.nodes[1].bound_count, 2);
    efs_arena_drop(&arena, 6);
    assert_int_equal(arena.nodes[1].bound_count, 1);
    efs_arena_destroy(&arena);
}

/* get_mempolicy(2) of a segment when it is in use, dropped, and in use again. */
TEST(test_real_binding)
{
    struct efs_arena arena;
    struct efs_numa numa;
    efs_numa_from(NULL, &numa);
    if (!numa.bind) {
        print_message("skipped: no NUMA here\n");
        skip();
    }
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 2 * numa.node_count, &numa), 0);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(efs_arena_grow(&arena), 0);
        uint32_t s = 0;
        while (!arena.segments[s].base)
            s++;
        const struct efs_arena_node *node = &arena.nodes[arena.segments[s].node];
        if (!arena.segments[s].bound) {
            assert_int_equal(node->bind_error, -ENOMEM);
            print_message("skipped: the node is full\n");
            efs_arena_destroy(&arena);
            skip();
        }
        int mode = -1;
        unsigned long mask[EFS_SYS_NODES / 64] = {0};
        assert_int_equal(get_mempolicy(&mode, mask, EFS_SYS_NODES, arena.segments[s].base, MPOL_F_ADDR), 0);
        assert_int_equal(mode, MPOL_BIND);
        assert_int_equal(mask[node->numa.id / 64], 1ul << node->numa.id % 64);
        uint8_t *base = arena.segments[s].base;
        efs_arena_drop(&arena, s);
        assert_int_equal(get_mempolicy(&mode, NULL, 0, base, MPOL_F_ADDR), 0);
        assert_int_equal(mode, MPOL_DEFAULT);
    }
    efs_arena_destroy(&arena);
}

/* ---- huge pages ---- */

/* AnonHugePages in /proc/self/smaps of the mapping that contains address. Here a mapping is a single segment. */
static uint64_t huge_by_smaps(const void *address)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    uint64_t begin, end, kib, huge = 0;
    bool here = false;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2)
            here = (uintptr_t)address >= begin && (uintptr_t)address < end;
        else if (here && sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1)
            huge = kib * 1024;
    fclose(f);
    return huge;
}

TEST(test_huge_pages)
{
    struct efs_arena arena;
    struct efs_numa numa;
    efs_numa_from("fake:1", &numa);
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 3, &numa), 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    uint8_t *base = arena.segments[0].base;
    efs_arena_populate(&arena, 0);
    efs_arena_populate(&arena, 0); /* counted once */
    if (arena.populated_bytes == 0) {
        efs_arena_destroy(&arena);
        print_message("skipped: a kernel before 5.14\n");
        skip();
    }
    assert_int_equal(arena.populated_bytes, SEGMENT);
    assert_int_equal(resident_bytes(base, SEGMENT), SEGMENT);
    if (!arena.huge_unknown) {
        uint64_t before = huge_by_smaps(base);
        int64_t huge = efs_sys_huge_bytes(base, SEGMENT);
        if (before == huge_by_smaps(base)) /* unless khugepaged changed the pages in between */
            assert_int_equal(huge, before);
        assert_true(arena.huge_bytes <= SEGMENT && arena.huge_bytes % (2u << 20) == 0);
        print_message("%" PRIu64 " of %u KiB are huge pages\n", arena.huge_bytes / 1024, SEGMENT / 1024);
        /* two ranges without huge pages: without pages, and with small pages only */
        assert_int_equal(madvise(base, SEGMENT, MADV_DONTNEED), 0);
        assert_int_equal(efs_sys_huge_bytes(base, SEGMENT), 0);
        assert_int_equal(madvise(base, SEGMENT, MADV_NOHUGEPAGE), 0);
        memset(base, 1, SEGMENT);
        assert_int_equal(efs_sys_huge_bytes(base, SEGMENT), 0);
    } else {
        print_message("the kernel does not tell of huge pages\n");
    }
    efs_arena_drop(&arena, 0);
    assert_int_equal(arena.populated_bytes, 0);
    assert_int_equal(arena.huge_bytes, 0);
    efs_arena_destroy(&arena);
}

TEST_MAIN(NULL, NULL)
