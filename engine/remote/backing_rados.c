/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing_rados.c - see rados.h: the operations of the backing. A read is cut at the objects' borders into operations
 * of librados, whose threads report their ends: they append to a list and write to wake_fd. A read has ended when all
 * of its operations have; its result are the bytes from its begin on that were read without a gap.
 */
#include "rados.h"

#include "container.h"
#include "expertfs-private.h"
#include "stats.h"
#include "sys.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 32u

struct reading;

/* The bytes of a read in one object. */
struct operation {
    struct operation *next; /* of those that have ended */
    struct reading *reading;
    void *op, *completion;
    uint64_t number;     /* of the object */
    size_t begin, bytes; /* of the read's */
    size_t got[EFS_IO_JOIN_READS];
    int result[EFS_IO_JOIN_READS];
    unsigned pieces; /* of buffers, each a read of the operation */
};

/* A read in flight. */
struct reading {
    struct efs_rados_store *store;
    struct efs_backing_read *read; /* NULL: free */
    struct operation *operations;
    unsigned count, left; /* operations; those that have not ended */
    errint_t error;       /* of starting them */
};

struct efs_rados_store {
    struct efs_backing b;
    struct efs_rados rados;
    struct efs_rados_head head;
    bool said;            /* the fault was reported; until a read succeeds */
    pthread_mutex_t lock; /* guards ended */
    struct operation *ended;
    struct reading readings[EFS_IO_DEPTH_MAX];
};

static struct efs_rados_store *store_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct efs_rados_store, b);
}

/* ---- starting ---- */

/* On a thread of librados. */
static void operation_ended(void *completion, void *arg)
{
    struct operation *o = arg;
    struct efs_rados_store *s = o->reading->store;
    const uint64_t one = 1;
    (void)completion;
    pthread_mutex_lock(&s->lock);
    o->next = s->ended;
    s->ended = o;
    ssize_t n = write(s->b.wake_fd, &one, sizeof(one)); /* with lock: the queue may close it after the read has ended */
    (void)n;                                            /* full: it is readable */
    pthread_mutex_unlock(&s->lock);
}

/* Adds to the operation the pieces of the read's buffers with its bytes. */
static void operation_add_buffers(const struct efs_rados_store *s, struct operation *o)
{
    const struct efs_backing_read *read = o->reading->read;
    uint64_t offset = (read->offset + o->begin) % s->head.object_bytes;
    size_t at = 0, end = o->begin + o->bytes; /* of the read's bytes */
    for (unsigned i = 0; i < read->buffer_count && at < end; at += read->buffers[i++].iov_len) {
        const struct iovec *buffer = &read->buffers[i];
        size_t skip = at < o->begin ? o->begin - at : 0;
        if (skip >= buffer->iov_len)
            continue;
        size_t bytes = buffer->iov_len - skip < end - at - skip ? buffer->iov_len - skip : end - at - skip;
        s->rados.call.read_op_read(o->op, offset, bytes, (char *)buffer->iov_base + skip, &o->got[o->pieces],
                                   &o->result[o->pieces]);
        o->pieces++;
        offset += bytes;
    }
}

static errint_t operation_start(struct efs_rados_store *s, struct operation *o)
{
    char oid[EFS_RADOS_OID_BYTES];
    if (!(o->op = s->rados.call.create_read_op()))
        return -ENOMEM;
    operation_add_buffers(s, o);
    int rc = s->rados.call.aio_create_completion2(o, operation_ended, &o->completion);
    if (rc < 0) {
        o->completion = NULL;
        return rc;
    }
    efs_rados_oid(oid, s->head.id, o->number);
    return s->rados.call.aio_read_op_operate(o->op, s->rados.io, o->completion, oid, 0);
}

static void operation_free(struct efs_rados_store *s, struct operation *o)
{
    if (o->completion)
        s->rados.call.aio_release(o->completion);
    if (o->op)
        s->rados.call.release_read_op(o->op);
    o->op = o->completion = NULL;
}

static void rados_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct efs_rados_store *s = store_of(b);
    const uint64_t object = s->head.object_bytes;
    const uint64_t past = read->offset < s->head.bytes ? s->head.bytes - read->offset : 0;
    const size_t bytes = read->bytes < past ? read->bytes : (size_t)past;
    unsigned slot = 0;
    while (s->readings[slot].read)
        slot++;
    struct reading *r = &s->readings[slot];
    *r = (struct reading){.store = s, .read = read};
    read->own = slot;
    const uint64_t first = read->offset / object;
    const size_t count = bytes ? (size_t)((read->offset + bytes - 1) / object - first) + 1 : 0;
    if (count && !(r->operations = efs_sys_calloc(count, sizeof(*r->operations))))
        r->error = -ENOMEM;
    for (size_t at = 0; at < bytes && r->error == 0; r->count++) {
        struct operation *o = &r->operations[r->count];
        const uint64_t left = object - (read->offset + at) % object;
        *o = (struct operation){.reading = r,
                                .number = first + r->count,
                                .begin = at,
                                .bytes = bytes - at < left ? bytes - at : (size_t)left};
        at += o->bytes;
        r->error = operation_start(s, o);
        if (r->error < 0)
            operation_free(s, o);
        else
            r->left++;
    }
}

/* ---- ending ---- */

