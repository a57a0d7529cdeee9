/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch_sim.c - see prefetch_sim.h. */
#include "prefetch_sim.h"

#include "tables.h"

#include <stdlib.h>

#define PREDICTIONS_MAX 4096u /* most predictions of a sequence */

/* The prefetched part of an expert: bytes read of these components, tensor by tensor, and bytes of the piece in flight.
 */
struct part {
    unsigned components;
    uint64_t bytes, in_flight;
};

struct replay_prefetch {
    struct efs_tables tables;
    const struct replay_setup *setup;
    const struct replay_workload *workload;
    const struct replay_predictions *predicted;
    const struct efs_trace_timeline *timeline;
    struct efs_prefetch *queue;
    struct efs_governor governor;
    uint8_t *resident; /* [layers * experts]: components that were prefetched and are resident outside the cache */
    uint8_t *wanted;   /* [layers * experts]: components that a prefetch of the expert reads */
    /* the prefetch in progress */
    bool reading, cancelled;
    uint32_t unit;
    struct part part;
    uint64_t piece; /* bytes in flight, also of a cancelled prefetch */
    /* the last request */
    struct part got[REPLAY_REQUEST_MAX];
    struct efs_governor_request request;
    /* the pass */
    uint64_t pass, token;
    struct efs_governor_candidate *candidates;
    struct efs_prefetch_prediction *predictions;
    struct replay_prefetch_counts result;
};

/* ---- components, bytes and the governor ------------------------------------------------------------------------- */

static unsigned components_of(unsigned pool)
{
    switch (pool) {
    case EFS_POOL_S:
        return REPLAY_SM;
    case EFS_POOL_E:
        return REPLAY_E;
    case EFS_POOL_M:
        return 0;
    default:
        return REPLAY_SM | REPLAY_E;
    }
}

static uint64_t bytes_of(const struct replay_setup *s, unsigned components)
{
    return (components & REPLAY_SM ? s->bytes[EFS_POOL_S] : 0) + (components & REPLAY_E ? s->bytes[EFS_POOL_E] : 0);
}

uint64_t replay_prefetch_cap_bytes(const struct replay_setup *setup, uint64_t budget_bytes)
{
    const struct efs_governor governor = {.config = setup->governor};
    struct efs_prefetch_config caps;
    efs_governor_caps(&governor, budget_bytes, setup->bytes[EFS_POOL_C], &caps);
    return caps.resident_bytes;
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

struct replay_prefetch *replay_prefetch_new(const struct replay_setup *setup, const struct replay_workload *w,
                                            const struct replay_predictions *predicted, uint64_t budget_bytes,
                                            const struct efs_trace_timeline *timeline)
{
    struct replay_prefetch *a = calloc(1, sizeof(*a));
    struct efs_prefetch_config config = {.layers = w->layers,
                                         .experts = w->experts,
                                         .sequences = w->batch,
                                         .predictions = REPLAY_DISTANCES * w->experts};
    if (!a)
        return NULL;
    config.predictions = config.predictions < PREDICTIONS_MAX ? config.predictions : PREDICTIONS_MAX;
    a->setup = setup;
    a->workload = w;
    a->predicted = predicted;
    a->timeline = timeline;
    efs_governor_init(&a->governor, &setup->governor);
    efs_governor_caps(&a->governor, budget_bytes, setup->bytes[EFS_POOL_C], &config);
    EFS_TABLE(&a->tables, a->resident, (size_t)w->layers * w->experts);
    EFS_TABLE(&a->tables, a->wanted, (size_t)w->layers * w->experts);
    EFS_TABLE(&a->tables, a->candidates, PREDICTIONS_MAX);
    EFS_TABLE(&a->tables, a->predictions, PREDICTIONS_MAX);
    if (efs_tables_error(&a->tables) < 0 || efs_prefetch_new(&config, &a->queue) < 0) {
        replay_prefetch_free(a);
        return NULL;
    }
    return a;
}

void replay_prefetch_free(struct replay_prefetch *a)
{
    if (!a)
        return;
    efs_prefetch_free(a->queue);
    efs_tables_free(&a->tables);
    free(a);
}

void replay_prefetch_result(const struct replay_prefetch *a, struct replay_result *result)
{
    struct efs_prefetch_counts counts;
    efs_prefetch_counts(a->queue, &counts);
    result->prefetch = a->result;
    result->prefetch.used = counts.used;
    result->prefetch.late = counts.late;
    result->prefetch.wasted = counts.wasted;
    result->prefetch.cancelled = counts.cancelled;
}

/* ---- reads ------------------------------------------------------------------------------------------------------ */

static void apply_actions(struct replay_prefetch *a, const struct efs_prefetch_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t unit = actions[i].layer * a->workload->experts + actions[i].expert;
        if (actions[i].what == EFS_PREFETCH_DROP)
            a->resident[unit] = 0;
        else if (actions[i].what == EFS_PREFETCH_CANCEL)
            a->cancelled = true;
        else if (actions[i].what == EFS_PREFETCH_RAISE)
            a->cancelled = false;
    }
}

