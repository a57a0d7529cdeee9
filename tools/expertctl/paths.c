/* SPDX-License-Identifier: Apache-2.0 */
/* paths.c - see paths.h. */
#include "paths.h"

#include <stdlib.h>
#include <string.h>

bool ctl_paths_add(struct ctl_paths *paths, const char *path)
{
    char **more = reallocarray(paths->path, paths->count + 1, sizeof(*more));
    paths->path = more ? more : paths->path;
    return more && (more[paths->count] = strdup(path)) && ++paths->count;
}

void ctl_paths_free(struct ctl_paths *paths)
{
    while (paths->count)
        free(paths->path[--paths->count]);
    free(paths->path);
    paths->path = NULL;
}
