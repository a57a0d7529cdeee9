/* SPDX-License-Identifier: Apache-2.0 */
/* proc_text.h - reads numbers from files of /proc and of memory cgroups (v1 and v2). A file that cannot be read is
 * treated as empty. */
#ifndef EFS_PROC_TEXT_H
#define EFS_PROC_TEXT_H

#include <stdint.h>

#define EFS_PROC_TEXT 8192 /* bytes read of a file, including the terminating NUL */

/* Opens directory/name for reading. The caller closes the descriptor. -errno on failure. */
int efs_kernel_open(const char *directory, const char *name);
/* Reads the text of an open file from offset 0; fd < 0: "". */
void efs_proc_text(int fd, char text[EFS_PROC_TEXT]);
/* Opens directory/name, reads its text as efs_proc_text() does and closes it. */
void efs_kernel_read(const char *directory, const char *name, char text[EFS_PROC_TEXT]);
/* The number in an open file; fallback if the file cannot be read or does not start with a number ("max"). */
uint64_t efs_kernel_number(int fd, uint64_t fallback);
/* The number after `name` at the start of a line; fallback if no line starts with name. */
uint64_t efs_kernel_field(const char *text, const char *name, uint64_t fallback);

/* File names of a cgroup version, and fields of its memory.stat: page cache, and the part of it in tmpfs and memfds. */
struct efs_cgroup_files {
    const char *limit, *high, *usage; /* high: NULL in v1 */
    const char *cache, *shared;
};
#define EFS_CGROUP_NO_LIMIT (1ull << 60) /* cgroup v1 reports a larger number if it has no limit */

/* Calls each() for the memory cgroup of this process and all its ancestors, the root included. */
typedef void efs_cgroup_fn(void *arg, const char *directory, const struct efs_cgroup_files *files);
void efs_memory_cgroups(efs_cgroup_fn *each, void *arg);

#endif
