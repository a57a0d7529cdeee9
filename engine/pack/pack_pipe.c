/* SPDX-License-Identifier: Apache-2.0 */
/* pack_pipe.c - see pack.h: what the threads of a pipeline share, and its end at the first error. */
#include "pack.h"

#include <stdlib.h>

void efs_pack_pipe_fail(struct efs_pack_pipe *p, errint_t rc, const struct efs_error *err)
{
    pthread_mutex_lock(&p->lock);
    if (p->rc == 0) {
        p->rc = rc;
        p->err = *err;
    }
    p->stop = true;
    pthread_cond_broadcast(&p->room);
    pthread_cond_broadcast(&p->coded);
    pthread_cond_broadcast(&p->gate);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void efs_pack_pipe_init(struct efs_pack_pipe *p)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->room, NULL);
    pthread_cond_init(&p->coded, NULL);
    pthread_cond_init(&p->gate, NULL);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p->last = &p->first;
}

void efs_pack_pipe_destroy(struct efs_pack_pipe *p)
{
    while (p->first) {
        struct efs_pack_run *run = p->first;
        p->first = run->next;
        free(run);
    }
    efs_pack_ring_free(&p->ring);
    pthread_mutex_destroy(&p->turn);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->room);
    pthread_cond_destroy(&p->coded);
    pthread_cond_destroy(&p->gate);
    pthread_cond_destroy(&p->changed);
}
