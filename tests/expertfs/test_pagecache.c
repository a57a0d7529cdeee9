/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of the page cache: which ranges a file has, which of them a read marks, how its clock runs, its memory,
 * and what it says when no thread watches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"

#define MIB (UINT64_C(1) << 20)
#define RANGE (16 * MIB)

static struct efsd *made(const uint64_t *sizes, unsigned count)
{
    struct efsd *daemon = calloc(1, sizeof(*daemon));
    assert_non_null(daemon);
    for (unsigned i = 0; i < count; i++) {
        char path[32];
        snprintf(path, sizeof(path), "f%02u", i); /* node 1 + i */
        assert_int_equal(efsd_tree_add(&daemon->tree, path, EFSD_FILE, i, UINT32_MAX, sizes[i]), 0);
    }
    assert_int_equal(efsd_tree_add(&daemon->tree, ".expertfs/stat", EFSD_CONTROL, 0, UINT32_MAX, 0), 0);
    assert_int_equal(efsd_tree_build(&daemon->tree, NULL), 0);
    assert_int_equal(efsd_pagecache_init(daemon), 0);
    return daemon;
}

static void end(struct efsd *daemon)
{
    efsd_pagecache_stop(daemon);
    efsd_pagecache_free(daemon);
    efsd_tree_free(&daemon->tree);
    free(daemon);
}

static uint32_t node(const struct efsd *daemon, const char *name)
{
    uint32_t found = 0;
    assert_true(efsd_tree_find(&daemon->tree, EFSD_ROOT, name, strlen(name), &found));
    return found;
}

static uint32_t ranges_of(const struct efsd *daemon, const char *name)
{
    uint32_t n = node(daemon, name);
    return daemon->pagecache.first_range[n + 1] - daemon->pagecache.first_range[n];
}

/* Of a file: 1 for each range that was read, from the lowest bit. */
static unsigned marked(const struct efsd *daemon, const char *name)
{
    const struct efsd_pagecache *cache = &daemon->pagecache;
    unsigned bits = 0;
    uint32_t first = cache->first_range[node(daemon, name)];
    for (uint32_t i = 0; i < ranges_of(daemon, name); i++)
        bits |= (unsigned)(cache->ranges[first + i].last_read != 0) << i;
    return bits;
}

static void files_have_ranges(void **state)
{
    (void)state;
    const uint64_t sizes[] = {0, 1, RANGE, RANGE + 1, 5 * RANGE - 1};
    struct efsd *daemon = made(sizes, 5);
    assert_int_equal(ranges_of(daemon, "f00"), 0);
    assert_int_equal(ranges_of(daemon, "f01"), 1);
    assert_int_equal(ranges_of(daemon, "f02"), 1);
    assert_int_equal(ranges_of(daemon, "f03"), 2);
    assert_int_equal(ranges_of(daemon, "f04"), 5);
    assert_int_equal(daemon->pagecache.range_count, 9);
    end(daemon);
}

static void large_stores_have_larger_ranges(void **state)
{
    (void)state;
    const uint64_t tib = MIB * MIB;
    const uint64_t sizes[] = {tib, 3 * tib, UINT64_MAX, 5};
    struct efsd *daemon = made(sizes, 3);
    assert_true(daemon->pagecache.range_count <= 65536 + daemon->tree.count);
    assert_true(efsd_pagecache_memory(daemon) < 4 * MIB);
    end(daemon);
    daemon = made(sizes, 1);
    assert_int_equal(daemon->pagecache.range_count, 65536);
    end(daemon);
}

static void reads_mark_ranges(void **state)
{
    (void)state;
    const uint64_t sizes[] = {5 * RANGE - 7, 100};
    struct efsd *daemon = made(sizes, 2);
    struct efsd_pagecache *cache = &daemon->pagecache;
    uint32_t file = node(daemon, "f00");
    efsd_pagecache_read(daemon, file, 0, 0);
    assert_int_equal(marked(daemon, "f00"), 0);
    efsd_pagecache_read(daemon, file, RANGE - MIB, MIB);
    assert_int_equal(marked(daemon, "f00"), 1);
    efsd_pagecache_read(daemon, file, 3 * RANGE - 1, 2);
    assert_int_equal(marked(daemon, "f00"), 1 | 4 | 8);
    const struct efsd_range *range = &cache->ranges[cache->first_range[file]];
    assert_int_equal(range[0].last_read, MIB);
    assert_int_equal(range[2].last_read, MIB + 2);
    assert_int_equal(range[0].filled_bytes, MIB);
    /* at the end, over it, and far past it: the next file's ranges stay as they are */
    efsd_pagecache_read(daemon, file, 5 * RANGE - 8, MIB);
    efsd_pagecache_read(daemon, file, 5 * RANGE, MIB);
    efsd_pagecache_read(daemon, file, UINT64_MAX - MIB, MIB);
    assert_int_equal(marked(daemon, "f00"), 1 | 4 | 8 | 16);
    assert_int_equal(marked(daemon, "f01"), 0);
    efsd_pagecache_read(daemon, node(daemon, "f01"), 0, 100);
    assert_int_equal(marked(daemon, "f01"), 1);
    /* what has no ranges: directories, control files */
    uint64_t clock = cache->clock;
    efsd_pagecache_read(daemon, EFSD_ROOT, 0, MIB);
    efsd_pagecache_read(daemon, node(daemon, ".expertfs"), 0, MIB);
    assert_int_equal(cache->clock, clock);
    end(daemon);
}

static void a_read_over_the_limit_wakes(void **state)
{
    (void)state;
    const uint64_t sizes[] = {RANGE};
    struct efsd *daemon = made(sizes, 1);
    struct efsd_pagecache *cache = &daemon->pagecache;
    uint32_t file = node(daemon, "f00");
    efsd_pagecache_read(daemon, file, 0, 10 * MIB);
    assert_false(cache->wanted); /* there is no limit */
    cache->limit_bytes = 12 * MIB;
    efsd_pagecache_read(daemon, file, 0, 2 * MIB);
    assert_false(cache->wanted);
    efsd_pagecache_read(daemon, file, 0, 1);
    assert_true(cache->wanted);
    cache->wanted = false;
    cache->round_clock = cache->clock; /* a round found less */
    cache->bytes = 4 * MIB;
    efsd_pagecache_read(daemon, file, 0, 8 * MIB);
    assert_false(cache->wanted);
    efsd_pagecache_read(daemon, file, 0, 1);
    assert_true(cache->wanted);
    end(daemon);
}

static void without_a_thread(void **state)
{
    (void)state;
    const uint64_t sizes[] = {RANGE};
    struct efsd *daemon = made(sizes, 1);
    assert_int_equal(efsd_pagecache_set(daemon, MIB), -EOPNOTSUPP);
    assert_int_equal(efsd_pagecache_set(daemon, 0), 0);
    assert_int_equal(efsd_pagecache_opener(daemon, 0), EFSD_OPENER_OTHER); /* a process of another pid namespace */
    assert_int_equal(efsd_pagecache_opener(daemon, 1), EFSD_OPENER_OTHER);
    end(daemon);
    struct efsd never = {0}; /* a mount that failed early */
    efsd_pagecache_stop(&never);
    efsd_pagecache_free(&never);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_ranges), cmocka_unit_test(large_stores_have_larger_ranges),
        cmocka_unit_test(reads_mark_ranges), cmocka_unit_test(a_read_over_the_limit_wakes),
        cmocka_unit_test(without_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
