/* SPDX-License-Identifier: Apache-2.0 */
/* run_plain.c - see run_plain.h. */
#include "run_plain.h"

#include "control_file.h"
#include "expertfs-private.h"
#include "mountpoint.h"
#include "store_sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROBE_MS 5000

/* The number in the store of the file whose experts the mount serves, if that is gguf. */
static bool file_number(const struct efs_store *store, const char *root, const char *gguf, uint32_t *number)
{
    struct efs_stacked *list;
    uint32_t count;
    struct stat st;
    unsigned long long inode = 0, others = 0;
    char *rows = ctl_mount_probe(root, "tensors", PROBE_MS);
    bool found = rows && stat(gguf, &st) == 0 && efs_stacked_list(store, &list, &count) == 0;
    for (const char *row = found ? strchr(rows, '\n') : NULL; row && row[1]; row = strchr(row + 1, '\n')) {
        inode = strtoull(row + 1, NULL, 10);
        others += inode != st.st_ino;
    }
    free(rows);
    if (!found)
        return false;
    for (uint32_t i = 1; i < count; i++)
        others += list[i].file != list[0].file;
    found = count > 0 && inode == st.st_ino && others == 0;
    *number = count > 0 ? list[0].file : 0;
    free(list);
    return found;
}

/* The path that the plain file of gguf has, if it is still there: the one that is served in place, or in the checkpoint
 * that was packed. */
static bool plain_path(struct ctl_run_plain *plain, bool in_place, const char *root, const char *gguf)
{
    struct stat st;
    char checkpoint[sizeof(plain->file)];
    if (in_place)
        snprintf(checkpoint, sizeof(checkpoint), "%s", plain->store);
    else if (ctl_sources_state(plain->store, checkpoint, sizeof(checkpoint)) != CTL_SOURCE_SAME)
        return false;
    const bool folder = stat(checkpoint, &st) == 0 && S_ISDIR(st.st_mode);
    const int n = snprintf(plain->file, sizeof(plain->file), "%s%s", checkpoint, folder ? gguf + strlen(root) : "");
    return n > 0 && (size_t)n < sizeof(plain->file);
}

static bool same_content(const struct ctl_run_plain *plain, const struct efs_store *store,
                         const struct efs_store_info *info, const char *root, const char *gguf)
{
    struct efs_same_range all = {.offset = 0};
    struct stat st;
    if (access(plain->file, R_OK) < 0 || stat(plain->file, &st) < 0 || !file_number(store, root, gguf, &all.file))
        return false;
    all.bytes = (uint64_t)st.st_size;
    return info->in_place || efs_same_known(info->content_hash, &st, &all) == 1;
}

bool ctl_run_plain_find(const char *root, const char *gguf, struct ctl_run_plain *plain)
{
    char *config = ctl_mount_probe(root, "config", PROBE_MS);
    struct efs_store *store = NULL;
    struct efs_store_info info;
    if (!config)
        return false;
    tools_line_path(config, "store", plain->store, sizeof(plain->store));
    const uint64_t device = tools_line_number(config, "store_device"), inode = tools_line_number(config, "store_inode");
    char hash[32];
    tools_line_text(config, "store_hash", hash, sizeof(hash));
    plain->memory.budget_bytes = tools_line_number(config, "effective_budget_bytes");
    free(config);
    if (efs_is_address(plain->store) || efs_store_open(plain->store, &store, NULL) < 0)
        return false;
    efs_store_info(store, &info);
    plain->bytes = info.source_bytes;
    plain->memory.expert_bytes = info.expert_coded_bytes;
    const bool found = info.content_hash == strtoull(hash, NULL, 16) && info.device == device && info.inode == inode &&
                       plain_path(plain, info.in_place, root, gguf) && same_content(plain, store, &info, root, gguf);
    efs_store_close(store);
    return found;
}
