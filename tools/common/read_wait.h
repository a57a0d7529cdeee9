/* SPDX-License-Identifier: Apache-2.0 */
/* read_wait.h - a blocking read of a file of a store. */
#ifndef TOOLS_READ_WAIT_H
#define TOOLS_READ_WAIT_H

#include "expertfs.h"

#include <errno.h>
#include <semaphore.h>

struct tools_reading {
    sem_t done;
    errint_t error;
    size_t bytes;
};

static inline void tools_reading_done(void *arg, errint_t error, size_t bytes)
{
    struct tools_reading *r = arg;
    r->error = error;
    r->bytes = bytes;
    sem_post(&r->done);
}

/* Reads `bytes` bytes at offset into `to` and blocks until they are read. stream: as for efs_read(). 0; -EUCLEAN: the
 * file ends before; errors of efs_read(). Deadlocks on a thread that completes reads. */
static inline errint_t tools_read_wait(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset,
                                       void *to, size_t bytes)
{
    struct tools_reading r = {.error = 0};
    if (sem_init(&r.done, 0, 0) < 0)
        return -errno;
    efs_read(fs, file, stream, offset, to, bytes, tools_reading_done, &r);
    while (sem_wait(&r.done) < 0) {
    }
    sem_destroy(&r.done);
    return r.error < 0 ? r.error : r.bytes == bytes ? 0 : -EUCLEAN;
}

#endif
