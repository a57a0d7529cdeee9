/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts.c - see mount.h: the table of experts, with the layouts of files that were open before, and the set of
 * experts that the mount's policy protects in decoded form. The client drops other experts when they have no users,
 * because they take memory from these.
 *
 * The mount sends the list of them over its socket. The client requests the list when the first file becomes idle, and
 * again after as many as the list has, at least LIST_INTERVAL.
 */
#include "mount.h"

#include "sys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_INTERVAL 256u
#define KEEP_PARTS 8u /* idle files have at most 7/8 of the bytes that the mount protects */
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

struct efs_expert_file *efs_expert_shared_file(const struct efs_expert *expert, enum efs_form form)
{
    struct efs_expert_file *best = NULL;
    for (struct efs_expert_file *file = LIST_FIRST(&expert->files); file; file = LIST_NEXT(file, sibling))
        if ((form == EFS_FORM_ANY || form == file->form) && (!best || file->form == EFS_FORM_FULL))
            best = file;
    return best;
}

void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped)
{
    if (!mapped->new_layout)
        return;
    mapped->new_layout->older = *known;
    *known = mapped->new_layout;
    mapped->new_layout = NULL;
}

/* ---- the protected set ---- */

bool efs_file_is_protected(const struct efs_mount *m, const struct efs_expert_file *file)
{
    return !m->keep_auto || (file->form == EFS_FORM_FULL && file->expert->list >= m->list);
}

bool efs_protected_set_is_old(const struct efs_mount *m)
{
    const uint32_t most = m->protected > LIST_INTERVAL ? m->protected : LIST_INTERVAL;
    return m->keep_auto && !m->stop && !m->listing && m->idle_count >= (m->list == EFS_NO_LIST ? 1 : most);
}

bool efs_protected_set_receive(struct efs_mount *m, const struct efs_export_kept *packet)
{
    if (!m->listing || __builtin_add_overflow(m->listed_bytes, packet->raw_bytes, &m->listed_bytes))
        return false;
    for (uint32_t i = 0; i < packet->head.count; i++) {
        const struct efs_expert_key key = efs_expert_key(packet->stack, packet->layer, packet->expert[i]);
        struct efs_expert *expert = efs_expert_add(m, &key);
        if (expert) /* else there is no memory, or EXPERTS_MAX */
            expert->list = m->list + 1;
    }
    m->listed += packet->head.count;
    if (packet->last) {
        m->keep_bytes = m->keep_auto ? m->listed_bytes - m->listed_bytes / KEEP_PARTS : m->keep_bytes;
        m->protected = m->listed;
        m->listed = 0;
        m->listed_bytes = 0;
        m->listing = false;
        m->list++;
    }
    return true;
}

void efs_protected_set_clear(struct efs_mount *m)
{
    if (!m->keep_auto)
        return;
    m->list += 2; /* also after a list that is not complete */
    m->listing = false;
    m->keep_bytes = 0;
}
