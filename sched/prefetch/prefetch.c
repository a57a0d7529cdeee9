/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - see prefetch.h.
 *
 * A unit is an expert of a layer. Each unit has a state; each sequence has a list of predictions. A unit is wanted
 * while a prediction refers to it. Lists have tens of entries and are searched linearly.
 */
#include "prefetch.h"

#include "tables.h"

#include <errno.h>
#include <stdlib.h>

#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define SEQUENCES_MAX 1024u
#define PREDICTIONS_MAX 4096u
#define NEVER INT64_MAX

enum unit_state {
    UNIT_NONE,
    UNIT_QUEUED,
    UNIT_IN_FLIGHT,
    UNIT_CANCELLED, /* the read is in flight, but no prediction refers to the unit */
    UNIT_RESIDENT
};

struct unit {
    uint8_t state;
    bool skipped; /* does not fit, in this call of efs_prefetch_next */
    uint64_t bytes;
};

struct prediction {
    uint32_t unit;
    float worth;
    int64_t due;
};

struct sequence {
    bool used;
    uint64_t id;
    int64_t now;
    unsigned count;
    struct prediction *predictions;
};

struct efs_prefetch {
    struct efs_tables tables;
    struct efs_prefetch_config config;
    struct unit *units;
    struct sequence *sequences;
    struct prediction *predictions; /* of all sequences, in equal slices */
    uint32_t *resident;             /* [units], unordered */
    size_t resident_count;
    uint64_t resident_bytes, in_flight_bytes;
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
        c->sequences > SEQUENCES_MAX || c->predictions < 1 || c->predictions > PREDICTIONS_MAX)
        return -EINVAL;
    q = calloc(1, sizeof(*q));
    if (!q)
        return -ENOMEM;
    q->config = *c;
    EFS_TABLE(&q->tables, q->units, units);
    EFS_TABLE(&q->tables, q->sequences, c->sequences);
    EFS_TABLE(&q->tables, q->predictions, (size_t)c->sequences * c->predictions);
    EFS_TABLE(&q->tables, q->resident, units);
    EFS_TABLE(&q->tables, q->actions, units + 1);
    if (q->tables.failed) {
        efs_prefetch_free(q);
        return -ENOMEM;
    }
    for (unsigned s = 0; s < c->sequences; s++)
        q->sequences[s].predictions = q->predictions + (size_t)s * c->predictions;
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
    q->config.in_flight_bytes = caps->in_flight_bytes;
    q->config.resident_bytes = caps->resident_bytes;
}

void efs_prefetch_counts(const struct efs_prefetch *q, struct efs_prefetch_counts *counts)
{
    *counts = q->counts;
}

/* ---- units and predictions -------------------------------------------------------------------------------------- */

static void add_action(struct efs_prefetch *q, uint32_t unit, enum efs_prefetch_what what)
{
    q->actions[q->action_count++] =
        (struct efs_prefetch_action){(uint16_t)(unit / q->config.experts), (uint16_t)(unit % q->config.experts), what};
}

static void return_actions(struct efs_prefetch *q, const struct efs_prefetch_action **actions, size_t *count)
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
            if (sequence->predictions[i].unit == unit && sequence->predictions[i].due - sequence->now < soonest)
                soonest = sequence->predictions[i].due - sequence->now;
    }
    return soonest;
}

static void remove_prediction(struct sequence *sequence, unsigned i)
{
    sequence->predictions[i] = sequence->predictions[--sequence->count];
}

static void remove_predictions(struct efs_prefetch *q, uint32_t unit)
{
    for (unsigned s = 0; s < q->config.sequences; s++)
        for (unsigned i = q->sequences[s].used ? q->sequences[s].count : 0; i-- > 0;)
            if (q->sequences[s].predictions[i].unit == unit)
                remove_prediction(&q->sequences[s], i);
}

static void make_resident(struct efs_prefetch *q, uint32_t unit)
{
    q->units[unit].state = UNIT_RESIDENT;
    q->resident[q->resident_count++] = unit;
    q->resident_bytes += q->units[unit].bytes;
}

/* Ends UNIT_RESIDENT. */
static void end_resident(struct efs_prefetch *q, uint32_t unit)
{
    size_t i = 0;

    while (q->resident[i] != unit)
        i++;
    q->resident[i] = q->resident[--q->resident_count];
    q->resident_bytes -= q->units[unit].bytes;
    q->units[unit].state = UNIT_NONE;
}

static void count_wasted(struct efs_prefetch *q, uint32_t unit)
{
    q->counts.wasted++;
    q->counts.wasted_bytes += q->units[unit].bytes;
}

