/* SPDX-License-Identifier: Apache-2.0 */
/* hub_quant.c - see hub_quant.h. */
#include "hub_quant.h"

#include "expertctl.h"
#include "gguf_models.h"
#include "info_checkpoint.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

bool ctl_hub_has_quant(const char *path, const char *quant)
{
    size_t bytes = strlen(quant);
    const char *last = strrchr(path, '/');
    if (strcasecmp(last ? last + 1 : path, quant) == 0)
        return true;
    for (const char *at = path; (at = strcasestr(at, quant)); at++) {
        bool begins = at == path || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        bool ends = !(isalnum((unsigned char)at[bytes]) || at[bytes] == '_');
        if (begins && ends)
            return true;
    }
    return false;
}

/* The folder of a split model that has no other GGUF file; its first part else. */
static void shorten_to_folder(char *path, size_t root_bytes)
{
    struct ctl_paths beside;
    struct efs_error ignored;
    char folder[4400];
    const char *slash = strrchr(path, '/');
    if (!ctl_gguf_part(path) || (size_t)(slash - path) <= root_bytes)
        return;
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    if (ctl_gguf_models(folder, NULL, NULL, &beside, &ignored) == 0 && beside.count == 1)
        strcpy(path, folder);
    ctl_paths_free(&beside);
}

errint_t ctl_hub_quant(char *path, size_t room, const char *quant, const char *given, struct efs_error *err)
{
    struct ctl_paths models;
    char names[1024] = "";
    size_t root_bytes = strlen(path);
    errint_t rc = ctl_gguf_models(path, ctl_hub_has_quant, quant, &models, err);
    for (size_t i = 0; rc == 0 && i < models.count; i++)
        ctl_list_add(names, sizeof(names), models.path[i] + root_bytes + 1);
    if (rc == 0 && models.count > 1)
        rc = efs_fail(err, -E2BIG, "%s: which file? there are %s\nhint: ORG/NAME/FILE names one", given, names);
    else if (rc == 0 && (models.count == 0 || !ctl_gguf_is_model(models.path[0])))
        rc = -ENOENT;
    else if (rc == 0)
        rc = (size_t)snprintf(path, room, "%s", models.path[0]) < room ? 0 : -ENAMETOOLONG;
    ctl_paths_free(&models);
    if (rc == 0)
        shorten_to_folder(path, root_bytes);
    return rc;
}
