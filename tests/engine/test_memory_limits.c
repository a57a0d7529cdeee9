/* SPDX-License-Identifier: Apache-2.0 */
/* The automatic budget: half of the memory that the machine and all memory cgroups up to the root leave; cgroup v1 and
 * v2; missing and invalid files. The files are read below a directory of the test. */
#include "fake_proc.h"

static void budget_is(uint64_t left_bytes)
{
    assert_int_equal(efs_auto_budget(), left_bytes / 2);
}

TEST_WITH(test_machine, begin, end)
{
    budget_is(8192 * MIB); /* no cgroups */
    put("proc/self/cgroup", "");
    budget_is(8192 * MIB);
    put("proc/self/cgroup", "nonsense\n1:cpu\n:::\n0::\n");
    budget_is(8192 * MIB);
    put("proc/meminfo", "");
    budget_is(512 * MIB);
}

TEST_WITH(test_v2, begin, end)
{
    put("proc/self/cgroup", "0::/user/mine\n");
    put("sys/fs/cgroup/user/mine/memory.max", "max\n");
    put("sys/fs/cgroup/user/mine/memory.current", "1048576\n");
    budget_is(8192 * MIB);
    put("sys/fs/cgroup/user/mine/memory.max", "1073741824\n");
    budget_is(1023 * MIB);
    put("sys/fs/cgroup/user/mine/memory.current", "314572800\n");
    put("sys/fs/cgroup/user/mine/memory.stat", "anon 104857600\nfile 209715200\nkernel 0\nshmem 0\nfile_mapped 5\n");
    budget_is(924 * MIB); /* 300 MiB in use, 200 of them page cache */
    put("sys/fs/cgroup/user/mine/memory.stat", "anon 104857600\nfile 209715200\nshmem 157286400\n");
    budget_is(774 * MIB); /* 150 of the 200 are shmem: not reclaimable */
    put("sys/fs/cgroup/user/memory.max", "536870912\n");
    put("sys/fs/cgroup/user/memory.current", "104857600\n");
    budget_is(412 * MIB); /* the parent leaves less */
    put("sys/fs/cgroup/user/memory.current", "1073741824\n");
    budget_is(0); /* usage may exceed the limit */
    put("sys/fs/cgroup/user/memory.max", "lots\n");
    budget_is(774 * MIB);
    put("sys/fs/cgroup/memory.max", "209715200\n"); /* at the root: a container's limit */
    budget_is(200 * MIB);
}

TEST_WITH(test_v1, begin, end)
{
    put("proc/self/cgroup", "9:name=systemd:/\n8:pids:/x\n4:cpu,memory:/a/b\n0::/\n");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1048576\n");
    budget_is(8192 * MIB);
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1073741824\n");
    budget_is(1023 * MIB);
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "314572800\n");
    put("sys/fs/cgroup/memory/a/b/memory.stat",
        "cache 7\nshmem 3\ntotal_cache 209715200\ntotal_rss 4\ntotal_shmem 157286400\n");
    budget_is(774 * MIB);
    put("sys/fs/cgroup/memory/a/b/memory.stat", "total_cache 5\ntotal_shmem 157286400\n"); /* of different moments */
    budget_is(724 * MIB);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    budget_is(100 * MIB);
    put("proc/self/cgroup", "4:memory:/not/below/this/mount\n"); /* a container whose cgroup is the root */
    budget_is(100 * MIB);
}

static void memory_is(uint64_t limit_bytes, uint64_t available_bytes, bool cgroup)
{
    struct efs_memory memory;
    efs_memory(&memory);
    assert_int_equal(memory.limit_bytes, limit_bytes);
    assert_int_equal(memory.available_bytes, available_bytes);
    assert_int_equal(memory.cgroup, cgroup);
}

/* The kernel kills processes at memory.max; at memory.high it only throttles them, so memory.high is not a limit, but
 * reduces the available memory. */
TEST_WITH(test_limit, begin, end)
{
    memory_is(16384 * MIB, 8192 * MIB, false);
    put("proc/self/cgroup", "0::/user/mine\n");
    put("sys/fs/cgroup/user/mine/memory.max", "max\n");
    put("sys/fs/cgroup/user/mine/memory.current", "1048576\n");
    memory_is(16384 * MIB, 8192 * MIB, false);
    put("sys/fs/cgroup/user/memory.max", "1073741824\n");
    put("sys/fs/cgroup/user/memory.current", "2097152\n");
    memory_is(1024 * MIB, 1022 * MIB, true);
    put("sys/fs/cgroup/user/mine/memory.high", "536870912\n");
    memory_is(1024 * MIB, 511 * MIB, true);
    put("sys/fs/cgroup/user/mine/memory.max", "2147483648\n");
    memory_is(1024 * MIB, 511 * MIB, true);
    put("proc/self/cgroup", "4:memory:/a\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4194304\n");
    memory_is(100 * MIB, 96 * MIB, true);
}

TEST_WITH(test_long_path, begin, end)
{
    char *line = malloc(9000);
    assert_non_null(line);
    strcpy(line, "0::");
    memset(line + 3, '/', 8500);
    strcpy(line + 8503, "\n");
    put("proc/self/cgroup", line);
    free(line);
    budget_is(8192 * MIB);
}

TEST_MAIN(NULL, NULL)
