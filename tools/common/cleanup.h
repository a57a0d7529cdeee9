/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup.h - variables that free what they own when they go out of scope, at each return of a function.
 *
 *     cleanup_free char *path = NULL;       free()
 *     cleanup_fd int fd = -1;               close(), unless it is negative
 *     cleanup_json json_t *list = NULL;     json_decref()
 *     return tools_steal(&path);            passes it on
 */
#ifndef TOOLS_CLEANUP_H
#define TOOLS_CLEANUP_H

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

static inline void tools_cleanup_free(void *at)
{
    free(*(void **)at);
}

static inline void tools_cleanup_fd(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void tools_cleanup_json(json_t **json)
{
    json_decref(*json);
}

#define cleanup_free __attribute__((cleanup(tools_cleanup_free)))
#define cleanup_fd __attribute__((cleanup(tools_cleanup_fd)))
#define cleanup_json __attribute__((cleanup(tools_cleanup_json)))

/* The value of *at, which becomes NULL. */
#define tools_steal(at)                                                                                                \
    ({                                                                                                                 \
        __typeof__(*(at)) tools_stolen = *(at);                                                                        \
        *(at) = NULL;                                                                                                  \
        tools_stolen;                                                                                                  \
    })

#endif
