/* SPDX-License-Identifier: Apache-2.0 */
/* numa_nodes.c - see numa_nodes.h. */
#include "numa_nodes.h"

#include "proc_text.h"
#include "sys.h"

#include <numa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static void equal_nodes(const char *kind, uint32_t count, struct efs_numa *numa)
{
    *numa = (struct efs_numa){.kind = kind, .node_count = count};
    for (uint32_t n = 0; n < count; n++)
        numa->nodes[n] = (struct efs_numa_node){n, memory_bytes() / count};
}

static errint_t bind_memory(void *memory, size_t bytes, uint32_t id)
{
    return efs_sys_mbind(memory, bytes, id);
}

uint64_t efs_numa_available_bytes(uint32_t id)
{
    /* "Node 0 MemFree:        8919216 kB" */
    static const char *const names[] = {"MemFree", "Active(file)", "Inactive(file)", "SReclaimable"};
    char path[64], name[64], text[EFS_PROC_TEXT];
    uint64_t kib = 0;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%u", id);
    efs_kernel_read(path, "meminfo", text);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(name, sizeof(name), "Node %u %s", id, names[i]);
        uint64_t field = efs_kernel_field(text, name, UINT64_MAX);
        if (field == UINT64_MAX && i == 0)
            return UINT64_MAX;
        kib += field == UINT64_MAX ? 0 : field;
    }
    return kib * 1024;
}

static void real_nodes(struct efs_numa *numa)
{
    equal_nodes("none", 1, numa);
    if (numa_available() < 0)
        return;
    uint32_t count = 0;
    for (int n = 0; n <= numa_max_node() && count < EFS_NUMA_NODES_MAX; n++) {
        long long bytes = numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)n) ? numa_node_size64(n, NULL) : 0;
        if (bytes > 0) /* skips nodes that have only CPUs */
            numa->nodes[count++] = (struct efs_numa_node){(uint32_t)n, (uint64_t)bytes};
    }
    if (count == 0)
        return;
    numa->kind = "libnuma";
    numa->node_count = count;
    numa->bind = bind_memory;
    numa->available_bytes = efs_numa_available_bytes;
}

void efs_numa_from(const char *setting, struct efs_numa *numa)
{
    if (setting && strcmp(setting, "off") == 0) {
        equal_nodes("none", 1, numa);
        return;
    }
    char *end;
    unsigned long count = setting && strncmp(setting, "fake:", 5) == 0 ? strtoul(setting + 5, &end, 10) : 0;
    if (count >= 1 && count <= EFS_NUMA_NODES_MAX && *end == '\0')
        equal_nodes("mock", (uint32_t)count, numa);
    else
        real_nodes(numa);
}

void efs_numa_discover(struct efs_numa *numa)
{
    efs_numa_from(getenv("EXPERTFS_NUMA"), numa);
}
