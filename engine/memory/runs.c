/* SPDX-License-Identifier: Apache-2.0 */
/* runs.c - see runs.h. */
#include "runs.h"

/* The first allocated (or free) granule at or after `from`, or `all`. */
static uint32_t runs_next(const uint64_t *allocated, uint32_t all, uint32_t from, bool is_taken)
{
    uint64_t flip = is_taken ? 0 : UINT64_MAX, below = from % 64 ? (1ull << (from % 64)) - 1 : 0;
    for (uint32_t w = from / 64; w < all / 64; w++) {
        uint64_t found = (allocated[w] ^ flip) & ~below;
        if (found)
            return w * 64 + (uint32_t)__builtin_ctzll(found);
        below = 0;
    }
    return all;
}

/* One past the last allocated (or free) granule below `from`, or 0. */
static uint32_t runs_previous(const uint64_t *allocated, uint32_t from, bool is_taken)
{
    uint64_t flip = is_taken ? 0 : UINT64_MAX, within = from % 64 ? (1ull << (from % 64)) - 1 : UINT64_MAX;
    for (uint32_t words = (from + 63) / 64; words > 0; words--) {
        uint64_t found = (allocated[words - 1] ^ flip) & within;
        if (found)
            return words * 64 - (uint32_t)__builtin_clzll(found);
        within = UINT64_MAX;
    }
    return 0;
}

uint32_t efs_runs_find(const uint64_t *allocated, uint32_t all, uint32_t need, bool from_high, uint32_t *longest)
{
    uint32_t most = 0, low = 0, high = all;
    while (low < high) {
        uint32_t first = from_high ? 0 : runs_next(allocated, all, low, false), end;
        if (from_high) {
            end = runs_previous(allocated, high, false);
            first = high = runs_previous(allocated, end, true);
        } else {
            end = low = runs_next(allocated, all, first, true);
        }
        if (end - first >= need)
            return from_high ? end - need : first;
        most = end - first > most ? end - first : most;
    }
    *longest = most;
    return all;
}

uint32_t efs_runs_around(const uint64_t *allocated, uint32_t all, uint32_t first, uint32_t count)
{
    return runs_next(allocated, all, first + count, true) - runs_previous(allocated, first, true);
}

void efs_runs_mark(uint64_t *allocated, uint32_t first, uint32_t count, bool take)
{
    uint32_t end = first + count;
    for (uint32_t g = first; g < end;) {
        uint32_t in_word = 64 - g % 64 < end - g ? 64 - g % 64 : end - g;
        uint64_t bits = (in_word == 64 ? UINT64_MAX : (1ull << in_word) - 1) << (g % 64);
        allocated[g / 64] = take ? allocated[g / 64] | bits : allocated[g / 64] & ~bits;
        g += in_word;
    }
}
