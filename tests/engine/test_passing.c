/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which extents of scans are evicted, and in how many steps. Extents here have no memory: what is tested is the lists
 * that they are in. With 2^18 extents, a walk over those that stay at each eviction is 2^35 steps and takes minutes.
 */
#include "cache.h"
#include "extent_core.h"
#include "kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MANY (1u << 18)
#define SCALAR 4u

/* Tensors of 4 bytes, each a page of the store and an extent. */
struct scan {
    struct efs fs;
    struct efs_store store;
    struct efs_extents extents;
    struct efs_disk_object *objects;
    struct efs_disk_shard *shards;
};

static void *some(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    assert_non_null(memory);
    return memory;
}

/* All are read ahead, oldest first, and take what streams may have. */
static struct scan *scan_begin(uint32_t count)
{
    struct scan *s = some(1, sizeof(*s));
    struct efs *fs = &s->fs;
    s->store.objects = s->objects = some(count, sizeof(*s->objects));
    s->store.shards = s->shards = some(count, sizeof(*s->shards));
    s->store.object_count = s->store.shard_count = s->extents.count = count;
    s->store.sb.shard_elements = EFS_SHARD_ELEMENTS_DEFAULT;
    s->extents.at = some(count, sizeof(*s->extents.at));
    s->extents.object_first = some(count + 1u, sizeof(uint32_t));
    s->extents.streams.window = (uint64_t)count * EFS_ALIGN;
    fs->store = &s->store;
    fs->extents = &s->extents;
    for (unsigned i = 0; i < EFS_LISTS; i++)
        efs_lru_init(&s->extents.lists[i], &s->extents.at[0].link, sizeof(struct efs_extent));
    for (uint32_t i = 0; i < count; i++) {
        struct efs_extent *x = &s->extents.at[i];
        s->objects[i] =
            (struct efs_disk_object){.bytes = SCALAR, .shard_first = i, .shard_count = 1, .format = EFS_FORMAT_BYTES};
        s->shards[i] = (struct efs_disk_shard){.sm_offset = (uint64_t)(i + 1) * EFS_ALIGN, .sm_bytes = SCALAR};
        s->extents.object_first[i + 1] = i + 1;
        *x = (struct efs_extent){.object = i,
                                 .shard_first = i,
                                 .shard_count = 1,
                                 .needs = EFS_COMPONENT_SM,
                                 .have = EFS_COMPONENT_SM,
                                 .ahead_bytes = EFS_ALIGN};
        s->extents.ahead_bytes += x->ahead_bytes;
        efs_extent_set_passing(fs, x, true);
        efs_extent_enlist(fs, i);
    }
    assert_int_equal(s->extents.passing_bytes, s->extents.streams.window);
    return s;
}

static void scan_end(struct scan *s)
{
    free(s->extents.object_first);
    free(s->extents.at);
    free(s->shards);
    free(s->objects);
    free(s);
}

/* So many bytes of it are asked for, and are in use. */
static void ask(struct scan *s, uint32_t extent, size_t bytes)
{
    struct efs_extent_waiter waiter = {.holds = false};
    s->extents.streams.clock += bytes;
    assert_true(efs_extent_ask_paced(&s->fs, extent, EFS_PACE_SCAN, bytes, &waiter));
}

static void read_it(struct scan *s, uint32_t extent, size_t bytes)
{
    ask(s, extent, bytes);
    efs_extent_unref(&s->fs, extent, false);
}

/* One goes, and it is this one. */
static void goes(struct scan *s, enum efs_passing what, uint32_t extent)
{
    assert_int_equal(efs_extents_evict_passing(&s->fs, what), EFS_EVICTED_ONE);
    assert_int_equal(s->extents.at[extent].have, 0);
    assert_int_equal(s->extents.at[extent].passing_bytes, 0);
}

static void stays(struct scan *s, enum efs_passing what)
{
    assert_int_equal(efs_extents_evict_passing(&s->fs, what), EFS_EVICTED_IN_USE);
}

static void what_was_read_goes_without_a_walk(void **state)
{
    (void)state;
    struct scan *s = scan_begin(MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_false(efs_extents_pass_on(&s->fs, EFS_ALIGN, false));
        read_it(s, i, SCALAR);
        assert_true(efs_extents_pass_on(&s->fs, EFS_ALIGN, false));
        assert_int_equal(s->extents.at[i].have, 0);
        efs_extent_set_passing(&s->fs, &s->extents.at[i], true); /* the next one takes its place */
    }
    assert_int_equal(efs_extents_evict_passing(&s->fs, EFS_PASSING_ALL), EFS_EVICTED_NONE);
    scan_end(s);
}

