/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_core.h - measuring a profile: what was read of the store, and the measurements, each of which sets its
 * numbers of the profile. All on one thread; they block for about so many seconds. 0, -ENOMEM, the error of a read.
 */
#ifndef EFS_PROFILE_CORE_H
#define EFS_PROFILE_CORE_H

#include "arena.h"
#include "disk.h"
#include "expertfs-private.h"
#include "stats.h"
#include "store.h"

#include <pthread.h>

/* Shards of one object that follow each other on disk, and where they are in memory. */
struct efs_measured_span {
    uint32_t object, first, count;
    struct efs_block e, sm;
};

struct efs_measure {
    const struct efs_store *store;
    struct efs_profile *profile;
    struct efs_arena arena;
    struct efs_disk *disk;
    struct efs_stats_counters stats;
    uint32_t *objects; /* of experts, shuffled */
    uint32_t object_count, object_next;
    struct efs_measured_span *spans;
    uint32_t span_count;
    pthread_mutex_t lock; /* guards pending, read_error */
    pthread_cond_t idle;
    uint32_t pending;
    errint_t read_error;
};

/* ---- profile_disk.c ---- */

/* Fill the pool with tensors, read at once; what was there before goes. Adds their bytes. */
errint_t efs_measure_round(struct efs_measure *m, uint64_t *bytes);
void efs_measure_drop(struct efs_measure *m); /* of what was read */
errint_t efs_measure_disk(struct efs_measure *m, double seconds);
errint_t efs_measure_latency(struct efs_measure *m, double seconds);

/* ---- profile_decode.c: of what was read last ---- */

errint_t efs_measure_decode(struct efs_measure *m, unsigned workers, double seconds);
errint_t efs_measure_copy(struct efs_measure *m, double seconds);
errint_t efs_measure_recode(struct efs_measure *m, double seconds);

#endif