/* The last prediction for the unit was removed before a request for it. */
static void abandon(struct efs_prefetch *q, uint32_t unit)
{
    switch (q->units[unit].state) {
    case UNIT_QUEUED:
        q->units[unit].state = UNIT_NONE;
        q->counts.expired++;
        break;
    case UNIT_IN_FLIGHT:
        q->units[unit].state = UNIT_CANCELLED;
        add_action(q, unit, EFS_PREFETCH_CANCEL);
        break;
    case UNIT_RESIDENT:
        end_resident(q, unit);
        count_wasted(q, unit);
        add_action(q, unit, EFS_PREFETCH_DROP);
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

/* Removes the sequence's predictions for queued units, to make room for new predictions. */
static void drop_queued(struct efs_prefetch *q, struct sequence *sequence)
{
    for (unsigned i = sequence->count; i-- > 0;) {
        uint32_t unit = sequence->predictions[i].unit;

        if (q->units[unit].state != UNIT_QUEUED)
            continue;
        remove_prediction(sequence, i);
        q->counts.replaced++;
        if (unit_due(q, unit) == NEVER)
            q->units[unit].state = UNIT_NONE;
    }
}

static struct prediction *find_prediction(struct sequence *sequence, uint32_t unit)
{
    for (unsigned i = 0; i < sequence->count; i++)
        if (sequence->predictions[i].unit == unit)
            return &sequence->predictions[i];
    return NULL;
}

static void add_offer(struct efs_prefetch *q, struct sequence *sequence, const struct efs_prefetch_prediction *offer)
{
    uint32_t unit = offer->layer * q->config.experts + offer->expert;
    struct unit *u = &q->units[unit];
    struct prediction *prediction = find_prediction(sequence, unit);

    if (offer->due <= sequence->now || u->state == UNIT_CANCELLED)
        return;
    if (!prediction) {
        if (sequence->count == q->config.predictions)
            return;
        prediction = &sequence->predictions[sequence->count++];
    }
    *prediction = (struct prediction){unit, offer->worth, offer->due};
    q->counts.offered++;
    if (u->state == UNIT_NONE) {
        u->state = UNIT_QUEUED;
        u->bytes = offer->bytes;
    }
}

static bool valid_offers(const struct efs_prefetch *q, const struct efs_prefetch_prediction *predictions,
                         unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (predictions[i].layer >= q->config.layers || predictions[i].expert >= q->config.experts ||
            !(predictions[i].worth >= 0) || predictions[i].bytes < 1 || predictions[i].bytes > UINT64_C(1) << 40)
            return false;
    return true;
}

int efs_prefetch_offer(struct efs_prefetch *q, uint64_t id, int64_t now,
                       const struct efs_prefetch_prediction *predictions, unsigned count)
{
    struct sequence *sequence = find(q, id);

    if (now < 0 || !valid_offers(q, predictions, count) || (sequence && now < sequence->now))
        return -EINVAL;
    if (!sequence)
        sequence = begin(q, id);
    if (!sequence)
        return -ENOSPC;
    sequence->now = now;
    drop_queued(q, sequence);
    for (unsigned i = 0; i < count; i++)
        add_offer(q, sequence, &predictions[i]);
    return 0;
}

/* ---- reads ------------------------------------------------------------------------------------------------------- */

/* The queued prediction with the largest worth that is not skipped; of equal ones, the one due sooner. */
static const struct prediction *best_prediction(const struct efs_prefetch *q)
{
    const struct prediction *best = NULL;
    int64_t to_go = 0;

    for (unsigned s = 0; s < q->config.sequences; s++) {
        const struct sequence *sequence = &q->sequences[s];

        for (unsigned i = 0; sequence->used && i < sequence->count; i++) {
            const struct prediction *prediction = &sequence->predictions[i];
            const struct unit *unit = &q->units[prediction->unit];

            if (unit->state != UNIT_QUEUED || unit->skipped || prediction->due <= sequence->now)
                continue;
            if (best && (prediction->worth < best->worth ||
                         (!(prediction->worth > best->worth) && prediction->due - sequence->now >= to_go)))
                continue;
            best = prediction;
            to_go = prediction->due - sequence->now;
        }
    }
    return best;
}

/* The resident unit that is due last, if it is due later than `due`. */
static bool latest_resident(const struct efs_prefetch *q, int64_t due, uint32_t *unit)
{
    bool found = false;

    for (size_t i = 0; i < q->resident_count; i++) {
        int64_t resident_due = unit_due(q, q->resident[i]);

        if (resident_due > due) {
            due = resident_due;
            *unit = q->resident[i];
            found = true;
        }
    }
    return found;
}

/* Bytes of resident units that are due later than `due`. */
static uint64_t later_bytes(const struct efs_prefetch *q, int64_t due)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < q->resident_count; i++)
        if (unit_due(q, q->resident[i]) > due)
            bytes += q->units[q->resident[i]].bytes;
    return bytes;
}

/* Drops resident units until `bytes` fit below the cap. False, without a drop, if units due later are not enough. */
static bool make_room(struct efs_prefetch *q, uint64_t bytes, int64_t due)
{
    uint64_t there = q->resident_bytes + q->in_flight_bytes, cap = q->config.resident_bytes;
    uint32_t victim;

    if (bytes > cap || (there + bytes > cap && there + bytes - cap > later_bytes(q, due)))
        return false;
    while (q->resident_bytes + q->in_flight_bytes + bytes > cap && latest_resident(q, due, &victim)) {
        remove_predictions(q, victim);
        end_resident(q, victim);
        count_wasted(q, victim);
        add_action(q, victim, EFS_PREFETCH_DROP);
    }
    return true;
}

