/* SPDX-License-Identifier: Apache-2.0 */
/* pack_write.c - the writing thread: chunks of runs in the order of the disk, one right after the other. */
#include "pack.h"

#include <stdlib.h>

static errint_t pack_append(struct efs_store_writer *writer, const uint8_t *chunk, size_t bytes, uint64_t *offset,
                            struct efs_error *err)
{
    *offset = bytes ? writer->offset : 0;
    return bytes ? efs_store_writer_append(writer, chunk, bytes, err) : 0;
}

static errint_t write_run(const struct efs_pack_pipe *p, const struct efs_pack_run *run, struct efs_error *err)
{
    struct efs_disk_shard *shards = &p->plan->shards[run->shard_first];
    errint_t rc = 0;
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = pack_append(p->writer, run->slots[i].e, shards[i].e_bytes, &shards[i].e_offset, err);
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = pack_append(p->writer, run->slots[i].sm, shards[i].sm_bytes, &shards[i].sm_offset, err);
    return rc;
}

/* Wait until the first run is coded and take it off the queue. NULL: no more. */
static struct efs_pack_run *take_coded(struct efs_pack_pipe *p)
{
    struct efs_pack_run *run = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !(p->first && p->first->left == 0) && !(p->taken_all && !p->first))
        pthread_cond_wait(&p->coded, &p->lock);
    if (!p->stop && p->first) {
        run = p->first;
        p->first = run->next;
        if (!p->first)
            p->last = &p->first;
    }
    pthread_mutex_unlock(&p->lock);
    return run;
}

void *efs_pack_write_thread(void *arg)
{
    struct efs_pack_pipe *p = arg;
    struct efs_error err;
    struct efs_pack_run *run;
    while ((run = take_coded(p))) {
        uint64_t ring_end = run->ring_end;
        errint_t rc = write_run(p, run, &err);
        free(run);
        if (rc < 0) {
            efs_pack_pipe_fail(p, rc, &err);
            break;
        }
        pthread_mutex_lock(&p->lock);
        efs_pack_ring_give(&p->ring, ring_end);
        pthread_cond_broadcast(&p->room);
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_lock(&p->lock);
    p->running--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