/* Ends the prefetch in progress if it was cancelled and not raised again. */
static void end_cancelled(struct replay_prefetch *a)
{
    const struct efs_prefetch_action *actions;
    size_t count;
    if (!a->cancelled)
        return;
    a->reading = a->cancelled = false;
    efs_prefetch_done(a->queue, a->unit / a->workload->experts, a->unit % a->workload->experts, false, &actions,
                      &count);
    apply_actions(a, actions, count);
}

uint64_t replay_prefetch_next(void *arg, uint64_t now_ns)
{
    static const struct efs_prefetch_demand none = {0, 0};
    struct replay_prefetch *a = arg;
    const struct efs_prefetch_action *actions;
    size_t count;
    (void)now_ns;
    if (!a->reading) {
        efs_prefetch_next(a->queue, &none, &actions, &count);
        apply_actions(a, actions, count);
        if (count == 0 || actions[count - 1].what != EFS_PREFETCH_READ)
            return 0;
        a->unit = actions[count - 1].layer * a->workload->experts + actions[count - 1].expert;
        a->reading = true;
        a->part = (struct part){.components = a->wanted[a->unit]};
    }
    uint64_t left = bytes_of(a->setup, a->part.components) - a->part.bytes, latency_ns = 0;
    if (a->part.bytes == 0) /* only the first piece has latency */
        latency_ns = (uint64_t)a->setup->profile.read_latency_ns;
    a->piece = left < REPLAY_PIECE_BYTES ? left : REPLAY_PIECE_BYTES;
    a->part.in_flight = a->piece;
    return 1 + latency_ns + (uint64_t)((double)a->piece / a->setup->profile.disk_bytes_per_second * 1e9);
}

