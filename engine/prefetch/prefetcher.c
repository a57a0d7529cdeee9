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
#define QUEUE_UNIT_BYTES 64u /* per expert, in the queue and in efs_guessing.experts */

errint_t efs_guess_build(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing = efs_sys_calloc(1, sizeof(*g));
    if (!g)
        return -ENOMEM;
    g->fs = fs;
    g->tuning = (struct efs_governor_config){.mode = EFS_GOVERNOR_OFF};
    pthread_cond_init(&g->wake, NULL);
    return 0;
}

void efs_guess_begin(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    efs_lock(fs);
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        g->fill_bytes += efs_expert_coded_bytes(fs, e);
    g->fills = fs->options.warm;
    efs_retry(fs, EFS_RETRY_IDLE);
    efs_unlock(fs);
}

void efs_guess_stop(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    if (!g || !g->started)
        return;
    efs_lock(fs);
    g->stop = true;
    pthread_cond_signal(&g->wake);
    efs_unlock(fs);
    pthread_join(g->thread, NULL);
    g->started = false;
}

struct efs_governor_config efs_guess_tuning(const struct efs *fs)
{
    return fs->guessing->tuning;
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

/* Limit of predictions per sequence, and of candidates per call. */
static uint32_t guess_room(const struct efs *fs)
{
    return efs_cache_width(fs) > EFS_GUESS_CANDIDATES ? efs_cache_width(fs) : EFS_GUESS_CANDIDATES;
}

/* Allocates the tables (with lock held), which stay allocated while the store is open; or frees them. */
static errint_t guess_tables(struct efs *fs, bool make)
{
    struct efs_guessing *g = fs->guessing;
    const uint32_t experts = make ? fs->store->expert_count : 0, width = make ? efs_cache_width(fs) : 0;
    const uint32_t room = make ? guess_room(fs) : 0;
    const struct {
        void *at; /* address of the pointer */
        size_t count, bytes;
    } tables[] = {{&g->experts, experts, sizeof(*g->experts)},
                  {&g->held, experts, sizeof(*g->held)},
                  {&g->sequences, EFS_GUESS_SEQUENCES, sizeof(*g->sequences)},
                  {&g->pending, width, sizeof(*g->pending)},
                  {&g->line_ids, (size_t)EFS_GUESS_LINE * EFS_GUESS_IDS, sizeof(*g->line_ids)},
                  {&g->line_weights, (size_t)EFS_GUESS_LINE * EFS_GUESS_IDS, sizeof(*g->line_weights)},
                  {&g->candidates, room, sizeof(*g->candidates)},
                  {&g->distances, room, sizeof(*g->distances)},
                  {&g->predictions, room, sizeof(*g->predictions)},
                  {&g->ids, width > EFS_GUESS_IDS ? width : EFS_GUESS_IDS, sizeof(*g->ids)}};
    if (make && g->ids)
        return 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        void *table;
        memcpy(&table, tables[i].at, sizeof(table));
        free(table);
        table = make ? efs_sys_calloc(tables[i].count, tables[i].bytes) : NULL;
        memcpy(tables[i].at, &table, sizeof(table));
        if (make && !table) {
            guess_tables(fs, false);
            return -ENOMEM;
        }
    }
    return 0;
}

void efs_guess_destroy(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    if (!g)
        return;
    efs_prefetch_free(g->queue);
    guess_tables(fs, false);
    pthread_cond_destroy(&g->wake);
    free(g);
    fs->guessing = NULL;
}

static uint64_t guess_largest_expert(const struct efs *fs)
{
    uint64_t most = 0;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        most = efs_expert_coded_bytes(fs, e) > most ? efs_expert_coded_bytes(fs, e) : most;
    return most;
}

/* Bytes that the budget counts: predictor, queue, tables, thread stack. */
static uint64_t guess_memory(const struct efs *fs)
{
    uint64_t room = guess_room(fs), copies = fs->options.no_state ? 1 : 2;
    return copies * predictor_bytes(fs->options.budget_bytes) + EFS_STACK_BYTES +
           (uint64_t)efs_cache_layers(fs) * efs_cache_width(fs) * QUEUE_UNIT_BYTES +
           EFS_GUESS_SEQUENCES * (room * sizeof(struct efs_prefetch_prediction) + sizeof(struct efs_guess_sequence)) +
           (uint64_t)EFS_GUESS_LINE * EFS_GUESS_IDS * (sizeof(uint16_t) + sizeof(float)) +
           room * (sizeof(struct efs_governor_candidate) + sizeof(struct efs_prefetch_prediction)) +
           EFS_GUESS_THREAD_BYTES;
}

