/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_faults.c - the daemon's calls of the engine, of libfuse and ioctl(2), delayed or failing as the environment
 * specifies. Linked by --wrap into tests/expertfs/expertfs-faults, which is otherwise the daemon.
 *
 *   EFS_FAULT_DELAY_US=N   every second read and lease completes N microseconds late
 *   EFS_FAULT_LATE_AT=N, EFS_FAULT_LATE_US=M  reads at byte N of any file complete M microseconds late
 *   EFS_FAULT_LEASES=N     only N experts can be leased at a time
 *   EFS_FAULT_LEASE_ERRNO=N  every lease fails with errno N
 *   EFS_FAULT_DIE=1        the daemon is killed while it opens the store
 *   EFS_FAULT_BACKING_ERRNO=N  every second registration of a backing file fails with errno N, except the probe
 *   EFS_FAULT_GAPS_US=N    a pause before and after two of three answers to opens and registrations: a release, another
 *                          open or the end of the opening process overtakes them
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "expertfs-private.h"
#include "wrapped.h"

static unsigned number(const char *name, unsigned otherwise)
{
    const char *value = getenv(name);
    return value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

struct answer {
    efs_done_fn *done;
    efs_leased_fn *leased; /* of a lease; otherwise NULL */
    void *arg;
    unsigned late_us;
    errint_t error;
    size_t bytes;
    struct efs_lease *lease;
};

static _Atomic unsigned unanswered;
static _Atomic int leases;

static struct answer *answer_new(void *arg, bool late)
{
    static _Atomic unsigned n;
    struct answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        abort();
    answer->arg = arg;
    answer->late_us =
        late ? number("EFS_FAULT_LATE_US", 0) : atomic_fetch_add(&n, 1) % 2 * number("EFS_FAULT_DELAY_US", 0);
    atomic_fetch_add(&unanswered, 1);
    return answer;
}

static void *answer_run(void *arg)
{
    struct answer *answer = arg;
    if (answer->late_us)
        usleep(answer->late_us);
    if (answer->leased)
        answer->leased(answer->arg, answer->error, answer->lease);
    else
        answer->done(answer->arg, answer->error, answer->bytes);
    free(answer);
    atomic_fetch_sub(&unanswered, 1);
    return NULL;
}

static void answer_give(struct answer *answer)
{
    pthread_t thread;
    if (!answer->late_us)
        answer_run(answer);
    else if (pthread_create(&thread, NULL, answer_run, answer) == 0)
        pthread_detach(thread);
    else
        abort();
}

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct answer *answer = arg;
    answer->error = error;
    answer->bytes = bytes;
    answer_give(answer);
}

static void lease_done(void *arg, errint_t error, struct efs_lease *lease)
{
    struct answer *answer = arg;
    answer->error = error;
    answer->lease = lease;
    if (!lease)
        atomic_fetch_sub(&leases, 1);
    answer_give(answer);
}

WRAPPED(errint_t, efs_open,
        (const char *path, const struct efs_options *options, struct efs **fs, struct efs_error *err))
{
    if (number("EFS_FAULT_DIE", 0))
        kill(getpid(), SIGKILL);
    return __real_efs_open(path, options, fs, err);
}

/* Delayed leases complete before their engine is closed. */
WRAPPED(void, efs_close, (struct efs * fs))
{
    while (atomic_load(&unanswered))
        usleep(1000);
    __real_efs_close(fs);
}

WRAPPED(void, efs_read,
        (struct efs * fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
         efs_done_fn *done, void *arg))
{
    unsigned late_at = number("EFS_FAULT_LATE_AT", 0);
    struct answer *answer = answer_new(arg, late_at && offset <= late_at && late_at - offset < len);
    answer->done = done;
    __real_efs_read(fs, file, stream, offset, dst, len, read_done, answer);
}

WRAPPED(void, efs_lease, (struct efs * fs, uint32_t file, efs_leased_fn *done, void *arg))
{
    struct answer *answer = answer_new(arg, false);
    unsigned error = number("EFS_FAULT_LEASE_ERRNO", 0);
    answer->leased = done;
    if (atomic_fetch_add(&leases, 1) >= (int)number("EFS_FAULT_LEASES", INT_MAX))
        error = ENOMEM;
    if (error)
        lease_done(answer, -(errint_t)error, NULL);
    else
        __real_efs_lease(fs, file, lease_done, answer);
}

WRAPPED(void, efs_lease_release, (struct efs_lease * lease))
{
    atomic_fetch_sub(&leases, 1);
    __real_efs_lease_release(lease);
}

/* ---- libfuse and the kernel -------------------------------------------------------------------------------------- */

static void gap(void)
{
    static _Atomic unsigned n;
    unsigned us = number("EFS_FAULT_GAPS_US", 0);
    if (us && atomic_fetch_add(&n, 1) % 3)
        usleep(us);
}

WRAPPED(int, fuse_reply_open, (fuse_req_t req, const struct fuse_file_info *file))
{
    gap();
    int rc = __real_fuse_reply_open(req, file);
    gap();
    return rc;
}

/* An answer of 16 bytes has the length of an open's, which names a backing file. */
WRAPPED(int, fuse_reply_buf, (fuse_req_t req, const char *data, size_t bytes))
{
    if (bytes == 16)
        gap();
    int rc = __real_fuse_reply_buf(req, data, bytes);
    if (bytes == 16)
        gap();
    return rc;
}

WRAPPED(int, ioctl, (int fd, unsigned long what, ...))
{
    static _Atomic unsigned registered;
    va_list arguments;
    va_start(arguments, what);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (_IOC_TYPE(what) != 229 || _IOC_NR(what) != 1) /* FUSE_DEV_IOC_BACKING_OPEN */
        return __real_ioctl(fd, what, argument);
    unsigned error = number("EFS_FAULT_BACKING_ERRNO", 0);
    if (error && atomic_fetch_add(&registered, 1) % 2) {
        errno = (int)error;
        return -1;
    }
    gap();
    int rc = __real_ioctl(fd, what, argument);
    gap();
    return rc;
}
