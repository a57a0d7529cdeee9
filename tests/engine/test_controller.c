/* SPDX-License-Identifier: Apache-2.0 */
/* The budget's controller on the numbers of a fake machine and cgroup: limits, memory that other processes take and
 * free, the delay of a rise, memory left to mapped files, and memory ceded to the page cache and taken back. */
#include "fake_proc.h"

#include "controller.h"

#define SEGMENT (8 * MIB)
#define FIXED (16 * MIB)

static struct {
    uint64_t machine_mib, other_mib; /* memory of the machine; used by other processes, outside of the cgroup */
    uint64_t limit_mib, inside_mib;  /* of the cgroup, 0: none; used by other processes in it */
    uint64_t cache_mib;              /* page cache in the cgroup */
    uint64_t pools_mib;              /* of the store */
    uint64_t cached_mib, direct_mib; /* read by programs since the start */
} world;
static struct efs_controller c;
static uint64_t requested, budget; /* as efs_budget_set() has them, but not in whole segments */

/* The store uses all of its budget, at most most_mib. */
static void fill(uint64_t most_mib)
{
    uint64_t mib = budget > FIXED ? (budget - FIXED) / MIB : 0;
    world.pools_mib = mib < most_mib ? mib : most_mib;
}

static void apply(void)
{
    budget = c.automatic || c.bytes < requested ? c.bytes : requested;
    fill(world.pools_mib);
}

static void read_world(bool is_sample)
{
    uint64_t group = FIXED / MIB + world.pools_mib + world.inside_mib;
    char text[200];
    snprintf(text, sizeof(text), "MemTotal: %llu kB\nMemFree: %llu kB\nMemAvailable: %llu kB\n",
             (unsigned long long)world.machine_mib * 1024,
             (unsigned long long)(world.machine_mib - world.other_mib - group - world.cache_mib) * 1024,
             (unsigned long long)(world.machine_mib - world.other_mib - group) * 1024);
    put("proc/meminfo", text);
    put("proc/self/cgroup", world.limit_mib ? "0::/mine\n" : "");
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)world.limit_mib * MIB);
    put("sys/fs/cgroup/mine/memory.max", text);
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(group + world.cache_mib) * MIB);
    put("sys/fs/cgroup/mine/memory.current", text);
    snprintf(text, sizeof(text), "file %llu\nshmem 0\n", (unsigned long long)world.cache_mib * MIB);
    put("sys/fs/cgroup/mine/memory.stat", text);

    struct efs_memory_left left;
    struct efs_memory memory;
    efs_memory_left_open(&left);
    int64_t bytes = efs_memory_left_read(&left, &memory);
    efs_memory_left_close(&left);
    struct efs_reading r = {.provided_bytes = (uint64_t)((int64_t)(FIXED + world.pools_mib * MIB) + bytes),
                            .available_bytes = memory.available_bytes,
                            .free_bytes = memory.free_bytes,
                            .pools_bytes = world.pools_mib * MIB,
                            .fixed_bytes = FIXED,
                            .step_bytes = budget / 32 > 2 * SEGMENT ? budget / 32 : 2 * SEGMENT,
                            .cached_bytes = world.cached_mib * MIB,
                            .direct_bytes = world.direct_mib * MIB,
                            .is_sample = is_sample};
    efs_controller_update(&c, &r, budget);
    apply();
}

/* Six samples of the plan thread: 3 s. */
static void three_seconds(void)
{
    for (unsigned i = 0; i < 6; i++)
        read_world(true);
}

static void start(uint64_t bytes, uint64_t first)
{
    requested = bytes;
    budget = bytes ? bytes : first;
    c.mapped_bytes = EFS_LEAVE_HALF;
    efs_controller_reset(&c, bytes == 0);
    world.pools_mib = 0;
}

static void is_about(uint64_t mib)
{
    if (budget / MIB + 1 < mib || budget / MIB > mib + 1)
        fail_msg("the budget is %llu MiB, not %llu", (unsigned long long)(budget / MIB), (unsigned long long)mib);
}

static int begin_world(void **state)
{
    memset(&world, 0, sizeof(world));
    memset(&c, 0, sizeof(c));
    world.machine_mib = 16384;
    return begin(state);
}

