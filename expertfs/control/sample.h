/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - all counters and gauges of the engine and the daemon at one time. */
#ifndef EFSD_SAMPLE_H
#define EFSD_SAMPLE_H

#include <stdio.h>

#include "counters.h"
#include "expertfs-stats.h"

struct efsd;
struct efsd_sample {
    double seconds; /* CLOCK_MONOTONIC */
    struct efs_stats stats;
    struct efsd_counters counters;
};
/* Reads the counters now. */
void efsd_sample_take(struct efsd *daemon, struct efsd_sample *sample);
/* Prints the counters and gauges of a sample, a line each. */
void efsd_sample_print(struct efsd_sample *sample, FILE *out);

#endif
