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

/* Writes an object as a whole. -EEXIST: there is one. full: EFS_RADOS_FULL_*. */
static int write_object(const struct efs_rados *r, const char *name, const void *data, size_t bytes, int full)
{
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    r->call.write_op_create(op, 1, NULL);
    r->call.write_op_write_full(op, data, bytes);
    int rc = r->call.write_op_operate(op, r->io, name, NULL, full);
    r->call.release_write_op(op);
    return rc;
}

static int remove_object(const struct efs_rados *r, const char *name)
{
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    r->call.write_op_remove(op);
    int rc = r->call.write_op_operate(op, r->io, name, NULL, EFS_RADOS_FULL_FORCE);
    r->call.release_write_op(op);
    return rc;
}

static int write_head(const struct efs_rados *r, const struct efs_rados_head *head, const char *name,
                      const char *format, int full)
{
    char text[512];
    int bytes = snprintf(text, sizeof(text),
                         "{\"format\": \"%s\", \"version\": 1, \"id\": \"%s\", \"bytes\": %" PRIu64
                         ", \"object_bytes\": %" PRIu32 ", \"content_hash\": \"%016" PRIx64 "\"}\n",
                         format, head->id, head->bytes, head->object_bytes, head->content_hash);
    return write_object(r, name, text, (size_t)bytes, full);
}

