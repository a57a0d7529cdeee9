/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_text.h - numbers in files of /proc and of memory cgroups, v1 and v2. What cannot be read is not there. */
#ifndef EFS_KERNEL_TEXT_H
#define EFS_KERNEL_TEXT_H

#include <stdint.h>

#define EFS_KERNEL_TEXT 8192 /* bytes of a text that are looked at, its end among them */

/* A descriptor to be closed, or -errno. */
int efs_kernel_open(const char *directory, const char *name);
/* The text of an open file, from its begin; fd < 0: "". */
void efs_kernel_text(int fd, char text[EFS_KERNEL_TEXT]);
/* The same of a file that is opened for this. */
void efs_kernel_read(const char *directory, const char *name, char text[EFS_KERNEL_TEXT]);
/* Of an open file of one number; "max", none or nonsense: fallback. */
uint64_t efs_kernel_number(int fd, uint64_t fallback);
/* The number behind `name` at a line's begin. */
uint64_t efs_kernel_field(const char *text, const char *name, uint64_t fallback);

/* Files of a kind of cgroup; fields of memory.stat: the page cache, and the part of it that is tmpfs and memfds. */
struct efs_cgroup_files {
    const char *limit, *high, *usage; /* high NULL: it has none */
    const char *cache, *shared;
};
#define EFS_CGROUP_NO_LIMIT (1ull << 60) /* v1 says "no limit" by a number that is larger */

/* All memory cgroups from this process's up to the roots. */
typedef void efs_cgroup_fn(void *arg, const char *directory, const struct efs_cgroup_files *files);
void efs_memory_cgroups(efs_cgroup_fn *each, void *arg);

#endif
