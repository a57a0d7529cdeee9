/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numa_nodes.h - the memory nodes of the machine that this process may use, and how memory is bound to one. A table of
 * functions, so that tests can put other machines in its place.
 */
#ifndef EFS_NUMA_NODES_H
#define EFS_NUMA_NODES_H

#include "expertfs.h"

#define EFS_NUMA_NODES_MAX 64 /* of more, the first so many are used */

struct efs_numa_node {
    uint32_t id; /* the system's number */
    uint32_t cpus;
    uint64_t memory_bytes;
};

struct efs_numa {
    const char *kind;    /* "libnuma", "mock", or "none": the system has no NUMA, or it is off */
    uint32_t node_count; /* 1 or more */
    struct efs_numa_node nodes[EFS_NUMA_NODES_MAX];
    /* Pages of the range that are not there yet come from node id alone. NULL: nothing is bound. 0 or -errno. */
    errint_t (*bind)(void *memory, size_t bytes, uint32_t id);
    /* What can be had on node id without swapping: free, page cache, reclaimable slabs. NULL: more than asked for. */
    uint64_t (*available_bytes)(uint32_t id);
};

/*
 * Nodes that have memory, as far as the cpuset allows them (numa(3)). EXPERTFS_NUMA=fake:N in the environment: N equal
 * nodes of which none is bound, for tests; EXPERTFS_NUMA=off: one that is not bound. Never fails: a machine without
 * NUMA is one node.
 */
void efs_numa_discover(struct efs_numa *numa);
/* The same from a setting of EXPERTFS_NUMA; NULL or anything else than above: the machine as it is. */
void efs_numa_from(const char *setting, struct efs_numa *numa);
/* See efs_numa.available_bytes, for real nodes. UINT64_MAX: the system does not say. */
uint64_t efs_numa_available_bytes(uint32_t id);

#endif
