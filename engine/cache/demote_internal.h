/* SPDX-License-Identifier: Apache-2.0 */
/* demote_internal.h - the demotion of an expert, between demote.c and demote_chunks.c. */
#ifndef EFS_DEMOTE_INTERNAL_H
#define EFS_DEMOTE_INTERNAL_H

#include "cache.h"
#include "extent_internal.h"
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

/* The components that the policy protects and that are not in memory; of an extent in IDLE. */
static inline unsigned efs_demotion_missing(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE ? x->protected & ~(unsigned)x->resident : 0;
}

/* Lock held: ends the use of the full form. */
static inline void efs_demotion_unpin(struct efs *fs, uint32_t expert)
{
    fs->cache->expert[expert].demoting = false;
    efs_full_copy_end(fs, expert);
}

/* ---- demote_chunks.c ---- */
/* Makes the chunks of the shard in `raw`, and appends them to `coded`. false: they are not those of the store. */
bool efs_demotion_make_shard(struct efs_demotion *d);
/* Moves the extent's chunks, which are made, to the chunk pool. false: retry, because memory is being freed or segments
 * are being prepared. */
bool efs_demotion_publish(struct efs_demotion *d);
/* The buffers hold the extents of this expert, too. */
void efs_demotion_size_buffers(struct efs_demotion *d, uint32_t expert);
/* Allocates the buffers and starts the thread at the first demotion; they stay charged to the budget, also if a part is
 * missing until the next one. false: no room or no memory. */
bool efs_demotion_prepare(struct efs_demotion *d);
void efs_demotion_free_buffers(struct efs_demotion *d);

#endif
