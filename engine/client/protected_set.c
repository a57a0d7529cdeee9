/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protected_set.c - see mount.h. The set of experts that the mount's policy protects in decoded form. The client closes
 * other files when they have no users, because open files take memory from these experts.
 *
 * The mount sends the list over its socket; without a socket no idle file stays open. The client requests the list
 * when the first file becomes idle, and again after as many as the list has, at least LIST_INTERVAL.
 */
#include "mount.h"

#include "sys.h"

#include <stdlib.h>

#define LIST_INTERVAL 256u
#define EXPERTS_MAX (1u << 22)

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Leaves the expert out if there is no memory, or the set has EXPERTS_MAX experts. */
static void protected_set_add(struct efs_protected_set *set, uint32_t hash)
{
    if (set->count == set->room) {
        uint32_t room = set->room ? 2 * set->room : 256;
        uint32_t *more = room <= EXPERTS_MAX ? efs_sys_calloc(room, sizeof(*more)) : NULL;
        if (!more)
            return;
        for (uint32_t i = 0; i < set->count; i++)
            more[i] = set->hashes[i];
        free(set->hashes);
        set->hashes = more;
        set->room = room;
    }
    set->hashes[set->count++] = hash;
}

void efs_protected_set_free(struct efs_protected_set *set)
{
    free(set->hashes);
    *set = (struct efs_protected_set){.hashes = NULL};
}

bool efs_protected_set_has(const struct efs_mount *m, uint32_t hash)
{
    return !m->keep_auto ||
           (m->protected.count && bsearch(&hash, m->protected.hashes, m->protected.count, sizeof(hash), by_value));
}

/* Replaces the set by the received list. */
static void protected_set_replace(struct efs_mount *m)
{
    efs_protected_set_free(&m->protected);
    m->protected = m->listed;
    m->listed = (struct efs_protected_set){.hashes = NULL};
    m->listing = false;
    if (m->protected.count)
        qsort(m->protected.hashes, m->protected.count, sizeof(m->protected.hashes[0]), by_value);
    if (m->keep_auto)
        m->keep_bytes = m->protected.bytes - m->protected.bytes / EFS_KEEP_PARTS;
}

bool efs_protected_set_is_old(const struct efs_mount *m)
{
    const uint32_t most = m->protected.count > LIST_INTERVAL ? m->protected.count : LIST_INTERVAL;
    return m->keep_auto && !m->stop && !m->listing && m->idle_count && (!m->was_listed || m->idle_count >= most);
}

void efs_protected_set_requested(struct efs_mount *m)
{
    m->idle_count = 0;
    m->listing = m->was_listed = true;
}

bool efs_protected_set_receive(struct efs_mount *m, const struct efs_export_kept *packet)
{
    if (!m->listing || __builtin_add_overflow(m->listed.bytes, packet->raw_bytes, &m->listed.bytes))
        return false;
    for (uint32_t i = 0; i < packet->head.count; i++) {
        const struct efs_expert_key key = efs_expert_key(packet->stack, packet->layer, packet->expert[i]);
        protected_set_add(&m->listed, efs_expert_key_hash(&key));
    }
    if (packet->last)
        protected_set_replace(m);
    return true;
}

void efs_protected_set_clear(struct efs_mount *m)
{
    if (!m->keep_auto)
        return;
    efs_protected_set_free(&m->listed);
    protected_set_replace(m);
}
