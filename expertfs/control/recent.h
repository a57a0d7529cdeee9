/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recent.h - the counters as they were about a minute ago, for rates of the last minute: the file .expertfs/recent. The
 * main thread samples them every EFSD_RECENT_MS.
 */
#ifndef EFSD_RECENT_H
#define EFSD_RECENT_H

#include <pthread.h>
#include <stdio.h>

#include "expertfs.h"

struct efsd;
struct efsd_sample; /* sample.h */

#define EFSD_RECENT_MS 10000

struct efsd_recent {
    pthread_mutex_t lock; /* guards the fields below */
    struct efsd_sample *ring;
    uint32_t taken;
};

/* -ENOMEM; efsd_recent_end() also after it. */
errint_t efsd_recent_init(struct efsd *daemon);
void efsd_recent_end(struct efsd *daemon);
/* Samples the counters. Main thread; efs_stats() takes the engine's lock. */
void efsd_recent_take(struct efsd *daemon);
/* Prints the age of the oldest sample, in seconds, and its counters, as .expertfs/stat has them. */
void efsd_render_recent(struct efsd *daemon, FILE *out);

#endif
