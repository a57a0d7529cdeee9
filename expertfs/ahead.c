/*
 * ahead.c - the next block of one who reads a file in order, past the page cache, is decoded while the last one is on
 * its way to him: by the thread that sent it, into one of a few buffers. His next request is then answered at once, or,
 * if it comes first, by that thread when it is done. Only where the bytes are in memory: what comes from the disk is
 * read ahead by the engine.
 *
 * What is in a slot is true for ever, since files never change: no one has to be asked when it goes.
 */
#include "daemon.h"

#define LEAST_BYTES (128u << 10) /* smaller reads: the handing over would cost more than it saves */

enum state {
    FREE,    /* nothing */
    COMING,  /* is being decoded */
    AWAITED, /* the same, and its reader has asked for it: whoever decodes it answers */
    HERE     /* decoded */
};

/* Set by whoever answers a request: in this thread, inside efs_read(). */
static _Thread_local bool answered;

void efsd_ahead_answered(void)
{
    answered = true;
}

/* Lock held. The slot that has or will have this; as many bytes as there are. */
static struct efsd_ahead *find(struct efsd_buffers *buffers, uint32_t node, uint64_t offset, size_t bytes)
{
    for (size_t i = 0; i < buffers->ahead_count; i++) {
        struct efsd_ahead *a = &buffers->ahead[i];
        if (a->state != FREE && a->node == node && a->offset == offset && a->bytes == bytes) {
            return a;
        }
    }
    return NULL;
}

/* To the end of the file at most. */
static size_t within(const struct efsd *daemon, uint32_t node, uint64_t offset, size_t bytes)
{
    uint64_t size = daemon->tree.nodes[node].bytes, left = offset < size ? size - offset : 0;
    return left < bytes ? (size_t)left : bytes;
}

bool efsd_ahead_take(struct efsd *daemon, fuse_req_t req, uint32_t node, uint64_t offset, size_t bytes)
{
    struct efsd_buffers *buffers = &daemon->buffers;
    pthread_mutex_lock(&buffers->lock);
    struct efsd_ahead *a = find(buffers, node, offset, within(daemon, node, offset, bytes));
    unsigned state = a ? a->state : FREE;
    if (state == COMING) {
        a->state = AWAITED;
        a->req = req;
    } else if (state == HERE) {
        a->state = AWAITED; /* no one else takes it while it is sent */
    }
    pthread_mutex_unlock(&buffers->lock);
    if (state != COMING && state != HERE) {
        return false;
    }
    efsd_count(&daemon->counters.ahead_hits, 1);
    efsd_count(&daemon->counters.ahead_hit_bytes, state == HERE ? a->bytes : 0);
    answered = true; /* or will be: go on meanwhile */
    if (state == HERE) {
        efsd_reply_read(daemon, req, 0, a->data + efsd_answer_begin(a->bytes), a->bytes);
        pthread_mutex_lock(&buffers->lock);
        a->state = FREE;
        pthread_mutex_unlock(&buffers->lock);
    }
    return true;
}

static void ahead_done(void *arg, errint_t error, size_t bytes)
{
    struct efsd_ahead *a = arg;
    struct efsd *daemon = a->daemon;
    struct efsd_buffers *buffers = &daemon->buffers;
    pthread_mutex_lock(&buffers->lock);
    bool awaited = a->state == AWAITED;
    if (!awaited) {
        a->state = error ? FREE : HERE; /* the reader shall have his own try */
    }
    pthread_mutex_unlock(&buffers->lock);
    efsd_count(&daemon->counters.ahead_bytes, bytes);
    if (!awaited) {
        efsd_count(&daemon->counters.ahead_errors, error != 0);
        return;
    }
    efsd_count(&daemon->counters.ahead_hit_bytes, bytes);
    answered = true;
    efsd_reply_read(daemon, a->req, error, a->data + efsd_answer_begin(a->bytes), bytes);
    pthread_mutex_lock(&buffers->lock);
    a->state = FREE;
    pthread_mutex_unlock(&buffers->lock);
}

/* A slot for what the reader is expected to ask for, if no slot has it: one that is free, else the one whose block has
 * waited longest. */
static struct efsd_ahead *begin(struct efsd *daemon, const struct efsd_open *open)
{
    struct efsd_buffers *buffers = &daemon->buffers;
    const struct efsd_guess *g = &open->guess;
    struct efsd_ahead *slot = NULL;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = 0; i < buffers->ahead_count; i++) {
        struct efsd_ahead *a = &buffers->ahead[i];
        if (a->state == FREE || (a->state == HERE && (!slot || (slot->state == HERE && a->turn < slot->turn)))) {
            slot = slot && slot->state == FREE ? slot : a;
        }
    }
    if (slot && g->sure && g->bytes && !find(buffers, open->node, g->offset, g->bytes)) {
        *slot = (struct efsd_ahead){.data = slot->data,
                                    .daemon = daemon,
                                    .node = open->node,
                                    .offset = g->offset,
                                    .bytes = g->bytes,
                                    .state = COMING,
                                    .turn = ++buffers->turn};
    } else {
        slot = NULL;
    }
    pthread_mutex_unlock(&buffers->lock);
    return slot;
}

/*
 * A large read is expected as far behind the last one, and as long, as that was: a buffer that does not begin with a
 * page makes the kernel ask for most of 1 MiB and for a few bytes, in turns. What is expected is decoded only if what
 * was expected before came true, and no one else reads meanwhile: several readers keep the processors busy without.
 */
bool efsd_ahead_follows(struct efsd *daemon, struct efsd_open *open, uint64_t offset, size_t bytes)
{
    answered = false;
    if (bytes < LEAST_BYTES) {
        return false;
    }
    struct efsd_guess *g = &open->guess;
    pthread_mutex_lock(&daemon->buffers.lock);
    uint64_t gap = offset - g->end; /* wraps where it does not go on */
    bool begins = offset == 0 && g->end == 0 && bytes % 4096 == 0, sure;
    bool alone = daemon->buffers.reader == open;
    daemon->buffers.reader = open;
    sure = begins || (alone && offset == g->offset && within(daemon, open->node, offset, bytes) == g->bytes);
    g->end = offset + bytes;
    g->offset = gap < LEAST_BYTES ? g->end + gap : g->end;
    g->bytes = within(daemon, open->node, g->offset, bytes);
    g->sure = sure;
    pthread_mutex_unlock(&daemon->buffers.lock);
    return sure;
}

void efsd_ahead_go_on(struct efsd *daemon, struct efsd_open *open)
{
    struct efsd_ahead *a;
    while (answered && (a = begin(daemon, open))) {
        answered = false;
        efsd_count(&daemon->counters.aheads, 1);
        efs_read(daemon->fs, daemon->tree.nodes[open->node].id, &open->stream, a->offset,
                 a->data + efsd_answer_begin(a->bytes), a->bytes, ahead_done, a);
    }
}
