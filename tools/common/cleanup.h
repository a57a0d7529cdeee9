/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup.h - variables that free what they own when they go out of scope, at each return of a function.
 *
 *     cleanup_free char *path = NULL;       free()
 *     return tools_steal(&path);            passes it on
 */
#ifndef TOOLS_CLEANUP_H
#define TOOLS_CLEANUP_H

#include <stdlib.h>

static inline void tools_cleanup_free(void *at)
{
    free(*(void **)at);
}

#define cleanup_free __attribute__((cleanup(tools_cleanup_free)))

/* The value of *at, which becomes NULL. */
#define tools_steal(at)                                                                                                \
    ({                                                                                                                 \
        __typeof__(*(at)) tools_stolen = *(at);                                                                        \
        *(at) = NULL;                                                                                                  \
        tools_stolen;                                                                                                  \
    })

#endif