/* A budget that was set is reduced to what the machine provides, at once, and rises again after 3 s, by steps. */
TEST_WITH(test_pressure, begin_world, end)
{
    start(1024 * MIB, 0);
    fill(4096);
    read_world(true);
    is_about(1024);
    world.other_mib = 16384 - 1044; /* other processes leave 20 MiB, but 64 are the margin */
    read_world(false);
    is_about(980);
    world.other_mib -= 8;
    three_seconds();
    is_about(980); /* less than a step higher */
    world.other_mib -= 100;
    read_world(true);
    is_about(980); /* too early */
    world.other_mib = 16384 - 1024;
    read_world(false);
    is_about(960);
    world.other_mib = 16384 - 1080;
    for (unsigned i = 0; i < 5; i++)
        read_world(true);
    is_about(960);
    read_world(true);
    is_about(1016 - 15); /* half a step below */
    world.other_mib = 0;
    three_seconds();
    is_about(1024); /* never above what was set */
}

TEST_WITH(test_cgroup, begin_world, end)
{
    world.limit_mib = 512;
    start(480 * MIB, 0);
    fill(4096);
    read_world(true);
    is_about(480); /* 512 less 1/16 */
    world.inside_mib = 100;
    read_world(false);
    is_about(380);
    world.cache_mib = 30; /* page cache is no pressure */
    read_world(false);
    is_about(380);
    world.limit_mib = 400;
    read_world(false);
    is_about(400 - 25 - 100);
    world.limit_mib = 0;
    three_seconds();
    is_about(480);
}

/* budget=auto is half of what is available, the pools included, and follows it. */
TEST_WITH(test_automatic, begin_world, end)
{
    world.limit_mib = 1016;
    start(0, 500 * MIB);
    read_world(true);
    is_about(500);
    fill(4096);
    three_seconds();
    is_about(500); /* its own pools are no pressure */
    world.inside_mib = 20;
    three_seconds();
    is_about(500); /* less than a step */
    world.inside_mib = 200;
    read_world(false);
    is_about(400);
    world.inside_mib = 0;
    three_seconds();
    is_about(500 - 8);
    world.limit_mib = 516;
    read_world(false);
    is_about(250);
}

/* A program loads a model, then maps 300 MiB of it that it reads for each token, and allocates buffers late. */
TEST_WITH(test_mapped, begin_world, end)
{
    world.limit_mib = 1616;
    start(0, 800 * MIB);
    c.mapped_bytes = EFS_LEAVE_MOST;
    c.is_new = true;
    read_world(false);
    is_about(16 + 100);
    c.experts_bytes = 120 * MIB;
    c.is_new = true;
    read_world(false);
    is_about(16 + 120); /* two experts */
    c.mapped_bytes = 300 * MIB;
    c.is_new = true;
    read_world(false);
    is_about(16 + 1600 - 100 - 300); /* at once: no program waits 3 s for its first token */
    fill(4096);
    world.inside_mib = 160;
    read_world(false);
    is_about(16 + 1440 - 90 - 300);
    c.mapped_bytes = 1400 * MIB;
    c.is_new = true;
    read_world(false);
    is_about(16 + 1440 / 8);
}

static void programs_read(uint64_t cached_mib, uint64_t direct_mib)
{
    world.cached_mib += cached_mib;
    world.direct_mib += direct_mib;
    world.cache_mib = world.limit_mib - FIXED / MIB - world.pools_mib - 8; /* it fills the cgroup */
    read_world(true);
}

TEST_WITH(test_page_cache, begin_world, end)
{
    world.limit_mib = 816;
    start(0, 400 * MIB);
    fill(200);
    programs_read(300, 0);
    is_about(400); /* less than the available memory was read */
    programs_read(50, 50);
    is_about(400);
    programs_read(500, 200);
    is_about(400); /* a part of it past the page cache */
    programs_read(500, 0);
    is_about(16 + 96);
    assert_true(c.ceded);
    world.cache_mib = 0; /* the files were deleted; programs have not read as much yet */
    world.cached_mib += 100;
    read_world(true);
    is_about(16 + 96);
    assert_true(efs_controller_use_expert(&c)); /* back at once */
    apply();
    is_about(400);
    read_world(false);
    is_about(400);
    programs_read(500, 0);
    is_about(400); /* experts are in use */
    programs_read(500, 0);
    is_about(16 + 96);
    programs_read(10, 60);
    is_about(400);
    programs_read(900, 0);
    is_about(16 + 96);
    world.cache_mib = 0;
    world.cached_mib += 900;
    read_world(true);
    is_about(400); /* nothing fills the memory any more */
    requested = 300 * MIB;
    efs_controller_reset(&c, false);
    programs_read(2000, 0);
    is_about(300); /* a budget that a user has set is left alone */
    assert_false(efs_controller_use_expert(&c));
}

TEST_MAIN(NULL, NULL)
