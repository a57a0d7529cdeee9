/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rados_copy.c - copies a store into a pool, and deletes it there.
 *
 * Order: NAME.part, with the ID, exclusively; the objects; the head NAME, exclusively; NAME.part is deleted. A copy
 * that is killed leaves NAME.part, by which its objects are found and deleted; under NAME there is nothing or all of
 * it.
 */
#include "rados.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define WRITERS 4u
#define FULL_TRY 64 /* LIBRADOS_OPERATION_FULL_TRY: an error where the pool is full; else librados waits for space */

struct copy {
    struct efs_rados rados;
    struct efs_rados_head head;
    char part[EFS_RADOS_NAME_BYTES + 8]; /* NAME.part */
    const struct efs_store *store;
    uint64_t objects;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    uint64_t next, done; /* objects whose copying was started; that were written */
    unsigned writers;    /* that run */
    int failed;          /* of librados, or -errno: the first one */
    bool reading;        /* it was a read of the store that failed */
};

/* Writes an object as a whole. exclusive: -EEXIST if there is one. */
static int write_object(const struct efs_rados *r, const char *name, const void *data, size_t bytes, bool exclusive)
{
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    if (exclusive)
        r->call.write_op_create(op, 1, NULL);
    r->call.write_op_write_full(op, data, bytes);
    int rc = r->call.write_op_operate(op, r->io, name, NULL, FULL_TRY);
    r->call.release_write_op(op);
    return rc;
}

static int write_head(const struct copy *c, const char *name)
{
    char text[512];
    int bytes = snprintf(text, sizeof(text),
                         "{\"format\": \"expertfs\", \"version\": 1, \"id\": \"%s\", \"bytes\": %" PRIu64
                         ", \"object_bytes\": %" PRIu32 ", \"content_hash\": \"%016" PRIx64 "\"}\n",
                         c->head.id, c->head.bytes, c->head.object_bytes, c->head.content_hash);
    return write_object(&c->rados, name, text, (size_t)bytes, true);
}

/* ---- the objects ---- */

/* Without lock. *reading: the store could not be read. */
static int copy_object(const struct copy *c, uint64_t number, void *buffer, bool *reading)
{
    char oid[EFS_RADOS_OID_BYTES];
    const uint64_t begin = number * c->head.object_bytes, left = c->head.bytes - begin;
    const size_t bytes = left < c->head.object_bytes ? (size_t)left : c->head.object_bytes;
    int rc = efs_sys_pread_all(c->store->fd, buffer, bytes, begin);
    *reading = rc < 0;
    efs_rados_oid(oid, c->head.id, number);
    return rc < 0 ? rc : write_object(&c->rados, oid, buffer, bytes, true);
}

static void *writer_run(void *arg)
{
    struct copy *c = arg;
    void *buffer = efs_sys_aligned_alloc(4096, c->head.object_bytes);
    pthread_mutex_lock(&c->lock);
    if (!buffer && !c->failed)
        c->failed = -ENOMEM;
    while (!c->failed && c->next < c->objects) {
        const uint64_t number = c->next++;
        bool reading;
        pthread_mutex_unlock(&c->lock);
        int rc = copy_object(c, number, buffer, &reading);
        pthread_mutex_lock(&c->lock);
        if (rc < 0 && !c->failed) {
            c->failed = rc;
            c->reading = reading;
        }
        c->done += rc >= 0;
        pthread_cond_broadcast(&c->changed);
    }
    c->writers--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    free(buffer);
    return NULL;
}

/* Deletes the objects [0, end). */
static int remove_objects(const struct efs_rados *r, const char *id, uint64_t end)
{
    char oid[EFS_RADOS_OID_BYTES];
    int failed = 0;
    for (uint64_t i = 0; i < end; i++) {
        efs_rados_oid(oid, id, i);
        int rc = r->call.remove(r->io, oid);
        failed = rc < 0 && rc != -ENOENT && !failed ? rc : failed;
    }
    return failed;
}

static void copy_objects(struct copy *c, efs_progress_fn *progress, void *arg)
{
    pthread_t threads[WRITERS];
    unsigned count = 0;
    pthread_mutex_lock(&c->lock);
    for (; count < WRITERS; count++, c->writers++)
        if (efs_thread_start(writer_run, c, "efs-copy", &threads[count]) < 0)
            break;
    c->failed = count ? c->failed : -EAGAIN;
    for (uint64_t said = 0; c->writers; said = c->done) {
        if (said == c->done)
            pthread_cond_wait(&c->changed, &c->lock);
        const uint64_t done = c->done * c->head.object_bytes;
        pthread_mutex_unlock(&c->lock);
        bool ends = progress && progress(arg, done < c->head.bytes ? done : c->head.bytes, c->head.bytes, "copying");
        pthread_mutex_lock(&c->lock);
        c->failed = ends && !c->failed ? -ECANCELED : c->failed;
    }
    pthread_mutex_unlock(&c->lock);
    while (count > 0)
        pthread_join(threads[--count], NULL);
}

