/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_assign.c - assignment of experts to devices: Algorithm 1 of DALI by hand, ours and the optimum against
 * enumeration.
 */
#include "test.h"
#include "assign.h"
#include "cases.h"

#define MANY 12

static struct efs_assign_problem two(const uint64_t *ns, uint32_t experts)
{
    return (struct efs_assign_problem){.experts = experts, .devices = 2, .ns = ns};
}

TEST(algorithm_1_by_hand)
{
    /* differences 60, 5, 20, 5, 0: the order is 0, 2, 1, 3; expert 4 has no work */
    const uint64_t ns[] = {100, 35, 30, 10, 0, /* processor */ 40, 40, 50, 15, 0};
    const struct efs_assign_problem p = two(ns, 5);
    /* 0: 40 <= 100, GPU; 2: 90 > 30, CPU; 1: 80 > 65, CPU (65); 3: 55 <= 75, GPU */
    const uint8_t want[] = {1, 0, 0, 1, EFS_ASSIGN_NONE};
    struct efs_assign_sum sum;
    uint8_t device[5];
    assert_int_equal(efs_assign_greedy(&p, device, &sum), 0);
    assert_memory_equal(device, want, sizeof(want));
    assert_int_equal(sum.device_ns[0], 65);
    assert_int_equal(sum.device_ns[1], 55);
    assert_int_equal(sum.makespan_ns, 65);
    struct efs_assign_sum again;
    assert_int_equal(efs_assign_sum(&p, device, &again), 0);
    assert_memory_equal(&again, &sum, sizeof(sum));
}

TEST(ties_go_to_gpu)
{
    const uint64_t ns[] = {10, 10, 10, 10};
    const struct efs_assign_problem p = two(ns, 2);
    struct efs_assign_sum sum;
    uint8_t device[2];
    assert_int_equal(efs_assign_greedy(&p, device, &sum), 0);
    assert_int_equal(device[0], EFS_ASSIGN_GPU);
    assert_int_equal(device[1], EFS_ASSIGN_CPU);
}

TEST(algorithm_1_is_not_the_optimum)
{
    /* all differences are 0, so they are assigned in order: 2, 2, 2 balance first, then two of 3 follow */
    const uint64_t ns[] = {2, 2, 2, 3, 3, 2, 2, 2, 3, 3};
    const struct efs_assign_problem p = two(ns, 5);
    struct efs_assign_sum greedy, best, ours;
    uint8_t device[5];
    assert_int_equal(efs_assign_greedy(&p, device, &greedy), 0);
    assert_int_equal(efs_assign_optimum(&p, device, &best), 0);
    assert_int_equal(efs_assign_balanced(&p, device, &ours), 0);
    assert_int_equal(greedy.makespan_ns, 7);
    assert_int_equal(best.makespan_ns, 6);
    assert_int_equal(ours.makespan_ns, 6);
}

TEST(memory_limit)
{
    const uint64_t ns[] = {100, 100, 100, 10, 10, 10}, bytes[] = {0, 0, 0, 4, 4, 0};
    uint64_t room[] = {UINT64_MAX, 4};
    struct efs_assign_problem p = two(ns, 3);
    struct efs_assign_sum sum;
    uint8_t device[3];
    p.bytes = bytes;
    p.room_bytes = room;
    assert_int_equal(efs_assign_greedy(&p, device, &sum), 0);
    assert_int_equal(device[0], 1);
    assert_int_equal(device[1], 0); /* no room in addition to the first */
    assert_int_equal(device[2], 1); /* cached already */
    assert_int_equal(sum.makespan_ns, 100);
    const uint8_t all_there[] = {1, 1, 1};
    assert_int_equal(efs_assign_sum(&p, all_there, &sum), -ENOSPC);
    room[0] = 0;
    room[1] = 3;
    assert_int_equal(efs_assign_greedy(&p, device, &sum), 0); /* experts on the CPU need no device memory */
    const uint64_t both[] = {4, 4, 4, 4, 4, 4};
    p.bytes = both;
    assert_int_equal(efs_assign_greedy(&p, device, &sum), -ENOSPC);
    assert_int_equal(efs_assign_balanced(&p, device, &sum), -ENOSPC);
}

