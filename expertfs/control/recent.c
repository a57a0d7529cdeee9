/* SPDX-License-Identifier: Apache-2.0 */
/* recent.c - see recent.h. */
#include "recent.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "daemon.h"
#include "sample.h"
#include "expertfs-clock-private.h"
#include "expertfs-stats.h"

#define SAMPLES 7 /* the oldest is 60 to 70 s old */

void efsd_sample_take(struct efsd *daemon, struct efsd_sample *sample)
{
    efs_stats(daemon->fs, &sample->stats);
#define COPY(name, help)                                                                                               \
    atomic_init(&sample->counters.name, atomic_load_explicit(&daemon->counters.name, memory_order_relaxed));
    EFSD_COUNTERS(COPY)
#undef COPY
    sample->seconds = efs_now_seconds();
}

void efsd_sample_print(struct efsd_sample *sample, FILE *out)
{
#define LINE(name, kind, unit, help) fprintf(out, "%s: %llu\n", #name, (unsigned long long)sample->stats.name);
    EFS_STATS(LINE)
#undef LINE
#define LINE(name, help)                                                                                               \
    fprintf(out, "fuse_%s: %llu\n", #name,                                                                             \
            (unsigned long long)atomic_load_explicit(&sample->counters.name, memory_order_relaxed));
    EFSD_COUNTERS(LINE)
#undef LINE
}

errint_t efsd_recent_init(struct efsd *daemon)
{
    pthread_mutex_init(&daemon->recent.lock, NULL);
    daemon->recent.ring = calloc(SAMPLES, sizeof(*daemon->recent.ring));
    return daemon->recent.ring ? 0 : -ENOMEM;
}

void efsd_recent_end(struct efsd *daemon)
{
    free(daemon->recent.ring);
    pthread_mutex_destroy(&daemon->recent.lock);
}

void efsd_recent_take(struct efsd *daemon)
{
    struct efsd_recent *recent = &daemon->recent;
    struct efsd_sample now;
    efsd_sample_take(daemon, &now);
    pthread_mutex_lock(&recent->lock);
    recent->ring[recent->taken++ % SAMPLES] = now;
    pthread_mutex_unlock(&recent->lock);
}

void efsd_render_recent(struct efsd *daemon, FILE *out)
{
    struct efsd_recent *recent = &daemon->recent;
    pthread_mutex_lock(&recent->lock);
    bool full = recent->taken >= SAMPLES;
    struct efsd_sample oldest = recent->ring[full ? recent->taken % SAMPLES : 0];
    pthread_mutex_unlock(&recent->lock);
    fprintf(out, "seconds: %.3f\n", efs_now_seconds() - oldest.seconds);
    efsd_sample_print(&oldest, out);
}
