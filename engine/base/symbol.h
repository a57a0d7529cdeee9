/* SPDX-License-Identifier: Apache-2.0 */
/* symbol.h - functions of libraries that are loaded at run time. */
#ifndef EFS_SYMBOL_H
#define EFS_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>

/* Sets *call, a function pointer of `bytes` bytes, to a function of a library of dlopen(3). false: it has none of that
 * name, and *call is NULL. Any thread. */
bool efs_symbol(void *library, const char *name, void *call, size_t bytes);

#endif
