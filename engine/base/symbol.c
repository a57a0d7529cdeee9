/* SPDX-License-Identifier: Apache-2.0 */
/* symbol.c - see symbol.h. */
#include "symbol.h"

#include <dlfcn.h>
#include <string.h>

/* ISO C cannot convert an object pointer to a function pointer; POSIX guarantees the same representation. */
bool efs_symbol(void *library, const char *name, void *call, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(call, &symbol, bytes);
    return symbol != NULL;
}
