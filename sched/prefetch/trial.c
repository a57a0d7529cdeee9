/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c - see trial.h. */
#include "trial.h"

#include <math.h>

#define FEW 4u                /* comparisons after which a clear difference decides */
#define MANY 32u              /* comparisons after which the trial decides in any case */
#define MEMORY 16u            /* comparisons, and blocks of the line: window of the moving means */
#define CLEAR 2.5             /* standard errors that make a difference clear */
#define AGAINST 3u            /* contrary comparisons in a row that reopen a decision */
#define CHECK_INTERVAL_MIN 7u /* blocks */
#define CHECK_INTERVAL_MAX 15u
#define LONGER 0.4 /* log of a block's time over the line's: conditions have changed */
#define LEAST 0.25 /* lower bound of the line's time for a block, as a fraction of the mean time */
#define COST 0.005 /* fraction of all time that pays off debt */
#define CREDIT 0.1 /* of the mean time of a block: while the debt is at most this, blocks may use the option */

void efs_trial_init(struct efs_trial *t, unsigned steps)
{
    *t = (struct efs_trial){.steps = steps};
}

double efs_trial_ratio(const struct efs_trial *t)
{
    return exp(t->mean);
}

void efs_trial_discard_block(struct efs_trial *t)
{
    t->done = 0;
    t->now = (struct efs_trial_block){0};
    t->known = 0;
}

/* ---- time as a function of work ---------------------------------------------------------------------------------- */

static void line_add(struct efs_trial *t, const struct efs_trial_block *b)
{
    const double keep = 1 - 1.0 / MEMORY;

    t->blocks = keep * t->blocks + 1;
    t->work = keep * t->work + b->work;
    t->ns = keep * t->ns + b->ns;
    t->work_work = keep * t->work_work + b->work * b->work;
    t->work_ns = keep * t->work_ns + b->work * b->ns;
}

/* log of a block's time over the time that the line gives for its work. */
static double line_residual(const struct efs_trial *t, const struct efs_trial_block *b)
{
    double work = t->work / t->blocks, ns = t->ns / t->blocks;
    double variance = t->work_work / t->blocks - work * work;
    double slope = variance > 1e-9 * work * work ? (t->work_ns / t->blocks - work * ns) / variance : 0;

    return log((b->ns + 1) / (fmax(ns + fmax(slope, 0) * (b->work - work), LEAST * ns) + 1));
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static double standard_error(const struct efs_trial *t)
{
    return sqrt(t->variance / (t->compared < MEMORY ? t->compared : MEMORY));
}

/* Whether AGAINST comparisons in a row contradict the decision, so that it is out of date. Also sets the next interval.
 */
static bool trial_doubts(struct efs_trial *t, double difference)
{
    bool against = t->better ? difference > 0 : difference < 0;

    t->against = against ? t->against + 1 : 0;
    t->check_interval = against                                  ? CHECK_INTERVAL_MIN
                        : t->check_interval < CHECK_INTERVAL_MAX ? 2 * t->check_interval + 1
                                                                 : CHECK_INTERVAL_MAX;
    return t->against == AGAINST;
}

static void trial_judge(struct efs_trial *t, double difference)
{
    if (!t->decided) {
        bool clear = t->compared >= FEW && fabs(t->mean) > CLEAR * standard_error(t);

        t->decided = clear || t->compared >= MANY;
        t->better = clear && t->mean < 0;
        t->against = 0;
        t->blocks_to_check = t->check_interval = CHECK_INTERVAL_MIN;
    } else if (trial_doubts(t, difference)) {
        t->decided = false;
        t->compared = 0;
    }
}

/* difference: log(with / without) of adjacent blocks. */
static void trial_compare(struct efs_trial *t, double difference)
{
    double weight, off = difference - t->mean;

    t->compared++;
    weight = 1.0 / (t->compared < MEMORY ? t->compared : MEMORY);
    t->mean += weight * off;
    t->variance = (1 - weight) * (t->variance + weight * off * off);
    trial_judge(t, difference);
}

/* Adds the time lost by a block with the option to the debt. The debt is 0 while the option is the better kind. */
static void trial_pay(struct efs_trial *t, double with_ns, double difference)
{
    t->debt_ns = fmax(0, t->debt_ns + (1 - exp(-difference)) * with_ns);
    if (t->decided && t->better)
        t->debt_ns = 0;
}

/* ---- alternation ------------------------------------------------------------------------------------------------- */

static bool trial_may_try(const struct efs_trial *t)
{
    return !(t->blocks > 0) || t->debt_ns <= CREDIT * t->ns / t->blocks;
}

bool efs_trial_is_off(const struct efs_trial *t)
{
    return t->decided ? !t->better : !trial_may_try(t);
}

static void trial_next_block(struct efs_trial *t)
{
    bool may_try = trial_may_try(t);

    if (!t->decided) {
        t->with = !t->with && may_try;
    } else if (t->with != t->better) {
        t->with = t->better;
        t->blocks_to_check = t->against ? 0 : t->check_interval;
    } else if (t->blocks_to_check > 0) {
        t->blocks_to_check--;
    } else {
        t->with = !t->better && may_try;
    }
}

static void trial_end_block(struct efs_trial *t)
{
    const struct efs_trial_block *before = &t->last[0], *middle = &t->last[1], *b = &t->now;
    bool differ = t->known == 2 && before->with == b->with && middle->with != b->with;

    if (t->decided && t->blocks >= FEW && line_residual(t, b) > LONGER)
        t->blocks_to_check = 0;
    line_add(t, b);
    t->debt_ns = fmax(0, t->debt_ns - COST * b->ns);
    if (differ) {
        double difference = line_residual(t, middle) - (line_residual(t, before) + line_residual(t, b)) / 2;

        difference = middle->with ? difference : -difference;
        trial_compare(t, difference);
        trial_pay(t, middle->with ? middle->ns : 0, difference);
    }
    t->last[0] = t->last[1];
    t->last[1] = *b;
    t->known = t->known < 2 ? t->known + 1 : 2;
}

void efs_trial_step(struct efs_trial *t, uint64_t ns, uint64_t work)
{
    t->now.ns += (double)ns;
    t->now.work += (double)work;
    if (++t->done < t->steps)
        return;
    t->now.with = t->with;
    trial_end_block(t);
    t->done = 0;
    t->now = (struct efs_trial_block){0};
    trial_next_block(t);
}
