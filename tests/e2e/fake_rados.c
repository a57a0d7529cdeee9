/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_rados.c - a librados that keeps objects as files, for EXPERTFS_RADOS: the pool POOL is the folder
 * $FAKE_RADOS/POOL, "/" in names of objects is "%" there. Each asynchronous read has its thread.
 *
 * $FAKE_RADOS/fault has a fault a line, WHAT OBJECT, where OBJECT is the end of a name: read missing, short, eio, late,
 * silent (until it is cancelled or 2 s have passed: -ETIMEDOUT); write full, denied, lost (it is written, and
 * -ETIMEDOUT), held (the first such write makes $FAKE_RADOS/holding, and goes on when there is $FAKE_RADOS/go); delete
 * kept (-ETIMEDOUT); connect refused, silent; ended (the lease of a lock). $FAKE_RADOS_KILL=N: the process is killed
 * before its Nth write or deletion.
 *
 * Versions of objects are in $FAKE_RADOS/versions, the owner of a lock in $FAKE_RADOS/locks; its lease ends by `ended`
 * alone, not by a clock.
 */
#include "rados.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/file.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECES 64

#define API __attribute__((visibility("default")))

#define DECLARE(result, name, arguments) API result rados_##name arguments;
EFS_RADOS_CALLS(DECLARE)

struct pool {
    char folder[3000];
    uint64_t version; /* of the last operation's object */
};
struct completion {
    void (*ended)(void *completion, void *arg);
    void *arg;
    int result;
    bool cancelled;
};
struct operation { /* of reads or of a write */
    struct {
        uint64_t offset;
        size_t bytes, *got;
        char *to;
        int *result;
    } pieces[PIECES];
    unsigned count;
    bool exclusive, removes;
    uint64_t version; /* that the object must have; 0: any */
    const char *from;
    size_t bytes;
};
struct task {
    struct operation op;
    struct completion *completion;
    char path[4096];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `cancelled` */

static const char *root(void)
{
    const char *folder = getenv("FAKE_RADOS");
    return folder ? folder : "/nonexistent";
}

static bool has_fault(const char *what, const char *object)
{
    char path[4096], line[4096], name[2048];
    bool found = false;
    snprintf(path, sizeof(path), "%s/fault", root());
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        size_t bytes = strlen(what);
        if (strncmp(line, what, bytes) != 0 || line[bytes] != ' ' || sscanf(line + bytes, "%2047s", name) != 1)
            continue;
        size_t end = strlen(name), all = strlen(object);
        found = end <= all && strcmp(object + all - end, name) == 0;
    }
    if (file)
        fclose(file);
    return found;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void path_of(const struct pool *pool, const char *object, char path[4096])
{
    int n = snprintf(path, 4096, "%s/%s", pool->folder, object);
    for (char *c = path + strlen(pool->folder) + 1; n < 4096 && *c; c++)
        *c = *c == '/' ? '%' : *c;
}

/* $FAKE_RADOS/FOLDER/POOL%OBJECT, of an object's path. */
static void side_path(const char *folder, const char *path, char side[4096])
{
    size_t bytes = strlen(root());
    snprintf(side, 4096, "%s/%s", root(), folder);
    mkdir(side, 0777);
    char *name = side + strlen(side) + 1;
    snprintf(side + strlen(side), 4096 - strlen(side), "/%s", path + bytes + 1);
    for (; *name; name++)
        *name = *name == '/' ? '%' : *name;
}

static uint64_t version_of(const char *path)
{
    char side[4096];
    unsigned long long version = 1; /* also of an object that a test has made */
    side_path("versions", path, side);
    FILE *file = fopen(side, "re");
    if (file && fscanf(file, "%llu", &version) != 1)
        abort();
    if (file)
        fclose(file);
    return version;
}

static void next_version(const char *path)
{
    char side[4096], next[4200];
    uint64_t version = version_of(path) + 1;
    side_path("versions", path, side);
    snprintf(next, sizeof(next), "%s~", side); /* a process may be killed here */
    FILE *file = fopen(next, "we");
    if (!file || fprintf(file, "%llu", (unsigned long long)version) < 0 || fclose(file) != 0 || rename(next, side) < 0)
        abort();
}

/* One process at a time looks at versions and locks, and changes them. */
static int begin_change(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/changes", root());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        abort();
    return fd;
}

API int rados_create(void **cluster, const char *id)
{
    *cluster = strdup(id ? id : "admin");
    return *cluster ? 0 : -ENOMEM;
}
API int rados_conf_read_file(void *cluster, const char *path)
{
    (void)cluster, (void)path;
    return access(root(), R_OK) == 0 ? 0 : -ENOENT;
}
API int rados_conf_parse_env(void *cluster, const char *variable)
{
    (void)cluster, (void)variable;
    return 0;
}
API int rados_conf_get(void *cluster, const char *option, char *value, size_t bytes)
{
    (void)cluster;
    const char *of_timeout = strcmp(option, "client_mount_timeout") == 0 ? "300.000000" : "0";
    snprintf(value, bytes, "%s", strstr(option, "timeout") ? of_timeout : "");
    return 0;
}
/* Timeouts that are not set here are 30 s. */
API int rados_conf_set(void *cluster, const char *option, const char *value)
{
    (void)cluster;
    return strstr(option, "timeout") && strcmp(value, "30") == 0 ? 0 : -EINVAL;
}
API int rados_connect(void *cluster)
{
    if (has_fault("silent", "connect"))
        return -ETIMEDOUT;
    return has_fault("refused", "connect") || strcmp(cluster, "stranger") == 0 ? -EACCES : 0;
}
API void rados_shutdown(void *cluster)
{
    free(cluster);
}
API int rados_ioctx_create(void *cluster, const char *name, void **io)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    (void)cluster;
    snprintf(pool->folder, sizeof(pool->folder), "%s/%s", root(), name);
    *io = pool;
    if (access(pool->folder, X_OK) == 0)
        return 0;
    free(pool);
    *io = NULL;
    return -ENOENT;
}
API void rados_ioctx_destroy(void *io)
{
    free(io);
}
API int rados_stat(void *io, const char *object, uint64_t *bytes, time_t *modified)
{
    char path[4096];
    struct stat st;
    path_of(io, object, path);
    if (stat(path, &st) < 0)
        return -errno;
    *bytes = (uint64_t)st.st_size;
    *modified = st.st_mtime;
    ((struct pool *)io)->version = version_of(path);
    return 0;
}
API uint64_t rados_get_last_version(void *io)
{
    return ((struct pool *)io)->version;
}

