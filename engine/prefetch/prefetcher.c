/* SPDX-License-Identifier: Apache-2.0 */
/* prefetcher.c - see prefetcher.h: switches prefetch on and off, and formats its statistics. */
#include "prefetcher_internal.h"

#include "budget.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREDICTOR_SHARE 64u /* 1/64 of the budget; the same again for the copy that is saved */
#define PREDICTOR_LEAST (1u << 20)
#define PREDICTOR_MOST (64u << 20)
#define QUEUE_UNIT_BYTES 64u /* per expert, in the queue and in efs_prefetcher.experts */

errint_t efs_prefetcher_build(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher = efs_sys_calloc(1, sizeof(*pf));
    if (!pf)
        return -ENOMEM;
    pf->fs = fs;
    pthread_cond_init(&pf->wake, NULL);
    return 0;
}

void efs_prefetcher_begin(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    efs_lock(fs);
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        pf->fill_bytes += efs_expert_coded_bytes(fs, e);
    pf->fills = true;
    efs_prefetcher_fill(fs);
    efs_unlock(fs);
}

void efs_prefetcher_stop(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    if (!pf || !pf->started)
        return;
    efs_lock(fs);
    pf->stop = true;
    pthread_cond_signal(&pf->wake);
    efs_unlock(fs);
    pthread_join(pf->thread, NULL);
    pf->started = false;
}

bool efs_prefetcher_is_on(const struct efs *fs)
{
    return fs->prefetcher->on;
}

/* Memory limit of the predictor. A power of two: saved tables load only with the same limit, and the budget may differ
 * slightly at the next mount. */
static uint64_t predictor_bytes(uint64_t budget_bytes)
{
    uint64_t bytes = PREDICTOR_LEAST;
    while (bytes < PREDICTOR_MOST && 2 * bytes <= budget_bytes / PREDICTOR_SHARE)
        bytes *= 2;
    return bytes;
}

/* Allocates the tables (with lock held), which stay allocated while the store is open; or frees them. */
static errint_t tables_resize(struct efs *fs, bool make)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    const uint32_t experts = make ? fs->store->expert_count : 0, width = make ? efs_cache(fs)->width : 0;
    const uint32_t room = make ? EFS_PREFETCHER_CANDIDATES : 0;
    const struct {
        void *at; /* address of the pointer */
        size_t count, bytes;
    } tables[] = {{&pf->experts, experts, sizeof(*pf->experts)},
                  {&pf->prefetched, experts, sizeof(*pf->prefetched)},
                  {&pf->sequences, EFS_PREFETCHER_SEQUENCES, sizeof(*pf->sequences)},
                  {&pf->pending, width, sizeof(*pf->pending)},
                  {&pf->ring_ids, (size_t)EFS_PREFETCHER_RING * EFS_PREFETCHER_IDS, sizeof(*pf->ring_ids)},
                  {&pf->ring_weights, (size_t)EFS_PREFETCHER_RING * EFS_PREFETCHER_IDS, sizeof(*pf->ring_weights)},
                  {&pf->distances, room, sizeof(*pf->distances)},
                  {&pf->predictions, room, sizeof(*pf->predictions)},
                  {&pf->ids, width > EFS_PREFETCHER_IDS ? width : EFS_PREFETCHER_IDS, sizeof(*pf->ids)}};
    if (make && pf->ids)
        return 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        void *table;
        memcpy(&table, tables[i].at, sizeof(table));
        free(table);
        table = make ? efs_sys_calloc(tables[i].count, tables[i].bytes) : NULL;
        memcpy(tables[i].at, &table, sizeof(table));
        if (make && !table) {
            tables_resize(fs, false);
            return -ENOMEM;
        }
    }
    return 0;
}

void efs_prefetcher_destroy(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    if (!pf)
        return;
    efs_prefetch_free(pf->queue);
    tables_resize(fs, false);
    pthread_cond_destroy(&pf->wake);
    free(pf);
    fs->prefetcher = NULL;
}

static uint64_t largest_expert_bytes(const struct efs *fs)
{
    uint64_t most = 0;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        most = efs_expert_coded_bytes(fs, e) > most ? efs_expert_coded_bytes(fs, e) : most;
    return most;
}

