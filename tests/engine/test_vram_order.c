/* SPDX-License-Identifier: Apache-2.0 */
/* Order of eviction from pool G by each policy, for layers and experts that are first seen in requests. */

#include "test.h"
#include "vram.h"

static double worth(struct efs_vram_order *order, uint32_t layer, uint32_t expert, uint64_t used_at)
{
    const struct efs_expert_key key = efs_expert_key("", layer, expert);
    return efs_vram_order_priority(order, &key, used_at);
}

static void ask(struct efs_vram_order *order, uint32_t layer, uint32_t a, uint32_t a_tokens, uint32_t b,
                uint32_t b_tokens)
{
    const struct efs_need needs[] = {{a, a_tokens}, {b, b_tokens}};
    efs_vram_order_record(order, "", layer, needs, 2, 2);
}

TEST(by_name)
{
    assert_int_equal(efs_vram_order_by_name(NULL), EFS_VRAM_VALUE);
    assert_int_equal(efs_vram_order_by_name("value"), EFS_VRAM_VALUE);
    assert_int_equal(efs_vram_order_by_name("lru"), EFS_VRAM_LRU);
    assert_int_equal(efs_vram_order_by_name("dali"), EFS_VRAM_DALI);
    assert_int_equal(efs_vram_order_by_name("dal"), EFS_VRAM_ORDERS);
}

TEST(lru)
{
    struct efs_vram_order order = {.kind = EFS_VRAM_LRU};
    for (uint32_t i = 0; i < 20; i++)
        ask(&order, 0, 1, 1, 2, 1);
    assert_true(worth(&order, 0, 3, 8) > worth(&order, 0, 1, 7));
    efs_vram_order_free(&order);
}

/* An expert that each pass requests is worth more than the one requested last, and less when passes no longer request
 * it. */
TEST(value)
{
    struct efs_vram_order order = {.kind = EFS_VRAM_VALUE};
    for (uint32_t i = 0; i < 64; i++)
        ask(&order, 5, 7, 1, 100 + i % 32, 1);
    assert_true(worth(&order, 5, 7, 1) > worth(&order, 5, 131, 2));
    assert_true(worth(&order, 5, 7, 1) > worth(&order, 5, 3, 2));
    assert_true(worth(&order, 6, 7, 9) < worth(&order, 5, 3, 1)); /* an unknown layer */
    for (uint32_t i = 0; i < 2000; i++)
        ask(&order, 5, 8, 1, 9, 1);
    assert_true(worth(&order, 5, 7, 1) < worth(&order, 5, 9, 1));
    efs_vram_order_free(&order);
}

/* Algorithm 2 of DALI with windows of 4 passes: the first two experts fill the cache; two busier ones replace them at
 * the end of the window. */
TEST(dali)
{
    struct efs_vram_order order = {.kind = EFS_VRAM_DALI};
    ask(&order, 0, 0, 1, 1, 1);
    assert_true(worth(&order, 0, 0, 1) > worth(&order, 0, 2, 1000));
    for (uint32_t i = 0; i < 2; i++)
        ask(&order, 0, 2, 9, 3, 8);
    assert_true(worth(&order, 0, 1, 1) > worth(&order, 0, 2, 1000));
    ask(&order, 0, 2, 9, 3, 8);
    assert_true(worth(&order, 0, 2, 1) > worth(&order, 0, 1, 1000));
    assert_true(worth(&order, 0, 3, 1) > worth(&order, 0, 0, 1000));
    assert_true(worth(&order, 0, 3, 2) > worth(&order, 0, 2, 1));
    efs_vram_order_free(&order);
}

/* Tables grow with the requests, up to their limits, and stay correct. */
TEST(growing)
{
    static const enum efs_vram_order_kind kinds[] = {EFS_VRAM_VALUE, EFS_VRAM_DALI};
    for (size_t k = 0; k < 2; k++) {
        struct efs_vram_order order = {.kind = kinds[k]};
        for (uint32_t layer = 0; layer < 100; layer++)
            ask(&order, layer * 3, 0, 1, 300, 1);
        assert_int_equal(order.known, 100);
        assert_true(order.layers >= 100 && order.experts > 300);
        for (uint32_t i = 0; i < 9; i++)
            ask(&order, 7 * 3, 300, 2, 301, 2);
        assert_true(worth(&order, 7 * 3, 300, 1) > worth(&order, 7 * 3, 5, 2));
        ask(&order, 0, 5000, 1, 1, 1); /* out of range: ignored */
        ask(&order, 0, 1, 1, UINT32_MAX, 1);
        assert_int_equal(order.known, 100);
        (void)worth(&order, 0, UINT32_MAX, 1);
        for (uint32_t layer = 1000; layer < 3000; layer++)
            ask(&order, layer, 0, 1, 1, 1);
        assert_true(order.known <= 1024);
        efs_vram_order_free(&order);
    }
}

TEST_MAIN(NULL, NULL)
