/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_ahead.h - blocks decoded before they are asked for, for readers in order past the page cache. All functions
 * are called on the thread that received the request.
 */
#ifndef EFSD_DECODE_AHEAD_H
#define EFSD_DECODE_AHEAD_H

#include "mount.h"

struct efsd_open;

/* A slot; guarded by efsd_buffers.lock. */
struct efsd_decode_ahead {
    uint8_t *data; /* EFSD_IO_BYTES; constant */
    struct efsd *daemon;
    uint64_t offset, turn;
    size_t bytes;
    uint32_t node;
    unsigned state, sending; /* sending: answers from it that are on their way */
    bool through;            /* its end was sent: nothing more is asked of it */
    fuse_req_t req;          /* the request that waits for all of it */
};
#define EFSD_DECODE_AHEADS 4u

/* What a reader will ask for next; guarded by efsd_buffers.lock. */
struct efsd_guess {
    uint64_t offset, end; /* end: of the last large read */
    size_t bytes;         /* or more, at the end of the file */
    bool sure;            /* the last guess came true */
    bool small;           /* the last read was a small one, and the rest of this tells what is next */
    uint64_t small_end;   /* of the last small read */
    uint32_t small_run;   /* small reads in a row that followed each other */
};

/* A read past the page cache has come: is it the one that was expected? */
bool efsd_decode_ahead_follows(struct efsd *daemon, struct efsd_open *open, uint64_t offset, size_t bytes);
/* Answer from a block that is decoded, or later from one that is being decoded. false: there is none. */
bool efsd_decode_ahead_take(struct efsd *daemon, fuse_req_t req, uint32_t node, uint64_t offset, size_t bytes);
/* A request was answered by this thread. */
void efsd_decode_ahead_answered(void);
/* If it was: decode what follows it, as long as the reader comes for it meanwhile. open lives until the return. */
void efsd_decode_ahead_go_on(struct efsd *daemon, struct efsd_open *open);

#endif
