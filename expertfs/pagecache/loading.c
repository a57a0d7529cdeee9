/* SPDX-License-Identifier: Apache-2.0 */
/* loading.c - see loading.h. */
#include "loading.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"

#define MIB (UINT64_C(1) << 20)
#define STRETCH_BYTES (8 * MIB) /* a page is left out at its end */
#define AHEAD_BYTES (16 * MIB)  /* of the reader: some stretches, so that a late one does not stop it */
#define BEHIND_BYTES (16 * MIB) /* not dropped: threads of one reader are so close together */
#define NEAR_BYTES (4 * MIB)    /* requests come a little out of order */
#define LOOK_BYTES (64 * MIB)   /* between two looks at the memory that there is */
#define SPARE_SHARE 16u         /* of that memory is left for the reader itself */
#define UNDER_WAY_BYTES                                                                                                \
    (3 * MIB)               /* asked of the kernel at most; and half of the reply buffers: other readers need them */
#define LATE_NS 3000000     /* without an answer: no more will come */
#define LOOK_MS 100u        /* between two looks for requests of the reader */
#define GONE_LOOKS 5u       /* so many looks in a row without any: it has ended */
#define GONE_LOOKS_BUSY 50u /* ... where requests of anybody wait to be received */

enum signpost_state { NONE, COMING, HERE, AWAITED };

/* What the thread knows of the file that it reads ahead in. */
struct pass {
    uint32_t node;
    int fd;
    uint64_t size, piece;     /* of the file; that one call reads ahead at most */
    uint64_t resident, from;  /* found in the page cache when the reader was at from */
    uint64_t room, room_from; /* what it may hold, as found at this offset */
    uint64_t gone_end;        /* what was given up ends here */
    bool full;                /* the room was exceeded */
};

static void loading_wake(struct efsd_loading *loading)
{
    uint64_t one = 1;
    if (write(loading->event_fd, &one, sizeof(one)) < 0)
        efsd_log(EFS_LOG_ERROR, "eventfd: %s", strerror(errno));
}

bool efsd_loading_read(struct efsd *daemon, uint32_t node, pid_t reader, uint64_t offset, uint64_t bytes, bool scan)
{
    struct efsd_loading *loading = &daemon->loading;
    uint64_t end = offset + bytes;
    bool news = false, inside = false;
    if (!atomic_load_explicit(&loading->started, memory_order_acquire))
        return false;
    pthread_mutex_lock(&loading->lock);
    if (loading->node == node) {
        uint64_t most = loading->until > loading->at ? loading->until : loading->at;
        inside = offset + NEAR_BYTES >= loading->at && offset <= most + NEAR_BYTES;
        if (inside) {
            loading->news++;
            loading->unanswered++;
            loading->at = end > loading->at ? end : loading->at;
            news = loading->at + AHEAD_BYTES >= loading->until + STRETCH_BYTES;
        }
    } else if (loading->node == EFSD_ROOT && scan && reader && reader != loading->refused &&
               daemon->tree.nodes[node].kind == EFSD_FILE) {
        loading->node = node;
        loading->reader = reader;
        loading->at = end;
        loading->until = (end + NEAR_BYTES + STRETCH_BYTES - 1) / STRETCH_BYTES * STRETCH_BYTES;
        loading->news++;
        news = true;
    }
    pthread_mutex_unlock(&loading->lock);
    if (news)
        loading_wake(loading);
    return inside;
}

/* ---- pages that were left out ---- */

bool efsd_loading_answer(struct efsd *daemon, struct fuse_req *req, uint32_t node, uint64_t offset, size_t bytes)
{
    struct efsd_loading *loading = &daemon->loading;
    struct efsd_signpost *found = NULL;
    if (bytes != EFSD_PAGE || !atomic_load_explicit(&loading->started, memory_order_acquire))
        return false;
    pthread_mutex_lock(&loading->lock);
    for (size_t i = 0; i < EFSD_SIGNPOSTS && !found; i++) {
        struct efsd_signpost *s = &loading->signposts[i];
        found = s->state == HERE && s->node == node && s->offset == offset ? s : NULL;
    }
    if (found) {
        found->state = AWAITED; /* it stays while it is sent */
        efsd_count(&daemon->counters.load_signpost_hits, 1);
    }
    pthread_mutex_unlock(&loading->lock);
    if (!found)
        return false;
    efsd_reply_read(daemon, req, 0, found->data, EFSD_PAGE);
    pthread_mutex_lock(&loading->lock);
    found->state = NONE;
    pthread_mutex_unlock(&loading->lock);
    return true;
}

