/*
 * unit_keep.c - which halves of units stay in memory. What the policy keeps (unit.keep) stands in one list, all else in
 * two others: *loose* units, of dense tensors, of experts that are not kept, and halves that their expert lost; and
 * what is *passing*, of scans (unit_pass.c). Loose halves stay as long as nobody needs their memory, and go oldest
 * first.
 */
#include "unit_core.h"

#include "residency.h"

#include <string.h>

static unsigned loose_halves(const struct efs_unit *u)
{
    return u->have & ~(unsigned)u->keep;
}

void efs_unit_delist(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    if (u->list == EFS_LIST_KEPT)
        efs_lru_remove(&fs->kept_units, unit);
    else if (u->list != EFS_LIST_NONE)
        efs_lru_remove(u->list == EFS_LIST_PASSING ? &fs->passing_units : &fs->loose_units, unit);
    u->list = EFS_LIST_NONE;
}

void efs_unit_enlist(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    efs_unit_delist(fs, unit);
    if (u->have == 0 || u->state == EFS_UNIT_LOADING)
        return;
    bool loose = loose_halves(u) != 0;
    u->spare = u->spare && loose;
    u->list = !loose ? EFS_LIST_KEPT : u->passing_bytes ? EFS_LIST_PASSING : EFS_LIST_LOOSE;
    efs_lru_insert(!loose             ? &fs->kept_units
                   : u->passing_bytes ? &fs->passing_units
                                      : &fs->loose_units,
                   unit, !u->spare);
}

void efs_unit_used(struct efs *fs, struct efs_unit *u)
{
    fs->ahead_bytes -= u->ahead_bytes;
    u->ahead_bytes = 0;
}

void efs_unit_drop(struct efs *fs, uint32_t unit, unsigned halves)
{
    struct efs_unit *u = &fs->units[unit];
    bool whole = u->have == u->needs;
    efs_unit_used(fs, u);
    if (halves & EFS_HALF_E)
        efs_arena_free(&fs->arena, &u->e);
    if (halves & EFS_HALF_SM)
        efs_arena_free(&fs->arena, &u->sm);
    if (whole && (u->have & halves))
        fs->unit_ready_count--;
    u->have &= (uint8_t)~halves;
    if (u->have == 0) {
        u->doomed = u->spare = u->streamed = false;
        efs_unit_set_passing(fs, u, false);
    }
    efs_unit_enlist(fs, unit);
}

/* Kept halves go after all: the books must know. */
static void give_up(struct efs *fs, uint32_t unit, unsigned halves)
{
    const struct efs_unit *u = &fs->units[unit];
    bool kept = (u->have & u->keep & halves) != 0;
    efs_unit_drop(fs, unit, halves);
    efs_count(&fs->stats, kept_lost, kept);
    if (kept)
        efs_residency_lost(fs, fs->store->objects[u->object].group);
}

static enum efs_evicted evict_loose(struct efs *fs, bool only_spare)
{
    enum efs_evicted result = EFS_EVICTED_NONE;
    for (uint32_t i = fs->loose_units.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->loose_units, i)) {
        if (only_spare && !fs->units[i].spare)
            return EFS_EVICTED_NONE;
        if (fs->units[i].refs == 0) {
            efs_unit_drop(fs, i, loose_halves(&fs->units[i]));
            efs_count(&fs->stats, evictions_c, 1);
            return EFS_EVICTED_ONE;
        }
        result = EFS_EVICTED_IN_USE;
    }
    return result;
}

/* What streams left behind goes before others, what they wait for after. */
enum efs_evicted efs_units_evict(struct efs *fs, bool only_spare)
{
    if (only_spare)
        return evict_loose(fs, true);
    enum efs_evicted passed = efs_units_evict_passing(fs, EFS_PASSING_LEFT), loose;
    if (passed == EFS_EVICTED_ONE)
        return passed;
    loose = evict_loose(fs, false);
    if (loose == EFS_EVICTED_ONE)
        return loose;
    enum efs_evicted ahead = efs_units_evict_passing(fs, EFS_PASSING_READ);
    if (ahead != EFS_EVICTED_ONE)
        ahead = efs_units_evict_passing(fs, EFS_PASSING_ALL);
    return ahead != EFS_EVICTED_NONE ? ahead : loose != EFS_EVICTED_NONE ? loose : passed;
}

/* The oldest that is kept and not in use; experts that a request or lease holds only when there is nothing else. */
bool efs_units_evict_kept(struct efs *fs)
{
    for (unsigned held = 0; held < 2; held++)
        for (uint32_t i = fs->kept_units.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->kept_units, i)) {
            const struct efs_unit *u = &fs->units[i];
            if (u->refs == 0 && (held || !efs_residency_held(fs, fs->store->objects[u->object].group))) {
                give_up(fs, i, u->have);
                efs_count(&fs->stats, evictions_c, 1);
                return true;
            }
        }
    return false;
}

