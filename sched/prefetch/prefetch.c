/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - see prefetch.h.
 *
 * A unit is an expert of a layer. Each unit has a state; each sequence has a list of wishes. A unit is wanted while a
 * wish refers to it. Lists have tens of entries and are searched linearly.
 */
#include "prefetch.h"

#include "tables.h"

#include <errno.h>
#include <stdlib.h>

#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define SEQUENCES_MAX 1024u
#define GUESSES_MAX 4096u
#define NEVER INT64_MAX

enum unit_state {
    UNIT_NONE,
    UNIT_QUEUED,
    UNIT_UNDER_WAY,
    UNIT_CANCELLED, /* the read is in flight, but no wish refers to the unit */
    UNIT_HELD
};

struct unit {
    uint8_t state;
    bool skipped; /* does not fit, in this call of efs_prefetch_next */
    uint64_t bytes;
};

struct wish {
    uint32_t unit;
    float worth;
    int64_t due;
};

struct sequence {
    bool used;
    uint64_t id;
    int64_t now;
    unsigned count;
    struct wish *wishes;
};

struct efs_prefetch {
    struct efs_tables tables;
    struct efs_prefetch_config config;
    struct unit *units;
    struct sequence *sequences;
    struct wish *wishes; /* of all sequences, in equal slices */
    uint32_t *held;      /* [units], unordered */
    size_t held_count;
    uint64_t held_bytes, under_way_bytes;
    struct efs_prefetch_action *actions; /* [units + 1]: one call has at most one action per unit, and one READ */
    size_t action_count;
    struct efs_prefetch_counts counts;
};

int efs_prefetch_new(const struct efs_prefetch_config *c, struct efs_prefetch **out)
{
    struct efs_prefetch *q;
    size_t units = (size_t)c->layers * c->experts;

    *out = NULL;
    if (c->layers < 1 || c->layers > LAYERS_MAX || c->experts < 1 || c->experts > EXPERTS_MAX || c->sequences < 1 ||
        c->sequences > SEQUENCES_MAX || c->guesses < 1 || c->guesses > GUESSES_MAX)
        return -EINVAL;
    q = calloc(1, sizeof(*q));
    if (!q)
        return -ENOMEM;
    q->config = *c;
    EFS_TABLE(&q->tables, q->units, units);
    EFS_TABLE(&q->tables, q->sequences, c->sequences);
    EFS_TABLE(&q->tables, q->wishes, (size_t)c->sequences * c->guesses);
    EFS_TABLE(&q->tables, q->held, units);
    EFS_TABLE(&q->tables, q->actions, units + 1);
    if (q->tables.failed) {
        efs_prefetch_free(q);
        return -ENOMEM;
    }
    for (unsigned s = 0; s < c->sequences; s++)
        q->sequences[s].wishes = q->wishes + (size_t)s * c->guesses;
    *out = q;
    return 0;
}

void efs_prefetch_free(struct efs_prefetch *q)
{
    if (!q)
        return;
    efs_tables_free(&q->tables);
    free(q);
}

void efs_prefetch_set_caps(struct efs_prefetch *q, const struct efs_prefetch_config *caps)
{
    q->config.under_way_bytes = caps->under_way_bytes;
    q->config.held_bytes = caps->held_bytes;
}

void efs_prefetch_counts(const struct efs_prefetch *q, struct efs_prefetch_counts *counts)
{
    *counts = q->counts;
}

/* ---- units and wishes -------------------------------------------------------------------------------------------- */

static void act(struct efs_prefetch *q, uint32_t unit, enum efs_prefetch_what what)
{
    q->actions[q->action_count++] =
        (struct efs_prefetch_action){(uint16_t)(unit / q->config.experts), (uint16_t)(unit % q->config.experts), what};
}

static void tell(struct efs_prefetch *q, const struct efs_prefetch_action **actions, size_t *count)
{
    *actions = q->actions;
    *count = q->action_count;
}

/* Fewest positions until a sequence is predicted to request the unit; NEVER if none is. */
static int64_t unit_due(const struct efs_prefetch *q, uint32_t unit)
{
    int64_t soonest = NEVER;

    for (unsigned s = 0; s < q->config.sequences; s++) {
        const struct sequence *sequence = &q->sequences[s];

        for (unsigned i = 0; sequence->used && i < sequence->count; i++)
            if (sequence->wishes[i].unit == unit && sequence->wishes[i].due - sequence->now < soonest)
                soonest = sequence->wishes[i].due - sequence->now;
    }
    return soonest;
}