static void signpost_done(void *arg, errint_t error, size_t bytes)
{
    struct efsd_signpost *s = arg;
    struct efsd_loading *loading = &s->daemon->loading;
    (void)bytes; /* all of a page: the file goes on behind it */
    efsd_count(&s->daemon->counters.load_signpost_errors, error != 0);
    pthread_mutex_lock(&loading->lock);
    assert(s->state == COMING && loading->unanswered > 0);
    loading->unanswered--;
    s->state = error ? NONE : HERE; /* the reader tries again itself */
    pthread_mutex_unlock(&loading->lock);
}

/* Keep the page at offset. Where there is no place for it the engine decodes it once more. */
static void signpost_put(struct efsd *daemon, uint32_t node, uint64_t offset)
{
    struct efsd_loading *loading = &daemon->loading;
    struct efsd_signpost *s = &loading->signposts[loading->next_signpost++ % EFSD_SIGNPOSTS];
    pthread_mutex_lock(&loading->lock);
    bool take = s->state == NONE || s->state == HERE;
    if (take) {
        s->daemon = daemon;
        s->node = node;
        s->offset = offset;
        s->state = COMING;
        loading->unanswered++;
    }
    pthread_mutex_unlock(&loading->lock);
    if (take) {
        efsd_count(&daemon->counters.load_signposts, 1);
        struct efs_stream *aside =
            daemon->streams[EFS_STREAM_NO_READAHEAD | EFS_STREAM_THROUGH]; /* not to be followed */
        efs_read(daemon->fs, daemon->tree.nodes[node].id, aside, offset, s->data, EFSD_PAGE, signpost_done, s);
    }
}

/* ---- what is under way ---- */

void efsd_loading_own_read(struct efsd *daemon)
{
    struct efsd_loading *loading = &daemon->loading;
    pthread_mutex_lock(&loading->lock);
    loading->news++;
    loading->unanswered++;
    pthread_mutex_unlock(&loading->lock);
}

void efsd_loading_answered(struct efsd *daemon, bool own, uint64_t bytes)
{
    struct efsd_loading *loading = &daemon->loading;
    pthread_mutex_lock(&loading->lock);
    assert(loading->unanswered > 0);
    loading->unanswered--;
    if (own)
        loading->under_way -= bytes < loading->under_way ? bytes : loading->under_way;
    pthread_mutex_unlock(&loading->lock);
    if (own)
        pthread_cond_signal(&loading->answered);
}

/* Wait until more bytes may be asked for. Where the kernel has some of the pages already fewer answers come than are
 * expected, so time ends the wait, too. Returns the reader's position. */
static uint64_t loading_wait_for_answers(struct efsd *daemon, const struct pass *pass, uint64_t more)
{
    struct efsd_loading *loading = &daemon->loading;
    uint64_t half = daemon->buffers.count / 2 * pass->piece, most = half < UNDER_WAY_BYTES ? half : UNDER_WAY_BYTES;
    int rc = 0;
    pthread_mutex_lock(&loading->lock);
    while (loading->under_way && loading->under_way + more > most && !rc && !atomic_load(&loading->stop)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LATE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        rc = pthread_cond_timedwait(&loading->answered, &loading->lock, &until);
    }
    loading->under_way = (rc ? 0 : loading->under_way) + more;
    uint64_t at = loading->at;
    pthread_mutex_unlock(&loading->lock);
    return at;
}

/* ---- the reader ---- */

