/* SPDX-License-Identifier: Apache-2.0 */
/* demote_internal.h - the demotion of an expert, for demote.c, and for reclaim.c, which cancels it. */
#ifndef EFS_DEMOTE_INTERNAL_H
#define EFS_DEMOTE_INTERNAL_H

#include "cache.h"
#include "extent.h"
#include "idle.h"
#include "queue.h"
#include "thread.h"

struct efs_demotion {
    struct efs *fs;
    struct efs_job job;      /* of the workers */
    struct efs_job idle_job; /* of the thread of idle work; only one of both is queued or runs */
    struct efs_idle *idle;
    atomic_bool encoded;                             /* idle_job has ended, job is to be queued */
    uint64_t largest_bytes, extent_bytes, raw_bytes; /* memory file of the largest expert, coded bytes of the largest
                                                        extent, decoded ones of the largest shard of an expert */
    /* guarded by efs.lock */
    bool running;    /* job or idle_job is queued or runs */
    uint32_t *queue; /* [expert_count]: a ring of experts, each at most once */
    uint32_t head, count;
    bool working;   /* expert is being demoted; false in idle_job: it was cancelled, and the result is dropped */
    bool encoding;  /* idle_job is queued or runs */
    bool cancelled; /* ends before the next shard is encoded */
    bool reserved;  /* room in the budget for the buffers */
    /* of the job that runs */
    uint32_t expert, extent, extent_end, shard; /* shard: of the extent, from 0 */
    unsigned components;                        /* that are made of the extent */
    bool good;                                  /* the shards that were encoded have the checksums of the store */
    struct efs_codec_scratch *scratch;          /* larger than the workers' scratch, for encoding */
    uint8_t *raw, *e, *sm;                      /* a shard */
    uint8_t *coded;                             /* the extent: E, then SM, each as in the chunk pool */
};

/* Lock held: ends the use of the full form. */
static inline void efs_demotion_unpin(struct efs *fs, uint32_t expert)
{
    fs->cache->expert[expert].demoting = false;
    efs_full_copy_end(fs, expert);
}

#endif
