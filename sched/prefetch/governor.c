/* SPDX-License-Identifier: Apache-2.0 */
/* governor.c - see governor.h. */
#include "governor.h"

#include <math.h>

#define MEMORY 256u /* requests: window of the moving means */
#define PAUSE 16    /* an interval longer than this many mean intervals is a pause */

void efs_governor_init(struct efs_governor *g, const struct efs_governor_config *config)
{
    *g = (struct efs_governor){.config = *config};
}

void efs_governor_caps(const struct efs_governor *g, uint64_t budget_bytes, uint64_t expert_bytes,
                       struct efs_prefetch_config *caps)
{
    double share = g->config.share > 0 ? fmin(g->config.share, 1) : EFS_GOVERNOR_SHARE;
    double held = fmax(share * (double)budget_bytes, fmin(2 * (double)expert_bytes, (double)budget_bytes / 10));

    caps->resident_bytes = (uint64_t)held;
    caps->in_flight_bytes = expert_bytes;
}

/* ---- measurement ------------------------------------------------------------------------------------------------- */

static void follow(const struct efs_governor *g, double *mean, double value)
{
    double weight = 1.0 / (double)(g->requests < MEMORY ? g->requests : MEMORY);

    *mean += weight * (value - *mean);
}

bool efs_governor_requested(struct efs_governor *g, const struct efs_governor_request *r)
{
    double interval_ns = r->now_ns > g->last_ns ? (double)(r->now_ns - g->last_ns) : 0;

    /* A pause says nothing about the time of a layer, so it is capped; if intervals stay long, the mean follows. */
    if (g->requests < 2)
        g->interval_ns = g->requests == 1 ? interval_ns : 0;
    else
        follow(g, &g->interval_ns, fmin(interval_ns, PAUSE * g->interval_ns));
    g->last_ns = r->now_ns;
    g->requests++;
    follow(g, &g->reading, r->missing_bytes > 0);
    return 4 * (uint64_t)r->requested > 3 * (uint64_t)r->experts;
}

/* ---- which reads pay --------------------------------------------------------------------------------------------- */

static double read_ns(const struct efs_governor_disk *disk, uint64_t bytes)
{
    return disk->latency_ns + (disk->bytes_per_second > 0 ? (double)bytes / disk->bytes_per_second * 1e9 : 0);
}

/* Mean time that the next request, at most one interval later, waits for a piece. */
static double wait_ns(double piece_ns, double interval_ns)
{
    return piece_ns < interval_ns ? piece_ns * piece_ns / (2 * interval_ns) : piece_ns - interval_ns / 2;
}

unsigned efs_governor_select(const struct efs_governor *g, const struct efs_governor_disk *disk, int64_t now,
                             const struct efs_governor_candidate *candidates, unsigned count,
                             struct efs_prefetch_prediction *predictions)
{
    double least = g->config.least > 0 ? g->config.least : EFS_GOVERNOR_LEAST;
    unsigned taken = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct efs_governor_candidate *c = &candidates[i];
        uint64_t piece =
            disk->piece_bytes && disk->piece_bytes < c->missing_bytes ? disk->piece_bytes : c->missing_bytes;
        double whole_ns = read_ns(disk, c->missing_bytes), saved_ns = whole_ns, cost_ns = 0;

        if (c->missing_bytes == 0 || c->due <= now || !((double)c->probability >= least))
            continue;
        if (g->interval_ns > 0) {
            saved_ns = fmin(whole_ns, (double)(c->due - now) * g->interval_ns);
            cost_ns = g->reading * wait_ns(read_ns(disk, piece), g->interval_ns);
        }
        if (c->victim_bytes)
            cost_ns += (double)c->victim_probability * read_ns(disk, c->victim_bytes);
        if ((double)c->probability * saved_ns <= cost_ns)
            continue;
        predictions[taken++] =
            (struct efs_prefetch_prediction){.layer = c->layer,
                                             .expert = c->expert,
                                             .due = c->due,
                                             .worth = (float)((double)c->probability * saved_ns / whole_ns),
                                             .bytes = c->missing_bytes};
    }
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
