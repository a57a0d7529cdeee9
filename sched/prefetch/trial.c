/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c - see trial.h. */
#include "trial.h"

#include <math.h>

#define FEW 4u      /* comparisons, of which a clear difference decides */
#define MANY 32u    /* these decide in any case */
#define MEMORY 16u  /* comparisons that the mean goes by */
#define AGAINST 3u  /* comparisons in a row that say otherwise */
#define REST_MIN 7u /* blocks */
#define REST_MAX 31u

void efs_trial_init(struct efs_trial *t, unsigned steps)
{
    *t = (struct efs_trial){.steps = steps, .with = true};
}

double efs_trial_ratio(const struct efs_trial *t)
{
    return exp(t->mean);
}

void efs_trial_break(struct efs_trial *t)
{
    t->done = 0;
    t->block_ns = 0;
    t->known = 0;
}

static double standard_error(const struct efs_trial *t)
{
    return sqrt(t->variance / (t->compared < MEMORY ? t->compared : MEMORY));
}

/* Some blocks in a row say that the other kind is better: what was measured is of other times. */
static bool trial_doubts(struct efs_trial *t, double difference)
{
    bool against = t->better ? difference > 0 : difference < 0;

    t->against = against ? t->against + 1 : 0;
    t->rest_max = against ? REST_MIN : t->rest_max < REST_MAX ? 2 * t->rest_max + 1 : REST_MAX;
    return t->against == AGAINST;
}

static void trial_judge(struct efs_trial *t, double difference)
{
    if (!t->decided) {
        t->decided = t->compared >= MANY || (t->compared >= FEW && fabs(t->mean) > 2 * standard_error(t));
        t->better = t->mean <= 0;
        t->against = 0;
        t->rest = t->rest_max = REST_MIN;
    } else if (trial_doubts(t, difference)) {
        t->decided = false;
        t->compared = 0;
    }
}

/* difference: log(with / without) of neighbours. */
static void trial_compare(struct efs_trial *t, double difference)
{
    double weight, off = difference - t->mean;

    t->compared++;
    weight = 1.0 / (t->compared < MEMORY ? t->compared : MEMORY);
    t->mean += weight * off;
    t->variance = (1 - weight) * (t->variance + weight * off * off);
    trial_judge(t, difference);
}

static void trial_next_block(struct efs_trial *t)
{
    if (!t->decided) {
        t->with = !t->with;
    } else if (t->with != t->better) {
        t->with = t->better;
        t->rest = t->rest_max;
    } else if (t->rest > 0) {
        t->rest--;
    } else {
        t->with = !t->better;
    }
}

void efs_trial_step(struct efs_trial *t, uint64_t ns)
{
    double now;

    t->block_ns += (double)ns;
    if (++t->done < t->steps)
        return;
    now = log(t->block_ns + 1);
    if (t->known == 2 && t->kinds[0] == t->with && t->kinds[1] != t->with) {
        double difference = t->log_ns[1] - (t->log_ns[0] + now) / 2;

        trial_compare(t, t->with ? -difference : difference);
    }
    t->log_ns[0] = t->log_ns[1];
    t->kinds[0] = t->kinds[1];
    t->log_ns[1] = now;
    t->kinds[1] = t->with;
    t->known = t->known < 2 ? t->known + 1 : 2;
    t->done = 0;
    t->block_ns = 0;
    trial_next_block(t);
}