void replay_prefetch_done(void *arg)
{
    struct replay_prefetch *a = arg;
    const struct efs_prefetch_action *actions;
    size_t count;
    a->result.bytes += a->piece;
    if (a->reading)
        a->part.bytes += a->piece;
    a->piece = a->part.in_flight = 0;
    if (!a->reading || a->part.bytes < bytes_of(a->setup, a->part.components))
        return;
    a->reading = false;
    a->resident[a->unit] = (uint8_t)a->part.components;
    efs_prefetch_done(a->queue, a->unit / a->workload->experts, a->unit % a->workload->experts, true, &actions, &count);
    apply_actions(a, actions, count);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

void replay_prefetch_begin_pass(struct replay_prefetch *a, uint64_t pass, uint64_t token)
{
    a->pass = pass;
    a->token = token;
}

static uint64_t sequence_of(const struct replay_prefetch *a, uint32_t t)
{
    return a->workload->route->sequence[a->workload->at[a->token + t]];
}

/* Whether token t of the current pass is the last of its sequence. */
static bool ends(const struct replay_prefetch *a, uint32_t t)
{
    const struct replay_workload *w = a->workload;
    uint64_t next = a->token + w->width[a->pass];
    for (uint32_t i = 0; a->pass + 1 < w->passes && i < w->width[a->pass + 1]; i++)
        if (w->route->sequence[w->at[next + i]] == sequence_of(a, t))
            return false;
    return true;
}

/* Takes the prefetched part of a requested expert, or the prefetch in progress, out of the prefetcher's state. */
static struct part take_part(struct replay_prefetch *a, uint32_t unit, const struct efs_placement *placement)
{
    const struct replay_setup *s = a->setup;
    unsigned missing = (REPLAY_SM | REPLAY_E) & ~components_of(placement->found);
    struct part part = {0};
    if (a->resident[unit]) {
        part = (struct part){.components = a->resident[unit], .bytes = bytes_of(s, a->resident[unit])};
        a->resident[unit] = 0;
    } else if (a->reading && a->unit == unit) {
        part = a->part;
        a->reading = false; /* the request finishes the read */
    }
    a->request.missing_bytes += bytes_of(s, missing) - part.bytes;
    a->result.missing_bytes += bytes_of(s, missing);
    a->result.right_bytes += part.bytes + part.in_flight;
    return part;
}

int replay_prefetch_requested(struct replay_prefetch *a, uint32_t layer, const struct efs_placement *placements,
                              uint32_t count)
{
    const struct replay_workload *w = a->workload;
    const struct efs_prefetch_action *actions;
    size_t action_count;
    int64_t now = (int64_t)(a->pass * w->layers + layer);
    a->request =
        (struct efs_governor_request){.now_ns = a->timeline->request_ns, .requested = count, .experts = w->experts};
    for (uint32_t i = 0; i < count; i++)
        a->got[i] = take_part(a, layer * w->experts + placements[i].expert, &placements[i]);
    for (uint32_t t = 0; t < w->width[a->pass]; t++) {
        uint16_t experts[EFS_PREDICT_MAX_CHOSEN];
        unsigned chosen = replay_chosen(w, w->at[a->token + t], layer, experts);
        int rc =
            efs_prefetch_requested(a->queue, sequence_of(a, t), now, layer, experts, chosen, &actions, &action_count);
        if (rc < 0)
            return rc;
        apply_actions(a, actions, action_count);
    }
    end_cancelled(a);
    return 0;
}

double replay_prefetch_unread(const struct replay_prefetch *a, uint32_t i, uint32_t tensor, unsigned *components,
                              bool *waits)
{
    const struct part *part = &a->got[i];
    double tensor_bytes = (double)bytes_of(a->setup, part->components) / a->setup->tensors;
    double begin = tensor * tensor_bytes, read = (double)part->bytes - begin;
    double with_piece = read + (double)part->in_flight;
    *components = part->components;
    *waits = part->in_flight && read < tensor_bytes && with_piece > 0;
    if (part->components == 0 || with_piece <= 0)
        return 1;
    return with_piece < tensor_bytes - 1 ? 1 - with_piece / tensor_bytes : 0;
}

/* ---- predictions ------------------------------------------------------------------------------------------------ */

/* Makes a candidate of an expert, `distance` layers ahead of layer. false: no component of it is missing. */
static bool candidate(struct replay_prefetch *a, const struct efs_policy *policy, uint32_t layer, unsigned distance,
                      uint32_t expert, float probability, struct efs_governor_candidate *c)
{
    uint32_t at = (layer + distance) % a->workload->layers, unit = at * a->workload->experts + expert;
    unsigned missing = (REPLAY_SM | REPLAY_E) & ~components_of(efs_policy_state(policy, at, expert));
    if (a->resident[unit]) /* keeps the resident components among the candidates */
        missing = a->resident[unit];
    else if (a->reading && a->unit == unit)
        missing = a->part.components;
    else
        a->wanted[unit] = (uint8_t)missing;
    *c = (struct efs_governor_candidate){.layer = (uint16_t)at,
                                         .expert = (uint16_t)expert,
                                         .due = (int64_t)(a->pass * a->workload->layers + layer + distance),
                                         .probability = probability,
                                         .missing_bytes = bytes_of(a->setup, missing)};
    return missing != 0;
}

static unsigned candidates_of(struct replay_prefetch *a, const struct efs_policy *policy, uint32_t layer, uint32_t t)
{
    const struct replay_predictions *f = a->predicted;
    size_t slot = a->token * a->workload->layers + layer * a->workload->width[a->pass] + t;
    unsigned count = 0;
    for (size_t i = f->first[slot]; i < f->first[slot + 1] && count < PREDICTIONS_MAX; i++)
        count += candidate(a, policy, layer, f->predictions[i].distance, f->predictions[i].expert,
                           f->predictions[i].probability, &a->candidates[count]);
    return count;
}

static unsigned next_layer(struct replay_prefetch *a, const struct efs_policy *policy, uint32_t layer)
{
    unsigned count = 0;
    for (uint32_t e = 0; e < a->workload->experts && count < PREDICTIONS_MAX; e++)
        count += candidate(a, policy, layer, 1, e, 1, &a->candidates[count]);
    return count;
}

int replay_prefetch_offer(struct replay_prefetch *a, uint32_t layer, const struct efs_policy *policy)
{
    const struct replay_workload *w = a->workload;
    const struct efs_governor_disk disk = {.bytes_per_second = a->setup->profile.disk_bytes_per_second,
                                           .latency_ns = a->setup->profile.read_latency_ns,
                                           .piece_bytes = REPLAY_PIECE_BYTES};
    const bool whole_layer = efs_governor_requested(&a->governor, &a->request);
    int64_t now = (int64_t)(a->pass * w->layers + layer);
    int rc = 0;
    for (uint32_t t = 0; rc == 0 && t < w->width[a->pass]; t++) {
        unsigned count = 0;
        if (layer + 1 == w->layers && ends(a, t)) {
            const struct efs_prefetch_action *actions;
            size_t action_count;
            efs_prefetch_end(a->queue, sequence_of(a, t), &actions, &action_count);
            apply_actions(a, actions, action_count);
            end_cancelled(a);
            continue;
        }
        if (whole_layer && t == 0)
            count = efs_governor_select_layer(a->candidates, next_layer(a, policy, layer), a->predictions);
        else if (!whole_layer)
            count = efs_governor_select(&a->governor, &disk, now, a->candidates, candidates_of(a, policy, layer, t),
                                        a->predictions);
        rc = efs_prefetch_offer(a->queue, sequence_of(a, t), now, a->predictions, count);
    }
    return rc;
}