TEST(bounds_are_checked)
{
    const uint64_t ns[] = {1, EFS_ASSIGN_NS_MAX + 1}, fine[] = {1, 1};
    struct efs_assign_problem p = two(ns, 1);
    struct efs_assign_sum sum;
    uint8_t device[1] = {2};
    assert_int_equal(efs_assign_greedy(&p, device, &sum), -EINVAL);
    assert_int_equal(efs_assign_balanced(&p, device, &sum), -EINVAL);
    assert_int_equal(efs_assign_optimum(&p, device, &sum), -EINVAL);
    p = two(fine, 0);
    assert_int_equal(efs_assign_greedy(&p, device, &sum), -EINVAL);
    p = two(fine, 1);
    p.devices = EFS_ASSIGN_DEVICES_MAX + 1;
    assert_int_equal(efs_assign_greedy(&p, device, &sum), -EINVAL);
    p = two(fine, 1);
    device[0] = 2;
    assert_int_equal(efs_assign_sum(&p, device, &sum), -EINVAL);
    device[0] = EFS_ASSIGN_NONE;
    assert_int_equal(efs_assign_sum(&p, device, &sum), -EINVAL);
    p.devices = 1;
    assert_int_equal(efs_assign_optimum(&p, device, &sum), -EINVAL);
    assert_int_equal(efs_assign_bound_ns(&p), 0);
}

/* The least makespan of all assignments to two devices. */
static uint64_t by_enumeration(const struct efs_assign_problem *p)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t set = 0; set < 1u << p->experts; set++) {
        struct efs_assign_sum sum;
        uint8_t device[MANY];
        for (uint32_t i = 0; i < p->experts; i++)
            device[i] = set >> i & 1;
        if (efs_assign_sum(p, device, &sum) == 0 && sum.makespan_ns < best)
            best = sum.makespan_ns;
    }
    return best;
}

TEST(optimum_is_the_best_of_all)
{
    struct cases cases = {17};
    for (unsigned round = 0; round < 400; round++) {
        uint64_t ns[2 * MANY], bytes[2 * MANY] = {0}, room[2] = {UINT64_MAX, 0};
        struct efs_assign_problem p = two(ns, 1 + cases_below(&cases, MANY));
        struct efs_assign_sum best, greedy, ours;
        uint8_t device[MANY];
        for (uint32_t i = 0; i < p.experts; i++) {
            bool none = cases_below(&cases, 8) == 0;
            ns[i] = none ? 0 : 1 + cases_below(&cases, 1000);
            ns[p.experts + i] = none ? 0 : 1 + cases_below(&cases, 400);
            bytes[p.experts + i] = cases_below(&cases, 3);
            room[1] += bytes[p.experts + i];
        }
        if (round % 2) {
            room[1] /= 2;
            p.bytes = bytes;
            p.room_bytes = room;
        }
        uint64_t least = by_enumeration(&p);
        assert_int_equal(efs_assign_optimum(&p, device, &best), 0);
        assert_int_equal(best.makespan_ns, least);
        struct efs_assign_sum again;
        assert_int_equal(efs_assign_sum(&p, device, &again), 0);
        assert_int_equal(again.makespan_ns, least);
        assert_int_equal(efs_assign_greedy(&p, device, &greedy), 0);
        assert_int_equal(efs_assign_balanced(&p, device, &ours), 0);
        assert_int_equal(efs_assign_sum(&p, device, &again), 0);
        assert_int_equal(again.makespan_ns, ours.makespan_ns);
        assert_true(least <= ours.makespan_ns && ours.makespan_ns <= greedy.makespan_ns);
        assert_true(efs_assign_bound_ns(&p) <= least);
    }
}

TEST(efs_rule_on_many_devices)
{
    struct cases cases = {8};
    for (unsigned round = 0; round < 100; round++) {
        static uint64_t ns[EFS_ASSIGN_DEVICES_MAX * 256];
        struct efs_assign_problem p = {.experts = 1 + cases_below(&cases, 256),
                                       .devices = 1 + cases_below(&cases, EFS_ASSIGN_DEVICES_MAX),
                                       .ns = ns};
        struct efs_assign_sum greedy, ours, again;
        uint8_t device[256];
        for (size_t i = 0; i < (size_t)p.devices * p.experts; i++)
            ns[i] = 1 + cases_below(&cases, 5000);
        assert_int_equal(efs_assign_greedy(&p, device, &greedy), 0);
        assert_int_equal(efs_assign_balanced(&p, device, &ours), 0);
        assert_int_equal(efs_assign_sum(&p, device, &again), 0);
        assert_memory_equal(&ours, &again, sizeof(ours));
        assert_true(ours.makespan_ns <= greedy.makespan_ns);
    }
}