static void remove_wish(struct sequence *sequence, unsigned i)
{
    sequence->wishes[i] = sequence->wishes[--sequence->count];
}

static void remove_wishes(struct efs_prefetch *q, uint32_t unit)
{
    for (unsigned s = 0; s < q->config.sequences; s++)
        for (unsigned i = q->sequences[s].used ? q->sequences[s].count : 0; i-- > 0;)
            if (q->sequences[s].wishes[i].unit == unit)
                remove_wish(&q->sequences[s], i);
}

static void hold(struct efs_prefetch *q, uint32_t unit)
{
    q->units[unit].state = UNIT_HELD;
    q->held[q->held_count++] = unit;
    q->held_bytes += q->units[unit].bytes;
}

/* Ends UNIT_HELD. */
static void release(struct efs_prefetch *q, uint32_t unit)
{
    size_t i = 0;

    while (q->held[i] != unit)
        i++;
    q->held[i] = q->held[--q->held_count];
    q->held_bytes -= q->units[unit].bytes;
    q->units[unit].state = UNIT_NONE;
}

static void waste(struct efs_prefetch *q, uint32_t unit)
{
    q->counts.wasted++;
    q->counts.wasted_bytes += q->units[unit].bytes;
}

/* The last wish for the unit was removed before a request for it. */
static void abandon(struct efs_prefetch *q, uint32_t unit)
{
    switch (q->units[unit].state) {
    case UNIT_QUEUED:
        q->units[unit].state = UNIT_NONE;
        q->counts.expired++;
        break;
    case UNIT_UNDER_WAY:
        q->units[unit].state = UNIT_CANCELLED;
        act(q, unit, EFS_PREFETCH_CANCEL);
        break;
    case UNIT_HELD:
        release(q, unit);
        waste(q, unit);
        act(q, unit, EFS_PREFETCH_DROP);
        break;
    default:
        break;
    }
}

static struct sequence *find(struct efs_prefetch *q, uint64_t id)
{
    for (unsigned s = 0; s < q->config.sequences; s++)
        if (q->sequences[s].used && q->sequences[s].id == id)
            return &q->sequences[s];
    return NULL;
}

static struct sequence *begin(struct efs_prefetch *q, uint64_t id)
{
    for (unsigned s = 0; s < q->config.sequences; s++) {
        struct sequence *sequence = &q->sequences[s];

        if (sequence->used)
            continue;
        sequence->used = true;
        sequence->id = id;
        sequence->count = 0;
        return sequence;
    }
    return NULL;
}

/* ---- offers ------------------------------------------------------------------------------------------------------ */

/* Removes the sequence's wishes for queued units, to make room for new predictions. */
static void drop_queued(struct efs_prefetch *q, struct sequence *sequence)
{
    for (unsigned i = sequence->count; i-- > 0;) {
        uint32_t unit = sequence->wishes[i].unit;

        if (q->units[unit].state != UNIT_QUEUED)
            continue;
        remove_wish(sequence, i);
        q->counts.replaced++;
        if (unit_due(q, unit) == NEVER)
            q->units[unit].state = UNIT_NONE;
    }
}

static struct wish *wish_of(struct sequence *sequence, uint32_t unit)
{
    for (unsigned i = 0; i < sequence->count; i++)
        if (sequence->wishes[i].unit == unit)
            return &sequence->wishes[i];
    return NULL;
}

static void take_guess(struct efs_prefetch *q, struct sequence *sequence, const struct efs_prefetch_guess *guess)
{
    uint32_t unit = guess->layer * q->config.experts + guess->expert;
    struct unit *u = &q->units[unit];
    struct wish *wish = wish_of(sequence, unit);

    if (guess->due <= sequence->now || u->state == UNIT_CANCELLED)
        return;
    if (!wish) {
        if (sequence->count == q->config.guesses)
            return;
        wish = &sequence->wishes[sequence->count++];
    }
    *wish = (struct wish){unit, guess->worth, guess->due};
    q->counts.offered++;
    if (u->state == UNIT_NONE) {
        u->state = UNIT_QUEUED;
        u->bytes = guess->bytes;
    }
}