/* The reason is reported once, until a read has succeeded. */
static void say(struct efs_rados_store *s, const struct operation *o, int rc)
{
    char oid[EFS_RADOS_OID_BYTES], reason[300], line[900];
    if (s->said || !s->b.say)
        return;
    s->said = true;
    efs_rados_oid(oid, s->head.id, o->number);
    snprintf(line, sizeof(line), "%s: object %s: %s", s->rados.label, oid,
             rc == -ENOENT ? "missing\nhint: the store was replaced or deleted: mount it again"
             : rc == 0     ? "shorter than it should be\nhint: copy the store there again"
                           : efs_rados_reason(rc, reason, sizeof(reason)));
    s->b.say(s->b.say_arg, line);
}

/* Bytes from the operation's begin on that were read; *rc: why they are not all, 0 for an object that is too short. */
static size_t operation_bytes(const struct efs_rados_store *s, const struct operation *o, int *rc)
{
    size_t bytes = 0;
    *rc = o->completion ? s->rados.call.aio_get_return_value(o->completion) : -ENOMEM;
    if (*rc < 0)
        return 0;
    *rc = 0;
    size_t wanted = o->bytes;
    for (unsigned i = 0; i < o->pieces; i++) {
        if (o->result[i] < 0) {
            *rc = o->result[i];
            return bytes;
        }
        size_t got = o->got[i] < wanted ? o->got[i] : wanted;
        bytes += got;
        wanted -= got;
    }
    return bytes;
}

static void reading_end(struct efs_rados_store *s, struct reading *r)
{
    struct efs_backing_read *read = r->read;
    const struct operation *bad = NULL;
    ssize_t result = 0;
    errint_t error = r->error;
    int rc = 0;
    for (unsigned i = 0; i < r->count && !bad && !(error < 0 && i + 1 == r->count); i++) {
        const struct operation *o = &r->operations[i];
        size_t bytes = operation_bytes(s, o, &rc);
        result += (ssize_t)bytes;
        if (bytes < o->bytes)
            bad = o;
    }
    if (bad && rc != -ECANCELED)
        say(s, bad, rc);
    else if (!bad && error == 0)
        s->said = false;
    if (bad && rc < 0)
        error = rc == -ECANCELED ? -ECANCELED : -EIO;
    for (unsigned i = 0; i < r->count; i++)
        operation_free(s, &r->operations[i]);
    free(r->operations);
    *r = (struct reading){.read = NULL};
    efs_count(s->b.stats, fetched_bytes, result);
    efs_backing_read_ended(&s->b, read, result > 0 || error == 0 ? result : error);
}

/* Ends the readings whose operations have all ended. Returns how many. */
static unsigned report(struct efs_rados_store *s)
{
    unsigned count = 0;
    pthread_mutex_lock(&s->lock);
    struct operation *o = s->ended;
    s->ended = NULL;
    pthread_mutex_unlock(&s->lock);
    for (; o; o = o->next)
        o->reading->left--;
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++) {
        if (s->readings[i].read && s->readings[i].left == 0) {
            reading_end(s, &s->readings[i]);
            count++;
        }
    }
    return count;
}

static void rados_wait(struct efs_backing *b)
{
    struct efs_rados_store *s = store_of(b);
    struct pollfd ready = {.fd = b->wake_fd, .events = POLLIN};
    uint64_t value;
    if (report(s) > 0)
        return;
    while (poll(&ready, 1, -1) < 0 && errno == EINTR)
        ;
    ssize_t n = read(b->wake_fd, &value, sizeof(value));
    (void)n;
    (void)report(s);
}

/* The callbacks still come, with -ECANCELED, and after them nothing is written to the buffers: wait() reports the end.
 */
static bool rados_cancel(struct efs_backing *b, struct efs_backing_read *read)
{
    struct efs_rados_store *s = store_of(b);
    struct reading *r = &s->readings[read->own];
    for (unsigned i = 0; r->read == read && i < r->count; i++)
        if (r->operations[i].completion)
            (void)s->rados.call.aio_cancel(s->rados.io, r->operations[i].completion);
    return false;
}

/* A forked child must not end the connection, which it shares with its parent. */
static void rados_close(struct efs_backing *b, bool in_child)
{
    struct efs_rados_store *s = store_of(b);
    if (!in_child) {
        efs_rados_close(&s->rados);
        pthread_mutex_destroy(&s->lock);
    }
    free(s);
}

errint_t efs_rados_open(const char *address, struct efs_backing **backing, struct efs_rados_head *head,
                        struct efs_error *err)
{
    static const struct efs_backing_ops ops = {
        .submit = rados_submit, .wait = rados_wait, .cancel = rados_cancel, .close = rados_close};
    struct efs_rados_store *s = efs_sys_calloc(1, sizeof(*s));
    *backing = NULL;
    if (!s)
        return efs_fail(err, -ENOMEM, "no memory");
    pthread_mutex_init(&s->lock, NULL);
    errint_t rc = efs_rados_connect(address, &s->rados, err);
    if (rc == 0)
        rc = efs_rados_head_read(&s->rados, &s->head, err);
    if (rc < 0) {
        rados_close(&s->b, false);
        return rc;
    }
    s->b = (struct efs_backing){.ops = &ops,
                                .info = {.align = 1,
                                         .best_bytes = s->head.object_bytes,
                                         .max_bytes = 4 * s->head.object_bytes,
                                         .depth = DEPTH,
                                         .joins = true},
                                .direct_fd = -1};
    *head = s->head;
    *backing = &s->b;
    return 0;
}
