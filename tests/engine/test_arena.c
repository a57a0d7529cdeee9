/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena compared with a simple model on 1, 2 and 4 nodes: blocks never overlap, each is at the position that
 * bitwise first fit gives, freed memory can be allocated again, segments are added and dropped.
 */
#include "test.h"
#include "arena.h"
#include "fixture.h"

#define SEGMENT (2u << 20)
#define GRANULES (SEGMENT / EFS_GRANULE)
#define SEGMENTS 12
#define BLOCKS 200

/* ---- the model ---- */

struct model {
    struct {
        bool there, retiring, taken[GRANULES];
    } segments[SEGMENTS];
};

struct place {
    uint32_t segment, granule;
};

static bool place_in(const struct model *m, const struct efs_arena_node *node, uint32_t need, bool high,
                     struct place *place)
{
    for (uint32_t s = node->first; s < node->first + node->slots; s++) {
        if (!m->segments[s].there || m->segments[s].retiring)
            continue;
        for (uint32_t i = 0, run = 0; i < GRANULES; i++) {
            uint32_t g = high ? GRANULES - 1 - i : i;
            run = m->segments[s].taken[g] ? 0 : run + 1;
            if (run == need) {
                *place = (struct place){s, high ? g : g - need + 1};
                return true;
            }
        }
    }
    return false;
}

static uint64_t free_granules(const struct model *m, const struct efs_arena_node *node)
{
    uint64_t n = 0;
    for (uint32_t s = node->first; s < node->first + node->slots; s++)
        for (uint32_t g = 0; m->segments[s].there && g < GRANULES; g++)
            n += !m->segments[s].taken[g];
    return n;
}

static bool model_place(const struct model *m, const struct efs_arena *arena, uint32_t wanted, uint32_t need, bool high,
                        struct place *place)
{
    if (wanted == EFS_ANY_NODE) {
        wanted = 0;
        for (uint32_t n = 1; n < arena->node_count; n++)
            if (free_granules(m, &arena->nodes[n]) > free_granules(m, &arena->nodes[wanted]))
                wanted = n;
    }
    if (place_in(m, &arena->nodes[wanted], need, high, place))
        return true;
    for (uint32_t n = 0; n < arena->node_count; n++)
        if (n != wanted && place_in(m, &arena->nodes[n], need, high, place))
            return true;
    return false;
}

static void model_mark(struct model *m, struct place place, uint32_t count, bool taken)
{
    for (uint32_t g = place.granule; g < place.granule + count; g++) {
        assert_int_equal(m->segments[place.segment].taken[g], !taken);
        m->segments[place.segment].taken[g] = taken;
    }
}

/* ---- random walk ---- */

struct walk {
    struct efs_arena arena;
    struct model model;
    struct efs_block blocks[BLOCKS];
    struct place places[BLOCKS];
    unsigned char tags[BLOCKS];
    uint64_t rnd;
    unsigned placed, refused, grown, dropped;
};

static uint32_t pick(struct walk *w, uint32_t below)
{
    return (uint32_t)(fixture_random(&w->rnd) % below);
}

static void take(struct walk *w, uint32_t i)
{
    struct efs_block *block = &w->blocks[i];
    uint32_t node = pick(w, 2) ? EFS_ANY_NODE : pick(w, w->arena.node_count);
    uint32_t need = 1 + pick(w, pick(w, 4) ? 24 : GRANULES);
    bool high = pick(w, 2);
    size_t bytes = need * (size_t)EFS_GRANULE - pick(w, EFS_GRANULE);
    bool room = model_place(&w->model, &w->arena, node, need, high, &w->places[i]);
    bool got = node == EFS_ANY_NODE ? efs_arena_alloc(&w->arena, bytes, high, block)
                                    : efs_arena_alloc_on(&w->arena, node, bytes, high, block);
    assert_int_equal(got, room);
    if (!got) {
        assert_null(block->data);
        assert_int_equal(efs_arena_node_of(&w->arena, block), EFS_ANY_NODE);
        w->refused++;
        return;
    }
    struct place at = w->places[i];
    assert_int_equal(block->segment, at.segment);
    assert_int_equal(block->granules, need);
    assert_ptr_equal(block->data, w->arena.segments[at.segment].base + at.granule * (size_t)EFS_GRANULE);
    assert_int_equal(efs_arena_node_of(&w->arena, block), w->arena.segments[at.segment].node);
    model_mark(&w->model, at, need, true);
    w->tags[i] = (unsigned char)fixture_random(&w->rnd);
    memset(block->data, w->tags[i], need * (size_t)EFS_GRANULE);
    w->placed++;
}