static bool valid_guesses(const struct efs_prefetch *q, const struct efs_prefetch_guess *guesses, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (guesses[i].layer >= q->config.layers || guesses[i].expert >= q->config.experts ||
            !(guesses[i].worth >= 0) || guesses[i].bytes < 1 || guesses[i].bytes > UINT64_C(1) << 40)
            return false;
    return true;
}

int efs_prefetch_offer(struct efs_prefetch *q, uint64_t id, int64_t now, const struct efs_prefetch_guess *guesses,
                       unsigned count)
{
    struct sequence *sequence = find(q, id);

    if (now < 0 || !valid_guesses(q, guesses, count) || (sequence && now < sequence->now))
        return -EINVAL;
    if (!sequence)
        sequence = begin(q, id);
    if (!sequence)
        return -ENOSPC;
    sequence->now = now;
    drop_queued(q, sequence);
    for (unsigned i = 0; i < count; i++)
        take_guess(q, sequence, &guesses[i]);
    return 0;
}

/* ---- reads ------------------------------------------------------------------------------------------------------- */

/* The queued wish with the largest worth that is not skipped; of equal ones, the one due sooner. */
static const struct wish *best_wish(const struct efs_prefetch *q)
{
    const struct wish *best = NULL;
    int64_t to_go = 0;

    for (unsigned s = 0; s < q->config.sequences; s++) {
        const struct sequence *sequence = &q->sequences[s];

        for (unsigned i = 0; sequence->used && i < sequence->count; i++) {
            const struct wish *wish = &sequence->wishes[i];
            const struct unit *unit = &q->units[wish->unit];

            if (unit->state != UNIT_QUEUED || unit->skipped || wish->due <= sequence->now)
                continue;
            if (best &&
                (wish->worth < best->worth || (!(wish->worth > best->worth) && wish->due - sequence->now >= to_go)))
                continue;
            best = wish;
            to_go = wish->due - sequence->now;
        }
    }
    return best;
}

/* The held unit that is due last, if it is due later than `due`. */
static bool latest_held(const struct efs_prefetch *q, int64_t due, uint32_t *unit)
{
    bool found = false;

    for (size_t i = 0; i < q->held_count; i++) {
        int64_t held_due = unit_due(q, q->held[i]);

        if (held_due > due) {
            due = held_due;
            *unit = q->held[i];
            found = true;
        }
    }
    return found;
}

/* Bytes of held units that are due later than `due`. */
static uint64_t later_bytes(const struct efs_prefetch *q, int64_t due)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < q->held_count; i++)
        if (unit_due(q, q->held[i]) > due)
            bytes += q->units[q->held[i]].bytes;
    return bytes;
}

/* Drops held units until `bytes` fit below the cap. False, without a drop, if units due later are not enough. */
static bool make_room(struct efs_prefetch *q, uint64_t bytes, int64_t due)
{
    uint64_t there = q->held_bytes + q->under_way_bytes, cap = q->config.held_bytes;
    uint32_t victim;

    if (bytes > cap || (there + bytes > cap && there + bytes - cap > later_bytes(q, due)))
        return false;
    while (q->held_bytes + q->under_way_bytes + bytes > cap && latest_held(q, due, &victim)) {
        remove_wishes(q, victim);
        release(q, victim);
        waste(q, victim);
        act(q, victim, EFS_PREFETCH_DROP);
    }
    return true;
}

static void issue(struct efs_prefetch *q, uint32_t unit)
{
    uint64_t bytes = q->units[unit].bytes;

    q->units[unit].state = UNIT_UNDER_WAY;
    q->under_way_bytes += bytes;
    q->counts.issued++;
    q->counts.issued_bytes += bytes;
    act(q, unit, EFS_PREFETCH_READ);
}

static void unskip(struct efs_prefetch *q)
{
    for (unsigned s = 0; s < q->config.sequences; s++)
        for (unsigned i = 0; q->sequences[s].used && i < q->sequences[s].count; i++)
            q->units[q->sequences[s].wishes[i].unit].skipped = false;
}