/* As the cluster would answer: a read past the end is short. */
static int read_at(const char *path, char *to, size_t bytes, uint64_t offset)
{
    if (has_fault("missing", path))
        return -ENOENT;
    if (has_fault("eio", path))
        return -EIO;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat st = {.st_size = 0};
    bool is_short = has_fault("short", path) && fstat(fd, &st) == 0;
    uint64_t end = is_short ? (uint64_t)st.st_size / 2 : UINT64_MAX;
    size_t most = end <= offset ? 0 : end - offset < bytes ? (size_t)(end - offset) : bytes, done = 0;
    for (ssize_t n = 1; n > 0 && done < most; done += (size_t)n) {
        n = pread(fd, to + done, most - done, (off_t)(offset + done));
        if (n < 0)
            break;
    }
    close(fd);
    return (int)done;
}

API int rados_read(void *io, const char *object, char *to, size_t bytes, uint64_t offset)
{
    char path[4096];
    path_of(io, object, path);
    int change = begin_change();
    int rc = read_at(path, to, bytes, offset);
    ((struct pool *)io)->version = version_of(path);
    close(change);
    return rc;
}
API void *rados_create_read_op(void)
{
    return calloc(1, sizeof(struct operation));
}
API void rados_release_read_op(void *op)
{
    free(op);
}
API void rados_read_op_read(void *op, uint64_t offset, size_t bytes, char *to, size_t *read, int *result)
{
    struct operation *o = op;
    if (o->count == PIECES)
        abort();
    o->pieces[o->count].offset = offset;
    o->pieces[o->count].bytes = bytes;
    o->pieces[o->count].to = to;
    o->pieces[o->count].got = read;
    o->pieces[o->count++].result = result;
}
API void *rados_create_write_op(void)
{
    return calloc(1, sizeof(struct operation));
}
API void rados_release_write_op(void *op)
{
    free(op);
}
API void rados_write_op_create(void *op, int exclusive, const char *category)
{
    (void)category;
    ((struct operation *)op)->exclusive = exclusive;
}
API void rados_write_op_write_full(void *op, const char *from, size_t bytes)
{
    ((struct operation *)op)->from = from;
    ((struct operation *)op)->bytes = bytes;
}
API void rados_write_op_remove(void *op)
{
    ((struct operation *)op)->removes = true;
}
API void rados_write_op_assert_version(void *op, uint64_t version)
{
    ((struct operation *)op)->version = version;
}

