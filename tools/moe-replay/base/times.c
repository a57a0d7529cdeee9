/* SPDX-License-Identifier: Apache-2.0 */
/* times.c - time per output token and time to first token, from the times of the passes. */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>

struct weighted {
    uint64_t ns, weight;
};

static int compare_weighted(const void *a, const void *b)
{
    uint64_t x = ((const struct weighted *)a)->ns, y = ((const struct weighted *)b)->ns;
    return (x > y) - (x < y);
}

/* The weighted percentile `part`, 0 to 1: the least time such that items up to it have that part of the weight. 0: the
 * weights are 0. */
static uint64_t percentile(const struct weighted *sorted, uint64_t count, double part)
{
    uint64_t sum = 0, so_far = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += sorted[i].weight;
    for (uint64_t i = 0; i < count && sum > 0; i++) {
        so_far += sorted[i].weight;
        if ((double)so_far >= part * (double)sum)
            return sorted[i].ns;
    }
    return 0;
}

static void median_and_p99(struct weighted *times, uint64_t count, uint64_t *median, uint64_t *p99)
{
    qsort(times, count, sizeof(*times), compare_weighted);
    *median = percentile(times, count, 0.5);
    *p99 = percentile(times, count, 0.99);
}

int replay_compute_times(const struct replay_workload *w, const uint64_t *pass_ns, struct replay_result *r)
{
    struct weighted *times = calloc(r->passes + 1, sizeof(*times));
    if (!times)
        return -ENOMEM;
    for (uint64_t i = 0; i < r->passes; i++)
        times[i] = (struct weighted){pass_ns[i], w->width[i] - w->starts[i]};
    median_and_p99(times, r->passes, &r->tpot_ns_median, &r->tpot_ns_p99);
    for (uint64_t i = 0; i < r->passes; i++)
        times[i] = (struct weighted){pass_ns[i], w->starts[i]};
    median_and_p99(times, r->passes, &r->ttft_ns_median, &r->ttft_ns_p99);
    free(times);
    return 0;
}
