/* SPDX-License-Identifier: Apache-2.0 */
/* layout_cache.c - see mount.h: layouts of files that were open before, so that their headers need not be parsed again.
 */
#include "mount.h"

#include "sys.h"

#include <stdlib.h>

struct efs_cached_layout {
    struct efs_cached_layout *next;
    struct efs_file_layout *layout;
    uint32_t hash;
    struct efs_expert_key key;
};

const struct efs_file_layout *efs_layout_cache_find(const struct efs_mount *m, const struct efs_expert_key *key,
                                                    uint32_t hash)
{
    for (const struct efs_cached_layout *k = m->layouts[hash % EFS_MOUNT_BUCKETS]; k; k = k->next)
        if (k->hash == hash && efs_expert_key_is(&k->key, key))
            return k->layout;
    return NULL;
}

void efs_layout_cache_add(struct efs_mount *m, struct efs_expert_file *file)
{
    struct efs_cached_layout *k = efs_sys_calloc(1, sizeof(*k));
    if (!k)
        return; /* the file keeps its layout */
    k->layout = file->mapped.new_layout;
    file->mapped.new_layout = NULL;
    k->hash = file->hash;
    k->key = file->key;
    k->next = m->layouts[k->hash % EFS_MOUNT_BUCKETS]; /* before an older one, whose names may be in use */
    m->layouts[k->hash % EFS_MOUNT_BUCKETS] = k;
}

void efs_layout_cache_free(struct efs_mount *m)
{
    for (unsigned i = 0; i < EFS_MOUNT_BUCKETS; i++)
        for (struct efs_cached_layout *k; (k = m->layouts[i]);) {
            m->layouts[i] = k->next;
            efs_layout_free(k->layout);
            free(k);
        }
}
