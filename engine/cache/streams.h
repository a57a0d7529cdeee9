/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h - who goes through a file in order? A few walks, each a place that a reader has come to, are kept for all
 * readers together: requests are matched to them by where they begin, whoever sent them. So it does not matter how a
 * read is cut, which threads and descriptors take turns, or how many places a reader alternates between.
 *
 * Only arithmetic: the caller's lock guards it, nothing is read or allocated here.
 */
#ifndef EFS_STREAMS_H
#define EFS_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EFS_WALKS 32u

/* How the reader of one request goes through the file. A scan, through several experts or tensors, is served from a few
 * extents in turn: it would push out what others need, and comes back for nothing. */
enum efs_pace { EFS_PACE_RANDOM, EFS_PACE_SEQUENTIAL, EFS_PACE_SCAN };

/* [begin, end) of a file was gone through, but for gaps. All in bytes but for turn and steps. */
struct efs_walk {
    uint64_t serial; /* tells walks apart; 0: free */
    uint64_t begin, end;
    uint64_t fresh;                /* bytes of it that were read */
    uint64_t late_fresh, late_way; /* of late: bytes that were read, and bytes that end went on by */
    uint64_t ahead_until;          /* read ahead up to here */
    uint64_t used;                 /* efs_streams.clock when it was read last */
    uint32_t file, steps;          /* steps: requests that went on */
    uint32_t group;                /* 1 + what it reads, UINT32_MAX once there were several; 0: none yet */
    bool scan;
};

struct efs_streams {
    struct efs_walk walks[EFS_WALKS];
    uint64_t window; /* bytes of files that one stream is read ahead */
    uint64_t serial;
    uint64_t clock; /* bytes that were asked for */
    uint32_t live;  /* walks that were sure of late: those that are read ahead */
};

/* What a request says of its reader. */
struct efs_step {
    enum efs_pace pace;
    bool scan_begins; /* this request has shown that it is a scan; so were those from scan_from on */
    uint64_t scan_from;
    uint32_t walk;
    uint64_t serial;
};

/* group: of the first byte, UINT32_MAX for none. */
void efs_streams_note(struct efs_streams *streams, uint32_t file, uint64_t offset, size_t bytes, uint32_t group,
                      struct efs_step *step);
/* What to read ahead now; false: nothing. */
bool efs_streams_ahead(const struct efs_streams *streams, const struct efs_step *step, uint64_t *from, uint64_t *to);
/* It was read ahead to here: less than was told where there was no room. */
void efs_streams_went(struct efs_streams *streams, const struct efs_step *step, uint64_t until);
/* Bytes of memory for what all streams together have in passing. */
uint64_t efs_streams_quota(const struct efs_streams *streams);

#endif