/* Is it charged to the same memory cgroup as we? */
static bool is_of_our_cgroup(pid_t reader)
{
    char path[64], text[2][4096];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), i ? "/proc/%d/cgroup" : "/proc/self/cgroup", (int)reader);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text[i], sizeof(text[i]) - 1);
        if (fd >= 0)
            close(fd);
        if (n <= 0)
            return false;
        text[i][n] = '\0';
        /* v1: N:memory:PATH, v2: 0::PATH */
        char *line = strstr(text[i], ":memory:");
        line = line ? line : strstr(text[i], "0::");
        if (!line)
            return false;
        line[strcspn(line, "\n")] = '\0';
        memmove(text[i], line, strlen(line) + 1);
    }
    return strcmp(text[0], text[1]) == 0;
}

static bool pass_open(struct efsd *daemon, struct pass *pass, uint32_t node, uint64_t at)
{
    *pass = (struct pass){.node = node, .from = at, .size = daemon->tree.nodes[node].bytes};
    pass->piece = daemon->readahead_bytes ? 2 * daemon->readahead_bytes : 128 << 10;
    pass->piece = pass->piece < EFSD_IO_BYTES ? pass->piece : EFSD_IO_BYTES;
    pass->fd = efsd_own_open(daemon, node);
    if (pass->fd < 0)
        return false;
    efsd_own_advise(daemon, pass->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* twice as much is read in one call then */
    if (efsd_own_cached(daemon, pass->fd, &pass->resident))
        pass->resident = at;
    efsd_count(&daemon->counters.loads, 1);
    return true;
}

/* How much of the file the page cache may hold. */
static void pass_look_at_memory(struct pass *pass, uint64_t at)
{
    if (pass->room && at < pass->room_from + LOOK_BYTES)
        return;
    uint64_t there_is = efsd_memory_bytes();
    uint64_t spare = there_is / SPARE_SHARE + AHEAD_BYTES + STRETCH_BYTES;
    pass->room = there_is > spare ? there_is - spare : 1;
    pass->room_from = at;
}

static void pass_drop_behind(struct efsd *daemon, struct pass *pass, uint64_t at)
{
    if (pass->size <= pass->room)
        return;
    uint64_t passed = at > pass->from ? at - pass->from : 0, end = at > BEHIND_BYTES ? at - BEHIND_BYTES : 0;
    if (!pass->full) {
        if (pass->resident + passed <= pass->room)
            return;
        pass->full = true;
        pass->gone_end = end > STRETCH_BYTES ? end - STRETCH_BYTES : 0;
    }
    end -= end % STRETCH_BYTES;
    if (end < pass->gone_end + STRETCH_BYTES)
        return;
    fuse_lowlevel_notify_inval_inode(daemon->session, (fuse_ino_t)pass->node + FUSE_ROOT_ID, (off_t)pass->gone_end,
                                     (off_t)(end - pass->gone_end));
    efsd_count(&daemon->counters.load_dropped_bytes, end - pass->gone_end);
    pass->gone_end = end;
}

/* Read the stretch from offset on. */
static void pass_read_stretch(struct efsd *daemon, struct pass *pass, uint64_t offset)
{
    uint64_t end = offset + STRETCH_BYTES < pass->size ? offset + STRETCH_BYTES : pass->size;
    uint64_t last = end == pass->size ? end : end - EFSD_PAGE;
    for (uint64_t at = offset; at < last && !atomic_load(&daemon->loading.stop);) {
        uint64_t n = last - at < pass->piece ? last - at : pass->piece;
        if (loading_wait_for_answers(daemon, pass, n) > at)
            return; /* the reader is ahead */
        efsd_own_advise(daemon, pass->fd, at, n, POSIX_FADV_WILLNEED);
        at += n;
    }
    if (last < end)
        signpost_put(daemon, pass->node, last);
    efsd_count(&daemon->counters.load_ahead_bytes, last - offset);
}

/*
 * Wait for a request of the reader. false: it has ended. While a request of it, or a page ahead that it may wait for,
 * is not answered or not even received, it is waiting for us and has not ended. Looks are counted and not time: where
 * this thread gets no processor, the reader gets none either.
 */
static bool loading_wait_for_reader(struct efsd *daemon)
{
    struct efsd_loading *loading = &daemon->loading;
    struct pollfd wait[2] = {{.fd = loading->event_fd, .events = POLLIN}, {.fd = daemon->fuse_fd, .events = POLLIN}};
    uint64_t seen = UINT64_MAX, count;
    for (unsigned quiet = 0, busy = 0; quiet < GONE_LOOKS && busy < GONE_LOOKS_BUSY && !atomic_load(&loading->stop);) {
        if (poll(wait, 1, LOOK_MS) > 0) {
            if (read(loading->event_fd, &count, sizeof(count)) < 0)
                efsd_log(EFS_LOG_ERROR, "eventfd: %s", strerror(errno));
            return true;
        }
        pthread_mutex_lock(&loading->lock);
        bool waits = loading->unanswered > 0 || loading->news != seen;
        seen = loading->news;
        pthread_mutex_unlock(&loading->lock);
        bool queued = poll(&wait[1], 1, 0) > 0;
        quiet = waits || queued ? 0 : quiet + 1;
        busy = waits ? 0 : busy + 1;
    }
    return false;
}

/* Help one reader until it is through the file or ends. */
static void pass_follow(struct efsd *daemon, struct pass *pass)
{
    struct efsd_loading *loading = &daemon->loading;
    while (!atomic_load(&loading->stop)) {
        pthread_mutex_lock(&loading->lock);
        uint64_t at = loading->at, until = loading->until;
        bool more = until < pass->size && until < at + AHEAD_BYTES;
        if (more) {
            until = until > at ? until : (at + NEAR_BYTES + STRETCH_BYTES - 1) / STRETCH_BYTES * STRETCH_BYTES;
            loading->until = until + STRETCH_BYTES;
        }
        pthread_mutex_unlock(&loading->lock);
        pass_look_at_memory(pass, at);
        pass_drop_behind(daemon, pass, at);
        if (more && until < pass->size) {
            pass_read_stretch(daemon, pass, until);
            continue;
        }
        if (at >= pass->size || !loading_wait_for_reader(daemon))
            return;
    }
}

static void *loading_run(void *arg)
{
    struct efsd *daemon = arg;
    struct efsd_loading *loading = &daemon->loading;
    struct pollfd wait = {.fd = loading->event_fd, .events = POLLIN};
    uint64_t count;
    while (!atomic_load(&loading->stop)) {
        poll(&wait, 1, -1);
        if (read(loading->event_fd, &count, sizeof(count)) < 0)
            continue;
        pthread_mutex_lock(&loading->lock);
        uint32_t node = loading->node;
        pid_t reader = loading->reader;
        uint64_t at = loading->at;
        pthread_mutex_unlock(&loading->lock);
        struct pass pass;
        bool help = node != EFSD_ROOT && is_of_our_cgroup(reader) && pass_open(daemon, &pass, node, at);
        if (help) {
            pass_follow(daemon, &pass);
            efsd_own_close(daemon, pass.fd);
        }
        pthread_mutex_lock(&loading->lock);
        loading->refused = help || node == EFSD_ROOT ? loading->refused : reader;
        loading->node = EFSD_ROOT;
        pthread_mutex_unlock(&loading->lock);
    }
    return NULL;
}

errint_t efsd_loading_start(struct efsd *daemon)
{
    struct efsd_loading *loading = &daemon->loading;
    loading->node = EFSD_ROOT;
    pthread_mutex_init(&loading->lock, NULL);
    pthread_cond_init(&loading->answered, NULL);
    loading->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = loading->event_fd < 0 ? errno : pthread_create(&loading->thread, NULL, loading_run, daemon);
    atomic_store(&loading->started, rc == 0);
    return -rc;
}

void efsd_loading_stop(struct efsd *daemon)
{
    struct efsd_loading *loading = &daemon->loading;
    if (atomic_exchange(&loading->started, false)) {
        atomic_store(&loading->stop, true);
        loading_wake(loading);
        pthread_join(loading->thread, NULL);
    }
}

void efsd_loading_free(struct efsd *daemon)
{
    struct efsd_loading *loading = &daemon->loading;
    if (loading->event_fd > 0) {
        close(loading->event_fd);
        pthread_cond_destroy(&loading->answered);
        pthread_mutex_destroy(&loading->lock);
    }
}
