/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h - detects sequential readers. A *walk* is a range of a file that a reader has advanced through. All readers
 * share EFS_WALKS walks: a read is matched to a walk by its offset, regardless of the thread or descriptor. So
 * detection does not depend on the sizes of reads, on how threads and descriptors alternate, or on the number of
 * positions that a reader alternates between.
 *
 * Arithmetic only: the caller's lock guards it; it neither reads nor allocates.
 */
#ifndef EFS_STREAMS_H
#define EFS_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EFS_WALKS 32u

/* The pace of a request's reader. A scan, through several experts or tensors, is served from a quota of extents:
 * cached, it would evict extents that other readers need, and it does not read an extent twice. */
enum efs_pace { EFS_PACE_RANDOM, EFS_PACE_SEQUENTIAL, EFS_PACE_SCAN };

/* A walk through [begin, end) of a file, with gaps. Members are bytes, except file, steps and group. */
struct efs_walk {
    uint64_t begin, end;
    uint64_t fresh;                        /* bytes read in it */
    uint64_t recent_bytes, recent_advance; /* recently: bytes read; bytes that end has advanced by */
    uint64_t ahead_until;                  /* read ahead up to this offset; set by the caller of efs_streams_ahead() */
    uint64_t used;                         /* efs_streams.clock at the last read; 0: free slot */
    uint32_t file, steps;                  /* steps: requests that advanced it */
    uint32_t group;                        /* 1 + the group that it reads; UINT32_MAX: several groups; 0: none yet */
    bool scan;
};

struct efs_streams {
    struct efs_walk walks[EFS_WALKS];
    uint64_t window; /* read-ahead window of a stream, bytes */
    uint64_t clock;  /* bytes requested by all readers */
    uint32_t live;   /* walks that are recent, sequential and long enough to be streams */
};

/* The classification of a request. */
struct efs_step {
    enum efs_pace pace;
    struct efs_walk *walk; /* NULL: none; valid until the next request is classified */
};

/* Classifies a request. group: of its first byte, UINT32_MAX for none. */
void efs_streams_note(struct efs_streams *streams, uint32_t file, uint64_t offset, size_t bytes, uint32_t group,
                      struct efs_step *step);
/* The range to read ahead now; false: none. */
bool efs_streams_ahead(const struct efs_streams *streams, const struct efs_walk *walk, uint64_t *from, uint64_t *to);
/* Limit of bytes of scan extents, for all streams together. */
uint64_t efs_streams_quota(const struct efs_streams *streams);

#endif