/* ---- calls ---- */

static errint_t copy_begin(struct copy *c, struct efs_error *err)
{
    char reason[300];
    uint64_t id, bytes;
    time_t modified;
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        return efs_fail(err, -EIO, "no random numbers");
    snprintf(c->head.id, sizeof(c->head.id), "%016" PRIx64, id);
    int rc = c->rados.call.stat(c->rados.io, c->rados.name, &bytes, &modified);
    if (rc == 0)
        return efs_fail(err, -EEXIST, "%s: exists\nhint: `expertctl rm %s` deletes it", c->rados.label, c->rados.label);
    rc = rc == -ENOENT ? write_head(c, c->part) : rc;
    if (rc == -EEXIST)
        return efs_fail(
            err, rc,
            "%s: a copy to this name runs, or was killed\nhint: `expertctl rm --unfinished %s` deletes what "
            "a killed one left",
            c->rados.label, c->rados.label);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", c->rados.label, efs_rados_reason(rc, reason, sizeof(reason))) : 0;
}

errint_t efs_rados_copy(const struct efs_store *store, const char *address, efs_progress_fn *progress, void *arg,
                        struct efs_error *err)
{
    struct copy c = {.store = store, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct efs_store_info info;
    char reason[300];
    efs_store_info(store, &info);
    if (info.in_place)
        return efs_fail(err, -EINVAL, "%s: not a store\nhint: mkexpertfs packs it", store->path);
    errint_t rc = efs_rados_connect(address, &c.rados, err);
    c.head.bytes = info.store_bytes;
    c.head.content_hash = info.content_hash;
    c.head.object_bytes = EFS_RADOS_OBJECT_BYTES;
    c.objects = (c.head.bytes + c.head.object_bytes - 1) / c.head.object_bytes;
    snprintf(c.part, sizeof(c.part), "%s.part", c.rados.name);
    if (rc == 0)
        rc = copy_begin(&c, err);
    if (rc < 0) {
        efs_rados_close(&c.rados);
        return rc;
    }
    copy_objects(&c, progress, arg);
    if (c.failed == 0)
        c.failed = write_head(&c, c.rados.name);
    if (c.failed < 0)
        remove_objects(&c.rados, c.head.id, c.next);
    c.rados.call.remove(c.rados.io, c.part);
    if (c.failed == -ECANCELED)
        rc = efs_fail(err, -ECANCELED, "%s: not copied: interrupted", c.rados.label);
    else if (c.failed < 0)
        rc = efs_fail(err, c.failed, "%s: %s", c.reading ? store->path : c.rados.label,
                      c.failed == -EEXIST ? "was written by another copy meanwhile"
                                          : efs_rados_reason(c.failed, reason, sizeof(reason)));
    efs_rados_close(&c.rados);
    return rc;
}

/* The head of the copy that has not ended: NAME.part. */
static errint_t part_head(struct efs_rados *r, struct efs_rados_head *head, struct efs_error *err)
{
    struct efs_rados part = *r;
    if ((size_t)snprintf(part.name, sizeof(part.name), "%s.part", r->name) >= sizeof(part.name))
        return efs_fail(err, -ENAMETOOLONG, "%s: %s", r->label, strerror(ENAMETOOLONG));
    errint_t rc = efs_rados_head_read(&part, head, err);
    return rc == -ENOENT ? efs_fail(err, rc, "%s: nothing is unfinished", r->label) : rc;
}

errint_t efs_rados_bytes(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head = {.bytes = 0};
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = unfinished ? part_head(&r, &head, err) : efs_rados_head_read(&r, &head, err);
    *bytes = head.bytes;
    efs_rados_close(&r);
    return rc;
}

errint_t efs_rados_remove(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head, whole;
    char part[EFS_RADOS_NAME_BYTES + 8], reason[300];
    *bytes = 0;
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = unfinished ? part_head(&r, &head, err) : efs_rados_head_read(&r, &head, err);
    if (rc == 0) {
        snprintf(part, sizeof(part), "%s.part", r.name);
        const uint64_t objects = (head.bytes + head.object_bytes - 1) / head.object_bytes;
        /* a copy that was killed after its head was written has only NAME.part left */
        bool ended = unfinished && efs_rados_head_read(&r, &whole, NULL) == 0 && strcmp(whole.id, head.id) == 0;
        int failed = unfinished ? 0 : r.call.remove(r.io, r.name); /* first: no reader begins */
        if (failed == 0 && !ended)
            failed = remove_objects(&r, head.id, objects);
        if (failed == 0 && unfinished)
            failed = r.call.remove(r.io, part);
        *bytes = ended ? 0 : head.bytes;
        if (failed < 0)
            rc = efs_fail(err, failed, "%s: %s", r.label, efs_rados_reason(failed, reason, sizeof(reason)));
    }
    efs_rados_close(&r);
    return rc;
}
