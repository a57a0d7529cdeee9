/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recent.h - the counters as they were about a minute ago, for rates of the last minute: the file .expertfs/recent. The
 * main thread samples them every EFSD_RECENT_MS.
 */
#ifndef EFSD_RECENT_H
#define EFSD_RECENT_H

#include <pthread.h>
#include <stdio.h>

#include "counters.h"
#include "expertfs.h"

struct efsd;

#define EFSD_RECENT_MS 10000
#define EFSD_RECENT_SAMPLES 7 /* the oldest is 60 to 70 s old */

struct efsd_sample {
    double seconds; /* CLOCK_MONOTONIC */
    struct efs_stats stats;
    struct efsd_counters counters;
};

struct efsd_recent {
    pthread_mutex_t lock; /* guards the fields below */
    struct efsd_sample ring[EFSD_RECENT_SAMPLES];
    uint32_t taken;
};

/* Samples the counters. Main thread; efs_stats() takes the engine's lock. */
void efsd_recent_take(struct efsd *daemon);
/* Prints the age of the oldest sample, in seconds, and its counters, as .expertfs/stat has them. */
void efsd_render_recent(struct efsd *daemon, FILE *out);

/* Reads the counters now. */
void efsd_sample_take(struct efsd *daemon, struct efsd_sample *sample);
/* Prints the counters and gauges of a sample, a line each. */
void efsd_sample_print(struct efsd_sample *sample, FILE *out);

#endif
