/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing_local.c - a backing around another one, with a local copy of its bytes (local.h). The threads
 * `efs-local-read` do the reads that the copy has. All other reads are passed on, and their bytes are offered to the
 * copy. A read that is partly there is cut where that changes: its result is short, and the queue reads the rest.
 */
#include "backing.h"
#include "local.h"

#include "container.h"
#include "stats.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct local_read {
    struct efs_backing_read part; /* as passed on: the first bytes of `whole`; first: NULL, own: of the inner backing */
    struct efs_backing_read *whole;
    struct local_read *next;
    errint_t error;
    bool remote;
};

struct backing_local {
    struct efs_backing b;
    struct efs_backing *inner;
    struct efs_local *local;
    struct local_read reads[EFS_IO_DEPTH_MAX]; /* whole NULL: free */
    pthread_mutex_t lock;                      /* guards the rest */
    pthread_cond_t wake;
    bool stop;
    struct local_read *waiting, **waiting_tail, *ended, **ended_tail;
    unsigned thread_count;
    unsigned long threads[EFS_BACKING_LOCAL_THREADS];
};

static struct backing_local *local_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct backing_local, b);
}

static void push(struct local_read ***tail, struct local_read *read)
{
    read->next = NULL;
    **tail = read;
    *tail = &read->next;
}

/* ---- threads that read the copy ---- */

static void *read_run(void *arg)
{
    struct backing_local *l = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        struct local_read *r = l->waiting;
        if (!r && l->stop)
            break;
        if (!r) {
            pthread_cond_wait(&l->wake, &l->lock);
            continue;
        }
        l->waiting = r->next;
        l->waiting_tail = l->waiting ? l->waiting_tail : &l->waiting;
        pthread_mutex_unlock(&l->lock);
        r->error = efs_local_read(l->local, r->part.offset, r->part.buffers, r->part.buffer_count, r->part.bytes);
        pthread_mutex_lock(&l->lock);
        push(&l->ended_tail, r);
        ssize_t n = write(l->b.wake_fd, &one, sizeof(one)); /* cannot fail: the counter stays far below its limit */
        (void)n;
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- operations ---- */

/* The inner backing may lower these at any time. */
static void follow_inner(struct backing_local *l)
{
    l->b.info.depth = l->inner->info.depth;
    l->b.info.registers = l->inner->info.registers;
}

static void local_inner_ended(void *owner, struct efs_backing_read *part, ssize_t result)
{
    struct backing_local *l = owner;
    struct local_read *r = EFS_CONTAINER(part, struct local_read, part);
    struct efs_backing_read *whole = r->whole;
    if (result > 0)
        efs_local_offer(l->local, part->offset, part->buffers, part->buffer_count, (size_t)result);
    r->whole = NULL;
    efs_backing_read_ended(&l->b, whole, result);
}

static void local_start(struct efs_backing *b)
{
    struct backing_local *l = local_of(b);
    efs_backing_start_inner(l->inner, b, local_inner_ended, l);
    follow_inner(l);
}

/* The first `bytes` bytes of a read. */
static void cut(struct local_read *r, size_t bytes)
{
    const struct efs_backing_read *whole = r->whole;
    r->part = *whole;
    r->part.first = NULL;
    r->part.bytes = bytes;
    r->part.buffer_count = 0;
    for (size_t left = bytes; left > 0; r->part.buffer_count++) {
        struct iovec *buffer = &r->part.buffers[r->part.buffer_count];
        buffer->iov_len = buffer->iov_len < left ? buffer->iov_len : left;
        left -= buffer->iov_len;
    }
}

static void local_submit(struct efs_backing *b, struct efs_backing_read *whole)
{
    struct backing_local *l = local_of(b);
    struct local_read *r = l->reads;
    bool there;
    while (r->whole)
        r++;
    r->whole = whole;
    whole->own = (uintptr_t)(r - l->reads);
    cut(r, efs_local_run(l->local, whole->offset, whole->bytes, &there));
    r->remote = !there;
    if (r->remote) {
        l->inner->ops->submit(l->inner, &r->part);
        return;
    }
    pthread_mutex_lock(&l->lock);
    push(&l->waiting_tail, r);
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

/* A page that was dropped meanwhile is read again, from the source then. */
static void local_ended(struct backing_local *l, struct local_read *r)
{
    struct efs_backing_read *whole = r->whole;
    r->whole = NULL;
    if (r->error == 0)
        efs_count(l->b.stats, local_bytes, r->part.bytes);
    efs_backing_read_ended(&l->b, whole, r->error < 0 ? r->error : (ssize_t)r->part.bytes);
}

static void local_wait(struct efs_backing *b)
{
    struct backing_local *l = local_of(b);
    l->inner->ops->wait(l->inner);
    pthread_mutex_lock(&l->lock);
    struct local_read *ended = l->ended;
    l->ended = NULL;
    l->ended_tail = &l->ended;
    pthread_mutex_unlock(&l->lock);
    for (struct local_read *next; ended; ended = next) {
        next = ended->next;
        local_ended(l, ended);
    }
    follow_inner(l);
}

static bool local_cancel(struct efs_backing *b, struct efs_backing_read *whole)
{
    struct backing_local *l = local_of(b);
    struct local_read *r = &l->reads[whole->own];
    if (!r->remote || !l->inner->ops->cancel || !l->inner->ops->cancel(l->inner, &r->part))
        return false;
    r->whole = NULL;
    return true;
}

static errint_t local_memory(struct efs_backing *b, uint32_t segment, void *base, size_t bytes)
{
    struct backing_local *l = local_of(b);
    errint_t rc = l->inner->ops->memory(l->inner, segment, base, bytes);
    follow_inner(l);
    return rc;
}

static void local_close(struct efs_backing *b, bool in_child)
{
    struct backing_local *l = local_of(b);
    if (!in_child) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->wake);
        pthread_mutex_unlock(&l->lock);
        for (unsigned i = 0; i < l->thread_count; i++)
            pthread_join(l->threads[i], NULL);
        pthread_mutex_destroy(&l->lock);
        pthread_cond_destroy(&l->wake);
    }
    l->inner->ops->close(l->inner, in_child);
    free(l);
}

struct efs_backing *efs_backing_local_new(struct efs_backing *inner, struct efs_local *local)
{
    static const struct efs_backing_ops ops = {.start = local_start,
                                               .submit = local_submit,
                                               .wait = local_wait,
                                               .cancel = local_cancel,
                                               .memory = local_memory,
                                               .close = local_close};
    struct backing_local *l = inner ? efs_sys_calloc(1, sizeof(*l)) : NULL;
    if (!l) {
        if (inner)
            inner->ops->close(inner, false);
        return NULL;
    }
    l->b = (struct efs_backing){.ops = &ops, .info = inner->info, .direct_fd = -1};
    l->b.info.align = inner->info.align < EFS_ALIGN ? EFS_ALIGN : inner->info.align;
    l->inner = inner;
    l->local = local;
    l->waiting_tail = &l->waiting;
    l->ended_tail = &l->ended;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    while (l->thread_count < EFS_BACKING_LOCAL_THREADS &&
           efs_thread_start(read_run, l, "efs-local-read", &l->threads[l->thread_count]) == 0)
        l->thread_count++;
    if (l->thread_count > 0)
        return &l->b;
    local_close(&l->b, false);
    return NULL;
}
