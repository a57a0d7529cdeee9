/* SPDX-License-Identifier: Apache-2.0 */
/* top_rates.h - what a mount did between two samples, or since it began. */
#ifndef EXPERTCTL_TOP_RATES_H
#define EXPERTCTL_TOP_RATES_H

#include "top_sample.h"

/* A second, but for what is said. */
struct top_pool_rates {
    double hits, partial, demoted, evicted, saved_bytes; /* hits of M: experts that were not found */
    double hit_part;                                     /* of all that were asked for, 0 to 1 */
};

struct top_rates {
    double seconds; /* over which they are, > 0 */
    double reads, read_bytes, opens, leases, sent_bytes;
    double disk_reads, disk_bytes, disk_busy; /* disk_busy: part of the time, 0 to 1 */
    double decoded_bytes, decode_threads;     /* decode_threads: at work, on average */
    uint64_t errors;                          /* since the mount began */
    struct top_pool_rates pools[sizeof(TOP_POOLS) - 1];
};

/* before: NULL for what there was since the mount began. */
void top_rates_between(const struct top_sample *before, const struct top_sample *now, struct top_rates *rates);

#endif
