/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_cache.c - Algorithm 2 of DALI by hand: which experts it exchanges, and when it exchanges none. */
#include "test.h"
#include "cases.h"
#include "gpu_cache.h"

TEST(exchanges_at_the_end_of_a_window)
{
    bool cached[] = {true, true, false, false, false};
    uint64_t score[5] = {0};
    struct efs_gpu_cache cache = {.experts = 5, .window = 2, .swaps = 2, .cached = cached, .score = score};
    struct efs_gpu_swap swap[2];
    const uint32_t first[] = {3, 0, 1, 4, 0}, second[] = {3, 1, 1, 4, 0};
    assert_int_equal(efs_gpu_cache_pass(&cache, first, swap), 0); /* not at the first pass, as printed in the paper */
    assert_true(cached[0] && cached[1]);
    /* sums 6 1 | 2 8 0: expert 3 replaces 1; replacing 0 by 2 would lower the sum */
    assert_int_equal(efs_gpu_cache_pass(&cache, second, swap), 1);
    assert_int_equal(swap[0].in, 3);
    assert_int_equal(swap[0].out, 1);
    assert_true(cached[0] && cached[3] && !cached[1] && !cached[2]);
    for (unsigned e = 0; e < 5; e++)
        assert_int_equal(score[e], 0);
    assert_int_equal(cache.passes, 0);
}

TEST(exchange_limit)
{
    bool cached[] = {true, true, true, false, false, false};
    uint64_t score[6] = {0};
    struct efs_gpu_cache cache = {.experts = 6, .window = 1, .swaps = 2, .cached = cached, .score = score};
    struct efs_gpu_swap swap[2];
    const uint32_t tokens[] = {0, 1, 0, 7, 8, 9};
    assert_int_equal(efs_gpu_cache_pass(&cache, tokens, swap), 2);
    assert_int_equal(swap[0].in, 5);
    assert_int_equal(swap[0].out, 0);
    assert_int_equal(swap[1].in, 4);
    assert_int_equal(swap[1].out, 2);
    assert_int_equal(efs_gpu_cache_pass(&cache, tokens, swap), 1); /* 7 replaces 1 */
    assert_int_equal(efs_gpu_cache_pass(&cache, tokens, swap), 0);
}

TEST(all_or_nothing_cached)
{
    bool cached[] = {true, true};
    uint64_t score[2] = {0};
    struct efs_gpu_cache cache = {.experts = 2, .window = 1, .swaps = 2, .cached = cached, .score = score};
    struct efs_gpu_swap swap[2];
    const uint32_t tokens[] = {0, 5};
    assert_int_equal(efs_gpu_cache_pass(&cache, tokens, swap), 0);
    cached[0] = cached[1] = false;
    assert_int_equal(efs_gpu_cache_pass(&cache, tokens, swap), 0);
}

TEST(busy_experts)
{
    bool cached[4] = {false};
    uint64_t score[4] = {0};
    struct efs_gpu_cache cache = {.experts = 4, .window = 2, .swaps = 2, .cached = cached, .score = score};
    efs_gpu_cache_busy(&cache, (const uint32_t[]){0, 1, 3, 3}, 2); /* the set takes experts up to its size */
    assert_true(!cached[0] && cached[1] && cached[2] && !cached[3]);
    efs_gpu_cache_busy(&cache, (const uint32_t[]){0, 0, 0, 3}, 2); /* sums 0 1 3 6: 3 replaces 1 */
    assert_true(!cached[0] && !cached[1] && cached[2] && cached[3]);
    efs_gpu_cache_busy(&cache, (const uint32_t[]){1, 0, 0, 0}, 3); /* more room */
    assert_true(cached[0] && !cached[1]);
}

TEST_MAIN(NULL, NULL)
