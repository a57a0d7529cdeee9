/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rados_copy.c - copies a store into a pool.
 *
 * Order: the mark NAME.part, with the ID, exclusively; the objects; the head NAME, exclusively, or over the version of
 * the store that is replaced; that store's objects are deleted; NAME.part is deleted. A copy that is killed leaves the
 * mark, by which the objects of one of the two IDs, that which the head does not have, are found and deleted. Under
 * NAME there is nothing or all of a store.
 */
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "rados_write.h"
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
    struct efs_rados_head head, replaced; /* replaced.id: "" if there is nothing */
    uint64_t version;                     /* of the head that is replaced */
    char part[EFS_RADOS_MARK_BYTES];      /* NAME.part */
    const struct efs_store *store;
    uint64_t objects;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    uint64_t next, done; /* objects whose copying was started; that were written */
    unsigned writers;    /* that run */
    int failed;          /* of librados, or -errno: the first one */
    bool reading;        /* it was a read of the store that failed */
};

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
    return rc < 0 ? rc : efs_rados_write_object(&c->rados, oid, 0, buffer, bytes, EFS_RADOS_FULL_TRY);
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

/* Finds the store to replace. */
static errint_t find_replaced(struct copy *c, struct efs_error *err)
{
    errint_t rc = efs_rados_head_read(&c->rados, &c->replaced, err);
    c->version = c->rados.call.get_last_version(c->rados.io);
    return rc == -EUCLEAN
               ? efs_fail(err, rc, "%s: exists and is not a store\nhint: choose another name", c->rados.label)
               : rc;
}

/* 0: nothing has the name or, with force, a store, and nothing that of the mark, which is set. */
static errint_t copy_check(struct copy *c, bool force, struct efs_error *err)
{
    struct efs_rados *r = &c->rados;
    uint64_t bytes;
    time_t modified;
    errint_t error = efs_rados_mark_name(r, c->part, err);
    if (error < 0)
        return error;
    const bool exists = r->call.stat(r->io, r->name, &bytes, &modified) == 0;
    if (exists && !force)
        return efs_fail(err, -EEXIST, "%s: exists\nhint: --force replaces it", r->label);
    error = exists ? find_replaced(c, err) : 0;
    if (error < 0)
        return error;
    int rc = r->call.stat(r->io, c->part, &bytes, &modified);
    if (rc == 0)
        return efs_rados_fail_marked(r, c->part, err);
    return rc == -ENOENT ? 0 : efs_rados_fail(r, rc, err);
}

static errint_t copy_begin(struct copy *c, bool force, struct efs_error *err)
{
    uint64_t id;
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        return efs_fail(err, -EIO, "no random numbers");
    snprintf(c->head.id, sizeof(c->head.id), "%016" PRIx64, id);
    errint_t error = copy_check(c, force, err);
    if (error < 0)
        return error;
    int rc = efs_rados_write_mark(&c->rados, c->part, &c->head, &c->replaced, EFS_RADOS_FULL_TRY);
    if (rc == -EEXIST) /* another copy started at the same time */
        return efs_rados_fail_marked(&c->rados, c->part, err);
    return rc < 0 ? efs_rados_fail(&c->rados, rc, err) : 0;
}

/* Whether the mark is still that of this copy. -ESTALE: `rm --unfinished` has deleted it, and objects. */
static int check_mark(struct copy *c)
{
    struct efs_rados_head now;
    int rc = efs_rados_mark_read(&c->rados, c->part, &now, NULL);
    if (rc == -ENOENT || rc == -EUCLEAN || (rc == 0 && strcmp(now.id, c->head.id) != 0))
        return -ESTALE;
    return rc;
}

/* Ends the copy: the head, or nothing. Where the pool does not answer, the mark stays. *removed: 0, or why objects of
 * the store that was replaced are left. */
static int copy_end(struct copy *c, int *removed)
{
    const struct efs_rados *r = &c->rados;
    const int marked = check_mark(c);
    int rc = c->failed ? c->failed : marked;
    const bool complete = rc == 0;
    if (complete)
        rc = efs_rados_write_head(r, &c->head, c->version);
    bool refused = efs_rados_is_changed(rc) || rc == -ENOSPC || rc == -EDQUOT || rc == -EPERM || rc == -EACCES;
    if (complete && rc < 0 && !refused)
        return rc; /* the head may have been written, or may be yet */
    if (rc < 0 && efs_rados_remove_objects(r, c->head.id, c->next) < 0)
        return rc;
    *removed = rc == 0 && *c->replaced.id ? efs_rados_remove_store(r, &c->replaced) : 0;
    if (marked != -ESTALE && *removed == 0)
        efs_rados_remove_object(r, c->part);
    return rc;
}

static errint_t copy_fail(const struct copy *c, int failed, struct efs_error *err)
{
    if (failed == -ECANCELED)
        return efs_fail(err, failed, "%s: not copied: interrupted", c->rados.label);
    if (c->reading)
        return efs_fail(err, failed, "%s: %s", c->store->path, strerror(-failed));
    if (failed == -ESTALE)
        return efs_fail(err, failed,
                        "%s: the object %s was deleted meanwhile\nhint: `expertctl rm --unfinished` is for copies that "
                        "do not run any more",
                        c->rados.label, c->part);
    return efs_rados_is_changed(failed)
               ? efs_fail(err, failed, "%s: was written by another copy meanwhile", c->rados.label)
               : efs_rados_fail(&c->rados, failed, err);
}

/* A store was replaced. */
static errint_t fail_removal(const struct efs_rados *r, int rc, struct efs_error *err)
{
    char reason[300];
    efs_rados_reason(rc, reason, sizeof(reason));
    return efs_fail(err, rc,
                    "%s: replaced, but the store before it was not deleted: %.*s\nhint: `expertctl rm --unfinished %s` "
                    "deletes it",
                    r->label, (int)strcspn(reason, "\n"), reason, EFS_WORD(r->label));
}

errint_t efs_rados_copy(const struct efs_store *store, const char *address, bool force, efs_progress_fn *progress,
                        void *arg, struct efs_error *err)
{
    struct copy c = {.store = store, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct efs_store_info info;
    efs_store_info(store, &info);
    if (info.in_place)
        return efs_fail(err, -EINVAL, "%s: not a store\nhint: mkexpertfs packs it", store->path);
    errint_t rc = efs_rados_connect(address, &c.rados, err);
    c.head.bytes = info.store_bytes;
    c.head.content_hash = info.content_hash;
    c.head.object_bytes = EFS_RADOS_OBJECT_BYTES;
    c.objects = (c.head.bytes + c.head.object_bytes - 1) / c.head.object_bytes;
    if (rc == 0)
        rc = copy_begin(&c, force, err);
    if (rc < 0) {
        efs_rados_close(&c.rados);
        return rc;
    }
    copy_objects(&c, progress, arg);
    int removed = 0;
    const int failed = copy_end(&c, &removed);
    if (failed < 0)
        rc = copy_fail(&c, failed, err);
    else if (removed < 0)
        rc = fail_removal(&c.rados, removed, err);
    efs_rados_close(&c.rados);
    return rc;
}

errint_t efs_rados_check_copy(const char *address, bool force, struct efs_error *err)
{
    struct copy c = {.store = NULL};
    errint_t rc = efs_rados_connect(address, &c.rados, err);
    if (rc == 0)
        rc = copy_check(&c, force, err);
    efs_rados_close(&c.rados);
    return rc;
}
