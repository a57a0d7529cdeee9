/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rados.h - a store in a pool of Ceph, as a backing: rados:POOL/NAME.
 *
 * The object NAME, the head, says in a line of JSON what the store's objects are called, their size, the store's bytes
 * and its content hash. The store's bytes are in objects ID.%016x of equal size; the last one is shorter. The head is
 * written last and replaced as a whole, so a reader has the objects of one ID. The objects of a store that was replaced
 * are deleted after that. librados is loaded at run time.
 */
#ifndef EFS_RADOS_H
#define EFS_RADOS_H

#include "backing.h"
#include "expertfs-pack.h"

#include <sys/time.h>
#include <sys/types.h>
#include <time.h>

#define EFS_RADOS_NAME_BYTES 256u         /* of a pool or a head, with the final 0 */
#define EFS_RADOS_OBJECT_BYTES (4u << 20) /* of objects that are written */
#define EFS_RADOS_HEAD_BYTES 4096u        /* a longer head is refused */
#define EFS_RADOS_OID_BYTES 48u           /* of ID.%016x */

/* The calls of librados that are used: result, name without "rados_", arguments. Handles are pointers; the library's
 * interface is stable since its version 2. */
#define EFS_RADOS_CALLS(X)                                                                                             \
    X(int, create, (void **cluster, const char *id))                                                                   \
    X(int, conf_read_file, (void *cluster, const char *path))                                                          \
    X(int, conf_parse_env, (void *cluster, const char *variable))                                                      \
    X(int, conf_get, (void *cluster, const char *option, char *value, size_t bytes))                                   \
    X(int, conf_set, (void *cluster, const char *option, const char *value))                                           \
    X(int, connect, (void *cluster))                                                                                   \
    X(void, shutdown, (void *cluster))                                                                                 \
    X(int, ioctx_create, (void *cluster, const char *pool, void **io))                                                 \
    X(void, ioctx_destroy, (void *io))                                                                                 \
    X(int, stat, (void *io, const char *object, uint64_t *bytes, time_t *modified))                                    \
    X(int, read, (void *io, const char *object, char *to, size_t bytes, uint64_t offset))                              \
    X(void *, create_read_op, (void))                                                                                  \
    X(void, release_read_op, (void *op))                                                                               \
    X(void, read_op_read, (void *op, uint64_t offset, size_t bytes, char *to, size_t *read, int *result))              \
    X(void *, create_write_op, (void))                                                                                 \
    X(void, release_write_op, (void *op))                                                                              \
    X(void, write_op_create, (void *op, int exclusive, const char *category))                                          \
    X(void, write_op_write_full, (void *op, const char *from, size_t bytes))                                           \
    X(void, write_op_remove, (void *op))                                                                               \
    X(void, write_op_assert_version, (void *op, uint64_t version))                                                     \
    X(uint64_t, get_last_version, (void *io))                                                                          \
    X(int, lock_exclusive,                                                                                             \
      (void *io, const char *object, const char *name, const char *cookie, const char *text, struct timeval *lease,    \
       uint8_t flags))                                                                                                 \
    X(int, unlock, (void *io, const char *object, const char *name, const char *cookie))                               \
    X(ssize_t, list_lockers,                                                                                           \
      (void *io, const char *object, const char *name, int *exclusive, char *tag, size_t *tag_bytes, char *clients,    \
       size_t *client_bytes, char *cookies, size_t *cookie_bytes, char *addresses, size_t *address_bytes))             \
    X(int, write_op_operate, (void *op, void *io, const char *object, time_t *modified, int flags))                    \
    X(int, aio_create_completion2, (void *arg, void (*ended)(void *completion, void *arg), void **completion))         \
    X(int, aio_read_op_operate, (void *op, void *io, void *completion, const char *object, int flags))                 \
    X(int, aio_get_return_value, (void *completion))                                                                   \
    X(int, aio_cancel, (void *io, void *completion))                                                                   \
    X(void, aio_release, (void *completion))

