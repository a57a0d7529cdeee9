/* SPDX-License-Identifier: Apache-2.0 */
/* record_core.h - what record.c and record_trace.c share. */
#ifndef EFS_RECORD_CORE_H
#define EFS_RECORD_CORE_H

#include "record.h"

#include <pthread.h>

#define EFS_RECORD_OPERATIONS 4096u
#define EFS_RECORD_REQUESTS 32768u
#define EFS_RECORD_IDS (EFS_RECORD_REQUESTS * 4u) /* experts of these requests, together */

struct efs_recorded_operation {
    uint64_t begin_ns, end_ns;
    uint32_t expert, extent;
    uint16_t shard;
    uint8_t kind;
    int32_t thread;
};

struct efs_recorded_request {
    uint64_t at_ns;
    uint64_t first; /* in ids, counted from the start */
    uint16_t layer, count;
    bool named;
};

struct efs_record {
    pthread_mutex_t lock;
    uint32_t layers, width;
    const uint32_t *layer_first;        /* [layers + 1] */
    uint64_t operations, requests, ids; /* so far */
    struct efs_recorded_operation operation[EFS_RECORD_OPERATIONS];
    struct efs_recorded_request request[EFS_RECORD_REQUESTS];
    uint16_t id[EFS_RECORD_IDS], tokens[EFS_RECORD_IDS];
};

/* The oldest request that is still there with all of its experts. */
static inline uint64_t efs_record_oldest(const struct efs_record *record)
{
    uint64_t at = record->requests > EFS_RECORD_REQUESTS ? record->requests - EFS_RECORD_REQUESTS : 0;
    while (at < record->requests && record->request[at % EFS_RECORD_REQUESTS].first + EFS_RECORD_IDS < record->ids)
        at++; /* its experts were overwritten */
    return at;
}

/* The requests as a routing trace (.route): record_trace.c. As efs_describe(). */
errint_t efs_record_trace(const struct efs *fs, const struct efs_record *record, char **data, size_t *bytes);

#endif