/* The first write that is held waits. */
static void hold(void)
{
    char holding[4096], go[4096];
    snprintf(holding, sizeof(holding), "%s/holding", root());
    snprintf(go, sizeof(go), "%s/go", root());
    int fd = open(holding, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    close(fd);
    while (access(go, F_OK) < 0)
        pause_ms(5);
}

static int remove_object(const char *path)
{
    if (has_fault("kept", path))
        return -ETIMEDOUT;
    return unlink(path) < 0 ? -errno : 0;
}

/* Names a complete file as the object. */
static int put_object(const struct operation *o, const char *part, const char *path)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    uint64_t version = exists ? version_of(path) : 0;
    if (o->exclusive && exists)
        return -EEXIST;
    if (o->version && !exists)
        return -ENOENT;
    if (o->version && o->version != version)
        return o->version < version ? -ERANGE : -EOVERFLOW;
    if (rename(part, path) < 0)
        return -errno;
    next_version(path);
    return 0;
}

static void kill_at_last(void)
{
    static atomic_int left = -1;
    const char *number = getenv("FAKE_RADOS_KILL");
    int unset = -1;
    if (number)
        atomic_compare_exchange_strong(&left, &unset, atoi(number));
    if (number && atomic_fetch_sub(&left, 1) == 1)
        raise(SIGKILL);
}

API int rados_write_op_operate(void *op, void *io, const char *object, time_t *modified, int flags)
{
    const struct operation *o = op;
    char path[4096], part[4200];
    (void)modified;
    path_of(io, object, path);
    if (flags != EFS_RADOS_FULL_TRY && flags != EFS_RADOS_FULL_FORCE) /* a full pool blocks */
        abort();
    kill_at_last();
    if (o->removes)
        return remove_object(path);
    if (flags == EFS_RADOS_FULL_TRY && has_fault("full", path))
        return -ENOSPC;
    if (has_fault("denied", path))
        return -EPERM;
    if (has_fault("held", path))
        hold();
    snprintf(part, sizeof(part), "%s~%d%p", path, (int)getpid(), op);
    FILE *file = fopen(part, "we");
    if (!file)
        return -errno;
    bool good = fwrite(o->from, 1, o->bytes, file) == o->bytes;
    if (fclose(file) != 0 || !good) {
        unlink(part);
        return -EIO;
    }
    int change = begin_change(), rc = put_object(o, part, path);
    close(change);
    unlink(part);
    return rc == 0 && (o->exclusive || o->version) && has_fault("lost", path) ? -ETIMEDOUT : rc;
}

/* ---- locks ---- */

/* The owner of a lock whose lease has not ended; "": it is free. */
static void owner_of(const char *path, char owner[256])
{
    char side[4096];
    side_path("locks", path, side);
    *owner = '\0';
    FILE *file = has_fault("ended", path) ? NULL : fopen(side, "re");
    if (file && fscanf(file, "%255s", owner) != 1)
        *owner = '\0';
    if (file)
        fclose(file);
}

