/* SPDX-License-Identifier: Apache-2.0 */
/* prefetcher_sequences.c - see prefetcher.h: positions of sequences, their observations and hints. */
#include "prefetcher_internal.h"

#include "expertfs-private.h"

#include <string.h>

static uint64_t sequence_id(uint32_t observer, uint32_t number)
{
    return (uint64_t)observer << 32 | number;
}

struct efs_prefetcher_sequence *efs_prefetcher_find_sequence(struct efs_prefetcher *pf, uint64_t id)
{
    for (unsigned s = 0; s < EFS_PREFETCHER_SEQUENCES; s++)
        if (pf->sequences[s].used && pf->sequences[s].id == id)
            return &pf->sequences[s];
    return NULL;
}

/* Appends an observation for the thread, which the caller fills in. NULL: the ring is full, and the predictor misses
 * this layer. */
static struct efs_prefetcher_observation *ring_push(struct efs_prefetcher *pf, uint16_t **ids, float **weights)
{
    if (pf->ring_pushed - pf->ring_popped == EFS_PREFETCHER_RING) {
        pf->ring_dropped++;
        return NULL;
    }
    size_t at = pf->ring_pushed++ % EFS_PREFETCHER_RING;
    *ids = pf->ring_ids + at * EFS_PREFETCHER_IDS;
    *weights = pf->ring_weights + at * EFS_PREFETCHER_IDS;
    pthread_cond_signal(&pf->wake);
    return &pf->ring[at];
}

static void sequence_end(struct efs *fs, struct efs_prefetcher_sequence *s)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint16_t *ids;
    float *weights;
    struct efs_prefetcher_observation *o = ring_push(pf, &ids, &weights);
    efs_prefetcher_sequence_ended(fs, s->id);
    if (o)
        *o = (struct efs_prefetcher_observation){.sequence = s->id, .now = EFS_PREFETCHER_NO_POSITION};
    s->used = false;
    pf->clients_report = false;
    for (unsigned i = 0; i < EFS_PREFETCHER_SEQUENCES; i++)
        pf->clients_report |= pf->sequences[i].used && pf->sequences[i].id >> 32 != EFS_PREFETCHER_NO_OBSERVER;
}

void efs_prefetcher_end_sequences(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    for (unsigned s = 0; s < EFS_PREFETCHER_SEQUENCES; s++)
        if (pf->sequences[s].used)
            sequence_end(fs, &pf->sequences[s]);
    pf->pending_count = 0;
}

/* The sequence with this id, or a new one. If the table is full, ends the least recently observed sequence. */
static struct efs_prefetcher_sequence *sequence_of(struct efs *fs, uint64_t id)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    struct efs_prefetcher_sequence *s = efs_prefetcher_find_sequence(pf, id), *oldest = &pf->sequences[0];
    for (unsigned i = 0; i < EFS_PREFETCHER_SEQUENCES && !s; i++)
        if (!pf->sequences[i].used)
            s = &pf->sequences[i];
        else if (pf->sequences[i].clock < oldest->clock)
            oldest = &pf->sequences[i];
    if (!s)
        sequence_end(fs, s = oldest);
    if (!s->used) {
        s->used = true;
        s->id = id;
        s->now = s->hinted_at = EFS_PREFETCHER_NO_POSITION;
        s->hint_count = 0;
        pf->clients_report |= id >> 32 != EFS_PREFETCHER_NO_OBSERVER;
    }
    s->clock = ++pf->clock;
    return s;
}

/* First position of a layer after now. */
static int64_t position_after(const struct efs *fs, int64_t now, uint32_t layer)
{
    int64_t layers = efs_cache(fs)->layers, first = now < 0 ? 0 : now / layers * layers;
    return first + layer > now ? first + layer : first + layers + layer;
}

/* For an iteration after a hint the hints of the runtime replace the predictor for its sequence. */
static bool sequence_is_hinted(const struct efs *fs, const struct efs_prefetcher_sequence *s)
{
    return s->hinted_at >= 0 && s->now - s->hinted_at < (int64_t)efs_cache(fs)->layers;
}

/* Submits the sequence's hints for later positions. */
static void submit_hints(struct efs *fs, struct efs_prefetcher_sequence *s)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->hint_count; i++)
        if (s->hints[i].due > s->now)
            s->hints[count++] = s->hints[i];
    s->hint_count = count;
    for (uint32_t i = 0; i < count; i++) {
        pf->predictions[i] = (struct efs_prefetch_prediction){.layer = s->hints[i].layer,
                                                              .expert = s->hints[i].expert,
                                                              .due = s->hints[i].due,
                                                              .worth = s->hints[i].probability};
        pf->distances[i] = 0;
    }
    efs_prefetcher_submit(fs, s->id, s->now, count);
}