/* Bytes that the budget counts: predictor, queue, tables, thread stack. */
static uint64_t prefetcher_memory(const struct efs *fs)
{
    uint64_t room = EFS_PREFETCHER_CANDIDATES, copies = fs->options.no_state ? 1 : 2;
    return copies * predictor_bytes(fs->options.budget_bytes) + EFS_STACK_TOUCHED_BYTES +
           (uint64_t)efs_cache(fs)->layers * efs_cache(fs)->width * QUEUE_UNIT_BYTES +
           EFS_PREFETCHER_SEQUENCES *
               (room * sizeof(struct efs_prefetch_prediction) + sizeof(struct efs_prefetcher_sequence)) +
           (uint64_t)EFS_PREFETCHER_RING * EFS_PREFETCHER_IDS * (sizeof(uint16_t) + sizeof(float)) +
           room * sizeof(struct efs_prefetch_prediction) + EFS_PREFETCHER_THREAD_BYTES;
}

/* Switches prefetch on with this queue, which it takes. Lock held. */
static errint_t prefetcher_enable(struct efs *fs, struct efs_prefetch **queue, struct efs_error *err)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint64_t bytes = prefetcher_memory(fs), floor = efs_account_fixed(&fs->account) + bytes + fs->arena.segment_bytes;
    if (fs->options.budget_bytes < floor)
        return efs_fail(err, -ENOMEM, "prefetch takes %llu MiB: it needs budget=%lluM or more",
                        (unsigned long long)(bytes >> 20), (unsigned long long)((floor + (1u << 20) - 1) >> 20));
    if (tables_resize(fs, true) < 0)
        return efs_fail(err, -ENOMEM, "no memory for prefetch");
    pf->expert_bytes = largest_expert_bytes(fs);
    pf->queue = *queue;
    *queue = NULL;
    pf->on = true;
    pf->memory_bytes = bytes;
    pf->predictor_most_bytes = predictor_bytes(fs->options.budget_bytes);
    efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    return 0;
}

/* Switches prefetch off. Lock held. Returns the queue, which the caller frees. Loads in flight complete in the
 * background. */
static struct efs_prefetch *prefetcher_disable(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    struct efs_prefetch *queue = pf->queue;
    efs_prefetcher_end_sequences(fs);
    for (uint32_t i = 0; i < pf->prefetched_count; i++)
        if (pf->experts[pf->prefetched[i]].read)
            efs_extents_prefetch_drop(fs, pf->prefetched[i]);
    pf->queue = NULL;
    pf->on = false;
    efs_account_release(&fs->account, EFS_ACCOUNT_FIXED, pf->memory_bytes);
    efs_budget_set_prefetch(fs, 0);
    pf->memory_bytes = 0;
    return queue;
}

/* Applies the setting. Lock held. *queue: in, the one to use; out, one that the caller frees, or NULL. */
static errint_t prefetcher_apply(struct efs *fs, bool on, struct efs_prefetch **queue, struct efs_error *err)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    errint_t rc = 0;
    if (on == pf->on)
        return 0;
    if (on)
        rc = prefetcher_enable(fs, queue, err);
    else
        *queue = prefetcher_disable(fs);
    if (rc < 0)
        return rc;
    pf->budget_bytes = 0; /* recompute the caps */
    if (on)
        efs_prefetcher_update_share(fs);
    efs_budget_set(fs, fs->options.budget_bytes); /* fixed memory has changed */
    efs_budget_cut(fs);
    pthread_cond_signal(&pf->wake);
    return 0;
}

static errint_t prefetcher_start(struct efs *fs, struct efs_error *err)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    efs_lock(fs);
    bool start = pf->on && !pf->started;
    pf->started |= start;
    efs_unlock(fs);
    errint_t rc = start ? efs_thread_start(efs_prefetcher_thread, pf, "efs-prefetch", &pf->thread) : 0;
    if (rc == 0)
        return 0;
    efs_lock(fs);
    pf->started = false;
    efs_unlock(fs);
    return efs_fail(err, rc, "cannot start the thread that predicts: %s", strerror(-rc));
}

errint_t efs_prefetcher_switch(struct efs *fs, bool on, struct efs_error *err)
{
    struct efs_prefetch *queue = NULL;
    errint_t rc = 0;
    if (on) {
        const struct efs_prefetch_config config = {.layers = efs_cache(fs)->layers,
                                                   .experts = efs_cache(fs)->width,
                                                   .sequences = EFS_PREFETCHER_SEQUENCES,
                                                   .predictions = EFS_PREFETCHER_CANDIDATES};
        efs_lock(fs);
        const bool has_policy = efs_cache(fs)->policy;
        efs_unlock(fs);
        rc = has_policy ? efs_prefetch_new(&config, &queue) : -EINVAL;
        if (rc < 0)
            return rc == -ENOMEM ? efs_fail(err, rc, "no memory for prefetch")
                                 : efs_fail(err, -EOPNOTSUPP, "prefetch: the store has no experts, or too many");
    }
    efs_lock(fs);
    rc = prefetcher_apply(fs, on, &queue, err);
    efs_unlock(fs);
    efs_prefetch_free(queue);
    if (rc < 0)
        return rc;
    rc = prefetcher_start(fs, err);
    if (rc < 0)
        efs_prefetcher_switch(fs, false, NULL);
    return rc;
}