void efs_prefetch_next(struct efs_prefetch *q, const struct efs_prefetch_demand *demand,
                       const struct efs_prefetch_action **actions, size_t *count)
{
    const struct wish *wish;

    q->action_count = 0;
    while (!demand->waiting && !demand->under_way && (wish = best_wish(q))) {
        uint32_t unit = wish->unit;
        uint64_t bytes = q->units[unit].bytes;
        int64_t due = unit_due(q, unit);

        if (q->under_way_bytes + bytes <= q->config.under_way_bytes && make_room(q, bytes, due)) {
            issue(q, unit);
            break;
        }
        q->units[unit].skipped = true;
    }
    unskip(q);
    tell(q, actions, count);
}

void efs_prefetch_done(struct efs_prefetch *q, unsigned layer, unsigned expert, bool read,
                       const struct efs_prefetch_action **actions, size_t *count)
{
    uint32_t unit = layer * q->config.experts + expert;
    struct unit *u;

    q->action_count = 0;
    tell(q, actions, count);
    if (layer >= q->config.layers || expert >= q->config.experts)
        return;
    u = &q->units[unit];
    if (u->state != UNIT_UNDER_WAY && u->state != UNIT_CANCELLED) /* a request raised it: the read is demand now */
        return;
    q->under_way_bytes -= u->bytes;
    if (u->state == UNIT_CANCELLED) {
        u->state = UNIT_NONE;
        if (read) {
            waste(q, unit);
            act(q, unit, EFS_PREFETCH_DROP);
        } else {
            q->counts.cancelled++;
        }
    } else if (read) {
        hold(q, unit);
    } else {
        u->state = UNIT_NONE;
        remove_wishes(q, unit);
        q->counts.failed++;
    }
    tell(q, actions, count);
}

/* ---- requests and expiry ----------------------------------------------------------------------------------------- */

static void ask(struct efs_prefetch *q, uint32_t unit)
{
    struct unit *u = &q->units[unit];

    switch (u->state) {
    case UNIT_QUEUED:
        u->state = UNIT_NONE;
        q->counts.unread++;
        break;
    case UNIT_UNDER_WAY:
    case UNIT_CANCELLED:
        u->state = UNIT_NONE;
        q->under_way_bytes -= u->bytes;
        q->counts.late++;
        act(q, unit, EFS_PREFETCH_RAISE);
        break;
    case UNIT_HELD:
        release(q, unit);
        q->counts.used++;
        break;
    default:
        return;
    }
    remove_wishes(q, unit);
}

/* Removes the wishes that are due at `now` or before; all with NEVER. */
static void expire(struct efs_prefetch *q, struct sequence *sequence, int64_t now)
{
    for (unsigned i = sequence->count; i-- > 0;) {
        uint32_t unit = sequence->wishes[i].unit;

        if (sequence->wishes[i].due > now)
            continue;
        remove_wish(sequence, i);
        if (unit_due(q, unit) == NEVER)
            abandon(q, unit);
    }
}

int efs_prefetch_asked(struct efs_prefetch *q, uint64_t id, int64_t now, unsigned layer, const uint16_t *experts,
                       unsigned count, const struct efs_prefetch_action **actions, size_t *action_count)
{
    struct sequence *sequence = find(q, id);

    q->action_count = 0;
    tell(q, actions, action_count);
    if (layer >= q->config.layers || now < 0 || (sequence && now < sequence->now))
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        if (experts[i] >= q->config.experts)
            return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        ask(q, layer * q->config.experts + experts[i]);
    if (sequence) {
        sequence->now = now;
        expire(q, sequence, now);
    }
    tell(q, actions, action_count);
    return 0;
}

void efs_prefetch_end(struct efs_prefetch *q, uint64_t id, const struct efs_prefetch_action **actions, size_t *count)
{
    struct sequence *sequence = find(q, id);

    q->action_count = 0;
    if (sequence) {
        expire(q, sequence, NEVER);
        sequence->used = false;
    }
    tell(q, actions, count);
}

void efs_prefetch_lost(struct efs_prefetch *q, unsigned layer, unsigned expert)
{
    uint32_t unit = layer * q->config.experts + expert;

    if (layer >= q->config.layers || expert >= q->config.experts || q->units[unit].state != UNIT_HELD)
        return;
    remove_wishes(q, unit);
    release(q, unit);
    waste(q, unit);
}
