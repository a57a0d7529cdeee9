/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipf.c - iterative proportional fitting (ZipMoE appendix D). ipf.h explains the accuracy of the sums below.
 */
#include "ipf.h"

#include "hits.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-12 /* of an inclusion probability */
#define ITERATIONS_MAX 10000u

/* The experts that are neither certain nor impossible, and the tables of Eq. 24 over them. */
struct fit {
    unsigned count;  /* number of these experts */
    unsigned chosen; /* k minus the certain ones */
    double *f, *q, *w, *got, *without;
    double *prefix; /* [count + 1][chosen + 1]: P(j of the first i are drawn) */
    double *suffix; /* [count + 1][chosen + 1]: the same for the experts from i on */
    void *memory;
};

static int fit_alloc(struct fit *fit, unsigned experts, unsigned chosen)
{
    size_t row = (size_t)chosen + 1, cells = ((size_t)experts + 1) * row;
    double *p = malloc((5 * (size_t)experts + 2 * cells) * sizeof(*p));

    if (!p)
        return -ENOMEM;
    *fit = (struct fit){.memory = p, .f = p, .q = p + experts, .w = p + 2 * (size_t)experts};
    fit->got = p + 3 * (size_t)experts;
    fit->without = p + 4 * (size_t)experts;
    fit->prefix = p + 5 * (size_t)experts;
    fit->suffix = fit->prefix + cells;
    return 0;
}

/* Scales w by s so that the probabilities w s / (1 + w s) sum to k: then k is the most likely number of drawn
 * experts. */
static void fit_rescale(struct fit *fit)
{
    double scale = 1;

    for (unsigned round = 0; round < 64; round++) {
        double sum = 0, slope = 0;

        for (unsigned i = 0; i < fit->count; i++) {
            double q = fit->w[i] * scale / (1 + fit->w[i] * scale);

            fit->q[i] = q;
            sum += q;
            slope += q / (1 + fit->w[i] * scale);
        }
        double off = fit->chosen - sum;

        /* Newton in log scale; steps are limited because the slope is unreliable where all q are near 0 or 1. */
        if (fabs(off) <= 1e-13 * fit->chosen || slope <= 0)
            break;
        scale *= exp(fmax(-2, fmin(2, off / slope)));
    }
    for (unsigned i = 0; i < fit->count; i++)
        fit->w[i] *= scale;
}

/* got[i] = P(i is drawn | chosen are drawn), without[i] = 1 - got[i] without cancellation, for the current q. False if
 * P(chosen are drawn) is 0. */
static bool fit_forward(struct fit *fit)
{
    unsigned n = fit->count, k = fit->chosen;
    size_t row = (size_t)k + 1;

    memset(fit->prefix, 0, row * sizeof(double));
    fit->prefix[0] = 1;
    for (unsigned i = 0; i < n; i++)
        efs_hits_add(fit->prefix + i * row, fit->prefix + (i + 1) * row, k, fit->q[i]);
    memset(fit->suffix + n * row, 0, row * sizeof(double));
    fit->suffix[n * row] = 1;
    for (unsigned i = n; i-- > 0;)
        efs_hits_add(fit->suffix + (i + 1) * row, fit->suffix + i * row, k, fit->q[i]);

    double all = fit->prefix[n * row + k];

    if (!(all > 0))
        return false;
    for (unsigned i = 0; i < n; i++) {
        const double *left = fit->prefix + i * row, *right = fit->suffix + (i + 1) * row;
        double others = 0, enough = left[k] * right[0];

        for (unsigned j = 0; j < k; j++) {
            others += left[j] * right[k - 1 - j];
            enough += left[j] * right[k - j];
        }
        fit->got[i] = fit->q[i] * others / all;
        fit->without[i] = (1 - fit->q[i]) * enough / all;
    }
    return true;
}

static double fit_worst_error(const struct fit *fit)
{
    double worst = 0;

    for (unsigned i = 0; i < fit->count; i++)
        worst = fmax(worst, fabs(fit->got[i] - fit->f[i]));
    return worst;
}

/* Scales f to the sum k exactly; a value that would exceed 1 stays just below it. */
static void fit_normalise(struct fit *fit)
{
    for (unsigned round = 0; round < 8; round++) {
        double sum = 0;

        for (unsigned i = 0; i < fit->count; i++)
            sum += fit->f[i];
        if (sum == fit->chosen)
            return;
        for (unsigned i = 0; i < fit->count; i++)
            fit->f[i] = fmin(fit->f[i] * (fit->chosen / sum), 1 - DBL_EPSILON);
    }
}

static int ipf_check(const double *value, unsigned experts, unsigned chosen)
{
    if (!value || !experts || experts > EFS_IPF_MAX_EXPERTS || !chosen || chosen > experts)
        return -EINVAL;
    for (unsigned i = 0; i < experts; i++)
        if (!(value[i] >= 0 && value[i] <= 1))
            return -EDOM;
    return 0;
}

/* Experts to remove: with an f below or above these bounds the expert is never or always chosen. */
static bool ipf_is_never(double f)
{
    return f < DBL_MIN;
}
static bool ipf_is_always(double f)
{
    return f >= 1 - DBL_EPSILON;
}

/* Iterates the weights to the fixed point, from w = f / (1 - f), which is close to it unless k is small. */
static int fit_iterate(struct fit *fit)
{
    for (unsigned i = 0; i < fit->count; i++)
        fit->w[i] = fit->f[i] / (1 - fit->f[i]);
    for (unsigned iteration = 0; iteration <= ITERATIONS_MAX; iteration++) {
        fit_rescale(fit);
        if (!fit_forward(fit))
            return -EDOM;
        if (fit_worst_error(fit) <= TOLERANCE)
            return 0;
        for (unsigned i = 0; i < fit->count; i++) {
            double step = fit->f[i] / fit->got[i] * (fit->without[i] / (1 - fit->f[i]));

            fit->w[i] *= iteration % 2 ? sqrt(step) : step;
        }
    }
    return -ELOOP;
}

int efs_ipf_fit(const double *inclusion, unsigned experts, unsigned chosen, double *q)
{
    struct fit fit;
    double sum = 0;
    int rc = ipf_check(inclusion, experts, chosen);

    if (rc)
        return rc;
    for (unsigned i = 0; i < experts; i++)
        sum += inclusion[i];
    if (fabs(sum - chosen) > 1e-6 * chosen)
        return -EDOM;
    rc = fit_alloc(&fit, experts, chosen);
    if (rc)
        return rc;

    unsigned always = 0;

    for (unsigned i = 0; i < experts; i++)
        if (ipf_is_always(inclusion[i]))
            always++;
        else if (!ipf_is_never(inclusion[i]))
            fit.f[fit.count++] = inclusion[i];
    fit.chosen = chosen - always; /* not negative and at most count, because of the sum */
    if (fit.chosen > 0 && fit.chosen < fit.count) {
        fit_normalise(&fit);
        rc = fit_iterate(&fit);
    } else { /* only rounding errors are left: choose all of them or none */
        for (unsigned i = 0; i < fit.count; i++)
            fit.q[i] = fit.chosen ? 1 : 0;
    }
    for (unsigned i = 0, j = 0; i < experts; i++) {
        bool always_in = ipf_is_always(inclusion[i]), fitted = !always_in && !ipf_is_never(inclusion[i]);

        q[i] = always_in ? 1 : fitted ? fit.q[j] : 0;
        j += fitted;
    }
    free(fit.memory);
    return rc;
}
