/* SPDX-License-Identifier: Apache-2.0 */
/* prefetcher_sequences.c - see prefetcher.h: positions of sequences, their observations and hints. */
#include "prefetcher_internal.h"

#include "expertfs-private.h"

#include <string.h>

static uint64_t sequence_id(uint32_t who, uint32_t number)
{
    return (uint64_t)who << 32 | number;
}

struct efs_guess_sequence *efs_guess_find(struct efs_guessing *g, uint64_t id)
{
    for (unsigned s = 0; s < EFS_GUESS_SEQUENCES; s++)
        if (g->sequences[s].used && g->sequences[s].id == id)
            return &g->sequences[s];
    return NULL;
}

/* Appends an observation for the thread, which the caller fills in. NULL: the ring is full, and the predictor misses
 * this layer. */
static struct efs_guess_observation *line_put(struct efs_guessing *g, uint16_t **ids, float **weights)
{
    if (g->line_put - g->line_taken == EFS_GUESS_LINE) {
        g->line_lost++;
        return NULL;
    }
    size_t at = g->line_put++ % EFS_GUESS_LINE;
    *ids = g->line_ids + at * EFS_GUESS_IDS;
    *weights = g->line_weights + at * EFS_GUESS_IDS;
    pthread_cond_signal(&g->wake);
    return &g->line[at];
}

static void sequence_end(struct efs *fs, struct efs_guess_sequence *s)
{
    struct efs_guessing *g = fs->guessing;
    uint16_t *ids;
    float *weights;
    struct efs_guess_observation *o = line_put(g, &ids, &weights);
    efs_guess_over(fs, s->id);
    if (o)
        *o = (struct efs_guess_observation){.sequence = s->id, .now = EFS_GUESS_NOWHERE};
    s->used = false;
    g->told = false;
    for (unsigned i = 0; i < EFS_GUESS_SEQUENCES; i++)
        g->told |= g->sequences[i].used && g->sequences[i].id >> 32 != EFS_GUESS_OWN;
}

void efs_guess_forget(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    for (unsigned s = 0; s < EFS_GUESS_SEQUENCES; s++)
        if (g->sequences[s].used)
            sequence_end(fs, &g->sequences[s]);
    g->pending_count = 0;
}

/* The sequence with this id, or a new one. If the table is full, ends the least recently observed sequence. */
static struct efs_guess_sequence *sequence_of(struct efs *fs, uint64_t id)
{
    struct efs_guessing *g = fs->guessing;
    struct efs_guess_sequence *s = efs_guess_find(g, id), *oldest = &g->sequences[0];
    for (unsigned i = 0; i < EFS_GUESS_SEQUENCES && !s; i++)
        if (!g->sequences[i].used)
            s = &g->sequences[i];
        else if (g->sequences[i].clock < oldest->clock)
            oldest = &g->sequences[i];
    if (!s)
        sequence_end(fs, s = oldest);
    if (!s->used) {
        s->used = true;
        s->id = id;
        s->now = s->hinted_at = EFS_GUESS_NOWHERE;
        s->hint_count = 0;
        g->told |= id >> 32 != EFS_GUESS_OWN;
    }
    s->clock = ++g->clock;
    return s;
}

/* First position of a layer after now. */
static int64_t position_after(const struct efs *fs, int64_t now, uint32_t layer)
{
    int64_t layers = efs_cache_layers(fs), first = now < 0 ? 0 : now / layers * layers;
    return first + layer > now ? first + layer : first + layers + layer;
}

/* For an iteration after a hint the hints of the runtime replace the predictor for its sequence. */
static bool sequence_is_hinted(const struct efs *fs, const struct efs_guess_sequence *s)
{
    return s->hinted_at >= 0 && s->now - s->hinted_at < (int64_t)efs_cache_layers(fs);
}

/* Submits the sequence's hints for later positions. */
static void offer_hints(struct efs *fs, struct efs_guess_sequence *s)
{
    struct efs_guessing *g = fs->guessing;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->hint_count; i++)
        if (s->hints[i].due > s->now)
            s->hints[count++] = s->hints[i];
    s->hint_count = count;
    for (uint32_t i = 0; i < count; i++) {
        g->candidates[i] = (struct efs_governor_candidate){.layer = s->hints[i].layer,
                                                           .expert = s->hints[i].expert,
                                                           .due = s->hints[i].due,
                                                           .probability = s->hints[i].probability};
        g->distances[i] = 0;
    }
    efs_guess_offer(fs, s->id, s->now, count);
}

/* Handles a layer of a sequence. Lock held. */
static void observe(struct efs *fs, uint64_t id, const struct efs_guess_layer *l)
{
    struct efs_guessing *g = fs->guessing;
    struct efs_guess_sequence *s = sequence_of(fs, id);
    uint32_t count = l->count < EFS_GUESS_IDS ? l->count : EFS_GUESS_IDS;
    uint16_t *ids;
    float *weights;
    s->now = position_after(fs, s->now, l->layer);
    g->observed++;
    for (uint32_t i = 0; i < l->count; i++)
        g->ids[i] = (uint16_t)l->ids[i];
    efs_guess_passed(fs, id, s->now, l->layer, g->ids, l->count);
    if (g->now == EFS_GOVERNOR_LAYER)
        efs_guess_offer_layer(fs, id, s->now);
    else if (g->now == EFS_GOVERNOR_PREDICTIONS && sequence_is_hinted(fs, s))
        offer_hints(fs, s);
    struct efs_guess_observation *o = line_put(g, &ids, &weights);
    if (!o)
        return;
    *o = (struct efs_guess_observation){.sequence = id,
                                        .now = s->now,
                                        .layer = l->layer,
                                        .count = count,
                                        .scored = l->weights != NULL,
                                        .guess = g->now == EFS_GOVERNOR_PREDICTIONS && !sequence_is_hinted(fs, s)};
    memcpy(ids, g->ids, count * sizeof(*ids));
    if (l->weights)
        memcpy(weights, l->weights, count * sizeof(*weights));
}

