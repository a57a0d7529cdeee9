/* SPDX-License-Identifier: Apache-2.0 */
/* governor.c - see governor.h. */
#include "governor.h"

#include <math.h>

#define BLOCK_ITERATIONS 2u /* in a block of the trial */
#define MEMORY 256u         /* requests: window of the moving means */
#define PAUSE 16            /* an interval longer than this many mean intervals is a pause */
#define SELDOM 0.02         /* fraction of requests with an offer; above it prefetching gets its share of the budget */

void efs_governor_init(struct efs_governor *g, unsigned layers, const struct efs_governor_config *config)
{
    *g = (struct efs_governor){.layers = layers, .config = *config};
    efs_trial_init(&g->trial, BLOCK_ITERATIONS * layers);
}

void efs_governor_caps(const struct efs_governor *g, uint64_t budget_bytes, uint64_t expert_bytes,
                       struct efs_prefetch_config *caps)
{
    double share = g->config.share > 0 ? fmin(g->config.share, 1) : EFS_GOVERNOR_SHARE;
    double held = fmax(share * (double)budget_bytes, fmin(2 * (double)expert_bytes, (double)budget_bytes / 10));

    caps->resident_bytes = (uint64_t)held;
    caps->in_flight_bytes = expert_bytes;
}

bool efs_governor_has_share(const struct efs_governor *g)
{
    return g->config.mode == EFS_GOVERNOR_ALWAYS || (!efs_trial_is_off(&g->trial) && g->offering > SELDOM);
}

/* ---- measurement ------------------------------------------------------------------------------------------------- */

static void follow(const struct efs_governor *g, double *mean, double value)
{
    double weight = 1.0 / (double)(g->requests < MEMORY ? g->requests : MEMORY);

    *mean += weight * (value - *mean);
}

static void time_request(struct efs_governor *g, const struct efs_governor_request *r)
{
    uint64_t interval_ns = r->now_ns > g->last_ns ? r->now_ns - g->last_ns : 0;

    if (g->requests < 2) {
        g->interval_ns = g->requests == 1 ? (double)interval_ns : 0;
    } else if (r->tokens != g->last_tokens || (double)interval_ns > PAUSE * g->interval_ns) {
        efs_trial_discard_block(&g->trial);
        /* A pause says nothing about the time of a layer, so it is capped; if intervals stay long, the mean follows. */
        follow(g, &g->interval_ns, fmin((double)interval_ns, PAUSE * g->interval_ns));
    } else {
        follow(g, &g->interval_ns, (double)interval_ns);
        if (g->config.mode == EFS_GOVERNOR_AUTO)
            efs_trial_step(&g->trial, interval_ns, g->last_work);
    }
    g->last_ns = r->now_ns;
    g->last_work = r->missing_bytes + r->ahead_bytes;
    g->last_tokens = r->tokens;
}

enum efs_governor_decision efs_governor_requested(struct efs_governor *g, const struct efs_governor_request *r)
{
    time_request(g, r);
    g->requests++;
    follow(g, &g->reading, r->missing_bytes > 0);
    follow(g, &g->missing_bytes, (double)r->missing_bytes);
    if (g->trial.with || g->offered)
        follow(g, &g->offering, g->offered);
    g->offered = false;
    if (4 * (uint64_t)r->requested > 3 * (uint64_t)r->experts)
        return EFS_GOVERNOR_LAYER;
    return g->config.mode == EFS_GOVERNOR_ALWAYS || g->trial.with ? EFS_GOVERNOR_PREDICTIONS : EFS_GOVERNOR_NOTHING;
}

/* ---- which reads pay --------------------------------------------------------------------------------------------- */

static double read_ns(const struct efs_governor_disk *disk, uint64_t bytes)
{
    return disk->latency_ns + (disk->bytes_per_second > 0 ? (double)bytes / disk->bytes_per_second * 1e9 : 0);
}

/* Mean disk time between two requests that demand reads leave idle; in mode `always` the whole interval. */
static double idle_ns(const struct efs_governor *g, const struct efs_governor_disk *disk)
{
    double read =
        g->missing_bytes > 0 ? read_ns(disk, (uint64_t)g->missing_bytes) - (1 - g->reading) * disk->latency_ns : 0;

    return g->config.mode == EFS_GOVERNOR_ALWAYS ? g->interval_ns : fmax(g->interval_ns - read, 0);
}

/* Mean time that the next request waits for a piece whose read starts within `idle`, at most. */
static double wait_ns(double piece_ns, double idle)
{
    return piece_ns < idle ? piece_ns * piece_ns / (2 * idle) : piece_ns - idle / 2;
}

unsigned efs_governor_select(struct efs_governor *g, const struct efs_governor_disk *disk, int64_t now,
                             const struct efs_governor_candidate *candidates, unsigned count,
                             struct efs_prefetch_prediction *predictions)
{
    double least = g->config.least > 0 ? g->config.least : EFS_GOVERNOR_LEAST;
    double idle = idle_ns(g, disk);
    unsigned taken = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct efs_governor_candidate *c = &candidates[i];
        uint64_t piece =
            disk->piece_bytes && disk->piece_bytes < c->missing_bytes ? disk->piece_bytes : c->missing_bytes;
        double whole_ns = read_ns(disk, c->missing_bytes), until_ns = whole_ns, saved_ns = whole_ns, cost_ns = 0;

        if (c->missing_bytes == 0 || c->due <= now || !((double)c->probability >= least))
            continue;
        if (g->interval_ns > 0) {
            until_ns = fmin(whole_ns, (double)(c->due - now) * g->interval_ns);
            saved_ns = fmin(whole_ns, (double)(c->due - now) * idle);
            cost_ns = g->reading * wait_ns(read_ns(disk, piece), idle);
        }
        if (c->victim_bytes)
            cost_ns += (double)c->victim_probability * read_ns(disk, c->victim_bytes);
        if ((double)c->probability * saved_ns <= cost_ns)
            continue;
        predictions[taken++] =
            (struct efs_prefetch_prediction){.layer = c->layer,
                                             .expert = c->expert,
                                             .due = c->due,
                                             .worth = (float)((double)c->probability * until_ns / whole_ns),
                                             .bytes = c->missing_bytes};
    }
    g->offered |= taken > 0;
    return taken;
}

unsigned efs_governor_select_layer(const struct efs_governor_candidate *candidates, unsigned count,
                                   struct efs_prefetch_prediction *predictions)
{
    unsigned taken = 0;

    for (unsigned i = 0; i < count; i++)
        if (candidates[i].missing_bytes > 0)
            predictions[taken++] = (struct efs_prefetch_prediction){.layer = candidates[i].layer,
                                                                    .expert = candidates[i].expert,
                                                                    .due = candidates[i].due,
                                                                    .worth = 1 + (float)(count - i),
                                                                    .bytes = candidates[i].missing_bytes};
    return taken;
}
