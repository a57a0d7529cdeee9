/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - see measure.h. */
#include "measure.h"

#include "random.h"

#include <stdlib.h>

double tools_uniform(uint64_t *state)
{
    return ((double)(efs_random(state) >> 11) + 0.5) / 9007199254740992.0;
}

static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tools_median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), compare_values);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
