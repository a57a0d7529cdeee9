/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_left.h - memory that can be allocated without an OOM kill. Pages of freed files in pipes, sockets and I/O in
 * flight are not in the budget, but they are charged to the memory cgroup and to the machine.
 */
#ifndef EFS_MEMORY_LEFT_H
#define EFS_MEMORY_LEFT_H

#include <stdbool.h>
#include <stdint.h>

struct efs_memory;

#define EFS_MEMORY_GROUPS 16u /* of this process and its ancestors, from the process up; further ones are ignored */

/* The descriptors stay open, so that a check only reads. The process is assumed to stay in its cgroups. */
struct efs_memory_left {
    struct efs_memory_group {
        int limit, high, usage, stat; /* high: < 0 if absent */
        const char *cache, *shared;   /* names of fields in stat */
    } groups[EFS_MEMORY_GROUPS];
    uint32_t count;
    int machine;
};

/* Cannot fail: a limit that cannot be read counts as absent. */
void efs_memory_left_open(struct efs_memory_left *left);
void efs_memory_left_close(struct efs_memory_left *left);
/* Returns the bytes that can be allocated while each cgroup and the machine keep a margin (1/16 of the limit, 8 to 64
 * MiB). A cgroup's limit is the lower of memory.max and memory.high. Negative: the margin is short by that many bytes;
 * INT64_MAX: no limit is known. Page cache counts as free; tmpfs and memfds do not. *memory: as efs_memory(), from the
 * same reading. Takes tens of microseconds. Any thread. */
int64_t efs_memory_left_read(const struct efs_memory_left *left, struct efs_memory *memory);

#endif
