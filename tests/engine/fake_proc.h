/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_proc.h - engine/memory/memory_left.c with /proc and /sys/fs/cgroup below a directory of the test: put() writes
 * their files. Included by one file of a test.
 */
#ifndef FAKE_PROC_H
#define FAKE_PROC_H

#include "test.h"
#include "fixture.h"
#include "sys.h"

static struct fixture tree;

static int open_below(const char *path, int flags, unsigned mode)
{
    char below[9000];
    if ((size_t)snprintf(below, sizeof(below), "%s%s", tree.source, path) >= sizeof(below))
        return -ENAMETOOLONG;
    return efs_sys_open(below, flags, mode);
}

#define efs_sys_open open_below
#include "../../engine/base/proc_text.c" /* replaces the library's */
#include "../../engine/memory/memory_left.c"

static void put(const char *path, const char *text)
{
    fixture_file(&tree, path, text, strlen(text));
}

static int begin(void **state)
{
    (void)state;
    fixture_begin(&tree);
    put("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"); /* 8 GiB available */
    return 0;
}

static int end(void **state)
{
    (void)state;
    fixture_end(&tree);
    return 0;
}

#endif
