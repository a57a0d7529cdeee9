/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher_thread.c - see prefetcher.h: the thread that owns the predictor. For each observed layer it trains the
 * predictor, scores earlier predictions and submits new ones. If it is slower than the layers, the ring of observations
 * fills up and layers are dropped.
 */
#include "prefetcher_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ISSUED_IDS_MAX (2 * EFS_PREDICT_MAX_CHOSEN)
#define LEAST_PROBABILITY 0.01F
#define SAVE_NS 300000000000
#define SAVE_PASSES 16u /* fewest learned passes that are saved */

/* The predictions for a position. */
struct issued_predictions {
    bool used;
    uint64_t sequence;
    int64_t due;
    uint8_t distance;
    uint32_t count;
    uint16_t ids[ISSUED_IDS_MAX];
};
#define ISSUED_MAX 128u /* enough for 8 concurrent sequences: a layer adds up to 4, for up to 4 layers ahead */
_Static_assert(ISSUED_MAX * sizeof(struct issued_predictions) <= EFS_PREFETCHER_THREAD_BYTES / 2,
               "what the budget counts");

struct predictor_thread {
    struct efs_prefetcher *pf;
    struct efs_predictor *predictor;
    unsigned chosen, distances;
    uint32_t pass_layers, pass_most; /* layers in this pass; most experts requested by one of them */
    uint64_t learned, saved_ns;      /* layers learned since the last save; time of the last save */
    uint32_t issued_next;
    struct issued_predictions issued[ISSUED_MAX];
    struct efs_prefetcher_observation o; /* the current observation */
    uint16_t ids[EFS_PREFETCHER_IDS];
    float weights[EFS_PREFETCHER_IDS];
    struct efs_prediction predictions[EFS_PREFETCHER_CANDIDATES];
    uint8_t distance[EFS_PREFETCHER_CANDIDATES];
};
_Static_assert(sizeof(struct predictor_thread) <= EFS_PREFETCHER_THREAD_BYTES, "what the budget counts");

/* Saves the tables if SAVE_PASSES passes were learned since the last save. Without lock. */
static void predictor_thread_save(struct predictor_thread *t)
{
    struct efs *fs = t->pf->fs;
    t->saved_ns = efs_now_ns();
    if (!t->predictor || t->learned < (uint64_t)SAVE_PASSES * efs_cache(fs)->layers)
        return;
    efs_prefetcher_save(fs, t->predictor);
    t->learned = 0;
}

static void predictor_thread_reset(struct predictor_thread *t)
{
    efs_predictor_free(t->predictor);
    t->predictor = NULL;
    t->chosen = t->pass_layers = t->pass_most = 0;
    memset(t->issued, 0, sizeof(t->issued));
}

/* Replaces the predictor by one for this number of experts per token. Without lock. */
static void predictor_thread_replace(struct predictor_thread *t, unsigned chosen)
{
    struct efs_prefetcher *pf = t->pf;
    struct efs *fs = pf->fs;
    predictor_thread_reset(t);
    efs_lock(fs);
    uint64_t bytes = pf->predictor_most_bytes; /* the budget may have changed since */
    efs_unlock(fs);
    t->chosen = chosen;
    t->distances = efs_cache(fs)->layers < EFS_PREFETCHER_DISTANCES ? efs_cache(fs)->layers : EFS_PREFETCHER_DISTANCES;
    const struct efs_predict_config config = {.kind = EFS_PREDICT_MIXED,
                                              .layers = efs_cache(fs)->layers,
                                              .experts = efs_cache(fs)->width,
                                              .chosen = chosen,
                                              .distances = t->distances,
                                              .sequences = EFS_PREFETCHER_SEQUENCES,
                                              .memory_bytes = bytes};
    int rc = efs_predictor_new(&config, &t->predictor);
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "nothing is predicted: %s",
                rc == -E2BIG ? "the predictor takes more than its share of the budget" : strerror(-rc));
    t->learned = 0;
    t->saved_ns = efs_now_ns();
    if (t->predictor)
        efs_prefetcher_load(fs, t->predictor);
    efs_lock(fs);
    pf->chosen = chosen;
    pf->predictor_error = rc;
    pf->predictor_bytes = t->predictor ? efs_predict_bytes(t->predictor) : 0;
    efs_unlock(fs);
}

