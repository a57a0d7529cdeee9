/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refill.c - allocates memory that turns with efs.lock may need before they start: segments of the chunk pool that are
 * ready to be added to its table, structs for loads, and the reading of free memory. A turn takes from this supply; it
 * is replenished before the next turn, and a turn that needs more waits for the next supply.
 *
 * While turns use the amount of free memory, it is read again when the reading is 20 ms old or memory was freed since.
 * Bytes allocated since the last reading are subtracted.
 */
#include "budget.h"

#include "extent.h"

#include <errno.h>

#define FRESH_NS 20000000u   /* others take little in that time, and margins are left for it */
#define NEW_NS 200000000u    /* the same for who asks first, who may have waited for the lock since */
#define ASKED_NS 1000000000u /* nobody asked for so long: not looked at until somebody does */

static bool supply_is_stale(const struct efs_supply *s, uint64_t now, uint64_t after_ns)
{
    return atomic_load(&s->freed) != atomic_load(&s->seen) || now - atomic_load(&s->looked_ns) > after_ns;
}

static bool supply_must_look(const struct efs_supply *s)
{
    uint64_t asked = atomic_load(&s->asked_ns);
    if (asked == 0)
        return false;
    uint64_t now = efs_now_ns();
    return now - asked < ASKED_NS && supply_is_stale(s, now, FRESH_NS);
}

/* With lock held: all that we may hold so that as much as this is left. What was promised and not touched yet is in no
 * count of the system's at all: memory that is being filled, and about a segment, see efs_supply_memory(). */
static uint64_t supply_can_have(const struct efs *fs, uint64_t used, int64_t left)
{
    uint64_t promised = fs->account.fresh_bytes + fs->arena.segment_bytes;
    uint64_t have = used > promised ? used - promised : 0;
    if (left < 0)
        return have > (uint64_t)-left ? have - (uint64_t)-left : 0;
    return (uint64_t)left > UINT64_MAX - have ? UINT64_MAX : have + (uint64_t)left;
}

/* With lock held: what is held, but for what has gone and is counted still: it is in what is left. */
static uint64_t supply_used(const struct efs *fs)
{
    uint64_t used = efs_budget_used(fs), gone = atomic_load(&fs->account.gone_bytes);
    return used > gone ? used - gone : 0;
}

static void supply_get(struct efs *fs, struct efs_supply *s, bool look)
{
    struct efs_coming_segment coming[EFS_SUPPLY_SEGMENTS];
    errint_t error[EFS_SUPPLY_SEGMENTS];
    unsigned count = 0, loads = 0;
    bool wanted = atomic_exchange(&fs->supply_wanted, false);
    uint64_t nodes = wanted ? efs_arena_nodes_with_memory(&fs->arena) : 0;
    uint32_t freed = atomic_load(&s->freed); /* what comes free from here on makes another look */
    pthread_mutex_lock(&fs->lock);
    while (wanted && s->count + count < EFS_SUPPLY_SEGMENTS && efs_arena_choose(&fs->arena, nodes, &coming[count]))
        count++;
    if (wanted)
        loads = efs_extent_loads_wanted(fs);
    uint64_t taken = fs->account.taken_bytes, used = supply_used(fs);
    pthread_mutex_unlock(&fs->lock);

    int64_t left = look ? efs_memory_left_bytes(&fs->budget->memory_left) : 0;
    for (unsigned i = 0; i < count; i++)
        error[i] = efs_arena_prepare(&fs->arena, &coming[i]);
    struct efs_extent_load *made = efs_extent_loads_new(loads);

    pthread_mutex_lock(&fs->lock);
    bool failed = loads && !made;
    for (unsigned i = 0; i < count; i++) {
        if (error[i] == 0)
            s->segments[s->count++] = coming[i];
        else
            efs_arena_forget(&fs->arena, &coming[i]);
        failed = failed || error[i] < 0;
    }
    if (wanted)
        fs->supply_failed = failed;
    efs_extent_loads_add(fs, made);
    if (look) {
        s->left_bytes = taken + (left > 0 ? (uint64_t)left : 0);
        s->is_new = true;
        atomic_store(&s->looked_ns, efs_now_ns());
        atomic_store(&s->seen, freed);
        /* what came or went meanwhile may be in what is left, or not: rather too much for a moment */
        used = supply_used(fs) > used ? supply_used(fs) : used;
        s->found_bytes = left == INT64_MAX ? UINT64_MAX : supply_can_have(fs, used, left);
        s->has_found = true;
        efs_again(fs, EFS_AGAIN_BUDGET);
    }
    pthread_mutex_unlock(&fs->lock);
}

void efs_supply(struct efs *fs, uint64_t gone_bytes)
{
    struct efs_supply *s = &fs->budget->supply;
    if (gone_bytes) {
        atomic_fetch_add(&fs->account.gone_bytes, gone_bytes);
        atomic_fetch_add(&s->freed, 1);
    }
    if (!atomic_load(&fs->supply_wanted) && !supply_must_look(s))
        return;
    pthread_mutex_lock(&s->lock);
    bool look = supply_must_look(s);
    if (atomic_load(&fs->supply_wanted) || look) /* else another thread was faster */
        supply_get(fs, s, look);
    pthread_mutex_unlock(&s->lock);
}

void efs_supply_look(struct efs *fs)
{
    struct efs_supply *s = &fs->budget->supply;
    pthread_mutex_lock(&s->lock);
    supply_get(fs, s, true);
    pthread_mutex_unlock(&s->lock);
    efs_lock(fs); /* what follows from it */
    efs_unlock(fs);
}

errint_t efs_supply_segment(struct efs *fs)
{
    struct efs_supply *s = &fs->budget->supply;
    if (s->count == 0)
        return efs_defer_supply(fs);
    efs_arena_add(&fs->arena, &s->segments[0]);
    s->segments[0] = s->segments[--s->count];
    fs->account.taken_bytes += fs->arena.segment_bytes;
    atomic_store(&fs->supply_wanted, true);
    return 0;
}

errint_t efs_supply_memory(struct efs *fs, uint64_t bytes)
{
    struct efs_supply *s = &fs->budget->supply;
    uint64_t now = efs_now_ns();
    atomic_store(&s->asked_ns, now);
    if (supply_is_stale(s, now, s->is_new ? NEW_NS : FRESH_NS)) {
        fs->deferred.any = fs->deferred.supply = true;
        return -EAGAIN;
    }
    s->is_new = false;
    /* what was promised and not touched yet is in no count at all: memory being filled, and about a segment */
    uint64_t need = bytes + fs->account.fresh_bytes + fs->arena.segment_bytes;
    return s->left_bytes >= need && s->left_bytes - need >= fs->account.taken_bytes ? 0 : -ENOMEM;
}
