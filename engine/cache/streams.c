/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - see streams.h. */
#include "streams.h"

#define NONE UINT32_MAX
#define SEQUENTIAL_STEPS 2u      /* requests that advance a walk before it is sequential */
#define GAP_BYTES (4ull << 20)   /* limit of a gap between requests of a walk */
#define GAP_SHARE 4u             /* and at most 1/4 of the bytes read in the walk */
#define LATE_BYTES (8ull << 20)  /* a request may match a walk up to this far before its end, or a window */
#define FIRST_TIMES 4u           /* read-ahead is at most 4 times the bytes read in the walk */
#define EACH_BYTES (4ull << 20)  /* least window of each of many streams */
#define IDLE_BYTES (64ull << 20) /* a walk has ended when other requests have read more than this */
#define STREAM_BYTES (1ull << 20)
#define RECENT_BYTES (16ull << 20)

static uint64_t streams_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Whether SEQUENTIAL_STEPS requests have advanced the walk, and at least 1/GAP_SHARE of its recent advance was read. */
static bool walk_is_sequential(const struct efs_walk *w)
{
    return w->steps >= SEQUENTIAL_STEPS && w->recent_bytes >= w->recent_advance / GAP_SHARE;
}

static bool walk_is_live(const struct efs_streams *s, const struct efs_walk *w)
{
    return w->used && s->clock - w->used <= IDLE_BYTES;
}

/* Whether the walk is a stream: live, sequential, and STREAM_BYTES were read in it. */
static bool walk_is_stream(const struct efs_streams *s, const struct efs_walk *w)
{
    return walk_is_live(s, w) && walk_is_sequential(w) && w->fresh >= STREAM_BYTES;
}

/* How far before a walk's end a request may start and match it: at least a window. It can be of another thread of the
 * reader. */
static uint64_t walk_behind_bytes(const struct efs_streams *s)
{
    return s->window > LATE_BYTES ? s->window : LATE_BYTES;
}

/* Whether a request at offset matches the walk; *distance: from the walk's end. */
static bool walk_fits(const struct efs_streams *s, const struct efs_walk *w, uint32_t file, uint64_t offset,
                      uint64_t *distance)
{
    if (!w->used || w->file != file || offset < w->begin)
        return false;
    if (offset >= w->end) {
        *distance = offset - w->end;
        return *distance <= streams_least(GAP_BYTES, w->fresh / GAP_SHARE);
    }
    *distance = w->end - offset;
    return *distance <= walk_behind_bytes(s);
}

static struct efs_walk *walk_find(struct efs_streams *s, uint32_t file, uint64_t offset)
{
    struct efs_walk *best = NULL;
    uint64_t nearest = 0, distance;
    for (uint32_t i = 0; i < EFS_WALKS; i++)
        if (walk_fits(s, &s->walks[i], file, offset, &distance) && (!best || distance < nearest)) {
            best = &s->walks[i];
            nearest = distance;
        }
    return best;
}

/* The slot for a new walk: a free one; else the least recently used walk that is not live and sequential; else the
 * least recently used one. */
static struct efs_walk *walk_slot(struct efs_streams *s)
{
    struct efs_walk *oldest = &s->walks[0];
    bool keep_oldest = true;
    for (uint32_t i = 0; i < EFS_WALKS; i++) {
        struct efs_walk *w = &s->walks[i];
        bool keep = walk_is_live(s, w) && walk_is_sequential(w);
        if (!w->used)
            return w;
        if (keep < keep_oldest || (keep == keep_oldest && w->used < oldest->used)) {
            oldest = w;
            keep_oldest = keep;
        }
    }
    return oldest;
}

/*
 * A walk that starts at most IDLE_BYTES after the end of a stream is taken for another thread of the same reader: it is
 * a scan if the stream is one. If it starts in the stream's read-ahead, it is sequential at once.
 */
static void walk_inherit(const struct efs_streams *s, struct efs_walk *fresh)
{
    for (uint32_t i = 0; i < EFS_WALKS; i++) {
        const struct efs_walk *w = &s->walks[i];
        if (!walk_is_stream(s, w) || w->file != fresh->file || fresh->begin <= w->end ||
            fresh->begin - w->end > IDLE_BYTES)
            continue;
        fresh->scan |= w->scan;
        if (fresh->begin <= w->ahead_until) {
            fresh->steps = SEQUENTIAL_STEPS;
            fresh->group = w->group;
            fresh->ahead_until = w->ahead_until;
        }
    }
}