static void give(struct walk *w, uint32_t i)
{
    struct efs_block *block = &w->blocks[i];
    for (size_t b = 0; b < block->granules * (size_t)EFS_GRANULE; b += 1021)
        assert_int_equal(block->data[b], w->tags[i]);
    model_mark(&w->model, w->places[i], block->granules, false);
    efs_arena_free(&w->arena, block);
    assert_null(block->data);
}

static void grow(struct walk *w)
{
    bool full = w->arena.segment_count == SEGMENTS;
    errint_t rc = efs_arena_grow(&w->arena);
    assert_int_equal(rc, full ? -ENOMEM : 0);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        w->grown += w->arena.segments[s].base && !w->model.segments[s].there;
        w->model.segments[s].there = w->arena.segments[s].base;
    }
}

static void drop(struct walk *w)
{
    uint32_t s = pick(w, SEGMENTS);
    if (!w->model.segments[s].there)
        return;
    efs_arena_retire(&w->arena, s);
    w->model.segments[s].retiring = true;
    for (uint32_t i = 0; i < BLOCKS && pick(w, 20); i++) /* sometimes blocks stay allocated */
        if (w->blocks[i].data && w->blocks[i].segment == s)
            give(w, i);
    if (efs_arena_segment_is_unused(&w->arena, s)) {
        assert_true(w->arena.emptied);
        w->arena.emptied = false;
        efs_arena_drop(&w->arena, s);
        memset(&w->model.segments[s], 0, sizeof(w->model.segments[s]));
        w->dropped++;
    }
}

static void check(struct walk *w)
{
    uint64_t used = 0;
    uint32_t segments = 0;
    for (uint32_t n = 0; n < w->arena.node_count; n++) {
        const struct efs_arena_node *node = &w->arena.nodes[n];
        uint64_t all = node->segment_count * (uint64_t)GRANULES;
        assert_int_equal(node->used_bytes, (all - free_granules(&w->model, node)) * EFS_GRANULE);
        used += node->used_bytes;
        segments += node->segment_count;
    }
    assert_int_equal(w->arena.used_bytes, used);
    assert_int_equal(w->arena.segment_count, segments);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint32_t free = 0;
        for (uint32_t g = 0; g < GRANULES; g++)
            free += !w->model.segments[s].taken[g];
        assert_int_equal(efs_arena_segment_is_unused(&w->arena, s), w->model.segments[s].retiring && free == GRANULES);
    }
}

static void walk(const char *topology, uint64_t seed)
{
    struct walk *w = calloc(1, sizeof(*w));
    struct efs_numa numa;
    w->rnd = seed;
    efs_numa_from(topology, &numa);
    assert_int_equal(efs_arena_init_nodes(&w->arena, SEGMENT, SEGMENTS, &numa), 0);
    for (int step = 0; step < 6000; step++) {
        uint32_t i = pick(w, BLOCKS), what = pick(w, 100);
        if (what == 0)
            grow(w);
        else if (what == 1 && w->arena.segment_count > SEGMENTS / 2)
            drop(w);
        else if (w->blocks[i].data)
            give(w, i);
        else
            take(w, i);
        if (step % 100 == 0)
            check(w);
    }
    assert_true(w->placed > 500 && w->refused > 20 && w->grown > SEGMENTS && w->dropped > 5);
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (w->blocks[i].data)
            give(w, i);
    check(w);
    assert_int_equal(w->arena.used_bytes, 0);
    efs_arena_destroy(&w->arena);
    free(w);
}

