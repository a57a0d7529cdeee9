/* pack_write.c - the writing thread: runs in the order of the disk, several in one write. */
#include "pack.h"

#include <stdlib.h>

#define WRITE_BYTES (8u << 20) /* of one write, about */
#define WRITE_PARTS 512

struct gather {
    struct efs_pack_pipe *pipe;
    struct iovec iov[WRITE_PARTS];
    int count;
    size_t bytes;
    struct efs_error err;
};

static errint_t flush(struct gather *g)
{
    errint_t rc = g->count ? efs_store_writer_append(g->pipe->writer, g->iov, g->count, &g->err) : 0;
    g->count = 0;
    g->bytes = 0;
    return rc;
}

/* Add a padded chunk; returns where in the store it comes to lie. */
static errint_t add(struct gather *g, uint8_t *chunk, size_t bytes, uint64_t *offset)
{
    size_t whole = efs_pack_padded(bytes);
    *offset = 0;
    if (bytes == 0)
        return 0;
    if (g->count == WRITE_PARTS || g->bytes >= WRITE_BYTES) {
        errint_t rc = flush(g);
        if (rc < 0)
            return rc;
    }
    *offset = g->pipe->writer->offset + g->bytes;
    struct iovec *last = g->count ? &g->iov[g->count - 1] : NULL;
    if (last && (uint8_t *)last->iov_base + last->iov_len == chunk)
        last->iov_len += whole;
    else
        g->iov[g->count++] = (struct iovec){chunk, whole};
    g->bytes += whole;
    return 0;
}

static errint_t add_run(struct gather *g, struct efs_pack_run *run)
{
    struct efs_disk_shard *shards = &g->pipe->plan->shards[run->shard_first];
    errint_t rc = 0;
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = add(g, run->slots[i].e, shards[i].e_bytes, &shards[i].e_offset);
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = add(g, run->slots[i].sm, shards[i].sm_bytes, &shards[i].sm_offset);
    return rc;
}

/* Wait for coded runs and take those at the front off the queue, about a write's worth. NULL: no more. */
static struct efs_pack_run *take_coded(struct efs_pack_pipe *p)
{
    struct efs_pack_run *head = NULL, **tail = &head;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !(p->first && p->first->left == 0) && !(p->taken_all && !p->first))
        pthread_cond_wait(&p->coded, &p->lock);
    for (uint32_t shards = 0; !p->stop && p->first && p->first->left == 0 && shards < WRITE_PARTS / 2;) {
        struct efs_pack_run *run = p->first;
        p->first = run->next;
        if (!p->first)
            p->last = &p->first;
        run->next = NULL;
        *tail = run;
        tail = &run->next;
        shards += run->shard_count;
    }
    pthread_mutex_unlock(&p->lock);
    return head;
}

static void free_runs(struct efs_pack_run *runs)
{
    while (runs) {
        struct efs_pack_run *next = runs->next;
        free(runs);
        runs = next;
    }
}

void *efs_pack_write_thread(void *arg)
{
    struct efs_pack_pipe *p = arg;
    struct gather g = {.pipe = p};
    struct efs_pack_run *runs;
    while ((runs = take_coded(p))) {
        uint64_t ring_end = 0;
        errint_t rc = 0;
        for (struct efs_pack_run *run = runs; rc == 0 && run; run = run->next) {
            rc = add_run(&g, run);
            ring_end = run->ring_end;
        }
        if (rc == 0)
            rc = flush(&g);
        free_runs(runs);
        if (rc < 0) {
            efs_pack_pipe_fail(p, rc, &g.err);
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
