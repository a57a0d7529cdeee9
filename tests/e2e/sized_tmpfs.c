/* SPDX-License-Identifier: Apache-2.0 */
/* sized_tmpfs.c - preloaded by test_no_space.py: a tmpfs is mounted with the size $EFS_TEST_TMPFS, which can then be
 * changed; a tmpfs mounted without a limit cannot get one later. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fsconfig(int context, unsigned command, const char *key, const void *value,
                                                    int number);

int fsconfig(int context, unsigned command, const char *key, const void *value, int number)
{
    const char *size = getenv("EFS_TEST_TMPFS");
    if (size && key && strcmp(key, "size") == 0)
        value = size;
    return (int)syscall(SYS_fsconfig, context, command, key, value, number);
}
