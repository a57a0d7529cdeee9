/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - see mount.h: the table of experts, with the layouts of those that were received before. */
#include "mount.h"

#include "sys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPERTS_MAX (1u << 20)

void efs_expert_path(const struct efs_expert_key *key, char path[EFS_EXPERT_PATH])
{
    snprintf(path, EFS_EXPERT_PATH, "experts/%s%sL%02" PRIu32 "/E%03" PRIu32 ".safetensors", key->stack,
             *key->stack ? "-" : "", key->layer, key->expert);
}

struct efs_expert *efs_expert_find(const struct efs_mount *m, const struct efs_expert_key *key)
{
    struct efs_expert *expert = LIST_FIRST(&m->experts[efs_expert_key_hash(key) % EFS_MOUNT_BUCKETS]);
    while (expert && !efs_expert_key_is(&expert->key, key))
        expert = LIST_NEXT(expert, same_hash);
    return expert;
}

struct efs_expert *efs_expert_add(struct efs_mount *m, const struct efs_expert_key *key)
{
    struct efs_expert *expert = efs_expert_find(m, key);
    if (expert || m->expert_count == EXPERTS_MAX || !(expert = efs_sys_calloc(1, sizeof(*expert))))
        return expert;
    expert->key = *key;
    LIST_INSERT_HEAD(&m->experts[efs_expert_key_hash(key) % EFS_MOUNT_BUCKETS], expert, same_hash);
    m->expert_count++;
    return expert;
}

void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped)
{
    if (!mapped->new_layout)
        return;
    mapped->new_layout->older = *known;
    *known = mapped->new_layout;
    mapped->new_layout = NULL;
}

void efs_experts_free(struct efs_mount *m)
{
    struct efs_expert *expert;
    for (unsigned i = 0; i < EFS_MOUNT_BUCKETS; i++)
        while ((expert = LIST_FIRST(&m->experts[i]))) {
            LIST_REMOVE(expert, same_hash);
            efs_layout_free(expert->layout);
            efs_layout_free(expert->coded_layout);
            free(expert);
        }
}
