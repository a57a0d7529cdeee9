/* SPDX-License-Identifier: Apache-2.0 */
/* sync_calls.c - see sync_calls.h. */
#include "sync_calls.h"
#include "fetch.h"

#include <semaphore.h>

struct wait {
    sem_t done;
    errint_t error;
    size_t bytes;
    struct efs_lease *lease;
};

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct wait *w = arg;
    w->error = error;
    w->bytes = bytes;
    sem_post(&w->done);
}

static void lease_done(void *arg, errint_t error, struct efs_lease *lease)
{
    struct wait *w = arg;
    w->error = error;
    w->lease = lease;
    sem_post(&w->done);
}

ssize_t read_wait(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t bytes)
{
    struct wait w;
    sem_init(&w.done, 0, 0);
    efs_read(fs, file, stream, offset, dst, bytes, read_done, &w);
    sem_wait(&w.done);
    sem_destroy(&w.done);
    return w.error ? w.error : (ssize_t)w.bytes;
}

errint_t lease_wait(struct efs *fs, uint32_t file, struct efs_lease **lease)
{
    struct wait w = {.lease = NULL};
    sem_init(&w.done, 0, 0);
    efs_lease(fs, file, lease_done, &w);
    sem_wait(&w.done);
    sem_destroy(&w.done);
    *lease = w.lease;
    return w.error;
}

const void *lease_data(const struct efs_lease *lease)
{
    return efs_lease_memfile(lease)->data;
}
