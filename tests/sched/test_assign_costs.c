/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_assign_costs.c - the split of a layer follows the measured costs, and each side is retried regularly.
 */
#include "test.h"
#include "assign_costs.h"
#include "cases.h"

#define EXPERTS 8u

static void layer(struct efs_assign_expert *experts, uint32_t count, uint32_t tokens, bool cached)
{
    for (uint32_t i = 0; i < count; i++)
        experts[i] = (struct efs_assign_expert){.tokens = tokens, .cached = cached, .bytes = 1};
}

static uint32_t decide(struct efs_assign_costs *costs, uint32_t count, uint32_t tokens, bool cached)
{
    struct efs_assign_expert experts[EXPERTS];
    struct efs_assign_choice choice;
    uint8_t device[EXPERTS];
    uint32_t there = 0;
    layer(experts, count, tokens, cached);
    assert_int_equal(efs_assign_by_costs(costs, experts, count, UINT64_MAX, false, 1, device, &choice), 0);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(device[i] == EFS_ASSIGN_CPU || device[i] == EFS_ASSIGN_GPU);
        there += device[i] == EFS_ASSIGN_GPU;
    }
    return there;
}

static struct efs_assign_costs known(uint64_t cpu_ns, uint64_t gpu_ns, uint64_t link_ns)
{
    struct efs_assign_costs costs = {
        .layers_until_due = {EFS_ASSIGN_MEASURE_INTERVAL, EFS_ASSIGN_MEASURE_INTERVAL, EFS_ASSIGN_MEASURE_INTERVAL}};
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 1, cpu_ns);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_GPU, 1, gpu_ns);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_LINK, 1, link_ns);
    return costs;
}

TEST(figures_of_tokens)
{
    struct efs_assign_costs costs = {0};
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 1), 0);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 0, 5);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 5, 0);
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 5), 0);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 4, 1000);
    for (uint32_t tokens = 1; tokens; tokens <<= 1)
        assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, tokens), 1000);
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_GPU, 4), 0);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 7, 2000); /* the same bucket */
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 4), 1250);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 64, 9000);
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 8), 1250);  /* the nearest bucket */
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 16), 1250); /* as near as the other */
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, 32), 9000);
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_CPU, UINT32_MAX), 9000);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_LINK, 64,
                            7); /* the cost of the link does not depend on the tokens */
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_LINK, 1), 7);
    assert_true(costs.ns[EFS_ASSIGN_COST_LINK][0] > 0);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_GPU, UINT32_MAX, UINT64_MAX);
    assert_int_equal(efs_assign_costs_ns(&costs, EFS_ASSIGN_COST_GPU, 1), EFS_ASSIGN_NS_MAX);
}

TEST(first_layers_measure_both)
{
    for (unsigned cached = 0; cached < 2; cached++) {
        struct efs_assign_costs costs = {0};
        assert_int_equal(decide(&costs, EXPERTS, 1, cached), EXPERTS / 2);
        struct efs_assign_costs alone = {0}; /* layers of one expert alternate */
        uint32_t there = 0;
        for (unsigned i = 0; i < 2; i++)
            there += decide(&alone, 1, 1, cached);
        assert_int_equal(there, 1);
    }
}

TEST(split_follows_measurements)
{
    struct efs_assign_costs costs = known(300, 100, 1000000);
    assert_int_equal(decide(&costs, EXPERTS, 1, true), 6);  /* 600 on each */
    assert_int_equal(decide(&costs, EXPERTS, 1, false), 0); /* no transfer pays off */
    for (unsigned i = 0; i < 40; i++)                       /* the CPU becomes slow */
        efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 1, 100000000);
    assert_int_equal(decide(&costs, EXPERTS, 1, false), EXPERTS);
    costs = known(100, 100, 300);
    assert_int_equal(decide(&costs, EXPERTS, 1, false), 2); /* 600 on each */
    for (unsigned i = 0; i < 40; i++)                       /* another process loads the device */
        efs_assign_costs_record(&costs, EFS_ASSIGN_COST_GPU, 1, 10000);
    assert_int_equal(decide(&costs, EXPERTS, 1, true), 0);
}

/* Two experts of 300 ns and three of 200: Algorithm 1 places them in this order, so that one side takes 700 in place of
 * 600. */
TEST(greedy)
{
    for (unsigned greedy = 0; greedy < 2; greedy++) {
        struct efs_assign_costs costs = known(200, 200, 1);
        struct efs_assign_expert experts[5];
        struct efs_assign_choice choice;
        uint8_t device[5];
        costs.greedy = greedy;
        efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 64, 300);
        efs_assign_costs_record(&costs, EFS_ASSIGN_COST_GPU, 64, 300);
        layer(experts, 2, 64, true);
        layer(experts + 2, 3, 1, true);
        assert_int_equal(efs_assign_by_costs(&costs, experts, 5, UINT64_MAX, false, 1, device, &choice), 0);
        assert_int_equal(choice.ns, greedy ? 700 : 600);
    }
}

