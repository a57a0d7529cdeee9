/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_cache.c - Algorithm 2 of DALI, with the corrections listed in gpu_cache.h. */
#include "gpu_cache.h"

#include <string.h>

/* The busiest expert that is not cached, or the least busy cached one; experts: none. */
static uint32_t find_extreme(const struct efs_gpu_cache *cache, bool cached)
{
    uint32_t best = cache->experts;
    for (uint32_t e = 0; e < cache->experts; e++) {
        if (cache->cached[e] != cached)
            continue;
        if (best == cache->experts ||
            (cached ? cache->score[e] < cache->score[best] : cache->score[e] > cache->score[best]))
            best = e;
    }
    return best;
}

uint32_t efs_gpu_cache_pass(struct efs_gpu_cache *cache, const uint32_t *tokens, struct efs_gpu_swap *swap)
{
    uint32_t made = 0;
    for (uint32_t e = 0; e < cache->experts; e++)
        cache->score[e] += tokens[e];
    if (++cache->passes < cache->window)
        return 0;
    /* An exchanged expert is never selected again: later pairs have closer scores. */
    while (made < cache->swaps) {
        uint32_t in = find_extreme(cache, false), out = find_extreme(cache, true);
        if (in == cache->experts || out == cache->experts || cache->score[in] <= cache->score[out])
            break;
        cache->cached[in] = true;
        cache->cached[out] = false;
        swap[made++] = (struct efs_gpu_swap){.in = in, .out = out};
    }
    cache->passes = 0;
    memset(cache->score, 0, cache->experts * sizeof(*cache->score));
    return made;
}

void efs_gpu_cache_busy(struct efs_gpu_cache *cache, const uint32_t *tokens, uint32_t room)
{
    struct efs_gpu_swap swap[EFS_GPU_SWAPS_MAX];
    uint32_t busy = 0;
    for (uint32_t e = 0; e < cache->experts; e++)
        busy += cache->cached[e];
    for (uint32_t e = 0; e < cache->experts && busy < room; e++) {
        busy += tokens[e] > 0 && !cache->cached[e];
        cache->cached[e] |= tokens[e] > 0;
    }
    (void)efs_gpu_cache_pass(cache, tokens, swap);
}