/* Switches prefetch on, with this queue. Lock held. */
static errint_t guess_on(struct efs *fs, struct efs_prefetch *queue, struct efs_error *err)
{
    struct efs_guessing *g = fs->guessing;
    uint64_t bytes = guess_memory(fs), floor = fs->account.fixed_bytes + bytes + fs->arena.segment_bytes;
    if (fs->options.budget_bytes < floor)
        return efs_fail(err, -ENOMEM, "prefetch takes %llu MiB: it needs budget=%lluM or more",
                        (unsigned long long)(bytes >> 20), (unsigned long long)((floor + (1u << 20) - 1) >> 20));
    if (guess_tables(fs, true) < 0)
        return efs_fail(err, -ENOMEM, "no memory for prefetch");
    g->expert_bytes = guess_largest_expert(fs);
    g->queue = queue;
    g->on = true;
    g->memory_bytes = bytes;
    g->predictor_most_bytes = predictor_bytes(fs->options.budget_bytes);
    fs->account.fixed_bytes += bytes;
    return 0;
}

/* Switches prefetch off. Lock held. Returns the queue, which the caller frees. Loads in flight complete in the
 * background. */
static struct efs_prefetch *guess_off(struct efs *fs)
{
    struct efs_guessing *g = fs->guessing;
    struct efs_prefetch *queue = g->queue;
    efs_guess_forget(fs);
    for (uint32_t i = 0; i < g->held_count; i++)
        if (g->experts[g->held[i]].read)
            efs_extents_prefetch_drop(fs, g->held[i]);
    g->queue = NULL;
    g->on = false;
    fs->account.fixed_bytes -= g->memory_bytes;
    fs->account.prefetch_bytes = 0;
    g->memory_bytes = 0;
    return queue;
}

/* Applies settings. Lock held. *queue: in, a queue to use; out, one that the caller frees. */
static errint_t guess_set(struct efs *fs, const struct efs_governor_config *tuning, struct efs_prefetch **queue,
                          struct efs_error *err)
{
    struct efs_guessing *g = fs->guessing;
    bool on = tuning->mode != EFS_GOVERNOR_OFF, was = g->on;
    errint_t rc = on && !was ? guess_on(fs, *queue, err) : 0;
    if (rc < 0)
        return rc;
    if (on && !was)
        *queue = NULL;
    if (on && g->governor.layers == 0)
        efs_governor_init(&g->governor, efs_cache_layers(fs), tuning);
    else
        efs_governor_set(&g->governor, tuning);
    if (!on && was)
        *queue = guess_off(fs);
    g->tuning = *tuning;
    g->budget_bytes = 0; /* recompute the caps */
    if (on)
        efs_guess_share(fs);
    if (on != was)
        efs_budget_change(fs, fs->options.budget_bytes);
    pthread_cond_signal(&g->wake);
    return 0;
}

static errint_t guess_start(struct efs *fs, struct efs_error *err)
{
    struct efs_guessing *g = fs->guessing;
    efs_lock(fs);
    bool start = g->on && !g->started;
    g->started |= start;
    efs_unlock(fs);
    errint_t rc = start ? efs_thread_start(efs_guess_thread, g, "efs-guess", &g->thread) : 0;
    if (rc == 0)
        return 0;
    efs_lock(fs);
    g->started = false;
    efs_unlock(fs);
    return efs_fail(err, rc, "cannot start the thread that predicts: %s", strerror(-rc));
}

errint_t efs_guess_tune(struct efs *fs, const struct efs_governor_config *tuning, struct efs_error *err)
{
    struct efs_prefetch *queue = NULL;
    errint_t rc = 0;
    if (tuning->mode != EFS_GOVERNOR_OFF) {
        const struct efs_prefetch_config config = {.layers = efs_cache_layers(fs),
                                                   .experts = efs_cache_width(fs),
                                                   .sequences = EFS_GUESS_SEQUENCES,
                                                   .predictions = efs_cache_has_policy(fs) ? guess_room(fs) : 0};
        rc = efs_cache_has_policy(fs) ? efs_prefetch_new(&config, &queue) : -EINVAL;
        if (rc < 0)
            return rc == -ENOMEM ? efs_fail(err, rc, "no memory for prefetch")
                                 : efs_fail(err, -EOPNOTSUPP, "prefetch: the store has no experts, or too many");
    }
    efs_lock(fs);
    const struct efs_governor_config before = fs->guessing->tuning;
    rc = guess_set(fs, tuning, &queue, err);
    efs_unlock(fs);
    efs_prefetch_free(queue);
    if (rc < 0)
        return rc;
    rc = guess_start(fs, err);
    if (rc < 0)
        efs_guess_tune(fs, &before, NULL);
    return rc;
}

