/* SPDX-License-Identifier: Apache-2.0 */
/* team.c - see team.h. */
#include "team.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define PIECES 4u /* of a readv */

const char *const team_ways[TEAM_WAYS] = {"pread", "read", "readv", "mmap", "sendfile"};

/* An open file, and what goes with it. */
struct handle {
    int fd, null_fd; /* null_fd: where sendfile sends to */
    uint8_t *map;
};

struct work {
    const struct team *team;
    const char *path;
    uint64_t size;
    struct handle shared;
    _Atomic uint64_t next, bytes;
    _Atomic unsigned joined;
    _Atomic int error;
};

static int handle_open(struct handle *h, const struct work *w)
{
    *h = (struct handle){.fd = open(w->path, O_RDONLY | O_CLOEXEC), .null_fd = -1};
    if (h->fd < 0)
        return -errno;
    if (w->team->way == TEAM_SENDFILE)
        h->null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (w->team->way == TEAM_MMAP) {
        void *map = mmap(NULL, w->size, PROT_READ, MAP_SHARED, h->fd, 0);
        if (map == MAP_FAILED)
            return -errno;
        h->map = map;
    }
    return 0;
}

static void handle_close(struct handle *h, const struct work *w)
{
    if (h->map)
        munmap(h->map, w->size);
    if (h->null_fd >= 0)
        close(h->null_fd);
    if (h->fd >= 0)
        close(h->fd);
}

static ssize_t read_pieces(int fd, uint8_t *buffer, size_t bytes, uint64_t at)
{
    struct iovec pieces[PIECES];
    size_t each = bytes / PIECES;
    for (unsigned i = 0; i < PIECES; i++)
        pieces[i] = (struct iovec){buffer + i * each, i + 1 < PIECES ? each : bytes - i * each};
    return preadv(fd, pieces, PIECES, (off_t)at);
}

/* One request, at most bytes of them: how many came. at is not looked at by read(), which goes on. */
static ssize_t member_request(const struct team *team, const struct handle *h, uint64_t at, size_t bytes,
                              uint8_t *buffer)
{
    off_t from = (off_t)at;
    switch (team->way) {
    case TEAM_READ:
        return read(h->fd, buffer, bytes);
    case TEAM_READV:
        return read_pieces(h->fd, buffer, bytes, at);
    case TEAM_MMAP:
        memcpy(buffer, h->map + at, bytes);
        return (ssize_t)bytes;
    case TEAM_SENDFILE:
        return sendfile(h->null_fd, h->fd, &from, bytes);
    default:
        return pread(h->fd, buffer, bytes, from);
    }
}

static int read_range(struct work *w, const struct handle *h, uint64_t at, uint64_t end, uint8_t *buffer)
{
    while (at < end) {
        size_t bytes = end - at < w->team->block ? (size_t)(end - at) : w->team->block;
        ssize_t n = member_request(w->team, h, at, bytes, buffer);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += (uint64_t)n;
        w->bytes += (uint64_t)n;
    }
    return 0;
}

static int read_part(struct work *w, unsigned me, uint8_t *buffer)
{
    struct handle own;
    uint64_t part = (w->size / w->team->threads + PAGE - 1) / PAGE * PAGE;
    uint64_t at = part * me < w->size ? part * me : w->size, end = me + 1 < w->team->threads ? at + part : w->size;
    int rc = handle_open(&own, w);
    if (rc == 0 && lseek(own.fd, (off_t)at, SEEK_SET) < 0)
        rc = -errno;
    if (rc == 0)
        rc = read_range(w, &own, at, end < w->size ? end : w->size, buffer);
    handle_close(&own, w);
    return rc;
}

static int read_in_turn(struct work *w, uint8_t *buffer)
{
    const struct team *team = w->team;
    for (;;) {
        if (team->way == TEAM_READ) { /* the descriptor knows what is next */
            ssize_t n = read(w->shared.fd, buffer, team->block);
            if (n <= 0)
                return n < 0 ? -errno : 0;
            w->bytes += (uint64_t)n;
            continue;
        }
        uint64_t at = atomic_fetch_add(&w->next, team->block), left = at < w->size ? w->size - at : 0;
        int rc = read_range(w, &w->shared, at, at + (left < team->block ? left : team->block), buffer);
        if (rc < 0 || left == 0)
            return rc;
    }
}

static void *member_run(void *arg)
{
    struct work *w = arg;
    unsigned me = w->joined++;
    void *pages = NULL;
    int rc = -posix_memalign(&pages, PAGE, w->team->block + w->team->shift);
    if (rc == 0) {
        memset(pages, 1, w->team->block + w->team->shift);
        uint8_t *buffer = (uint8_t *)pages + w->team->shift;
        rc = w->team->own ? read_part(w, me, buffer) : read_in_turn(w, buffer);
        free(pages);
    }
    if (rc < 0)
        w->error = rc;
    return NULL;
}

int team_read(const struct team *team, const char *path, uint64_t *bytes)
{
    struct work w = {.team = team, .path = path};
    struct stat st;
    pthread_t threads[TEAM_MOST];
    unsigned started = 1;
    if (stat(path, &st) < 0)
        return -errno;
    w.size = (uint64_t)st.st_size;
    int rc = handle_open(&w.shared, &w);
    while (rc == 0 && started < team->threads && started < TEAM_MOST)
        rc = -pthread_create(&threads[started++], NULL, member_run, &w);
    if (rc == 0)
        member_run(&w);
    else
        started--; /* the last one was not started */
    for (unsigned i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
    handle_close(&w.shared, &w);
    *bytes = w.bytes;
    return rc < 0 ? rc : w.error < 0 ? w.error : w.bytes == w.size ? 0 : -EIO;
}
