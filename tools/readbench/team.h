/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - threads that read one file together: of one descriptor, each the next block of the file, or each its own
 * part by a descriptor of its own.
 */
#ifndef READBENCH_TEAM_H
#define READBENCH_TEAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum team_way { TEAM_PREAD, TEAM_READ, TEAM_READV, TEAM_MMAP, TEAM_SENDFILE, TEAM_WAYS };
extern const char *const team_ways[TEAM_WAYS];
#define TEAM_MOST 64u

struct team {
    enum team_way way;
    size_t block, shift; /* bytes of a request; of the buffer's begin behind a page's */
    unsigned threads;    /* 1 to TEAM_MOST */
    bool own;            /* descriptors */
};

/* Read the whole file once; *bytes: how many there were. 0 or -errno. */
int team_read(const struct team *team, const char *path, uint64_t *bytes);

#endif