void efs_units_keep(struct efs *fs, uint32_t expert, unsigned halves)
{
    for (uint32_t i = efs_expert_unit_first(fs, expert); i < efs_expert_unit_end(fs, expert); i++) {
        struct efs_unit *u = &fs->units[i];
        uint8_t keep = (uint8_t)(halves & u->needs);
        if (u->keep != keep) {
            u->keep = keep;
            if (keep)
                efs_unit_set_passing(fs, u, false);
            efs_unit_enlist(fs, i);
        }
    }
}

unsigned efs_units_have(const struct efs *fs, uint32_t expert, bool *some)
{
    unsigned all = EFS_BOTH, any = 0;
    for (uint32_t i = efs_expert_unit_first(fs, expert); i < efs_expert_unit_end(fs, expert); i++) {
        const struct efs_unit *u = &fs->units[i];
        unsigned have = u->state == EFS_UNIT_REST ? u->have : 0;
        all &= have | (EFS_BOTH & ~(unsigned)u->needs);
        any |= have;
    }
    *some = any != 0;
    return any ? all : 0;
}

bool efs_units_loading(const struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_unit_first(fs, expert); i < efs_expert_unit_end(fs, expert); i++)
        if (fs->units[i].state != EFS_UNIT_REST)
            return true;
    return false;
}

/* ---- segments that leave ---- */

static unsigned halves_in(const struct efs_unit *u, uint32_t segment)
{
    return (u->e.data && u->e.segment == segment ? EFS_HALF_E : 0u) |
           (u->sm.data && u->sm.segment == segment ? EFS_HALF_SM : 0u);
}

static unsigned halves_retiring(const struct efs *fs, const struct efs_unit *u)
{
    return (u->e.data && fs->arena.segments[u->e.segment].retiring ? EFS_HALF_E : 0u) |
           (u->sm.data && fs->arena.segments[u->sm.segment].retiring ? EFS_HALF_SM : 0u);
}

/* A kept half moves to another segment, if loose ones there can make room for it. */
static bool move_half(struct efs *fs, struct efs_unit *u, unsigned half)
{
    struct efs_block *block = half == EFS_HALF_E ? &u->e : &u->sm, to = {0};
    while (!efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, block), efs_unit_room(fs, u, half),
                               half == EFS_HALF_SM, &to))
        if (efs_units_evict(fs, false) != EFS_EVICTED_ONE)
            return false;
    memcpy(to.data, block->data, efs_unit_span(fs, u, half));
    efs_arena_free(&fs->arena, block);
    *block = to;
    return true;
}

/* Halves of a unit without users must leave their segment. */
static void leave(struct efs *fs, uint32_t unit, unsigned halves)
{
    struct efs_unit *u = &fs->units[unit];
    efs_unit_delist(fs, unit); /* not to be evicted meanwhile */
    for (unsigned half = EFS_HALF_E; half <= EFS_HALF_SM; half <<= 1)
        if ((halves & half & u->keep) && move_half(fs, u, half))
            halves &= ~half;
    efs_unit_enlist(fs, unit);
    if (halves)
        give_up(fs, unit, halves);
}

void efs_unit_settle(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    if (u->refs != 0 || u->state == EFS_UNIT_LOADING || u->have == 0)
        return;
    unsigned halves = u->have & halves_retiring(fs, u);
    if (u->doomed)
        give_up(fs, unit, u->have);
    else if (halves)
        leave(fs, unit, halves);
}

/* One that leaves may move others between the lists, hence from the start again each time: a segment has few. */
static bool leave_one(struct efs *fs, const struct efs_lru *list, uint32_t segment)
{
    for (uint32_t i = list->oldest; i != EFS_NONE; i = efs_lru_newer(list, i)) {
        const struct efs_unit *u = &fs->units[i];
        unsigned halves = u->refs == 0 ? halves_in(u, segment) : 0;
        if (halves) {
            leave(fs, i, halves);
            return true;
        }
    }
    return false;
}

void efs_units_leave_segment(struct efs *fs, uint32_t segment)
{
    while (leave_one(fs, &fs->passing_units, segment) || leave_one(fs, &fs->loose_units, segment) ||
           leave_one(fs, &fs->kept_units, segment))
        ;
}

void efs_unit_first_to_go(struct efs *fs, uint32_t unit)
{
    pthread_mutex_lock(&fs->lock);
    struct efs_unit *u = &fs->units[unit];
    if (u->list == EFS_LIST_LOOSE || u->list == EFS_LIST_PASSING) {
        efs_unit_set_passing(fs, u, false);
        u->spare = true;
        efs_unit_enlist(fs, unit);
    }
    pthread_mutex_unlock(&fs->lock);
}
