/* SPDX-License-Identifier: Apache-2.0 */
/* guess_text.c - see guess.h: what guesses were worth, for people. */
#include "guess_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (efs_trial_is_left(trial))
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
    fprintf(out, "share_bytes: %llu\n", U(fs->account.guess_bytes));
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