TEST(optimum_refuses_large_cases)
{
    static uint64_t ns[2 * 400];
    struct cases cases = {3};
    const struct efs_assign_problem p = two(ns, 400);
    struct efs_assign_sum sum, balanced;
    uint8_t device[400];
    for (unsigned i = 0; i < 800; i++)
        ns[i] = 1000000 + cases_below(&cases, 1000000000);
    assert_int_equal(efs_assign_balanced(&p, device, &balanced), 0);
    assert_int_equal(efs_assign_optimum(&p, device, &sum), 0);
    assert_true(sum.makespan_ns <= balanced.makespan_ns);
    /* Equal devices: no partial assignment is better than another on both. */
    for (unsigned i = 0; i < 400; i++)
        ns[400 + i] = ns[i];
    assert_int_equal(efs_assign_optimum(&p, device, &sum), -E2BIG);
}

/* ---- one CPU and one GPU -------------------------------------------------------------------------------------- */

static struct efs_assign_expert expert(uint32_t tokens, bool cached, uint64_t cpu_ns)
{
    return (struct efs_assign_expert){
        .tokens = tokens, .cached = cached, .cpu_ns = cpu_ns, .gpu_ns = 10, .transfer_ns = 50, .bytes = 1};
}

TEST(peers_by_hand)
{
    /* light, cached, heavy, none, light */
    const struct efs_assign_expert experts[] = {expert(1, false, 20), expert(2, true, 40), expert(8, false, 160),
                                                expert(0, true, 99), expert(1, false, 20)};
    const struct efs_assign_pair pair = {.experts = 5, .expert = experts, .room_bytes = UINT64_MAX};
    const struct {
        enum efs_assign_rule rule;
        uint64_t cpu_ns, gpu_ns;
        uint8_t device[5];
    } want[] = {{EFS_ASSIGN_ALL_CPU, 240, 0, {0, 0, 0, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_POPULAR, 200, 10, {0, 1, 0, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_FIDDLER, 40, 60, {0, 1, 1, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_HYBRIMOE, 40, 60, {0, 1, 1, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_GREEDY, 40, 60, {0, 1, 1, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_BALANCED, 40, 60, {0, 1, 1, EFS_ASSIGN_NONE, 0}},
                {EFS_ASSIGN_OPTIMUM, 40, 60, {0, 1, 1, EFS_ASSIGN_NONE, 0}}};
    for (size_t k = 0; k < sizeof(want) / sizeof(want[0]); k++) {
        struct efs_assign_sum sum;
        uint8_t device[5];
        assert_int_equal(efs_assign_by(want[k].rule, &pair, device, &sum), 0);
        if (sum.device_ns[0] != want[k].cpu_ns || sum.device_ns[1] != want[k].gpu_ns)
            fail_msg("%s: %d and %d", efs_assign_rule_name(want[k].rule), (int)sum.device_ns[0], (int)sum.device_ns[1]);
        assert_memory_equal(device, want[k].device, 5);
    }
}

TEST(eq_5_takes_the_longer_of_both)
{
    struct efs_assign_expert e = expert(3, false, 100);
    assert_int_equal(efs_assign_gpu_ns(&e), 50);
    e.gpu_ns = 70;
    assert_int_equal(efs_assign_gpu_ns(&e), 70);
    e.gpu_ns = 10;
    e.cached = true;
    assert_int_equal(efs_assign_gpu_ns(&e), 10);
    e.tokens = 0;
    assert_int_equal(efs_assign_gpu_ns(&e), 0);
}

TEST(all_rules_respect_memory)
{
    struct cases cases = {5};
    for (unsigned round = 0; round < 200; round++) {
        struct efs_assign_expert experts[MANY];
        struct efs_assign_pair pair = {.experts = MANY, .expert = experts, .room_bytes = cases_below(&cases, 4)};
        uint64_t ns[2 * MANY], bytes[2 * MANY], room[2];
        for (unsigned i = 0; i < MANY; i++)
            experts[i] = (struct efs_assign_expert){.tokens = cases_below(&cases, 5),
                                                    .cached = cases_below(&cases, 2),
                                                    .cpu_ns = 1 + cases_below(&cases, 300),
                                                    .gpu_ns = 1 + cases_below(&cases, 20),
                                                    .transfer_ns = 50,
                                                    .bytes = 1};
        const struct efs_assign_problem p = efs_assign_pair_problem(&pair, ns, bytes, room);
        uint64_t best = 0;
        for (unsigned rule = EFS_ASSIGN_RULES; rule-- > 0;) {
            struct efs_assign_sum sum, again;
            uint8_t device[MANY];
            assert_int_equal(efs_assign_by((enum efs_assign_rule)rule, &pair, device, &sum), 0);
            assert_int_equal(efs_assign_sum(&p, device, &again), 0);
            assert_memory_equal(&sum, &again, sizeof(sum));
            best = rule == EFS_ASSIGN_OPTIMUM ? sum.makespan_ns : best;
            assert_true(sum.makespan_ns >= best);
        }
    }
}

TEST_MAIN(NULL, NULL)
