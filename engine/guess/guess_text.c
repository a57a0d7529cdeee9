/* SPDX-License-Identifier: Apache-2.0 */
/* guess_text.c - see guess.h: what guesses were worth, for people. */
#include "guess_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define U(x) ((unsigned long long)(x))

/* What is told, as it was at one moment. */
struct told {
    struct efs_governor_config tuning;
    const char *state;
    uint64_t memory_bytes, predictor_bytes, share_bytes, observed, left_out, missed, held_bytes;
    unsigned chosen, sequences;
    double ratio;
    struct efs_prefetch_counts counts;
    struct efs_guess_scores scores[EFS_GUESS_DISTANCES + 1];
};

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

static void tell_now(struct efs *fs, struct told *now)
{
    const struct efs_guessing *g = fs->guessing;
    efs_lock(fs);
    *now = (struct told){.tuning = g->tuning,
                         .state = guess_state(g),
                         .memory_bytes = g->memory_bytes,
                         .predictor_bytes = g->on ? g->predictor_bytes : 0,
                         .share_bytes = fs->account.guess_bytes,
                         .observed = g->observed,
                         .left_out = g->line_lost,
                         .missed = g->missed,
                         .chosen = g->chosen,
                         .ratio = g->on ? efs_trial_ratio(&g->governor.trial) : 1};
    for (uint32_t i = 0; i < g->held_count; i++)
        now->held_bytes += g->experts[g->held[i]].read ? g->experts[g->held[i]].bytes : 0;
    for (unsigned s = 0; g->sequences && s < EFS_GUESS_SEQUENCES; s++)
        now->sequences += g->sequences[s].used;
    if (g->queue)
        efs_prefetch_counts(g->queue, &now->counts);
    memcpy(now->scores, g->scores, sizeof(now->scores));
    efs_unlock(fs);
}

static void tell_share(FILE *out, uint64_t part, uint64_t of)
{
    if (of)
        fprintf(out, " %9.3f", (double)part / (double)of);
    else
        fprintf(out, " %9s", "-");
}

static void tell_distance(FILE *out, const struct told *t, unsigned distance)
{
    const struct efs_guess_scores *s = &t->scores[distance];
    if (distance)
        fprintf(out, "%-8u %10llu", distance, U(s->layers));
    else
        fprintf(out, "%-8s %10s", "hints", "-");
    tell_share(out, s->hits_k, s->chosen);
    tell_share(out, s->hits_2k, s->chosen);
    tell_share(out, s->hits_k, s->named_k);
    fprintf(out, " %8llu %15llu %8llu", U(s->read), U(s->read_bytes), U(s->covered));
    tell_share(out, s->covered, t->missed);
    fprintf(out, " %8llu %8llu %15llu\n", U(s->late), U(s->wasted), U(s->wasted_bytes));
}

static void tell(const struct told *t, FILE *out)
{
    fprintf(out, "prefetch: %s\n", efs_governor_mode_name(t->tuning.mode));
    fprintf(out, "state: %s\n", t->state);
    fprintf(out, "time_ratio: %.4f\n", t->ratio);
    fprintf(out, "memory_bytes: %llu\n", U(t->memory_bytes));
    fprintf(out, "predictor_bytes: %llu\n", U(t->predictor_bytes));
    fprintf(out, "share_bytes: %llu\n", U(t->share_bytes));
    fprintf(out, "held_bytes: %llu\n", U(t->held_bytes));
    fprintf(out, "sequences: %u\n", t->sequences);
    fprintf(out, "chosen: %u\n", t->chosen);
    fprintf(out, "observed: %llu\n", U(t->observed));
    fprintf(out, "left_out: %llu\n", U(t->left_out));
    fprintf(out, "misses: %llu\n", U(t->missed));
    fprintf(out, "offered: %llu\n", U(t->counts.offered));
    fprintf(out, "cancelled: %llu\n", U(t->counts.cancelled));
    fprintf(out, "failed: %llu\n", U(t->counts.failed));
    fprintf(out, "%-8s %10s %9s %9s %9s %8s %15s %8s %9s %8s %8s %15s\n", "distance", "layers", "recall_k", "recall_2k",
            "precision", "read", "read_bytes", "covered", "of_misses", "late", "wasted", "wasted_bytes");
    for (unsigned distance = 1; distance <= EFS_GUESS_DISTANCES; distance++)
        tell_distance(out, t, distance);
    tell_distance(out, t, 0);
}

errint_t efs_guess_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    struct told now;
    *text = NULL;
    if (strcmp(what, "predict") != 0)
        return -ENODATA;
    tell_now(fs, &now);
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    tell(&now, out);
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return 0;
    free(*text);
    *text = NULL;
    return -ENOMEM;
}
