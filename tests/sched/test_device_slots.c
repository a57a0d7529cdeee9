/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_slots.c - slots of a device: which expert leaves, waves, refused sizes; by random requests, that each
 * slot has one expert. */
#include "test.h"
#include "device_slots.h"

#include <errno.h>
#include <string.h>

static struct efs_device_slots *make(enum efs_device_rule rule, unsigned layers, unsigned experts, unsigned slots)
{
    const struct efs_device_slots_config config = {
        .rule = rule, .layers = layers, .experts = experts, .slots = slots, .chosen = 2};
    struct efs_device_slots *s = NULL;
    assert_int_equal(efs_device_slots_new(&config, &s), 0);
    return s;
}

/* A request of at most as many experts as there are slots. Returns the number of missing ones. */
static unsigned request(struct efs_device_slots *s, unsigned layer, const uint32_t *expert, unsigned count)
{
    unsigned misses = 0;
    assert_int_equal(efs_device_slots_request(s, layer, expert, NULL, count), 0);
    efs_device_slots_wave(s);
    for (unsigned i = 0; i < count; i++)
        misses += efs_device_slots_use(s, layer, expert[i]) < 0;
    for (unsigned i = 0; i < count; i++)
        if (efs_device_slots_find(s, layer, expert[i]) < 0)
            assert_true(efs_device_slots_take(s, layer, expert[i]) >= 0);
    return misses;
}

TEST(the_least_recently_used_leaves)
{
    struct efs_device_slots *s = make(EFS_DEVICE_LRU, 2, 8, 3);
    assert_int_equal(efs_device_slots_empty(s, 0), 3);
    assert_int_equal(request(s, 0, (uint32_t[]){0, 1}, 2), 2);
    assert_int_equal(efs_device_slots_empty(s, 0), 1);
    assert_int_equal(efs_device_slots_empty(s, 1), 3);
    assert_int_equal(request(s, 0, (uint32_t[]){2}, 1), 1);
    assert_int_equal(request(s, 0, (uint32_t[]){0}, 1), 0);
    assert_int_equal(request(s, 0, (uint32_t[]){3}, 1), 1); /* in place of 1 */
    assert_int_equal(efs_device_slots_find(s, 0, 1), -1);
    assert_true(efs_device_slots_find(s, 0, 0) >= 0 && efs_device_slots_find(s, 0, 2) >= 0);
    assert_int_equal(efs_device_slots_find(s, 1, 0), -1); /* each layer has its own */
    efs_device_slots_free(s);
}

TEST(the_least_often_used_leaves)
{
    struct efs_device_slots *s = make(EFS_DEVICE_LFU, 1, 8, 2);
    request(s, 0, (uint32_t[]){0}, 1);
    request(s, 0, (uint32_t[]){0}, 1);
    request(s, 0, (uint32_t[]){1}, 1);
    request(s, 0, (uint32_t[]){2}, 1);
    assert_true(efs_device_slots_find(s, 0, 0) >= 0);
    assert_int_equal(efs_device_slots_find(s, 0, 1), -1);
    efs_device_slots_free(s);
}

TEST(those_outside_the_busy_ones_leave)
{
    struct efs_device_slots *s = make(EFS_DEVICE_DALI, 1, 8, 2);
    request(s, 0, (uint32_t[]){0, 1}, 2); /* the first experts are the busy ones */
    request(s, 0, (uint32_t[]){2}, 1);
    request(s, 0, (uint32_t[]){3}, 1); /* in place of 2, although the busy one is older */
    assert_int_equal(efs_device_slots_find(s, 0, 0), -1);
    assert_int_equal(efs_device_slots_find(s, 0, 2), -1);
    assert_true(efs_device_slots_find(s, 0, 1) >= 0);
    const uint32_t tokens[] = {9, 8};
    assert_int_equal(efs_device_slots_request(s, 0, (uint32_t[]){4, 5}, tokens, 2), 0); /* ends the window */
    efs_device_slots_wave(s);
    assert_true(efs_device_slots_take(s, 0, 4) >= 0 && efs_device_slots_take(s, 0, 5) >= 0);
    request(s, 0, (uint32_t[]){6}, 1); /* both are busy: one of them leaves */
    assert_int_equal(request(s, 0, (uint32_t[]){7}, 1), 1);
    assert_int_equal(efs_device_slots_find(s, 0, 6), -1);
    efs_device_slots_free(s);
}