/* NAME.part. -ENAMETOOLONG. */
static errint_t mark_name(const struct efs_rados *r, char name[EFS_RADOS_NAME_BYTES + 8], struct efs_error *err)
{
    const size_t bytes = strlen(r->name), end = strlen(EFS_RADOS_MARK_END);
    if (bytes >= end && strcmp(r->name + bytes - end, EFS_RADOS_MARK_END) == 0)
        return efs_fail(err, -EINVAL,
                        "%s: the ending " EFS_RADOS_MARK_END " marks what is unfinished\nhint: choose "
                        "another name",
                        r->label);
    snprintf(name, EFS_RADOS_NAME_BYTES + 8, "%s" EFS_RADOS_MARK_END, r->name);
    return 0;
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
    return rc < 0 ? rc : write_object(&c->rados, oid, buffer, bytes, EFS_RADOS_FULL_TRY);
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
        int rc = remove_object(r, oid);
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

static errint_t fail(const struct efs_rados *r, int rc, struct efs_error *err)
{
    char reason[300];
    return efs_fail(err, rc, "%s: %s", r->label, efs_rados_reason(rc, reason, sizeof(reason)));
}

/* There is an object of the mark's name. */
static errint_t fail_marked(struct efs_rados *r, const char *mark, struct efs_error *err)
{
    struct efs_rados_head head;
    if (efs_rados_object_read(r, mark, EFS_RADOS_MARK, &head) == -EUCLEAN)
        return efs_fail(err, -EEXIST, "%s: the object %s is in the way\nhint: choose another name", r->label, mark);
    return efs_fail(
        err, -EEXIST,
        "%s: a copy to this name, or its deletion, runs or was killed\nhint: `expertctl rm --unfinished %s` "
        "deletes what a killed one left",
        r->label, EFS_WORD(r->label));
}

/* 0: nothing has the name, nor that of the mark, which is set. */
static errint_t copy_check(struct copy *c, struct efs_error *err)
{
    struct efs_rados *r = &c->rados;
    uint64_t bytes;
    time_t modified;
    errint_t error = mark_name(r, c->part, err);
    if (error < 0)
        return error;
    if (r->call.stat(r->io, r->name, &bytes, &modified) == 0)
        return efs_fail(err, -EEXIST, "%s: exists\nhint: `expertctl rm %s` deletes it", r->label, EFS_WORD(r->label));
    int rc = r->call.stat(r->io, c->part, &bytes, &modified);
    if (rc == 0)
        return fail_marked(r, c->part, err);
    return rc == -ENOENT ? 0 : fail(r, rc, err);
}

static errint_t copy_begin(struct copy *c, struct efs_error *err)
{
    uint64_t id;
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        return efs_fail(err, -EIO, "no random numbers");
    snprintf(c->head.id, sizeof(c->head.id), "%016" PRIx64, id);
    errint_t error = copy_check(c, err);
    if (error < 0)
        return error;
    int rc = write_head(&c->rados, &c->head, c->part, EFS_RADOS_MARK, EFS_RADOS_FULL_TRY);
    if (rc == -EEXIST) /* another copy started at the same time */
        return fail_marked(&c->rados, c->part, err);
    return rc < 0 ? fail(&c->rados, rc, err) : 0;
}

/* Ends the copy: the head, or nothing. Where the pool does not answer, the mark stays. */
static int copy_end(struct copy *c)
{
    const struct efs_rados *r = &c->rados;
    bool complete = c->failed == 0;
    int rc = complete ? write_head(r, &c->head, r->name, EFS_RADOS_STORE, EFS_RADOS_FULL_TRY) : c->failed;
    bool refused = rc == -EEXIST || rc == -ENOSPC || rc == -EDQUOT || rc == -EPERM || rc == -EACCES;
    if (complete && rc < 0 && !refused)
        return rc; /* the head may have been written, or may be yet */
    if (rc < 0 && remove_objects(r, c->head.id, c->next) < 0)
        return rc;
    remove_object(r, c->part);
    return rc;
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
    if (rc == 0)
        rc = copy_begin(&c, err);
    if (rc < 0) {
        efs_rados_close(&c.rados);
        return rc;
    }
    copy_objects(&c, progress, arg);
    const int failed = copy_end(&c);
    if (failed == -ECANCELED)
        rc = efs_fail(err, -ECANCELED, "%s: not copied: interrupted", c.rados.label);
    else if (failed < 0)
        rc = efs_fail(err, failed, "%s: %s", c.reading ? store->path : c.rados.label,
                      failed == -EEXIST ? "was written by another copy meanwhile"
                                        : efs_rados_reason(failed, reason, sizeof(reason)));
    efs_rados_close(&c.rados);
    return rc;
}

errint_t efs_rados_vacant(const char *address, struct efs_error *err)
{
    struct copy c = {.store = NULL};
    errint_t rc = efs_rados_connect(address, &c.rados, err);
    if (rc == 0)
        rc = copy_check(&c, err);
    efs_rados_close(&c.rados);
    return rc;
}

/* The head of a store, or its mark if that is to be deleted. */
static errint_t find(struct efs_rados *r, bool unfinished, struct efs_rados_head *head, struct efs_error *err)
{
    char mark[EFS_RADOS_NAME_BYTES + 8];
    if (!unfinished)
        return efs_rados_head_read(r, head, err);
    errint_t rc = mark_name(r, mark, err);
    if (rc < 0)
        return rc;
    rc = efs_rados_object_read(r, mark, EFS_RADOS_MARK, head);
    if (rc == -ENOENT || rc == -EUCLEAN)
        return efs_fail(err, rc, "%s: nothing is unfinished", r->label);
    return rc < 0 ? fail(r, rc, err) : 0;
}

errint_t efs_rados_bytes(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head = {.bytes = 0};
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = find(&r, unfinished, &head, err);
    *bytes = head.bytes;
    efs_rados_close(&r);
    return rc;
}

/* Deletes a store whose mark is written: the head first, so that no reader begins. */
static int remove_marked(struct efs_rados *r, const struct efs_rados_head *head, const char *mark)
{
    struct efs_rados_head now;
    int rc = efs_rados_object_read(r, r->name, EFS_RADOS_STORE, &now);
    if (rc == 0 && strcmp(now.id, head->id) == 0)
        rc = remove_object(r, r->name);
    rc = rc == -ENOENT || rc == -EUCLEAN ? 0 : rc;
    if (rc == 0)
        rc = remove_objects(r, head->id, (head->bytes + head->object_bytes - 1) / head->object_bytes);
    return rc == 0 ? remove_object(r, mark) : rc;
}

errint_t efs_rados_remove(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head, whole;
    char mark[EFS_RADOS_NAME_BYTES + 8];
    *bytes = 0;
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = find(&r, unfinished, &head, err);
    if (rc == 0)
        rc = mark_name(&r, mark, err);
    int failed = rc == 0 && !unfinished ? write_head(&r, &head, mark, EFS_RADOS_MARK, EFS_RADOS_FULL_FORCE) : 0;
    if (failed == -EEXIST)
        rc = fail_marked(&r, mark, err);
    else if (failed < 0)
        rc = fail(&r, failed, err);
    if (rc == 0) {
        /* a copy that was killed after its head was written has only its mark left */
        bool ended = unfinished && efs_rados_object_read(&r, r.name, EFS_RADOS_STORE, &whole) == 0 &&
                     strcmp(whole.id, head.id) == 0;
        failed = ended ? remove_object(&r, mark) : remove_marked(&r, &head, mark);
        *bytes = ended ? 0 : head.bytes;
        rc = failed < 0 ? fail(&r, failed, err) : 0;
    }
    efs_rados_close(&r);
    return rc;
}