/*
 * Estimates the number of experts per token: the most experts that a layer of a pass requests. The estimate only falls,
 * because passes of a prompt request more.
 */
static void predictor_thread_estimate_chosen(struct predictor_thread *t)
{
    uint32_t most = t->o.count < EFS_PREDICT_MAX_CHOSEN ? t->o.count : EFS_PREDICT_MAX_CHOSEN;
    t->pass_most = most > t->pass_most ? most : t->pass_most;
    if (++t->pass_layers < efs_cache(t->pf->fs)->layers)
        return;
    most = t->pass_most;
    t->pass_layers = t->pass_most = 0;
    if (t->chosen == 0 || most < t->chosen)
        predictor_thread_replace(t, most);
}

/* ---- scores of earlier predictions ---- */

static bool was_chosen(const struct predictor_thread *t, uint16_t id)
{
    for (uint32_t i = 0; i < t->o.count; i++)
        if (t->ids[i] == id)
            return true;
    return false;
}

static void score_prediction(const struct predictor_thread *t, const struct issued_predictions *issued)
{
    struct efs_prefetcher_scores *score = &t->pf->scores[issued->distance];
    score->layers++;
    score->chosen += t->o.count;
    score->named_k += issued->count < t->chosen ? issued->count : t->chosen;
    for (uint32_t i = 0; i < issued->count; i++)
        if (was_chosen(t, issued->ids[i])) {
            score->hits_k += i < t->chosen;
            score->hits_2k++;
        }
}

/* Scores the predictions for this position. Lock held. Layers of a prompt are not scored: they request nearly all
 * experts. */
static void score_due_predictions(struct predictor_thread *t)
{
    for (uint32_t i = 0; i < ISSUED_MAX; i++) {
        struct issued_predictions *issued = &t->issued[i];
        if (!issued->used || issued->sequence != t->o.sequence || issued->due > t->o.now)
            continue;
        if (issued->due == t->o.now && t->o.count <= t->chosen)
            score_prediction(t, issued);
        issued->used = false;
    }
}

static void record_issued(struct predictor_thread *t, uint8_t distance, const struct efs_prediction *predictions,
                          uint32_t count)
{
    struct issued_predictions *issued = &t->issued[t->issued_next++ % ISSUED_MAX];
    *issued = (struct issued_predictions){.used = true,
                                          .sequence = t->o.sequence,
                                          .due = t->o.now + distance,
                                          .distance = distance,
                                          .count = count < 2 * t->chosen ? count : 2 * t->chosen};
    for (uint32_t i = 0; i < issued->count; i++)
        issued->ids[i] = predictions[i].expert;
}

/* ---- predictions ---- */

/* Drops predictions of experts that a layer does not have: the predictor assumes the width of the widest layer. Returns
 * the number that remain. */
static int drop_missing_experts(const struct predictor_thread *t, struct efs_prediction *predictions, int count)
{
    const uint32_t *first = efs_cache(t->pf->fs)->layer_first;
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (predictions[i].expert < first[predictions[i].layer + 1] - first[predictions[i].layer])
            predictions[kept++] = predictions[i];
    return kept;
}

/* Predicts the next layers. Without lock. Returns the number of predictions. */
static uint32_t predictor_thread_predict(struct predictor_thread *t)
{
    uint32_t count = 0, room = 4 * t->chosen < EFS_PREFETCHER_PER_LAYER ? 4 * t->chosen : EFS_PREFETCHER_PER_LAYER;
    for (uint8_t d = 1; d <= t->distances; d++) {
        int n = efs_predict(t->predictor, t->o.sequence, d, t->predictions + count, room, NULL);
        if (n < 0)
            continue;
        n = drop_missing_experts(t, t->predictions + count, n);
        record_issued(t, d, t->predictions + count, (uint32_t)n);
        while (n > 0 && t->predictions[count + (uint32_t)n - 1].probability < LEAST_PROBABILITY)
            n--;
        memset(t->distance + count, d, (size_t)n);
        count += (uint32_t)n;
    }
    return count;
}