static void what_is_in_use_is_not_walked_over(void **state)
{
    (void)state;
    struct scan *s = scan_begin(MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        ask(s, i, SCALAR);
        assert_false(efs_extents_pass_on(&s->fs, EFS_ALIGN, false));
    }
    stays(s, EFS_PASSING_ALL);
    for (uint32_t i = 0; i < MANY; i++) {
        efs_extent_unref(&s->fs, i, false);
        goes(s, EFS_PASSING_LEFT, i);
    }
    assert_int_equal(efs_extents_evict_passing(&s->fs, EFS_PASSING_ALL), EFS_EVICTED_NONE);
    scan_end(s);
}

/* The same for a reader of which nobody knows yet that it is a scan. */
static void what_others_use_is_not_walked_over(void **state)
{
    (void)state;
    struct scan *s = scan_begin(MANY);
    struct efs_extent_waiter waiter = {.holds = false};
    for (uint32_t i = 0; i < MANY; i++)
        assert_true(efs_extent_ask_paced(&s->fs, i, EFS_PACE_RANDOM, SCALAR, &waiter));
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(efs_extents_evict(&s->fs, false), EFS_EVICTED_IN_USE);
    for (uint32_t i = 0; i < MANY; i++) {
        efs_extent_unref(&s->fs, i, false);
        assert_int_equal(efs_extents_evict(&s->fs, false), EFS_EVICTED_ONE);
        assert_int_equal(s->extents.at[i].have, 0);
    }
    scan_end(s);
}

/* What was read in part stays for a window of bytes that streams go on by, what was read ahead for four; under need
 * both go before. */
static void what_is_awaited_goes_last(void **state)
{
    (void)state;
    struct scan *s = scan_begin(8);
    uint64_t window = s->extents.streams.window;
    read_it(s, 3, SCALAR / 2);
    read_it(s, 2, SCALAR / 2);
    read_it(s, 1, SCALAR);
    ask(s, 0, SCALAR);
    goes(s, EFS_PASSING_LEFT, 1);
    stays(s, EFS_PASSING_LEFT);
    read_it(s, 3, SCALAR / 2); /* the rest of it */
    goes(s, EFS_PASSING_LEFT, 3);
    stays(s, EFS_PASSING_LEFT);
    goes(s, EFS_PASSING_READ, 2);
    stays(s, EFS_PASSING_READ);
    goes(s, EFS_PASSING_ALL, 4);
    read_it(s, 5, 1);
    s->extents.streams.clock += window;
    stays(s, EFS_PASSING_LEFT);
    s->extents.streams.clock += 1;
    goes(s, EFS_PASSING_LEFT, 5);
    stays(s, EFS_PASSING_LEFT);
    s->extents.streams.clock = 4 * window;
    stays(s, EFS_PASSING_LEFT);
    s->extents.streams.clock += 1;
    goes(s, EFS_PASSING_LEFT, 6);
    goes(s, EFS_PASSING_LEFT, 7);
    stays(s, EFS_PASSING_ALL);
    efs_extent_unref(&s->fs, 0, false);
    goes(s, EFS_PASSING_LEFT, 0);
    scan_end(s);
}

/* An extent that others than scans ask for is not in passing any more, in use or not. */
static void what_others_ask_for_stays(void **state)
{
    (void)state;
    struct scan *s = scan_begin(3);
    struct efs_extent_waiter waiter = {.holds = false};
    ask(s, 0, SCALAR);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(efs_extent_ask_paced(&s->fs, i, EFS_PACE_RANDOM, SCALAR, &waiter));
    goes(s, EFS_PASSING_ALL, 2);
    stays(s, EFS_PASSING_ALL);
    efs_extent_unref(&s->fs, 0, false);
    efs_extent_unref(&s->fs, 1, false);
    stays(s, EFS_PASSING_ALL);
    efs_extent_unref(&s->fs, 0, false);
    assert_int_equal(efs_extents_evict_passing(&s->fs, EFS_PASSING_ALL), EFS_EVICTED_NONE);
    assert_int_equal(s->extents.passing_bytes, 0);
    for (uint32_t i = 1; i < 2; i--) { /* the one that was released first goes first */
        assert_int_equal(efs_extents_evict(&s->fs, false), EFS_EVICTED_ONE);
        assert_int_equal(s->extents.at[i].have, 0);
    }
    assert_int_equal(efs_extents_evict(&s->fs, false), EFS_EVICTED_NONE);
    scan_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_read_goes_without_a_walk),  cmocka_unit_test(what_is_in_use_is_not_walked_over),
        cmocka_unit_test(what_others_use_is_not_walked_over), cmocka_unit_test(what_is_awaited_goes_last),
        cmocka_unit_test(what_others_ask_for_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
