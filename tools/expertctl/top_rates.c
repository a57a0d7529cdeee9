/* SPDX-License-Identifier: Apache-2.0 */
/* top_rates.c - see top_rates.h. */
#include "top_rates.h"

#include <time.h>

static double rate_of(uint64_t was, uint64_t is, double seconds)
{
    return is > was ? (double)(is - was) / seconds : 0;
}

/* How much a counter of stat grew a second. */
static double stat_rate(const struct top_sample *before, const struct top_sample *now, const char *name, double seconds)
{
    return rate_of(before ? top_number(before->stat, name) : 0, top_number(now->stat, name), seconds);
}

static void pools_between(const struct top_sample *before, const struct top_sample *now, struct top_rates *rates)
{
    static const struct top_pool none;
    double seconds = rates->seconds, all = 0;
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++) {
        const struct top_pool *was = before ? &before->pools[p] : &none, *is = &now->pools[p];
        bool missing = TOP_POOLS[p] == 'M';
        rates->pools[p] = (struct top_pool_rates){
            .hits = rate_of(missing ? was->misses : was->hits, missing ? is->misses : is->hits, seconds),
            .partial = rate_of(was->partial, is->partial, seconds),
            .demoted = rate_of(was->demoted, is->demoted, seconds),
            .evicted = rate_of(was->evicted, is->evicted, seconds),
            .saved_bytes = rate_of(was->saved_bytes, is->saved_bytes, seconds),
        };
        all += rates->pools[p].hits;
    }
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1 && all > 0; p++)
        rates->pools[p].hit_part = rates->pools[p].hits / all;
}

void top_rates_between(const struct top_sample *before, const struct top_sample *now, struct top_rates *rates)
{
    double seconds =
        before ? now->seconds - before->seconds : (double)time(NULL) - (double)top_number(now->config, "started");
    if (seconds < 1e-3)
        seconds = before ? 1e-3 : 1;
    *rates = (struct top_rates){
        .seconds = seconds,
        .errors = top_number(now->stat, "read_errors") + top_number(now->stat, "lease_errors") +
                  top_number(now->stat, "disk_errors"),
    };
#define RATE(name) stat_rate(before, now, name, seconds)
    rates->reads = RATE("reads");
    rates->read_bytes = RATE("read_bytes");
    rates->opens = RATE("fuse_opens");
    rates->leases = RATE("leases");
    rates->sent_bytes = RATE("fuse_reply_bytes");
    rates->disk_reads = RATE("disk_reads");
    rates->disk_bytes = RATE("disk_bytes");
    rates->disk_busy = RATE("disk_ns") / 1e9;
    rates->decoded_bytes = RATE("decoded_bytes");
    rates->decode_threads = RATE("decode_ns") / 1e9;
#undef RATE
    pools_between(before, now, rates);
}