TEST(names_of_rules)
{
    char names[] = EFS_DEVICE_RULE_NAMES, *next = NULL;
    unsigned rule = 0;
    for (const char *name = strtok_r(names, ", ", &next); name; name = strtok_r(NULL, ", ", &next))
        assert_int_equal(efs_device_rule_by_name(name), rule++);
    assert_int_equal(rule, EFS_DEVICE_RULES);
    assert_int_equal(efs_device_rule_by_name(NULL), EFS_DEVICE_ZIPMOE);
    assert_int_equal(efs_device_rule_by_name(""), EFS_DEVICE_ZIPMOE);
    assert_int_equal(efs_device_rule_by_name("fifo"), EFS_DEVICE_RULES);
}

TEST(slots_of_a_wave_are_not_taken_again)
{
    struct efs_device_slots *s = make(EFS_DEVICE_ZIPMOE, 1, 8, 2);
    assert_int_equal(efs_device_slots_request(s, 0, (uint32_t[]){0, 1, 2, 3, 4}, NULL, 5), 0);
    efs_device_slots_wave(s);
    const int32_t a = efs_device_slots_take(s, 0, 0), b = efs_device_slots_take(s, 0, 1);
    assert_true(a >= 0 && b >= 0 && a != b);
    assert_int_equal(efs_device_slots_take(s, 0, 2), -1);
    efs_device_slots_wave(s);
    assert_true(efs_device_slots_use(s, 0, 1) == b);
    assert_int_equal(efs_device_slots_take(s, 0, 2), a);
    assert_int_equal(efs_device_slots_find(s, 0, 0), -1);
    efs_device_slots_drop(s, 0, 2); /* its copy failed: the slot is empty and the first to be taken */
    assert_int_equal(efs_device_slots_find(s, 0, 2), -1);
    efs_device_slots_drop(s, 0, 2);
    assert_int_equal(efs_device_slots_take(s, 0, 4), a);
    efs_device_slots_free(s);
}

TEST(refused)
{
    struct efs_device_slots *s;
    const struct efs_device_slots_config good = {
        .rule = EFS_DEVICE_ZIPMOE, .layers = 1, .experts = 4, .slots = 2, .chosen = 1};
    struct efs_device_slots_config bad[5];
    for (unsigned i = 0; i < 5; i++)
        bad[i] = good;
    bad[0].layers = 0;
    bad[1].experts = 0;
    bad[2].slots = 0;
    bad[3].slots = 5;
    bad[4].rule = EFS_DEVICE_RULES;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(efs_device_slots_new(&bad[i], &s), -EINVAL);
    s = make(EFS_DEVICE_ZIPMOE, 1, 4, 2);
    assert_int_equal(efs_device_slots_request(s, 1, (uint32_t[]){0}, NULL, 1), -EINVAL);
    assert_int_equal(efs_device_slots_request(s, 0, (uint32_t[]){4}, NULL, 1), -EINVAL);
    assert_int_equal(efs_device_slots_request(s, 0, (uint32_t[]){1, 1}, NULL, 2), -EINVAL);
    assert_int_equal(efs_device_slots_request(s, 0, NULL, NULL, 0), -EINVAL);
    efs_device_slots_free(s);
    efs_device_slots_free(NULL);
}

/* Each slot has at most one expert, and never more experts have slots than there are. */
TEST(slots_and_experts_agree)
{
    enum { LAYERS = 3, EXPERTS = 12, SLOTS = 5 };
    static const enum efs_device_rule rules[] = {EFS_DEVICE_ZIPMOE, EFS_DEVICE_LRU, EFS_DEVICE_LFU, EFS_DEVICE_DALI};
    for (unsigned k = 0; k < 4; k++) {
        struct efs_device_slots *s = make(rules[k], LAYERS, EXPERTS, SLOTS);
        uint64_t random = k + 1;
        for (unsigned turn = 0; turn < 3000; turn++) {
            const unsigned layer = turn % LAYERS;
            uint32_t expert[SLOTS];
            unsigned count = 0, held = 0;
            for (uint32_t e = 0; e < EXPERTS && count < SLOTS; e++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                if (random >> 40 & 1)
                    expert[count++] = e;
            }
            if (count == 0)
                continue;
            request(s, layer, expert, count);
            if (turn % 97 == 0)
                efs_device_slots_drop(s, layer, expert[0]);
            bool taken[SLOTS] = {false};
            for (uint32_t e = 0; e < EXPERTS; e++) {
                const int32_t slot = efs_device_slots_find(s, layer, e);
                assert_true(slot >= -1 && slot < SLOTS);
                assert_true(slot < 0 || !taken[slot]);
                held += slot >= 0;
                if (slot >= 0)
                    taken[slot] = true;
            }
            assert_true(held + (turn % 97 == 0) >= count && held <= SLOTS);
        }
        efs_device_slots_free(s);
    }
}

TEST_MAIN(NULL, NULL)