API int rados_lock_exclusive(void *io, const char *object, const char *name, const char *cookie, const char *text,
                             struct timeval *lease, uint8_t flags)
{
    char path[4096], side[4096], owner[256];
    (void)name, (void)text;
    if (lease->tv_sec != 30) /* without one a killed planner would hold it for ever */
        abort();
    path_of(io, object, path);
    side_path("locks", path, side);
    int change = begin_change();
    owner_of(path, owner);
    int rc = *owner && strcmp(owner, cookie) != 0 ? -EBUSY
             : *owner && flags == 0               ? -EEXIST
             : !*owner && flags == 2              ? -ENOENT
                                                  : 0;
    FILE *file = rc == 0 ? fopen(side, "we") : NULL;
    if (rc == 0 && (!file || fprintf(file, "%s", cookie) < 0 || fclose(file) != 0))
        abort();
    close(change);
    return rc;
}
API int rados_unlock(void *io, const char *object, const char *name, const char *cookie)
{
    char path[4096], side[4096], owner[256];
    (void)name;
    path_of(io, object, path);
    side_path("locks", path, side);
    int change = begin_change();
    owner_of(path, owner);
    int rc = strcmp(owner, cookie) != 0 ? -ENOENT : unlink(side) < 0 ? -errno : 0;
    close(change);
    return rc;
}
API ssize_t rados_list_lockers(void *io, const char *object, const char *name, int *exclusive, char *tag,
                               size_t *tag_bytes, char *clients, size_t *client_bytes, char *cookies,
                               size_t *cookie_bytes, char *addresses, size_t *address_bytes)
{
    char path[4096], owner[256];
    (void)name, (void)tag, (void)clients, (void)addresses;
    path_of(io, object, path);
    int change = begin_change();
    owner_of(path, owner);
    close(change);
    *exclusive = 1;
    *tag_bytes = *client_bytes = *address_bytes = 0;
    snprintf(cookies, *cookie_bytes, "%s", owner);
    *cookie_bytes = strlen(owner) + 1;
    return *owner ? 1 : 0;
}

API int rados_aio_create_completion2(void *arg, void (*ended)(void *completion, void *arg), void **completion)
{
    struct completion *c = calloc(1, sizeof(*c));
    *c = (struct completion){.ended = ended, .arg = arg};
    *completion = c;
    return 0;
}

static bool is_cancelled(struct completion *c)
{
    pthread_mutex_lock(&lock);
    bool cancelled = c->cancelled;
    pthread_mutex_unlock(&lock);
    return cancelled;
}

static void *task_run(void *arg)
{
    struct task *t = arg;
    struct completion *c = t->completion;
    int rc = 0;
    if (has_fault("late", t->path))
        pause_ms(200);
    for (int i = 0; i < 200 && has_fault("silent", t->path) && rc == 0; i++) {
        pause_ms(10);
        rc = is_cancelled(c) ? -ECANCELED : i == 199 ? -ETIMEDOUT : 0;
    }
    for (unsigned i = 0; i < t->op.count && rc >= 0; i++) {
        rc = read_at(t->path, t->op.pieces[i].to, t->op.pieces[i].bytes, t->op.pieces[i].offset);
        *t->op.pieces[i].got = rc < 0 ? 0 : (size_t)rc;
        *t->op.pieces[i].result = rc < 0 ? rc : 0;
    }
    c->result = rc < 0 ? rc : 0;
    c->ended(c, c->arg);
    free(t);
    return NULL;
}

API int rados_aio_read_op_operate(void *op, void *io, void *completion, const char *object, int flags)
{
    struct task *t = calloc(1, sizeof(*t));
    pthread_attr_t attributes;
    pthread_t thread;
    (void)flags;
    t->op = *(struct operation *)op;
    t->completion = completion;
    path_of(io, object, t->path);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int rc = pthread_create(&thread, &attributes, task_run, t);
    pthread_attr_destroy(&attributes);
    if (rc)
        free(t);
    return -rc;
}
API int rados_aio_get_return_value(void *completion)
{
    return ((struct completion *)completion)->result;
}
API int rados_aio_cancel(void *io, void *completion)
{
    (void)io;
    pthread_mutex_lock(&lock);
    ((struct completion *)completion)->cancelled = true;
    pthread_mutex_unlock(&lock);
    return 0;
}
API void rados_aio_release(void *completion)
{
    free(completion);
}