/* ---- the text "predict" ---- */

#define U(x) ((unsigned long long)(x))

/* Lock held. */
static const char *prefetcher_state(const struct efs_prefetcher *pf)
{
    if (!pf->on)
        return "off";
    if (pf->predictor_error)
        return pf->predictor_error == -E2BIG ? "off: the predictor takes more than its share of the budget"
                                             : "off: no memory for the predictor";
    return pf->chosen == 0 ? "waits for the first layers" : "on";
}

static void print_ratio(FILE *out, uint64_t part, uint64_t of)
{
    if (of)
        fprintf(out, " %9.3f", (double)part / (double)of);
    else
        fprintf(out, " %9s", "-");
}

static void print_distance(FILE *out, const struct efs_prefetcher *pf, unsigned distance)
{
    const struct efs_prefetcher_scores *s = &pf->scores[distance];
    if (distance)
        fprintf(out, "%-8u %10llu", distance, U(s->layers));
    else
        fprintf(out, "%-8s %10s", "hints", "-");
    print_ratio(out, s->hits_k, s->chosen);
    print_ratio(out, s->hits_2k, s->chosen);
    print_ratio(out, s->hits_k, s->named_k);
    fprintf(out, " %8llu %15llu %8llu", U(s->read), U(s->read_bytes), U(s->covered));
    print_ratio(out, s->covered, pf->missed);
    fprintf(out, " %8llu %8llu %15llu\n", U(s->late), U(s->wasted), U(s->wasted_bytes));
}

/* Lock held. */
static void print_statistics(struct efs *fs, FILE *out)
{
    const struct efs_prefetcher *pf = fs->prefetcher;
    struct efs_prefetch_counts counts = {0};
    unsigned sequences = 0;
    uint64_t held_bytes = 0;
    for (uint32_t i = 0; i < pf->prefetched_count; i++)
        held_bytes += pf->experts[pf->prefetched[i]].read ? pf->experts[pf->prefetched[i]].bytes : 0;
    for (unsigned s = 0; pf->sequences && s < EFS_PREFETCHER_SEQUENCES; s++)
        sequences += pf->sequences[s].used;
    if (pf->queue)
        efs_prefetch_counts(pf->queue, &counts);
    fprintf(out, "prefetch: %s\n", pf->on ? "on" : "off");
    fprintf(out, "state: %s\n", prefetcher_state(pf));
    fprintf(out, "memory_bytes: %llu\n", U(pf->memory_bytes));
    fprintf(out, "predictor_bytes: %llu\n", U(pf->on ? pf->predictor_bytes : 0));
    fprintf(out, "share_bytes: %llu\n", U(fs->account.prefetch_bytes));
    fprintf(out, "held_bytes: %llu\n", U(held_bytes));
    fprintf(out, "sequences: %u\n", sequences);
    fprintf(out, "chosen: %u\n", pf->chosen);
    fprintf(out, "observed: %llu\n", U(pf->observed));
    fprintf(out, "left_out: %llu\n", U(pf->ring_dropped));
    fprintf(out, "misses: %llu\n", U(pf->missed));
    fprintf(out, "offered: %llu\n", U(counts.offered));
    fprintf(out, "cancelled: %llu\n", U(counts.cancelled));
    fprintf(out, "failed: %llu\n", U(counts.failed));
    efs_prefetcher_print_fill(fs, out);
    fprintf(out, "%-8s %10s %9s %9s %9s %8s %15s %8s %9s %8s %8s %15s\n", "distance", "layers", "recall_k", "recall_2k",
            "precision", "read", "read_bytes", "covered", "of_misses", "late", "wasted", "wasted_bytes");
    for (unsigned distance = 1; distance <= EFS_PREFETCHER_DISTANCES; distance++)
        print_distance(out, pf, distance);
    print_distance(out, pf, 0);
}

errint_t efs_prefetcher_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    *text = NULL;
    if (strcmp(what, "predict") != 0)
        return -ENODATA;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    efs_lock(fs);
    print_statistics(fs, out);
    efs_unlock(fs);
    return efs_text_stream_end(out, text);
}