/* Handles a layer of a sequence. Lock held. */
static void observe(struct efs *fs, uint64_t id, const struct efs_prefetcher_layer *l)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    struct efs_prefetcher_sequence *s = sequence_of(fs, id);
    uint32_t count = l->count < EFS_PREFETCHER_IDS ? l->count : EFS_PREFETCHER_IDS;
    uint16_t *ids;
    float *weights;
    s->now = position_after(fs, s->now, l->layer);
    pf->observed++;
    for (uint32_t i = 0; i < l->count; i++)
        pf->ids[i] = (uint16_t)l->ids[i];
    efs_prefetcher_layer_observed(fs, id, s->now, l->layer, pf->ids, l->count);
    if (sequence_is_hinted(fs, s))
        submit_hints(fs, s);
    struct efs_prefetcher_observation *o = ring_push(pf, &ids, &weights);
    if (!o)
        return;
    *o = (struct efs_prefetcher_observation){.sequence = id,
                                             .now = s->now,
                                             .layer = l->layer,
                                             .count = count,
                                             .scored = l->weights != NULL,
                                             .predict = !sequence_is_hinted(fs, s)};
    memcpy(ids, pf->ids, count * sizeof(*ids));
    if (l->weights)
        memcpy(weights, l->weights, count * sizeof(*weights));
}

void efs_prefetcher_observe(struct efs *fs, const struct efs_prefetcher_layer *l)
{
    struct efs_prefetcher_sequence *s;
    uint64_t id = sequence_id(l->observer, l->sequence);
    efs_lock(fs);
    if (fs->prefetcher->queue && l->count)
        observe(fs, id, l);
    else if (fs->prefetcher->queue && (s = efs_prefetcher_find_sequence(fs->prefetcher, id)))
        sequence_end(fs, s);
    efs_unlock(fs);
}

/* A layer has requested all its experts. Lock held. */
static void layer_requested(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    if (!fs->prefetcher->clients_report)
        observe(fs, sequence_id(EFS_PREFETCHER_NO_OBSERVER, 0),
                &(struct efs_prefetcher_layer){.layer = layer, .count = count, .ids = ids});
}

static void pending_flush(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint32_t count = pf->pending_count;
    pf->pending_count = 0;
    if (count)
        layer_requested(fs, pf->pending_layer, pf->pending, count);
}

/* Collects experts that are requested one by one, until another layer is requested. */
static void pending_add(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    pf->pending_layer = layer;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < pf->pending_count && pf->pending[at] != ids[i])
            at++;
        if (at < pf->pending_count) { /* requested twice: the next pass of a model with one layer */
            pending_flush(fs);
            at = 0;
        }
        pf->pending[at] = ids[i];
        pf->pending_count = at + 1;
    }
}

void efs_prefetcher_requested(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count, bool named)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    if (!pf->queue)
        return;
    if (named || pf->pending_layer != layer)
        pending_flush(fs);
    efs_prefetcher_count_request(fs, layer, ids, count);
    if (named)
        layer_requested(fs, layer, ids, count);
    else
        pending_add(fs, layer, ids, count);
}

/* ---- hints ---- */

/* Replaces the earlier hints for this position. */
static void hints_replace(struct efs_prefetcher_sequence *s, const struct efs_prefetcher_layer *l, int64_t due)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->hint_count; i++)
        if (s->hints[i].due != due)
            s->hints[kept++] = s->hints[i];
    for (uint32_t i = 0; i < l->count && kept < EFS_PREFETCHER_HINTS; i++)
        s->hints[kept++] = (struct efs_prefetcher_pending_hint){.layer = (uint16_t)l->layer,
                                                                .expert = (uint16_t)l->ids[i],
                                                                .due = due,
                                                                .probability = l->weights ? l->weights[i] : 1};
    s->hint_count = kept;
}

void efs_prefetcher_hint(struct efs *fs, const struct efs_prefetcher_layer *l)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint64_t id = sequence_id(l->observer, l->sequence);
    efs_lock(fs);
    if (pf->queue && !efs_prefetcher_find_sequence(pf, id)) /* a client that only hints is observed by its requests */
        id = sequence_id(EFS_PREFETCHER_NO_OBSERVER, 0);
    if (pf->queue) {
        struct efs_prefetcher_sequence *s = sequence_of(fs, id);
        s->hinted_at = s->now < 0 ? 0 : s->now;
        hints_replace(s, l, position_after(fs, s->now, l->layer));
        submit_hints(fs, s);
        efs_prefetcher_run_idle(fs);
    }
    efs_unlock(fs);
}

uint32_t efs_routing_observer(struct efs *fs)
{
    efs_lock(fs);
    uint32_t observer = ++fs->prefetcher->observers;
    efs_unlock(fs);
    return observer;
}

void efs_routing_observer_end(struct efs *fs, uint32_t observer)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    efs_lock(fs);
    for (unsigned s = 0; pf->queue && s < EFS_PREFETCHER_SEQUENCES; s++)
        if (pf->sequences[s].used && pf->sequences[s].id >> 32 == observer)
            sequence_end(fs, &pf->sequences[s]);
    efs_unlock(fs);
}