/* Lock held. */
static void predictor_thread_submit(struct predictor_thread *t, uint32_t count)
{
    struct efs_prefetcher *pf = t->pf;
    const struct efs_prefetcher_sequence *s = pf->queue ? efs_prefetcher_find_sequence(pf, t->o.sequence) : NULL;
    if (!s)
        return;
    for (uint32_t i = 0; i < count; i++) {
        float p = t->predictions[i].probability;
        pf->predictions[i] = (struct efs_prefetch_prediction){.layer = t->predictions[i].layer,
                                                              .expert = t->predictions[i].expert,
                                                              .due = t->o.now + t->distance[i],
                                                              .worth = p < 1 ? p : 1};
        pf->distances[i] = t->distance[i];
    }
    efs_prefetcher_submit(pf->fs, s->id, s->now, count);
    efs_prefetcher_run_idle(pf->fs);
}

static void predictor_thread_begin_sequence(struct predictor_thread *t)
{
    if (efs_predict_begin(t->predictor, t->o.sequence) != -ENOSPC)
        return;
    predictor_thread_replace(t,
                             t->chosen); /* the predictor has stale sequences: their ends did not fit into the ring */
    if (t->predictor)
        efs_predict_begin(t->predictor, t->o.sequence);
}

/* Handles an observation. Without lock. */
static void predictor_thread_handle(struct predictor_thread *t)
{
    struct efs *fs = t->pf->fs;
    const struct efs_predict_observation seen = {
        .layer = t->o.layer, .experts = t->ids, .scores = t->o.scored ? t->weights : NULL, .count = t->o.count};
    uint32_t count = 0;
    if (t->o.now == EFS_PREFETCHER_NO_POSITION) {
        if (t->predictor)
            efs_predict_end(t->predictor, t->o.sequence);
        return;
    }
    predictor_thread_estimate_chosen(t);
    if (t->predictor)
        predictor_thread_begin_sequence(t);
    if (t->predictor && efs_predict_observe(t->predictor, t->o.sequence, &seen) == 0) {
        t->learned++;
        efs_lock(fs);
        score_due_predictions(t);
        efs_unlock(fs);
        count = predictor_thread_predict(t);
    }
    if (!count || !t->o.predict)
        return;
    efs_lock(fs);
    predictor_thread_submit(t, count);
    efs_unlock(fs);
}

/* Lock held. */
static void ring_pop(struct predictor_thread *t)
{
    struct efs_prefetcher *pf = t->pf;
    size_t at = pf->ring_popped++ % EFS_PREFETCHER_RING;
    t->o = pf->ring[at];
    memcpy(t->ids, pf->ring_ids + at * EFS_PREFETCHER_IDS, t->o.count * sizeof(t->ids[0]));
    if (t->o.scored)
        memcpy(t->weights, pf->ring_weights + at * EFS_PREFETCHER_IDS, t->o.count * sizeof(t->weights[0]));
}

void *efs_prefetcher_thread(void *arg)
{
    struct efs_prefetcher *pf = arg;
    struct efs *fs = pf->fs;
    struct predictor_thread *t = efs_sys_calloc(1, sizeof(*t));
    if (t)
        t->pf = pf;
    else
        efs_log(fs, EFS_LOG_WARNING, "nothing is predicted: no memory");
    efs_lock(fs);
    while (t && !pf->stop) {
        bool is_off = t->chosen && !pf->on, idle = pf->ring_pushed == pf->ring_popped;
        if (idle && !is_off) {
            pthread_cond_wait(&pf->wake, &fs->lock);
            continue;
        }
        if (!idle)
            ring_pop(t);
        if (is_off)
            pf->chosen = 0;
        efs_unlock(fs);
        if (is_off || efs_now_ns() - t->saved_ns > SAVE_NS)
            predictor_thread_save(t);
        if (is_off)
            predictor_thread_reset(t);
        if (!idle)
            predictor_thread_handle(t);
        efs_lock(fs);
    }
    efs_unlock(fs);
    if (t) {
        predictor_thread_save(t);
        predictor_thread_reset(t);
    }
    free(t);
    return NULL;
}
