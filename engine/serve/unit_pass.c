/*
 * unit_pass.c - what streams bring is *passing* through memory: it counts in a quota of theirs, and makes room for what
 * they bring next before anything else does, so that a scan takes no more than its read-ahead window, whatever it
 * reads. A unit goes when all of its bytes were read, in whatever order and by whatever threads, or when streams have
 * gone on for so long that nobody will come for the rest. A unit that somebody else asks for stays, like any other.
 */
#include "unit_core.h"

/* Bytes that each stream went on by since, in windows. */
#define STALE_AHEAD 4u /* it was read ahead, and its reader did not come */
#define STALE_PART 1u  /* a part of it was read, and nobody comes for the rest */

void efs_unit_set_passing(struct efs *fs, struct efs_unit *u, bool passing)
{
    fs->passing_bytes -= u->passing_bytes;
    u->passing_bytes = passing && !u->keep ? (uint32_t)efs_unit_span(fs, u, u->needs) : 0;
    fs->passing_bytes += u->passing_bytes;
}

static uint64_t raw_bytes(const struct efs *fs, uint32_t unit)
{
    uint32_t object = fs->units[unit].object;
    uint64_t end =
        unit + 1 < fs->object_unit[object + 1] ? efs_unit_begin(fs, unit + 1) : fs->store->objects[object].bytes;
    return end - efs_unit_begin(fs, unit);
}

/* Its reader, or a thread of his, will still come. */
static bool is_awaited(const struct efs *fs, uint32_t unit)
{
    const struct efs_unit *u = &fs->units[unit];
    if (!u->ahead_bytes && u->passed_bytes >= raw_bytes(fs, unit))
        return false;
    uint64_t windows = (u->ahead_bytes ? STALE_AHEAD : STALE_PART) * (fs->streams.live ? fs->streams.live : 1);
    return fs->streams.clock - u->passing_clock <= windows * fs->streams.window;
}

enum efs_evicted efs_units_evict_passing(struct efs *fs, enum efs_passing what)
{
    enum efs_evicted result = EFS_EVICTED_NONE;
    for (uint32_t i = fs->passing_units.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->passing_units, i)) {
        const struct efs_unit *u = &fs->units[i];
        bool goes = what == EFS_PASSING_ALL || (what == EFS_PASSING_READ && !u->ahead_bytes) || !is_awaited(fs, i);
        if (u->refs == 0 && goes) {
            efs_unit_drop(fs, i, u->have & ~(unsigned)u->keep);
            efs_count(&fs->stats, evictions_c, 1);
            return EFS_EVICTED_ONE;
        }
        result = EFS_EVICTED_IN_USE;
    }
    return result;
}

bool efs_units_pass_on(struct efs *fs, uint64_t bytes, bool wanted)
{
    uint64_t quota = efs_streams_quota(&fs->streams);
    while (fs->passing_bytes + bytes > quota)
        if (efs_units_evict_passing(fs, EFS_PASSING_LEFT) != EFS_EVICTED_ONE &&
            (!wanted || efs_units_evict_passing(fs, EFS_PASSING_READ) != EFS_EVICTED_ONE))
            return false;
    return true;
}

void efs_unit_asked(struct efs *fs, uint32_t unit, enum efs_pace pace, size_t bytes)
{
    struct efs_unit *u = &fs->units[unit];
    if (u->have == 0 && u->state == EFS_UNIT_REST) {
        u->streamed = pace != EFS_PACE_RANDOM;
        u->passed_bytes = 0;
        if (pace == EFS_PACE_SCAN) {
            efs_units_pass_on(fs, efs_unit_span(fs, u, u->needs), true);
            efs_unit_set_passing(fs, u, true);
        }
    } else if (pace != EFS_PACE_SCAN) {
        u->streamed = u->streamed && pace == EFS_PACE_SEQUENTIAL;
        efs_unit_set_passing(fs, u, false);
    }
    u->passed_bytes = u->passed_bytes + bytes < UINT32_MAX ? u->passed_bytes + (uint32_t)bytes : UINT32_MAX;
    u->passing_clock = fs->streams.clock;
}

void efs_unit_pass(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    if (!u->streamed || u->passing_bytes || (u->have == 0 && u->state == EFS_UNIT_REST))
        return;
    efs_unit_set_passing(fs, u, true);
    if (u->list != EFS_LIST_NONE)
        efs_unit_enlist(fs, unit);
}