static void issue(struct efs_prefetch *q, uint32_t unit)
{
    uint64_t bytes = q->units[unit].bytes;

    q->units[unit].state = UNIT_IN_FLIGHT;
    q->in_flight_bytes += bytes;
    q->counts.issued++;
    q->counts.issued_bytes += bytes;
    add_action(q, unit, EFS_PREFETCH_READ);
}

static void unskip(struct efs_prefetch *q)
{
    for (unsigned s = 0; s < q->config.sequences; s++)
        for (unsigned i = 0; q->sequences[s].used && i < q->sequences[s].count; i++)
            q->units[q->sequences[s].predictions[i].unit].skipped = false;
}

void efs_prefetch_next(struct efs_prefetch *q, const struct efs_prefetch_demand *demand,
                       const struct efs_prefetch_action **actions, size_t *count)
{
    const struct prediction *prediction;

    q->action_count = 0;
    while (!demand->waiting && !demand->in_flight && (prediction = best_prediction(q))) {
        uint32_t unit = prediction->unit;
        uint64_t bytes = q->units[unit].bytes;
        int64_t due = unit_due(q, unit);

        if (q->in_flight_bytes + bytes <= q->config.in_flight_bytes && make_room(q, bytes, due)) {
            issue(q, unit);
            break;
        }
        q->units[unit].skipped = true;
    }
    unskip(q);
    return_actions(q, actions, count);
}

void efs_prefetch_done(struct efs_prefetch *q, unsigned layer, unsigned expert, bool read,
                       const struct efs_prefetch_action **actions, size_t *count)
{
    uint32_t unit = layer * q->config.experts + expert;
    struct unit *u;

    q->action_count = 0;
    return_actions(q, actions, count);
    if (layer >= q->config.layers || expert >= q->config.experts)
        return;
    u = &q->units[unit];
    if (u->state != UNIT_IN_FLIGHT && u->state != UNIT_CANCELLED) /* a request raised it: the read is demand now */
        return;
    q->in_flight_bytes -= u->bytes;
    if (u->state == UNIT_CANCELLED) {
        u->state = UNIT_NONE;
        if (read) {
            count_wasted(q, unit);
            add_action(q, unit, EFS_PREFETCH_DROP);
        } else {
            q->counts.cancelled++;
        }
    } else if (read) {
        make_resident(q, unit);
    } else {
        u->state = UNIT_NONE;
        remove_predictions(q, unit);
        q->counts.failed++;
    }
    return_actions(q, actions, count);
}

/* ---- requests and expiry ----------------------------------------------------------------------------------------- */

static void request_unit(struct efs_prefetch *q, uint32_t unit)
{
    struct unit *u = &q->units[unit];

    switch (u->state) {
    case UNIT_QUEUED:
        u->state = UNIT_NONE;
        q->counts.unread++;
        break;
    case UNIT_IN_FLIGHT:
    case UNIT_CANCELLED:
        u->state = UNIT_NONE;
        q->in_flight_bytes -= u->bytes;
        q->counts.late++;
        add_action(q, unit, EFS_PREFETCH_RAISE);
        break;
    case UNIT_RESIDENT:
        end_resident(q, unit);
        q->counts.used++;
        break;
    default:
        return;
    }
    remove_predictions(q, unit);
}

/* Removes the predictions that are due at `now` or before; all with NEVER. */
static void expire(struct efs_prefetch *q, struct sequence *sequence, int64_t now)
{
    for (unsigned i = sequence->count; i-- > 0;) {
        uint32_t unit = sequence->predictions[i].unit;

        if (sequence->predictions[i].due > now)
            continue;
        remove_prediction(sequence, i);
        if (unit_due(q, unit) == NEVER)
            abandon(q, unit);
    }
}

int efs_prefetch_requested(struct efs_prefetch *q, uint64_t id, int64_t now, unsigned layer, const uint16_t *experts,
                           unsigned count, const struct efs_prefetch_action **actions, size_t *action_count)
{
    struct sequence *sequence = find(q, id);

    q->action_count = 0;
    return_actions(q, actions, action_count);
    if (layer >= q->config.layers || now < 0 || (sequence && now < sequence->now))
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        if (experts[i] >= q->config.experts)
            return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        request_unit(q, layer * q->config.experts + experts[i]);
    if (sequence) {
        sequence->now = now;
        expire(q, sequence, now);
    }
    return_actions(q, actions, action_count);
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
    return_actions(q, actions, count);
}

void efs_prefetch_evicted(struct efs_prefetch *q, unsigned layer, unsigned expert)
{
    uint32_t unit = layer * q->config.experts + expert;

    if (layer >= q->config.layers || expert >= q->config.experts || q->units[unit].state != UNIT_RESIDENT)
        return;
    remove_predictions(q, unit);
    end_resident(q, unit);
    count_wasted(q, unit);
}