static void walk_advance(struct efs_walk *w, uint64_t offset, uint64_t bytes, uint32_t group)
{
    uint64_t end = offset + bytes, way = end > w->end ? end - w->end : 0;
    uint64_t read = streams_least(way, bytes), again = bytes - read;
    if (way) {
        w->steps += w->end != w->begin && w->steps < UINT32_MAX;
        w->end = end;
    }
    w->fresh += read;
    w->recent_advance += way;
    w->recent_bytes = streams_least(w->recent_bytes + read + again, w->recent_advance); /* late requests fill gaps */
    if (w->recent_advance > RECENT_BYTES) {
        w->recent_advance /= 2;
        w->recent_bytes /= 2;
    }
    if (group != NONE && w->group != group + 1)
        w->group = w->group ? UINT32_MAX : group + 1;
}

/* Merges into w each walk whose start w has reached and whose end is at most walk_behind_bytes() after the end of w:
 * both are of threads of one reader. */
static void walk_join(struct efs_streams *s, struct efs_walk *w)
{
    for (uint32_t i = 0; i < EFS_WALKS; i++) {
        struct efs_walk *v = &s->walks[i];
        if (v == w || !walk_is_live(s, v) || v->file != w->file || v->begin <= w->begin || v->begin > w->end ||
            v->end < w->end || v->end - w->end > walk_behind_bytes(s))
            continue;
        w->recent_advance += v->end - w->end;
        w->recent_bytes += streams_least(v->recent_bytes, v->end - w->end);
        w->fresh += v->fresh;
        w->end = v->end;
        w->steps = v->steps > w->steps ? v->steps : w->steps;
        w->ahead_until = v->ahead_until > w->ahead_until ? v->ahead_until : w->ahead_until;
        w->group = w->group == v->group || v->group == 0 ? w->group : UINT32_MAX;
        w->scan |= v->scan;
        v->used = 0;
    }
}

/* Whether a walk is a scan: it reads several groups, and the live sequential walks of this file that do so have read
 * half a window. That is longer than the read-around of one request, and bounds the extents that are cached before the
 * scan is detected. */
static bool streams_is_scan(const struct efs_streams *s, const struct efs_walk *w)
{
    uint64_t fresh = 0;
    if (w->group != UINT32_MAX)
        return false;
    for (uint32_t i = 0; i < EFS_WALKS; i++) {
        const struct efs_walk *v = &s->walks[i];
        if (walk_is_live(s, v) && v->file == w->file && v->group == UINT32_MAX && walk_is_sequential(v))
            fresh += v->fresh;
    }
    return fresh >= s->window / 2;
}

void efs_streams_note(struct efs_streams *s, uint32_t file, uint64_t offset, size_t bytes, uint32_t group,
                      struct efs_step *step)
{
    struct efs_walk *w = walk_find(s, file, offset);
    if (!w) {
        struct efs_walk fresh = {.file = file, .begin = offset, .end = offset};
        walk_inherit(s, &fresh);
        w = walk_slot(s);
        *w = fresh;
    }
    s->clock += bytes;
    w->used = s->clock;
    walk_advance(w, offset, bytes, group);
    walk_join(s, w);
    s->live = 0;
    for (uint32_t i = 0; i < EFS_WALKS; i++)
        s->live += walk_is_stream(s, &s->walks[i]);
    *step = (struct efs_step){.walk = w};
    if (!walk_is_sequential(w) && !w->scan)
        return;
    w->scan = w->scan || streams_is_scan(s, w);
    step->pace = w->scan ? EFS_PACE_SCAN : EFS_PACE_SEQUENTIAL;
}

uint64_t efs_streams_quota(const struct efs_streams *s)
{
    return s->live > 1 ? 2 * s->window : s->window;
}

bool efs_streams_ahead(const struct efs_streams *s, const struct efs_walk *w, uint64_t *from, uint64_t *to)
{
    if (!walk_is_sequential(w))
        return false;
    /* up to two streams have a window each; more share two windows, with at least EACH_BYTES each */
    uint64_t share = s->live > 2 ? 2 * s->window / s->live : s->window, floor = streams_least(s->window, EACH_BYTES);
    /* less than the window: extents that a scan has read stay for its other threads, and those of other walks stay
     * cached */
    uint64_t window = streams_least(share > floor ? share : floor, w->scan ? s->window / 4 * 3 : s->window / 2);
    *from = w->ahead_until > w->end ? w->ahead_until : w->end;
    *to = w->end + streams_least(window, FIRST_TIMES * w->fresh);
    for (uint32_t i = 0; i < EFS_WALKS; i++) { /* leaves out ranges that other streams have read */
        const struct efs_walk *v = &s->walks[i];
        if (!walk_is_stream(s, v) || v->file != w->file || v->begin < w->end)
            continue;
        if (*from >= v->begin && *from < v->end)
            *from = v->end;
        if (v->begin > *from && v->begin < *to)
            *to = v->begin;
    }
    return *to > *from + window / 8; /* in steps of at least 1/8 of the window */
}
