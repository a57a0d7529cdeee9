/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c - make and write files piece by piece. A piece is made in memory and written with one aligned call, past the
 * page cache where the filesystem allows it: gigabytes of weights would only push other things out of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fill.h"
#include "files.h"

#define PIECE_BYTES (8u << 20)
#define ALIGN 4096u

/* One file being written. The mutex guards next, error and the writer's progress. */
struct job {
    const struct mk_file *file;
    struct mk_writer *writer;
    int fd;
    pthread_mutex_t mutex;
    uint64_t next; /* where the next piece begins */
    int error;
};

/* The segment that holds the byte at offset. */
static uint32_t find_segment(const struct mk_file *file, uint64_t offset)
{
    uint32_t low = 0, high = file->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (file->segments[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int make_piece(const struct job *job, uint64_t offset, size_t bytes, uint8_t *out, struct mk_scratch *scratch)
{
    for (uint32_t s = find_segment(job->file, offset); bytes; s++) {
        const struct mk_segment *segment = &job->file->segments[s];
        uint64_t in = offset - segment->offset, left = segment->bytes - in;
        size_t n = left < bytes ? (size_t)left : bytes;
        if (segment->literal) {
            memcpy(out, segment->literal + in, n);
        } else {
            int error = mk_fill(job->writer->tables, segment->tensor, in, n, out, scratch);
            if (error)
                return error;
        }
        out += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

static int write_all(int fd, const uint8_t *data, size_t bytes, uint64_t offset)
{
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && (fcntl(fd, F_GETFL) & O_DIRECT)) {
            /* the filesystem took the flag but not the write */
            fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
            continue;
        }
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Take the next piece; false when there is none or all must stop. */
static bool job_take(struct job *job, uint64_t *offset)
{
    pthread_mutex_lock(&job->mutex);
    bool more = !job->error && job->next < job->file->bytes;
    *offset = job->next;
    job->next += PIECE_BYTES;
    pthread_mutex_unlock(&job->mutex);
    return more;
}

static void job_finish(struct job *job, uint64_t bytes, int error)
{
    pthread_mutex_lock(&job->mutex);
    struct mk_writer *writer = job->writer;
    if (!error) {
        writer->done += bytes;
        if (writer->progress(writer->arg, writer->done, writer->total, "writing"))
            error = -ECANCELED;
    }
    if (!job->error)
        job->error = error;
    pthread_mutex_unlock(&job->mutex);
}

static void *job_work(void *arg)
{
    struct job *job = arg;
    struct mk_scratch scratch = {0};
    uint64_t offset, room = job->file->bytes < PIECE_BYTES ? job->file->bytes : PIECE_BYTES;
    uint8_t *piece = aligned_alloc(ALIGN, (room + ALIGN - 1) / ALIGN * ALIGN);
    if (!piece)
        job_finish(job, 0, -ENOMEM);
    while (piece && job_take(job, &offset)) {
        uint64_t left = job->file->bytes - offset;
        size_t bytes = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        size_t padded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
        memset(piece + bytes, 0, padded - bytes);
        int error = make_piece(job, offset, bytes, piece, &scratch);
        if (!error)
            error = write_all(job->fd, piece, padded, offset);
        job_finish(job, bytes, error);
    }
    free(piece);
    mk_scratch_free(&scratch);
    return NULL;
}

/* Run the job in as many threads as there are pieces, this one among them. */
static int job_run(struct job *job)
{
    uint64_t pieces = (job->file->bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    unsigned wanted = job->writer->threads < pieces ? job->writer->threads : (unsigned)pieces, started = 0;
    pthread_t *threads = calloc(wanted + 1, sizeof(*threads));
    if (!threads)
        return -ENOMEM;
    /* a thread that cannot be started is not missed: the others do its work */
    while (started + 1 < wanted && !pthread_create(&threads[started], NULL, job_work, job))
        started++;
    job_work(job);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return job->error;
}

static int write_file(const struct mk_file *file, int directory, struct mk_writer *writer)
{
    int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = openat(directory, file->name, flags | O_DIRECT, 0666);
    if (fd < 0 && errno == EINVAL) {
        unlinkat(directory, file->name, 0); /* some filesystems create the file before they refuse the flag */
        fd = openat(directory, file->name, flags, 0666);
    }
    if (fd < 0)
        return -errno;
    int error = file->bytes ? posix_fallocate(fd, 0, (off_t)file->bytes) : 0;
    if (error == ENOSPC || error == EFBIG) {
        close(fd);
        return -error;
    }
    struct job job = {.file = file, .writer = writer, .fd = fd, .mutex = PTHREAD_MUTEX_INITIALIZER};
    error = job_run(&job);
    if (!error && ftruncate(fd, (off_t)file->bytes)) /* the last piece was padded */
        error = -errno;
    if (!error && fsync(fd))
        error = -errno;
    if (close(fd) && !error)
        error = -errno;
    return error;
}

int mk_files_write(const struct mk_files *files, int directory, struct mk_writer *writer, struct mk_error *error)
{
    writer->total = mk_files_bytes(files);
    for (uint32_t f = 0; f < files->count; f++) {
        int rc = write_file(&files->files[f], directory, writer);
        if (rc) {
            snprintf(error->text, sizeof(error->text), "%s: %s", files->files[f].name, strerror(-rc));
            return rc;
        }
    }
    return fsync(directory) ? -errno : 0;
}
