/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch_sim.c - see prefetch_sim.h. */
#include "prefetch_sim.h"

#include "tables.h"

#include <stdlib.h>

#define GUESSES_MAX 4096u /* most predictions of a sequence */

/* The prefetched part of an expert: bytes read of these components, tensor by tensor, and bytes of the piece in flight.
 */
struct part {
    unsigned components;
    uint64_t bytes, under_way;
};

struct replay_ahead {
    struct efs_tables tables;
    const struct replay_setup *setup;
    const struct replay_workload *workload;
    const struct replay_foresight *foresight;
    const struct efs_trace_timeline *timeline;
    struct efs_prefetch *queue;
    struct efs_governor governor;
    uint8_t *held;   /* [layers * experts]: components that were prefetched and are held outside the cache */
    uint8_t *wanted; /* [layers * experts]: components that a prefetch of the expert reads */
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
    struct efs_prefetch_guess *guesses;
    struct replay_guesses result;
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

static struct efs_governor governor_of(const struct replay_setup *setup)
{
    struct efs_governor governor;
    efs_governor_init(&governor, setup->layers, &setup->governor);
    return governor;
}

uint64_t replay_ahead_held_bytes(const struct replay_setup *setup, uint64_t budget_bytes)
{
    const struct efs_governor governor = governor_of(setup);
    struct efs_prefetch_config caps;
    efs_governor_caps(&governor, budget_bytes, setup->bytes[EFS_POOL_C], &caps);
    return caps.held_bytes;
}

bool replay_ahead_has_share(const struct replay_ahead *a)
{
    return efs_governor_has_share(&a->governor);
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

struct replay_ahead *replay_ahead_new(const struct replay_setup *setup, const struct replay_workload *w,
                                      const struct replay_foresight *foresight, uint64_t budget_bytes,
                                      const struct efs_trace_timeline *timeline)
{
    struct replay_ahead *a = calloc(1, sizeof(*a));
    struct efs_prefetch_config config = {
        .layers = w->layers, .experts = w->experts, .sequences = w->batch, .guesses = REPLAY_DISTANCES * w->experts};
    if (!a)
        return NULL;
    config.guesses = config.guesses < GUESSES_MAX ? config.guesses : GUESSES_MAX;
    a->setup = setup;
    a->workload = w;
    a->foresight = foresight;
    a->timeline = timeline;
    a->governor = governor_of(setup);
    efs_governor_caps(&a->governor, budget_bytes, setup->bytes[EFS_POOL_C], &config);
    EFS_TABLE(&a->tables, a->held, (size_t)w->layers * w->experts);
    EFS_TABLE(&a->tables, a->wanted, (size_t)w->layers * w->experts);
    EFS_TABLE(&a->tables, a->candidates, GUESSES_MAX);
    EFS_TABLE(&a->tables, a->guesses, GUESSES_MAX);
    if (efs_tables_error(&a->tables) < 0 || efs_prefetch_new(&config, &a->queue) < 0) {
        replay_ahead_free(a);
        return NULL;
    }
    return a;
}

void replay_ahead_free(struct replay_ahead *a)
{
    if (!a)
        return;
    efs_prefetch_free(a->queue);
    efs_tables_free(&a->tables);
    free(a);
}

void replay_ahead_result(const struct replay_ahead *a, struct replay_result *result)
{
    struct efs_prefetch_counts counts;
    efs_prefetch_counts(a->queue, &counts);
    result->guesses = a->result;
    result->guesses.used = counts.used;
    result->guesses.late = counts.late;
    result->guesses.wasted = counts.wasted;
    result->guesses.cancelled = counts.cancelled;
    result->guesses_ratio = efs_trial_ratio(&a->governor.trial);
}

/* ---- reads ------------------------------------------------------------------------------------------------------ */

static void act(struct replay_ahead *a, const struct efs_prefetch_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t unit = actions[i].layer * a->workload->experts + actions[i].expert;
        if (actions[i].what == EFS_PREFETCH_DROP)
            a->held[unit] = 0;
        else if (actions[i].what == EFS_PREFETCH_CANCEL)
            a->cancelled = true;
        else if (actions[i].what == EFS_PREFETCH_RAISE)
            a->cancelled = false;
    }
}

/* Ends the prefetch in progress if it was cancelled and not raised again. */
static void end_cancelled(struct replay_ahead *a)
{
    const struct efs_prefetch_action *actions;
    size_t count;
    if (!a->cancelled)
        return;
    a->reading = a->cancelled = false;
    efs_prefetch_done(a->queue, a->unit / a->workload->experts, a->unit % a->workload->experts, false, &actions,
                      &count);
    act(a, actions, count);
}

uint64_t replay_ahead_next(void *arg, uint64_t now_ns)
{
    static const struct efs_prefetch_demand none = {0, 0};
    struct replay_ahead *a = arg;
    const struct efs_prefetch_action *actions;
    size_t count;
    (void)now_ns;
    if (!a->reading) {
        efs_prefetch_next(a->queue, &none, &actions, &count);
        act(a, actions, count);
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
    a->part.under_way = a->piece;
    return 1 + latency_ns + (uint64_t)((double)a->piece / a->setup->profile.disk_bytes_per_second * 1e9);
}

void replay_ahead_done(void *arg)
{
    struct replay_ahead *a = arg;
    const struct efs_prefetch_action *actions;
    size_t count;
    a->result.bytes += a->piece;
    if (a->reading)
        a->part.bytes += a->piece;
    a->piece = a->part.under_way = 0;
    if (!a->reading || a->part.bytes < bytes_of(a->setup, a->part.components))
        return;
    a->reading = false;
    a->held[a->unit] = (uint8_t)a->part.components;
    efs_prefetch_done(a->queue, a->unit / a->workload->experts, a->unit % a->workload->experts, true, &actions, &count);
    act(a, actions, count);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

void replay_ahead_pass(struct replay_ahead *a, uint64_t pass, uint64_t token)
{
    a->pass = pass;
    a->token = token;
}

static uint64_t sequence_of(const struct replay_ahead *a, uint32_t t)
{
    return a->workload->route->sequence[a->workload->at[a->token + t]];
}

/* Whether token t of the current pass is the last of its sequence. */
static bool ends(const struct replay_ahead *a, uint32_t t)
{
    const struct replay_workload *w = a->workload;
    uint64_t next = a->token + w->width[a->pass];
    for (uint32_t i = 0; a->pass + 1 < w->passes && i < w->width[a->pass + 1]; i++)
        if (w->route->sequence[w->at[next + i]] == sequence_of(a, t))
            return false;
    return true;
}

/* Takes the prefetched part of a requested expert, or the prefetch in progress, out of the prefetcher's state. */
static struct part take_part(struct replay_ahead *a, uint32_t unit, const struct efs_placement *placement)
{
    const struct replay_setup *s = a->setup;
    unsigned missing = (REPLAY_SM | REPLAY_E) & ~components_of(placement->found);
    struct part part = {0};
    if (a->held[unit]) {
        part = (struct part){.components = a->held[unit], .bytes = bytes_of(s, a->held[unit])};
        a->held[unit] = 0;
    } else if (a->reading && a->unit == unit) {
        part = a->part;
        a->reading = false; /* the request finishes the read */
    }
    a->request.ahead_bytes += part.bytes;
    a->request.missing_bytes += bytes_of(s, missing) - part.bytes;
    a->result.missing_bytes += bytes_of(s, missing);
    a->result.right_bytes += part.bytes + part.under_way;
    return part;
}

int replay_ahead_asked(struct replay_ahead *a, uint32_t layer, const struct efs_placement *placements, uint32_t count)
{
    const struct replay_workload *w = a->workload;
    const struct efs_prefetch_action *actions;
    size_t action_count;
    int64_t now = (int64_t)(a->pass * w->layers + layer);
    a->request = (struct efs_governor_request){
        .now_ns = a->timeline->asked_ns, .tokens = w->width[a->pass], .asked = count, .experts = w->experts};
    for (uint32_t i = 0; i < count; i++)
        a->got[i] = take_part(a, layer * w->experts + placements[i].expert, &placements[i]);
    for (uint32_t t = 0; t < w->width[a->pass]; t++) {
        uint16_t experts[EFS_PREDICT_MAX_CHOSEN];
        unsigned chosen = replay_chosen(w, w->at[a->token + t], layer, experts);
        int rc = efs_prefetch_asked(a->queue, sequence_of(a, t), now, layer, experts, chosen, &actions, &action_count);
        if (rc < 0)
            return rc;
        act(a, actions, action_count);
    }
    end_cancelled(a);
    return 0;
}

double replay_ahead_left(const struct replay_ahead *a, uint32_t i, uint32_t tensor, unsigned *components, bool *waits)
{
    const struct part *part = &a->got[i];
    double tensor_bytes = (double)bytes_of(a->setup, part->components) / a->setup->tensors;
    double begin = tensor * tensor_bytes, read = (double)part->bytes - begin;
    double with_piece = read + (double)part->under_way;
    *components = part->components;
    *waits = part->under_way && read < tensor_bytes && with_piece > 0;
    if (part->components == 0 || with_piece <= 0)
        return 1;
    return with_piece < tensor_bytes - 1 ? 1 - with_piece / tensor_bytes : 0;
}

/* ---- predictions ------------------------------------------------------------------------------------------------ */

/* Makes a candidate of an expert, `distance` layers ahead of layer. false: no component of it is missing. */
static bool candidate(struct replay_ahead *a, const struct efs_policy *policy, uint32_t layer, unsigned distance,
                      uint32_t expert, float probability, struct efs_governor_candidate *c)
{
    uint32_t at = (layer + distance) % a->workload->layers, unit = at * a->workload->experts + expert;
    unsigned missing = (REPLAY_SM | REPLAY_E) & ~components_of(efs_policy_state(policy, at, expert));
    if (a->held[unit]) /* keeps the held components among the candidates */
        missing = a->held[unit];
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

static unsigned candidates_of(struct replay_ahead *a, const struct efs_policy *policy, uint32_t layer, uint32_t t)
{
    const struct replay_foresight *f = a->foresight;
    size_t slot = a->token * a->workload->layers + layer * a->workload->width[a->pass] + t;
    unsigned count = 0;
    for (size_t i = f->first[slot]; i < f->first[slot + 1] && count < GUESSES_MAX; i++)
        count += candidate(a, policy, layer, f->guesses[i].distance, f->guesses[i].expert, f->guesses[i].probability,
                           &a->candidates[count]);
    return count;
}

static unsigned next_layer(struct replay_ahead *a, const struct efs_policy *policy, uint32_t layer)
{
    unsigned count = 0;
    for (uint32_t e = 0; e < a->workload->experts && count < GUESSES_MAX; e++)
        count += candidate(a, policy, layer, 1, e, 1, &a->candidates[count]);
    return count;
}

int replay_ahead_guess(struct replay_ahead *a, uint32_t layer, const struct efs_policy *policy)
{
    const struct replay_workload *w = a->workload;
    const struct efs_governor_disk disk = {.bytes_per_second = a->setup->profile.disk_bytes_per_second,
                                           .latency_ns = a->setup->profile.read_latency_ns,
                                           .piece_bytes = REPLAY_PIECE_BYTES};
    const enum efs_governor_now what = efs_governor_asked(&a->governor, &a->request);
    int64_t now = (int64_t)(a->pass * w->layers + layer);
    int rc = 0;
    a->result.requests++;
    a->result.on += what != EFS_GOVERNOR_NOTHING;
    for (uint32_t t = 0; rc == 0 && t < w->width[a->pass]; t++) {
        unsigned count = 0;
        if (layer + 1 == w->layers && ends(a, t)) {
            const struct efs_prefetch_action *actions;
            size_t action_count;
            efs_prefetch_end(a->queue, sequence_of(a, t), &actions, &action_count);
            act(a, actions, action_count);
            end_cancelled(a);
            continue;
        }
        if (what == EFS_GOVERNOR_LAYER && t == 0)
            count = efs_governor_layer(a->candidates, next_layer(a, policy, layer), a->guesses);
        else if (what == EFS_GOVERNOR_GUESS)
            count = efs_governor_weigh(&a->governor, &disk, now, a->candidates, candidates_of(a, policy, layer, t),
                                       a->guesses);
        rc = efs_prefetch_offer(a->queue, sequence_of(a, t), now, a->guesses, count);
    }
    return rc;
}