/* However slow a side is, each cost is measured again at regular intervals. */
TEST(slow_side_is_measured_again)
{
    static const uint64_t ns[][3] = {{1, 1000000, 1000000}, {1000000, 1, 1}, {100, 1, 1000000}};
    for (unsigned n = 0; n < sizeof(ns) / sizeof(ns[0]); n++)
        for (uint32_t count = 1; count <= EXPERTS; count += EXPERTS - 1) {
            struct efs_assign_costs costs = known(ns[n][0], ns[n][1], ns[n][2]);
            uint32_t here = 0, there = 0;
            for (unsigned i = 0; i < 10 * (EFS_ASSIGN_MEASURE_INTERVAL + 3); i++) {
                const uint32_t on_device = decide(&costs, count, 1, false);
                here += on_device < count;
                there += on_device > 0;
            }
            assert_true(here >= 9 && there >= 9);
        }
}

/* A first sample that is far too high is outweighed after few layers. */
TEST(a_bad_first_sample)
{
    struct efs_assign_costs costs = {0};
    uint32_t there = 0;
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_CPU, 1, 100000);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_GPU, 1, 10000);
    efs_assign_costs_record(&costs, EFS_ASSIGN_COST_LINK, 1, 20000000);
    for (unsigned i = 0; i < 3 * EFS_ASSIGN_MEASURE_INTERVAL; i++) {
        there = decide(&costs, EXPERTS, 1, false);
        if (there > 0)
            efs_assign_costs_record(&costs, EFS_ASSIGN_COST_LINK, 1, 50000);
    }
    assert_true(there > 0);
}

/* While the memory fills, transfers cost nothing. */
TEST(free_memory_is_filled)
{
    struct efs_assign_costs costs = known(300, 10, 1000000);
    struct efs_assign_expert experts[EXPERTS];
    struct efs_assign_choice choice;
    uint8_t device[EXPERTS];
    for (unsigned fill = 0; fill < 2; fill++) {
        layer(experts, EXPERTS, 1, false);
        assert_int_equal(efs_assign_by_costs(&costs, experts, EXPERTS, UINT64_MAX, fill, 1, device, &choice), 0);
        for (uint32_t i = 0; i < EXPERTS; i++)
            assert_int_equal(device[i], fill ? EFS_ASSIGN_GPU : EFS_ASSIGN_CPU);
    }
}

/* A layer is divided only if that pays for the time that both sides need beyond their experts. */
TEST(extra_time_of_layers)
{
    struct efs_assign_expert experts[EXPERTS];
    struct efs_assign_choice choice;
    uint8_t device[EXPERTS];
    struct efs_assign_costs costs = known(300, 100, 1);
    uint64_t took[3] = {0};
    for (unsigned i = 0; i < 40 * EFS_ASSIGN_MEASURE_INTERVAL; i++) {
        layer(experts, EXPERTS, 1, true);
        assert_int_equal(efs_assign_by_costs(&costs, experts, EXPERTS, 0, false, 1, device, &choice), 0);
        took[choice.extra - EFS_ASSIGN_EXTRA_CPU]++;
        efs_assign_costs_record_layer(&costs, &choice, choice.ns + (choice.extra == EFS_ASSIGN_EXTRA_BOTH ? 1000 : 10));
    }
    assert_true(took[1] > 30 * EFS_ASSIGN_MEASURE_INTERVAL); /* 800 on the device; 600 on both, and 990 more */
    assert_true(took[2] > 0);
    layer(experts, EXPERTS, 1, false); /* no room: not all to the device */
    for (uint32_t i = 0; i < EXPERTS; i++)
        experts[i].bytes = 2;
    assert_int_equal(efs_assign_by_costs(&costs, experts, EXPERTS, 8, false, 1, device, &choice), 0);
    assert_int_not_equal(choice.extra, EFS_ASSIGN_EXTRA_GPU);
    assert_int_equal(efs_assign_by_costs(&costs, experts, EXPERTS, 99, true, 1, device, &choice), 0);
    assert_int_equal(choice.extra, EFS_ASSIGN_COSTS); /* its transfers were not counted */
    efs_assign_costs_record_layer(&costs, &choice, 5);
}

TEST(memory_and_bounds)
{
    static struct efs_assign_expert many[EFS_ASSIGN_EXPERTS_MAX + 1];
    static uint8_t device[EFS_ASSIGN_EXPERTS_MAX + 1];
    struct efs_assign_costs costs = known(1000, 1, 1);
    struct efs_assign_choice choice;
    uint32_t there = 0;
    layer(many, EFS_ASSIGN_EXPERTS_MAX + 1, 1, false);
    assert_int_equal(efs_assign_by_costs(&costs, many, EXPERTS, 3, false, 1, device, &choice), 0);
    for (uint32_t i = 0; i < EXPERTS; i++)
        there += device[i] == EFS_ASSIGN_GPU;
    assert_int_equal(there, 3);
    assert_int_equal(efs_assign_by_costs(&costs, many, 0, 0, false, 1, device, &choice), -EINVAL);
    assert_int_equal(efs_assign_by_costs(&costs, many, EFS_ASSIGN_EXPERTS_MAX + 1, 0, false, 1, device, &choice),
                     -EINVAL);
    assert_int_equal(efs_assign_by_costs(&costs, many, EFS_ASSIGN_EXPERTS_MAX, 0, false, 1, device, &choice), 0);
    many[1].tokens = 0;
    assert_int_equal(efs_assign_by_costs(&costs, many, EXPERTS, 0, false, 1, device, &choice), -EINVAL);
}

TEST_MAIN(NULL, NULL)
