/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - a list of paths. */
#ifndef EXPERTCTL_PATHS_H
#define EXPERTCTL_PATHS_H

#include <stdbool.h>
#include <stddef.h>

struct ctl_paths {
    char **path;
    size_t count;
};
/* Appends a copy. false: no memory. */
bool ctl_paths_add(struct ctl_paths *paths, const char *path);
void ctl_paths_free(struct ctl_paths *paths);

#endif
