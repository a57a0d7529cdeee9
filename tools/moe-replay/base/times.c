/* SPDX-License-Identifier: Apache-2.0 */
/* times.c - times of passes as what a user feels: time per token, to the first token, of whole answers. */
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

/* The least time that part of the weight does not exceed; 0 when there is no weight. */
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

/* When the passes that were played have ended, by tokens: since[i] is how long token i's sequence was under way then,
 * length[i] how many tokens it had. */
static void add_up_sequences(const struct replay_workload *w, const uint64_t *pass_ns, uint64_t passes, uint64_t *since,
                             uint64_t *length)
{
    const uint32_t *sequence = w->route->sequence;
    const uint64_t *at = w->at;
    for (uint64_t i = 0; i < passes; at += w->width[i++])
        for (uint32_t t = 0; t < w->width[i]; t++) {
            bool begins = at[t] == 0 || sequence[at[t]] != sequence[at[t] - 1];
            since[at[t]] = pass_ns[i] + (begins ? 0 : since[at[t] - 1]);
            length[at[t]] = 1 + (begins ? 0 : length[at[t] - 1]);
        }
}

static int take_latency(const struct replay_workload *w, const uint64_t *pass_ns, struct weighted *times,
                        struct replay_result *r)
{
    uint64_t *since = calloc(w->route->tokens, sizeof(*since)), *length = calloc(w->route->tokens, sizeof(*length));
    if (since && length)
        add_up_sequences(w, pass_ns, r->passes, since, length);
    for (unsigned l = 0; since && length && l < REPLAY_LENGTHS; l++) {
        uint64_t count = 0, ignored;
        for (uint64_t i = 0; i < w->route->tokens; i++)
            if (length[i] == UINT64_C(1) << l)
                times[count++] = (struct weighted){since[i], 1};
        r->latency[l].sequences = count;
        median_and_p99(times, count, &r->latency[l].ns_median, &ignored);
    }
    free(since);
    free(length);
    return since && length ? 0 : -ENOMEM;
}

int replay_take_times(const struct replay_workload *w, const uint64_t *pass_ns, struct replay_result *r)
{
    struct weighted *times = calloc(r->tokens + 1, sizeof(*times)); /* no more passes, or sequences, than tokens */
    if (!times)
        return -ENOMEM;
    for (uint64_t i = 0; i < r->passes; i++)
        times[i] = (struct weighted){pass_ns[i], w->width[i] - w->starts[i]};
    median_and_p99(times, r->passes, &r->tpot_ns_median, &r->tpot_ns_p99);
    for (uint64_t i = 0; i < r->passes; i++)
        times[i] = (struct weighted){pass_ns[i], w->starts[i]};
    median_and_p99(times, r->passes, &r->ttft_ns_median, &r->ttft_ns_p99);
    int rc = take_latency(w, pass_ns, times, r);
    free(times);
    return rc;
}