TEST(test_one_node)
{
    walk("fake:1", 1);
    walk(NULL, 2); /* the nodes of this machine */
}

TEST(test_two_nodes)
{
    walk("fake:2", 3);
    walk("fake:2", 4);
}

TEST(test_four_nodes)
{
    walk("fake:4", 5);
    walk("fake:4", 6);
}

/* ---- single cases ---- */

TEST(test_whole_segment)
{
    struct efs_arena arena;
    struct efs_block all = {0}, one = {0};
    assert_int_equal(efs_arena_init(&arena, SEGMENT, 1), 0);
    assert_false(efs_arena_alloc(&arena, 1, false, &one)); /* no segment was added yet */
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(efs_arena_grow(&arena), -ENOMEM);
    assert_false(efs_arena_alloc(&arena, 0, false, &all));
    assert_false(efs_arena_alloc(&arena, SEGMENT + 1, false, &all));
    assert_false(efs_arena_alloc(&arena, SIZE_MAX, false, &all));
    assert_true(efs_arena_alloc(&arena, SEGMENT, true, &all));
    assert_false(efs_arena_alloc(&arena, 1, false, &one));
    efs_arena_free(&arena, &all);
    efs_arena_retire(&arena, 0);
    assert_false(efs_arena_alloc(&arena, 1, false, &one));
    efs_arena_set_populating(&arena, 0, true);
    assert_false(efs_arena_segment_is_unused(&arena, 0));
    arena.emptied = false;
    efs_arena_set_populating(&arena, 0, false);
    assert_true(arena.emptied && efs_arena_segment_is_unused(&arena, 0));
    efs_arena_drop(&arena, 0);
    assert_int_equal(arena.segment_count, 0);
    assert_int_equal(efs_arena_grow(&arena), 0);
    assert_true(efs_arena_alloc(&arena, 1, true, &one));
    assert_ptr_equal(one.data, arena.segments[0].base + SEGMENT - EFS_GRANULE); /* high: from the end of the segment */
    efs_arena_destroy(&arena);
}

/* Both blocks of an extent are on the same node, and the extents are spread over the nodes. */
TEST(test_pairs)
{
    struct efs_arena arena;
    struct efs_numa numa;
    struct efs_block e[32] = {0}, sm[32] = {0};
    unsigned on[2] = {0, 0};
    efs_numa_from("fake:2", &numa);
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 4, &numa), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(efs_arena_grow(&arena), 0);
    assert_int_equal(arena.nodes[0].segment_count, 2);
    assert_int_equal(arena.nodes[1].segment_count, 2);
    for (unsigned i = 0; i < 32; i++) {
        assert_true(efs_arena_alloc(&arena, 10 * EFS_GRANULE, false, &e[i]));
        assert_true(efs_arena_alloc_on(&arena, efs_arena_node_of(&arena, &e[i]), 20 * EFS_GRANULE, true, &sm[i]));
        assert_int_equal(efs_arena_node_of(&arena, &sm[i]), efs_arena_node_of(&arena, &e[i]));
        on[efs_arena_node_of(&arena, &e[i])]++;
    }
    assert_int_equal(on[0], 16);
    assert_int_equal(on[1], 16);
    efs_arena_destroy(&arena);
}

TEST(test_wrong_sizes)
{
    struct efs_arena arena;
    struct efs_numa none = {.kind = "none"};
    assert_int_equal(efs_arena_init(&arena, 0, 1), -EINVAL);
    assert_int_equal(efs_arena_init(&arena, SEGMENT + EFS_GRANULE, 1), -EINVAL);
    assert_int_equal(efs_arena_init(&arena, SEGMENT, 0), -EINVAL);
    assert_int_equal(efs_arena_init_nodes(&arena, SEGMENT, 1, &none), -EINVAL);
    efs_arena_destroy(&arena); /* does nothing after a failed init */
}

TEST_MAIN(NULL, NULL)