void efs_guess_observe(struct efs *fs, const struct efs_guess_layer *l)
{
    struct efs_guess_sequence *s;
    uint64_t id = sequence_id(l->who, l->sequence);
    efs_lock(fs);
    if (fs->guessing->queue && l->count)
        observe(fs, id, l);
    else if (fs->guessing->queue && (s = efs_guess_find(fs->guessing, id)))
        sequence_end(fs, s);
    efs_unlock(fs);
}

/* A layer has requested all its experts. Lock held. */
static void layer_asked(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t tokens, uint32_t count)
{
    struct efs_guessing *g = fs->guessing;
    struct efs_governor_request request = {.now_ns = efs_now_ns(),
                                           .tokens = tokens,
                                           .requested = count,
                                           .experts =
                                               efs_cache_layer_first(fs, layer + 1) - efs_cache_layer_first(fs, layer),
                                           .missing_bytes = g->asked_missing_bytes,
                                           .ahead_bytes = g->asked_ahead_bytes};
    g->asked_missing_bytes = g->asked_ahead_bytes = 0;
    g->now = efs_governor_requested(&g->governor, &request);
    if (!g->told)
        observe(fs, sequence_id(EFS_GUESS_OWN, 0),
                &(struct efs_guess_layer){.layer = layer, .count = count, .tokens = tokens, .ids = ids});
    efs_retry(fs, EFS_RETRY_IDLE);
}

static void pending_asked(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    uint32_t count = g->pending_count;
    g->pending_count = 0;
    if (count)
        layer_asked(fs, g->pending_layer, g->pending, g->pending_tokens, count);
}

/* Collects experts that are requested one by one, until another layer is requested. */
static void pending_add(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count, uint32_t tokens)
{
    struct efs_guessing *g = fs->guessing;
    g->pending_layer = layer;
    g->pending_tokens = g->pending_count && g->pending_tokens > tokens ? g->pending_tokens : tokens;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < g->pending_count && g->pending[at] != ids[i])
            at++;
        if (at < g->pending_count) { /* requested twice: the next pass of a model with one layer */
            pending_asked(fs);
            at = 0;
        }
        g->pending[at] = ids[i];
        g->pending_count = at + 1;
    }
}

void efs_guess_asked(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                     bool named)
{
    struct efs_guessing *g = fs->guessing;
    uint32_t most = 1;
    if (!g->queue)
        return;
    for (uint32_t i = 0; tokens && i < count; i++)
        most = tokens[i] > most ? tokens[i] : most;
    if (named || g->pending_layer != layer)
        pending_asked(fs);
    efs_guess_used(fs, layer, ids, count);
    if (named)
        layer_asked(fs, layer, ids, most, count);
    else
        pending_add(fs, layer, ids, count, most);
}

/* ---- hints ---- */

/* Replaces the earlier hints for this position. */
static void hints_replace(struct efs_guess_sequence *s, const struct efs_guess_layer *l, int64_t due)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->hint_count; i++)
        if (s->hints[i].due != due)
            s->hints[kept++] = s->hints[i];
    for (uint32_t i = 0; i < l->count && kept < EFS_GUESS_HINTS; i++)
        s->hints[kept++] = (struct efs_guess_hinted){.layer = (uint16_t)l->layer,
                                                     .expert = (uint16_t)l->ids[i],
                                                     .due = due,
                                                     .probability = l->weights ? l->weights[i] : 1};
    s->hint_count = kept;
}

void efs_guess_hint(struct efs *fs, const struct efs_guess_layer *l)
{
    struct efs_guessing *g = fs->guessing;
    uint64_t id = sequence_id(l->who, l->sequence);
    efs_lock(fs);
    if (g->queue && !efs_guess_find(g, id)) /* a client that only hints is observed by its requests */
        id = sequence_id(EFS_GUESS_OWN, 0);
    if (g->queue) {
        struct efs_guess_sequence *s = sequence_of(fs, id);
        s->hinted_at = s->now < 0 ? 0 : s->now;
        hints_replace(s, l, position_after(fs, s->now, l->layer));
        if (g->governor.requests == 0 || g->now == EFS_GOVERNOR_PREDICTIONS)
            offer_hints(fs, s);
    }
    efs_unlock(fs);
}

uint32_t efs_routing_observer(struct efs *fs)
{
    efs_lock(fs);
    uint32_t who = ++fs->guessing->observers;
    efs_unlock(fs);
    return who;
}

void efs_routing_observer_end(struct efs *fs, uint32_t who)
{
    struct efs_guessing *g = fs->guessing;
    efs_lock(fs);
    for (unsigned s = 0; g->queue && s < EFS_GUESS_SEQUENCES; s++)
        if (g->sequences[s].used && g->sequences[s].id >> 32 == who)
            sequence_end(fs, &g->sequences[s]);
    efs_unlock(fs);
}
