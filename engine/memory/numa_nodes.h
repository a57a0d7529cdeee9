/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numa_nodes.h - the memory nodes that this process may use, and functions that bind memory to a node. They are in a
 * table, so that tests can simulate other machines.
 */
#ifndef EFS_NUMA_NODES_H
#define EFS_NUMA_NODES_H

#include "expertfs.h"

#define EFS_NUMA_NODES_MAX 64 /* further nodes are ignored */

struct efs_numa_node {
    uint32_t id; /* node id of the system */
    uint64_t memory_bytes;
};

struct efs_numa {
    const char *kind;    /* "libnuma", "mock", or "none": the system has no NUMA, or it is off */
    uint32_t node_count; /* 1 or more */
    struct efs_numa_node nodes[EFS_NUMA_NODES_MAX];
    /* Allocates future pages of the range on node id only. 0 or -errno. NULL: memory is not bound. */
    errint_t (*bind)(void *memory, size_t bytes, uint32_t id);
    /* Bytes available on node id without swapping: free memory, page cache and reclaimable slabs. NULL: assumed
     * sufficient. */
    uint64_t (*available_bytes)(uint32_t id);
};

/*
 * Finds the nodes that have memory and are allowed by the cpuset (numa(3)). EXPERTFS_NUMA=fake:N in the environment: N
 * equal nodes without binding, for tests; EXPERTFS_NUMA=off: one node without binding. Never fails: a machine without
 * NUMA has one node.
 */
void efs_numa_discover(struct efs_numa *numa);
/* The same for a given value of EXPERTFS_NUMA. NULL or an invalid value: the nodes of the machine. */
void efs_numa_from(const char *setting, struct efs_numa *numa);
/* See efs_numa.available_bytes, for real nodes. UINT64_MAX: the kernel does not report it. */
uint64_t efs_numa_available_bytes(uint32_t id);

#endif