/* ---- the text "predict" ---- */

#define U(x) ((unsigned long long)(x))

/* Lock held. */
static const char *guess_state(const struct efs_guessing *g)
{
    const struct efs_trial *trial = &g->governor.trial;
    if (!g->on)
        return "off";
    if (g->predictor_error)
        return g->predictor_error == -E2BIG ? "off: the predictor takes more than its share of the budget"
                                            : "off: no memory for the predictor";
    if (g->chosen == 0)
        return "waits for the first layers";
    if (g->tuning.mode == EFS_GOVERNOR_ALWAYS)
        return "on";
    if (efs_trial_is_off(trial))
        return efs_trial_ratio(trial) > 1 ? "off: slower" : "off: not faster";
    return trial->decided ? "on: faster" : "tried";
}

static void tell_share(FILE *out, uint64_t part, uint64_t of)
{
    if (of)
        fprintf(out, " %9.3f", (double)part / (double)of);
    else
        fprintf(out, " %9s", "-");
}

static void tell_distance(FILE *out, const struct efs_guessing *g, unsigned distance)
{
    const struct efs_guess_scores *s = &g->scores[distance];
    if (distance)
        fprintf(out, "%-8u %10llu", distance, U(s->layers));
    else
        fprintf(out, "%-8s %10s", "hints", "-");
    tell_share(out, s->hits_k, s->chosen);
    tell_share(out, s->hits_2k, s->chosen);
    tell_share(out, s->hits_k, s->named_k);
    fprintf(out, " %8llu %15llu %8llu", U(s->read), U(s->read_bytes), U(s->covered));
    tell_share(out, s->covered, g->missed);
    fprintf(out, " %8llu %8llu %15llu\n", U(s->late), U(s->wasted), U(s->wasted_bytes));
}

/* Lock held. */
static void tell(const struct efs *fs, FILE *out)
{
    const struct efs_guessing *g = fs->guessing;
    struct efs_prefetch_counts counts = {0};
    unsigned sequences = 0;
    uint64_t held_bytes = 0;
    for (uint32_t i = 0; i < g->held_count; i++)
        held_bytes += g->experts[g->held[i]].read ? g->experts[g->held[i]].bytes : 0;
    for (unsigned s = 0; g->sequences && s < EFS_GUESS_SEQUENCES; s++)
        sequences += g->sequences[s].used;
    if (g->queue)
        efs_prefetch_counts(g->queue, &counts);
    fprintf(out, "prefetch: %s\n", efs_governor_mode_name(g->tuning.mode));
    fprintf(out, "state: %s\n", guess_state(g));
    fprintf(out, "time_ratio: %.4f\n", g->on ? efs_trial_ratio(&g->governor.trial) : 1);
    fprintf(out, "memory_bytes: %llu\n", U(g->memory_bytes));
    fprintf(out, "predictor_bytes: %llu\n", U(g->on ? g->predictor_bytes : 0));
    fprintf(out, "share_bytes: %llu\n", U(fs->account.prefetch_bytes));
    fprintf(out, "held_bytes: %llu\n", U(held_bytes));
    fprintf(out, "sequences: %u\n", sequences);
    fprintf(out, "chosen: %u\n", g->chosen);
    fprintf(out, "observed: %llu\n", U(g->observed));
    fprintf(out, "left_out: %llu\n", U(g->line_lost));
    fprintf(out, "misses: %llu\n", U(g->missed));
    fprintf(out, "offered: %llu\n", U(counts.offered));
    fprintf(out, "cancelled: %llu\n", U(counts.cancelled));
    fprintf(out, "failed: %llu\n", U(counts.failed));
    fprintf(out, "%-8s %10s %9s %9s %9s %8s %15s %8s %9s %8s %8s %15s\n", "distance", "layers", "recall_k", "recall_2k",
            "precision", "read", "read_bytes", "covered", "of_misses", "late", "wasted", "wasted_bytes");
    for (unsigned distance = 1; distance <= EFS_GUESS_DISTANCES; distance++)
        tell_distance(out, g, distance);
    tell_distance(out, g, 0);
}

errint_t efs_guess_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    *text = NULL;
    if (strcmp(what, "predict") != 0)
        return -ENODATA;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    efs_lock(fs);
    tell(fs, out);
    efs_unlock(fs);
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return 0;
    free(*text);
    *text = NULL;
    return -ENOMEM;
}