struct efs_rados_calls {
#define EFS_RADOS_FIELD(result, name, arguments) result(*name) arguments;
    EFS_RADOS_CALLS(EFS_RADOS_FIELD)
#undef EFS_RADOS_FIELD
};

/* A connection to a pool. */
struct efs_rados {
    struct efs_rados_calls call;
    void *cluster, *io;
    char pool[EFS_RADOS_NAME_BYTES], name[EFS_RADOS_NAME_BYTES];
    char label[2 * EFS_RADOS_NAME_BYTES]; /* rados:POOL/NAME, for messages */
};

/* The contents of a head. */
struct efs_rados_head {
    char id[17]; /* 16 hexadecimal digits */
    uint64_t bytes, content_hash;
    uint32_t object_bytes;
    time_t modified;
};

/* ---- rados.c ---- */

/* Takes an address apart, without a connection. -EINVAL. */
errint_t efs_rados_parse(const char *address, struct efs_rados *rados, struct efs_error *err);
/* Connects as the environment and the configuration of Ceph say: CEPH_CONF, CEPH_ARGS, a keyring. Errors with err:
 * -EINVAL: no such address; -ENOSYS: librados is not installed; -ENOENT: no such pool; -errno. Blocks, at most for the
 * timeouts of the configuration, 30 s where it has none. efs_rados_close() also after an error. */
errint_t efs_rados_connect(const char *address, struct efs_rados *rados, struct efs_error *err);
/* In a forked child the connection must be left as it is. */
void efs_rados_close(struct efs_rados *rados);
/* The `format` of a head, and of the mark NAME.part of a copy or deletion that has not ended. A mark is written like
 * the head; in "replaces" it has the head of the store that the copy replaces. */
#define EFS_RADOS_STORE "expertfs"
#define EFS_RADOS_MARK "expertfs-unfinished"
#define EFS_RADOS_MARK_END ".part"
/* Reads and checks the head. -ENOENT: there is none; -EUCLEAN: it is no head of a store. */
errint_t efs_rados_head_read(struct efs_rados *rados, struct efs_rados_head *head, struct efs_error *err);
/* Reads a mark; replaced, which may be NULL, has no ID if the copy replaces no store. Errors without a message, as of a
 * head. */
errint_t efs_rados_mark_read(struct efs_rados *rados, const char *name, struct efs_rados_head *head,
                             struct efs_rados_head *replaced);
/* As efs_rados_head_read(), without a message. */
errint_t efs_rados_head_try(struct efs_rados *rados, struct efs_rados_head *head);
/* LIBRADOS_OPERATION_FULL_*. Without them librados waits while the pool is full, also to delete objects. */
#define EFS_RADOS_FULL_TRY 64    /* an error then */
#define EFS_RADOS_FULL_FORCE 192 /* that and FULL_TRY: what frees space is done nevertheless */
/* The name of an object of a store. */
void efs_rados_oid(char oid[EFS_RADOS_OID_BYTES], const char *id, uint64_t number);
/* An error of librados as a reason and, where there is one, a hint after a newline. */
const char *efs_rados_reason(int rc, char *text, size_t room);

/* ---- backing_rados.c ---- */

/* Opens a store. The caller closes it by its backing. */
errint_t efs_rados_open(const char *address, struct efs_backing **backing, struct efs_rados_head *head,
                        struct efs_error *err);

/* ---- rados_copy.c ---- */

struct efs_store;
/* Copies a store's file to an address under which there is nothing or, with force, a store, which is replaced at the
 * end. Blocks. progress: from this thread; it returns true to end with -ECANCELED. After an error nothing is left, if
 * the pool can be written. -EEXIST; -EINVAL; -errno. */
errint_t efs_rados_copy(const struct efs_store *store, const char *address, bool force, efs_progress_fn *progress,
                        void *arg, struct efs_error *err);

#endif
