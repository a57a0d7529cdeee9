/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protected_set.c - see mount.h. The set of experts that the mount keeps full. The client closes other files when they have
 * no users, because open files take memory from the experts that the mount keeps.
 *
 * The mount sends the list over its socket; without a socket no file is kept. The client requests the list again at
 * intervals of at least 100 ms and 100 times the duration of the last answer.
 */
#include "mount.h"

#include "clock.h"
#include "sys.h"

#include <stdlib.h>

#define LOOK_NS 100000000u
#define LOOK_TIMES 100u
#define EXPERTS_MOST (1u << 22)

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* One that there is no room for is not kept. */
static void full_set_add(struct efs_full_set *set, uint32_t hash)
{
    if (set->count == set->room) {
        uint32_t room = set->room ? 2 * set->room : 256;
        uint32_t *more = room <= EXPERTS_MOST ? efs_sys_calloc(room, sizeof(*more)) : NULL;
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

void efs_full_set_free(struct efs_full_set *set)
{
    free(set->hashes);
    *set = (struct efs_full_set){.hashes = NULL};
}

bool efs_full_set_has(const struct efs_mount *m, uint32_t hash)
{
    return !m->keep_auto || (m->full.count && bsearch(&hash, m->full.hashes, m->full.count, sizeof(hash), by_value));
}

/* What was listed is kept from now on. */
static void full_set_change(struct efs_mount *m)
{
    efs_full_set_free(&m->full);
    m->full = m->listed;
    m->listed = (struct efs_full_set){.hashes = NULL};
    m->listing = false;
    if (m->full.count)
        qsort(m->full.hashes, m->full.count, sizeof(m->full.hashes[0]), by_value);
    m->keep_bytes = m->full.bytes - m->full.bytes / EFS_KEEP_PARTS;
}

bool efs_full_set_take(struct efs_mount *m, const struct efs_export_kept *packet)
{
    if (!m->listing || __builtin_add_overflow(m->listed.bytes, packet->raw_bytes, &m->listed.bytes))
        return false;
    for (uint32_t i = 0; i < packet->head.count; i++) {
        const struct efs_expert_key key = efs_expert_key(packet->stack, packet->layer, packet->expert[i]);
        full_set_add(&m->listed, efs_expert_key_hash(&key));
    }
    if (packet->last) {
        uint64_t now = efs_now_ns(), pause = (now - m->asked_ns) * LOOK_TIMES;
        m->look_ns = now + (pause > LOOK_NS ? pause : LOOK_NS);
        full_set_change(m);
    }
    return true;
}

void efs_full_set_lose(struct efs_mount *m)
{
    if (!m->keep_auto)
        return;
    efs_full_set_free(&m->listed);
    full_set_change(m);
}
