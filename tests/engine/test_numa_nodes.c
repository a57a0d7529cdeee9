/* SPDX-License-Identifier: Apache-2.0 */
/* Memory nodes of the machine: real, mocked, and switched off. */
#include "test.h"
#include "numa_nodes.h"
#include "sys.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

TEST(test_mock)
{
    static const char *const settings[] = {"fake:1", "fake:2", "fake:4", "fake:64"};
    static const uint32_t counts[] = {1, 2, 4, 64};
    struct efs_numa numa;
    for (unsigned i = 0; i < 4; i++) {
        efs_numa_from(settings[i], &numa);
        assert_string_equal(numa.kind, "mock");
        assert_int_equal(numa.node_count, counts[i]);
        assert_null(numa.bind);
        assert_null(numa.available_bytes);
        for (uint32_t n = 0; n < numa.node_count; n++) {
            assert_int_equal(numa.nodes[n].id, n);
            assert_int_equal(numa.nodes[n].memory_bytes, numa.nodes[0].memory_bytes);
        }
    }
    efs_numa_from("off", &numa);
    assert_string_equal(numa.kind, "none");
    assert_int_equal(numa.node_count, 1);
    assert_null(numa.bind);
    assert_true(numa.nodes[0].memory_bytes > 0);
}

TEST(test_environment)
{
    struct efs_numa numa;
    char *before = getenv("EXPERTFS_NUMA");
    before = before ? strdup(before) : NULL;
    setenv("EXPERTFS_NUMA", "fake:3", 1);
    efs_numa_discover(&numa);
    assert_int_equal(numa.node_count, 3);
    unsetenv("EXPERTFS_NUMA");
    efs_numa_discover(&numa);
    assert_string_not_equal(numa.kind, "mock");
    if (before)
        setenv("EXPERTFS_NUMA", before, 1);
    free(before);
}

TEST(test_machine)
{
    static const char *const settings[] = {NULL, "", "fake:0", "fake:65", "fake:2x", "fake:", "fake:-1", "auto"};
    struct efs_numa numa;
    for (unsigned i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        efs_numa_from(settings[i], &numa);
        assert_string_equal(numa.kind, numa_available() < 0 ? "none" : "libnuma");
        assert_true(numa.node_count >= 1 && numa.node_count <= EFS_NUMA_NODES_MAX);
    }
    assert_int_equal(efs_numa_available_bytes(1000000), UINT64_MAX);
    if (!numa.bind) {
        print_message("skipped: no NUMA here\n");
        skip();
    }
    for (uint32_t n = 0; n < numa.node_count; n++) {
        const struct efs_numa_node *node = &numa.nodes[n];
        uint64_t available = numa.available_bytes(node->id);
        assert_true(node->memory_bytes > 0);
        assert_true(available > 0 && (available <= node->memory_bytes || available == UINT64_MAX));
        assert_true(n == 0 || node->id > numa.nodes[n - 1].id);
    }
}

TEST(test_bind)
{
    struct efs_numa numa;
    efs_numa_from(NULL, &numa);
    if (!numa.bind) {
        print_message("skipped: no NUMA here\n");
        skip();
    }
    size_t bytes = 4u << 20;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    for (uint32_t n = 0; n < numa.node_count; n++) {
        unsigned long mask[EFS_SYS_NODES / 64] = {0};
        int mode = -1, at = -1;
        uint32_t id = numa.nodes[n].id;
        assert_int_equal(madvise(p, bytes, MADV_DONTNEED), 0);
        assert_int_equal(numa.bind(p, bytes, id), 0);
        assert_int_equal(get_mempolicy(&mode, mask, EFS_SYS_NODES, p, MPOL_F_ADDR), 0);
        assert_int_equal(mode, MPOL_BIND);
        for (uint32_t i = 0; i < EFS_SYS_NODES; i++)
            assert_int_equal(mask[i / 64] >> (i % 64) & 1, i == id);
        p[bytes / 2] = 1;
        assert_int_equal(get_mempolicy(&at, NULL, 0, p + bytes / 2, MPOL_F_NODE | MPOL_F_ADDR), 0);
        assert_int_equal(at, id);
    }
    assert_true(numa.bind(p, bytes, EFS_SYS_NODES) < 0);
    assert_true(numa.bind(p, bytes, EFS_SYS_NODES - 1) < 0); /* more nodes than any machine here */
    assert_true(numa.bind(p + 1, bytes - 1, numa.nodes[0].id) < 0);
    munmap(p, bytes);
}

TEST_MAIN(NULL, NULL)
