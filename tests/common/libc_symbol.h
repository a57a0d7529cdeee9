/* SPDX-License-Identifier: Apache-2.0 */
/* libc_symbol.h - the C library's function, for tests that define one of the same name. Needs _GNU_SOURCE. */
#ifndef EFS_LIBC_SYMBOL_H
#define EFS_LIBC_SYMBOL_H

#include <dlfcn.h>
#include <stdlib.h>

static inline void *libc_symbol(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

#endif
