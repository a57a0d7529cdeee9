/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_left.h - is there memory for more, before taking it has a process killed? Pages that others still hold of what
 * we gave back are in no count of ours, but in those of our memory cgroup, which was charged for them, and of the
 * machine.
 */
#ifndef EFS_MEMORY_LEFT_H
#define EFS_MEMORY_LEFT_H

#include <stdbool.h>
#include <stdint.h>

#define EFS_MEMORY_GROUPS 16u /* cgroups from this process's up to the root; more are not looked at */

/* Descriptors that stay open, so that looking is a read; the process is taken to stay in the cgroups it is in. */
struct efs_memory_left {
    struct efs_memory_group {
        int limit, high, usage, stat; /* high < 0: it has none */
        const char *cache, *shared;   /* fields of stat */
    } groups[EFS_MEMORY_GROUPS];
    uint32_t count;
    int machine;
};

/* Where there is nothing to look at there is always enough. */
void efs_memory_left_open(struct efs_memory_left *left);
void efs_memory_left_close(struct efs_memory_left *left);
/* Bytes that may be taken and leave a margin in every cgroup (below its limit, and below memory.high, above which it
 * is slowed down until nothing goes on) and in the machine; below 0: so much of the margin is gone; INT64_MAX: nothing
 * says. Page cache counts as free, what lies in tmpfs and memfds does not. Some tens of microseconds. Any thread. */
int64_t efs_memory_left_bytes(const struct efs_memory_left *left);

#endif
