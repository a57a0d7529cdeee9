/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_ready.h - the set of operations that could start now, by rank: put in, take out the first.
 *
 * A bitmap with a second level above it, in the caller's memory; taking the first of 16 thousand ranks reads a handful
 * of words. Ranks are given by the caller and must be below the number of ranks; nothing is checked.
 */
#ifndef EFS_SCHEDULE_READY_H
#define EFS_SCHEDULE_READY_H

#include <stdint.h>
#include <string.h>

#define EFS_READY_NONE UINT32_MAX

struct efs_ready {
    uint64_t *bits;    /* bit r: rank r is in */
    uint64_t *summary; /* bit w: bits[w] is not 0 */
    uint32_t words, summary_words;
};

static inline uint32_t efs_ready_words(uint32_t ranks)
{
    return ranks / 64 + 1;
}

/* u64 words of memory for a set of ranks 0 .. ranks - 1. */
static inline uint32_t efs_ready_memory(uint32_t ranks)
{
    return efs_ready_words(ranks) + efs_ready_words(efs_ready_words(ranks));
}

static inline void efs_ready_init(struct efs_ready *ready, uint32_t ranks, uint64_t *memory)
{
    ready->words = efs_ready_words(ranks);
    ready->summary_words = efs_ready_words(ready->words);
    ready->bits = memory;
    ready->summary = memory + ready->words;
    memset(memory, 0, sizeof *memory * efs_ready_memory(ranks));
}

static inline void efs_ready_put(struct efs_ready *ready, uint32_t rank)
{
    ready->bits[rank / 64] |= UINT64_C(1) << rank % 64;
    ready->summary[rank / 4096] |= UINT64_C(1) << rank / 64 % 64;
}

/* Take the lowest rank out; EFS_READY_NONE when the set is empty. */
static inline uint32_t efs_ready_take(struct efs_ready *ready)
{
    for (uint32_t s = 0; s < ready->summary_words; s++) {
        if (!ready->summary[s])
            continue;
        uint32_t word = s * 64 + (uint32_t)__builtin_ctzll(ready->summary[s]);
        uint32_t rank = word * 64 + (uint32_t)__builtin_ctzll(ready->bits[word]);
        ready->bits[word] &= ready->bits[word] - 1;
        if (!ready->bits[word])
            ready->summary[s] &= ready->summary[s] - 1;
        return rank;
    }
    return EFS_READY_NONE;
}

#endif
