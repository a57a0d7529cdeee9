/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.c - see expertfs-placement-private.h: the objects of a cluster in a pool of Ceph. */
#include "expertfs-placement-private.h"

#include "expertfs-private.h"
#include "rados.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK "planner"
#define MUST_RENEW 2 /* LIBRADOS_LOCK_FLAG_MUST_RENEW */
#define OBJECT_BYTES (EFS_RADOS_NAME_BYTES + EFS_SERVER_NAME_BYTES + 16u)

struct efs_cluster {
    struct efs_rados rados;
    char owner[EFS_SERVER_NAME_BYTES + 32];
};

errint_t efs_cluster_open(const char *address, struct efs_cluster **cluster, struct efs_error *err)
{
    struct efs_cluster *c = *cluster = efs_sys_calloc(1, sizeof(*c));
    if (!c)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = efs_rados_connect(address, &c->rados, err);
    if (rc == 0)
        return 0;
    efs_cluster_close(c);
    *cluster = NULL;
    return rc;
}

void efs_cluster_close(struct efs_cluster *c)
{
    if (c)
        efs_rados_close(&c->rados);
    free(c);
}

const char *efs_cluster_reason(errint_t rc, char *text, size_t room)
{
    return efs_rados_reason(rc, text, room);
}

static void name_of(const struct efs_cluster *c, const char *what, char object[OBJECT_BYTES])
{
    snprintf(object, OBJECT_BYTES, "%s.%s", c->rados.name, what);
}

/* Reads a whole object of at most `most` bytes, which the caller frees. */
static errint_t read_object(struct efs_cluster *c, const char *object, uint64_t size, size_t most, char **data,
                            size_t *bytes)
{
    const struct efs_rados *r = &c->rados;
    *data = size <= most ? efs_sys_malloc((size_t)size + 1) : NULL;
    if (!*data)
        return size <= most ? -ENOMEM : -EFBIG;
    int rc = r->call.read(r->io, object, *data, (size_t)size + 1, 0);
    *bytes = rc > 0 ? (size_t)rc : 0;
    if (rc >= 0 && *bytes <= size)
        return 0;
    free(*data);
    *data = NULL;
    return rc < 0 ? rc : -EAGAIN; /* another one was written meanwhile */
}

errint_t efs_cluster_placement(struct efs_cluster *c, uint64_t *version, char **text, size_t *bytes)
{
    const struct efs_rados *r = &c->rados;
    char object[OBJECT_BYTES];
    uint64_t size;
    time_t modified;
    *text = NULL;
    name_of(c, "placement", object);
    int rc = r->call.stat(r->io, object, &size, &modified);
    uint64_t is = rc == 0 ? r->call.get_last_version(r->io) : 0;
    if (rc == -ENOENT)
        *version = 0;
    if (rc < 0 || is == *version)
        return rc;
    rc = read_object(c, object, size, EFS_PLACEMENT_BYTES_MAX, text, bytes);
    if (rc == 0)
        *version = r->call.get_last_version(r->io); /* of what was read, which may have been written since */
    return rc;
}

/* Writes an object as a whole: over this version, or any (UINT64_MAX); 0: a new one. */
static int write_object(struct efs_cluster *c, const char *object, uint64_t version, const void *data, size_t bytes)
{
    const struct efs_rados *r = &c->rados;
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    if (version == 0)
        r->call.write_op_create(op, 1, NULL);
    else if (version != UINT64_MAX)
        r->call.write_op_assert_version(op, version);
    r->call.write_op_write_full(op, data, bytes);
    int rc = r->call.write_op_operate(op, r->io, object, NULL, EFS_RADOS_FULL_TRY);
    r->call.release_write_op(op);
    return rc;
}

errint_t efs_cluster_place(struct efs_cluster *c, uint64_t version, const char *text, size_t bytes)
{
    char object[OBJECT_BYTES];
    name_of(c, "placement", object);
    int rc = write_object(c, object, version, text, bytes);
    return rc == -EEXIST || rc == -ERANGE || rc == -EOVERFLOW || rc == -ENOENT ? -ESTALE : rc;
}

static void counts_name(const struct efs_cluster *c, const char *server, char object[OBJECT_BYTES])
{
    char what[EFS_SERVER_NAME_BYTES + 8];
    snprintf(what, sizeof(what), "counts.%s", server);
    name_of(c, what, object);
}

errint_t efs_cluster_counts(struct efs_cluster *c, const char *server, size_t most, void **data, size_t *bytes,
                            time_t *modified)
{
    const struct efs_rados *r = &c->rados;
    char object[OBJECT_BYTES], *read = NULL;
    uint64_t size;
    counts_name(c, server, object);
    int rc = r->call.stat(r->io, object, &size, modified);
    if (rc == 0)
        rc = read_object(c, object, size, most, &read, bytes);
    *data = read;
    return rc;
}

errint_t efs_cluster_count(struct efs_cluster *c, const char *server, const void *data, size_t bytes)
{
    char object[OBJECT_BYTES];
    counts_name(c, server, object);
    return write_object(c, object, UINT64_MAX, data, bytes);
}

/* ---- the lock ---- */

static int lock(struct efs_cluster *c, uint8_t flags)
{
    const struct efs_rados *r = &c->rados;
    char object[OBJECT_BYTES];
    struct timeval lease = {.tv_sec = EFS_CLUSTER_LEASE_SECONDS};
    name_of(c, "planner", object);
    return r->call.lock_exclusive(r->io, object, LOCK, c->owner, "expertctl cluster plan", &lease, flags);
}

errint_t efs_cluster_lock(struct efs_cluster *c, const char *owner)
{
    snprintf(c->owner, sizeof(c->owner), "%s", owner);
    int rc = lock(c, 0);
    return rc == -EEXIST ? -EBUSY : rc; /* EEXIST: held under the same name */
}

errint_t efs_cluster_renew(struct efs_cluster *c)
{
    return lock(c, MUST_RENEW);
}

void efs_cluster_unlock(struct efs_cluster *c)
{
    char object[OBJECT_BYTES];
    name_of(c, "planner", object);
    c->rados.call.unlock(c->rados.io, object, LOCK, c->owner); /* else the lease ends */
}

errint_t efs_cluster_owner(struct efs_cluster *c, char *owner, size_t room)
{
    const struct efs_rados *r = &c->rados;
    char object[OBJECT_BYTES], tag[64], clients[256], cookies[256] = "", addresses[256];
    size_t sizes[] = {sizeof(tag), sizeof(clients), sizeof(cookies) - 1, sizeof(addresses)};
    int exclusive;
    name_of(c, "planner", object);
    ssize_t count = r->call.list_lockers(r->io, object, LOCK, &exclusive, tag, &sizes[0], clients, &sizes[1], cookies,
                                         &sizes[2], addresses, &sizes[3]);
    snprintf(owner, room, "%s", count > 0 ? cookies : "");
    efs_make_printable(owner, false);
    return count < 0 && count != -ENOENT ? (errint_t)count : 0;
}
