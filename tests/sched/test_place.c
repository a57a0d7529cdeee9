/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_place.c - placement of experts on servers: Prism's algorithms by hand, also where the paper leaves a choice;
 * coverage of all rules on random cases; ours against Prism's and the optimum; migration; the paper's bounds that do
 * not hold.
 */
#include "test.h"
#include "cases.h"
#include "place.h"
#include "place_optimum.h"

#define SERVERS 4
#define LAYERS 4
#define EXPERTS 6
#define ALL (SERVERS * LAYERS * EXPERTS)

/* A server with one GPU with `slots` slots of 10 bytes. */
static struct efs_place_server server(uint64_t slots)
{
    return (struct efs_place_server){.gpus = 1,
                                     .gpu_bytes = {10 * slots},
                                     .load_bytes_per_second = 10,
                                     .passes = 100,
                                     .remote_s = 1,
                                     .pass_s = 1,
                                     .call_s = 0.1};
}

static struct efs_place_problem problem(uint32_t servers, uint32_t layers, uint32_t experts,
                                        const struct efs_place_server *server, const double *calls)
{
    return (struct efs_place_problem){
        .servers = servers, .layers = layers, .experts = experts, .expert_bytes = 10, .server = server, .calls = calls};
}

/* ---- Algorithm 1 ------------------------------------------------------------------------------------------------- */

TEST(counts_by_hand)
{
    static const struct {
        const char *what;
        uint32_t servers, layers, experts, slots[2];
        double calls[2 * 3 * 4];
        uint32_t want[2 * 3];
    } cases[] = {
        {"by entropy, 2 and 1 bits: 4 and 2 of 6 slots; the second layer has its 4 experts in all",
         2,
         2,
         4,
         {6, 6},
         {1, 1, 1, 1, 5, 5, 0, 0, 2, 2, 2, 2, 0, 0, 7, 7},
         {4, 2, 4, 2}},
        {"of 6 and 3 slots: 4 and 2, 2 and 1; layer 1 lacks one, which the larger server gives of its layer 0",
         2,
         2,
         4,
         {6, 3},
         {1, 1, 1, 1, 5, 5, 0, 0, 2, 2, 2, 2, 0, 0, 7, 7},
         {3, 3, 2, 1}},
        {"all entropy is in layer 0, which has 3 experts for 5 slots", 1, 2, 3, {6, 0}, {1, 1, 1, 9, 0, 0}, {3, 3}},
        {"three equal layers, capped at 2 experts each",
         2,
         3,
         2,
         {8, 8},
         {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         {2, 2, 2, 2, 2, 2}},
        {"no entropy: equal parts", 2, 2, 2, {2, 2}, {0, 0, 0, 0, 5, 0, 0, 5}, {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct efs_place_server servers[] = {server(cases[i].slots[0]), server(cases[i].slots[1])};
        const struct efs_place_problem p =
            problem(cases[i].servers, cases[i].layers, cases[i].experts, servers, cases[i].calls);
        uint32_t counts[2 * 3];
        assert_int_equal(efs_place_counts(&p, counts), 0);
        if (memcmp(counts, cases[i].want, sizeof(counts[0]) * p.servers * p.layers) != 0)
            fail_msg("%s: %u %u ...", cases[i].what, counts[0], counts[1]);
    }
}

TEST(rounding_remainder_is_distributed)
{
    /* three equal layers, 8 slots: 2.67 each, so 3, 3, 2 and not 2, 2, 2 */
    const double calls[2 * 3 * 4] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct efs_place_server servers[] = {server(8), server(8)};
    const struct efs_place_problem p = problem(2, 3, 4, servers, calls);
    uint32_t counts[6], sum = 0;
    assert_int_equal(efs_place_counts(&p, counts), 0);
    for (unsigned i = 0; i < 6; i++)
        sum += counts[i];
    assert_int_equal(sum, 16);
}

TEST(too_few_slots_are_refused)
{
    const double calls[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct efs_place_server few[] = {server(2), server(1)}, enough[] = {server(2), server(2)};
    struct efs_place_problem p = problem(2, 2, 2, few, calls);
    uint32_t counts[4];
    uint8_t held[8];
    assert_int_equal(efs_place_counts(&p, counts), -ENOSPC);
    for (unsigned rule = 0; rule < EFS_PLACE_RULES; rule++)
        assert_int_equal(efs_place_by((enum efs_place_rule)rule, &p, 1, held), -ENOSPC);
    p.server = enough;
    assert_int_equal(efs_place_counts(&p, counts), 0);
    /* Memory is not split across GPUs: two with 15 bytes each hold two experts of 10, not three. */
    struct efs_place_server halves[] = {server(1), server(1)};
    halves[0].gpus = halves[1].gpus = 2;
    for (unsigned i = 0; i < 2; i++)
        halves[i].gpu_bytes[0] = halves[i].gpu_bytes[1] = 15;
    p.server = halves;
    assert_int_equal(efs_place_slots(&p, 0), 2);
}

/* ---- Algorithm 2 ------------------------------------------------------------------------------------------------- */

TEST(least_used_duplicate_is_removed)
{
    /* Both start with experts 0 and 1; 2 and 3 are uncovered. Both have two duplicates: server 0 is first and replaces
     * 1 by 3, which it uses more than 2; then server 1 has one duplicate, 0, and replaces it by 2. */
    const double calls[] = {9, 8, 1, 2, 7, 9, 1, 2};
    const struct efs_place_server servers[] = {server(2), server(2)};
    const struct efs_place_problem p = problem(2, 1, 4, servers, calls);
    const uint32_t counts[] = {2, 2};
    const uint8_t want[] = {1, 0, 0, 1, 0, 1, 1, 0};
    uint8_t held[8];
    assert_int_equal(efs_place_assign(&p, counts, held), 0);
    assert_memory_equal(held, want, sizeof(want));
}

TEST(fewest_duplicates_go_first)
{
    /* Server 1 has 0 only, server 0 has 0 and 1, server 2 has 0 and 2: each has one duplicate, 0; the first server
     * replaces it by 3, and the other two keep theirs */
    const double calls[] = {9, 8, 0, 0, 9, 0, 0, 0, 9, 0, 8, 0};
    const struct efs_place_server servers[] = {server(2), server(1), server(2)};
    const struct efs_place_problem p = problem(3, 1, 4, servers, calls);
    const uint32_t counts[] = {2, 1, 2};
    const uint8_t want[] = {0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0};
    uint8_t held[12];
    assert_int_equal(efs_place_assign(&p, counts, held), 0);
    assert_memory_equal(held, want, sizeof(want));
}

TEST(impossible_counts_are_refused)
{
    const double calls[] = {1, 1, 1, 1};
    const struct efs_place_server servers[] = {server(2), server(2)};
    const struct efs_place_problem p = problem(2, 1, 2, servers, calls);
    const uint32_t much[] = {3, 1}, little[] = {1, 0};
    uint8_t held[4];
    assert_int_equal(efs_place_assign(&p, much, held), -EINVAL);
    assert_int_equal(efs_place_assign(&p, little, held), -ENOSPC);
}

TEST(arguments_are_checked)
{
    double calls[] = {1, 1, 1, 1};
    struct efs_place_server servers[] = {server(2), server(2)};
    struct efs_place_problem p = problem(2, 1, 2, servers, calls);
    assert_int_equal(efs_place_check(&p), 0);
    calls[3] = NAN;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    calls[3] = -1;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    calls[3] = 0;
    servers[1].load_bytes_per_second = 0;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    servers[1] = server(2);
    servers[0].gpus = EFS_PLACE_GPUS_MAX + 1;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    servers[0] = server(2);
    servers[0].gpu_bytes[0] = UINT64_MAX;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    servers[0] = server(2);
    p.experts = 0;
    assert_int_equal(efs_place_check(&p), -EINVAL);
    p = problem(2, 1, 2, servers, calls);
    p.expert_bytes = 0;
    assert_int_equal(efs_place_check(&p), -EINVAL);
}

/* ---- random cases -------------------------------------------------------------------------------------------------
 */

/* Skewed calls that differ by server, and memory for all experts at least once; sizes up to the given limits. */
static struct efs_place_problem random_problem(struct cases *c, uint32_t most_servers, uint32_t most_layers,
                                               uint32_t most_experts, struct efs_place_server *servers, double *calls)
{
    struct efs_place_problem p = problem(2 + cases_below(c, most_servers - 1), 1 + cases_below(c, most_layers),
                                         2 + cases_below(c, most_experts - 1), servers, calls);
    uint64_t need = (uint64_t)p.layers * p.experts, slots = 0;
    for (uint32_t n = 0; n < p.servers; n++) {
        servers[n] = server(cases_below(c, (uint32_t)need) + (n == 0));
        servers[n].gpus = 1 + cases_below(c, 2);
        servers[n].gpu_bytes[1] = servers[n].gpus > 1 ? cases_below(c, 25) : 0;
        servers[n].remote_s = 0.5 + cases_uniform(c);
        slots += efs_place_slots(&p, n);
    }
    for (uint32_t n = 0; slots < need; n = (n + 1) % p.servers) {
        uint64_t before = efs_place_slots(&p, n);
        servers[n].gpu_bytes[0] += 10;
        slots += efs_place_slots(&p, n) - before;
    }
    for (uint32_t n = 0; n < p.servers; n++)
        for (uint32_t l = 0; l < p.layers; l++)
            for (uint32_t e = 0; e < p.experts; e++)
                calls[efs_place_at(&p, n, l, e)] =
                    cases_below(c, 6) ? floor(100 * pow(cases_uniform(c), 1 + cases_below(c, 8))) : 0;
    return p;
}

/* True if every expert is held by at least one server. */
static bool covers(const struct efs_place_problem *p, const uint8_t *held)
{
    size_t all = (size_t)p->layers * p->experts;
    for (size_t i = 0; i < all; i++) {
        bool is_held = false;
        for (uint32_t n = 0; n < p->servers && !is_held; n++)
            is_held = held[n * all + i];
        if (!is_held)
            return false;
    }
    return true;
}

TEST(every_rule_covers_and_fits)
{
    struct cases c = {1000};
    for (unsigned round = 0; round < 1000; round++) {
        struct efs_place_server servers[SERVERS];
        double calls[ALL];
        uint8_t held[ALL];
        const struct efs_place_problem p = random_problem(&c, SERVERS, LAYERS, EXPERTS, servers, calls);
        for (unsigned rule = 0; rule < EFS_PLACE_RULES; rule++) {
            assert_int_equal(efs_place_by((enum efs_place_rule)rule, &p, round, held), 0);
            if (!covers(&p, held) || !efs_place_fits(&p, held))
                fail_msg("case %u: %s does not cover or fit", round, efs_place_rule_name((enum efs_place_rule)rule));
        }
    }
}

TEST(gain_rule_is_never_worse_than_prism)
{
    struct cases c = {2000};
    double prism_gap = 0, ours_gap = 0, prism_time = 0, ours_time = 0;
    unsigned known = 0, best = 0, best_time = 0;
    for (unsigned round = 0; round < 1000; round++) {
        struct efs_place_server servers[3];
        double calls[3 * 2 * 3];
        uint8_t prism[sizeof(calls)], gain[sizeof(calls)], by_time[sizeof(calls)], optimum[sizeof(calls)];
        const struct efs_place_problem p = random_problem(&c, 3, 2, 3, servers, calls);
        assert_int_equal(efs_place_by(EFS_PLACE_PRISM, &p, 1, prism), 0);
        assert_int_equal(efs_place_by(EFS_PLACE_GAIN, &p, 1, gain), 0);
        assert_int_equal(efs_place_by(EFS_PLACE_TIME, &p, 1, by_time), 0);
        assert_true(efs_place_remote_s(&p, gain) <= efs_place_remote_s(&p, prism));
        assert_true(efs_place_wait_s(&p, by_time) <= efs_place_wait_s(&p, prism));
        assert_int_equal(place_optimum(&p, EFS_PLACE_GAIN, optimum), 0);
        double least = efs_place_remote_s(&p, optimum);
        assert_true(covers(&p, optimum) && efs_place_fits(&p, optimum));
        assert_true(least <= efs_place_remote_s(&p, gain) + 1e-9);
        assert_int_equal(place_optimum(&p, EFS_PLACE_TIME, optimum), 0);
        double least_time = efs_place_wait_s(&p, optimum);
        assert_true(least_time <= efs_place_wait_s(&p, by_time) + 1e-9);
        if (least <= 0 || least_time <= 0)
            continue;
        known++;
        prism_gap += efs_place_remote_s(&p, prism) / least;
        ours_gap += efs_place_remote_s(&p, gain) / least;
        best += efs_place_remote_s(&p, gain) <= least * (1 + 1e-9);
        prism_time += efs_place_wait_s(&p, prism) / least_time;
        ours_time += efs_place_wait_s(&p, by_time) / least_time;
        best_time += efs_place_wait_s(&p, by_time) <= least_time * (1 + 1e-9);
    }
    print_message("of %u cases: remote seconds over the optimum's, prism %.4f, ours %.4f (the optimum in %u); waiting "
                  "prism %.4f, ours %.4f (%u)\n",
                  known, prism_gap / known, ours_gap / known, best, prism_time / known, ours_time / known, best_time);
    assert_true(known > 500 && ours_gap <= prism_gap && ours_time <= prism_time);
}

TEST(optimum_refuses_large_cases)
{
    struct efs_place_server servers[SERVERS];
    double calls[ALL] = {0};
    uint8_t held[ALL];
    for (unsigned n = 0; n < SERVERS; n++)
        servers[n] = server(30);
    const struct efs_place_problem p = problem(SERVERS, LAYERS, EXPERTS, servers, calls);
    assert_int_equal(place_optimum(&p, EFS_PLACE_GAIN, held), -E2BIG);
    assert_int_equal(place_optimum(&p, EFS_PLACE_PRISM, held), -EINVAL);
}

TEST(whole_layers_save_time)
{
    /* Two servers that hold half of two layers and call all four experts of each in most passes. By calls any half is
     * equally good; with whole layers half of the passes need no remote call. */
    double calls[2 * 2 * 4];
    struct efs_place_server servers[] = {server(4), server(4)};
    const struct efs_place_problem p = problem(2, 2, 4, servers, calls);
    uint8_t held[16];
    for (unsigned i = 0; i < 16; i++)
        calls[i] = 90;
    servers[0].call_s = servers[1].call_s = 0;
    assert_int_equal(efs_place_by(EFS_PLACE_TIME, &p, 1, held), 0);
    assert_double_equal(efs_place_wait_s(&p, held), 2 * 100 * (1 - 1e-4), 1e-6);
    assert_int_equal(efs_place_by(EFS_PLACE_PRISM, &p, 1, held), 0);
    assert_true(efs_place_wait_s(&p, held) > 300);
}

/* ---- packing, migration ---------------------------------------------------------------------------------------------
 */

TEST(packed_by_processor)
{
    const double calls[] = {9, 5, 4, 1};
    struct efs_place_server servers[] = {server(2)};
    struct efs_place_problem p = problem(1, 1, 4, servers, calls);
    const uint8_t held[] = {1, 1, 1, 1};
    uint8_t gpu[4], again[4], before[4] = {1, EFS_PLACE_NO_GPU, 1, 0};
    servers[0].gpus = 2;
    servers[0].gpu_bytes[1] = 25;
    assert_int_equal(efs_place_pack(&p, held, NULL, gpu), 0);
    const uint8_t want[] = {0, 1, 1, 0}; /* by load: 9 | 5, 5 + 4; then the last expert where it fits */
    assert_memory_equal(gpu, want, 4);
    assert_int_equal(efs_place_pack(&p, held, before, again), 0);
    const uint8_t stays[] = {1, 0, 1, 0};
    assert_memory_equal(again, stays, 4);
    servers[0].gpu_bytes[1] = 15;
    servers[0].gpu_bytes[0] = 20;
    assert_int_equal(efs_place_pack(&p, held, NULL, gpu), -ENOSPC);
}

TEST(migration_is_weighed_in_seconds)
{
    /* one expert more and one less, 10 bytes each at 10 bytes a second: 2 s */
    const double calls[] = {5, 5.5, 0, 0};
    struct efs_place_server servers[] = {server(1), server(2)};
    const struct efs_place_problem p = problem(2, 1, 2, servers, calls);
    const uint8_t before[] = {1, 0, 1, 1}, after[] = {0, 1, 1, 1};
    uint8_t gpu_before[4], gpu_after[4];
    assert_int_equal(efs_place_pack(&p, before, NULL, gpu_before), 0);
    assert_int_equal(efs_place_pack(&p, after, gpu_before, gpu_after), 0);
    assert_double_equal(efs_place_migration_s(&p, gpu_before, gpu_after), 2, 1e-12);
    assert_double_equal(efs_place_remote_s(&p, before) - efs_place_remote_s(&p, after), 0.5, 1e-12);
    assert_false(efs_place_migrates(&p, before, after, gpu_before, gpu_after));
    servers[0].remote_s = 3.9; /* 0.5 calls that take 3.9 s each: 1.95 s */
    assert_false(efs_place_migrates(&p, before, after, gpu_before, gpu_after));
    servers[0].remote_s = 4.1;
    assert_true(efs_place_migrates(&p, before, after, gpu_before, gpu_after));
    assert_false(efs_place_migrates(&p, after, after, gpu_after, gpu_after));
}

/* ---- claims of the paper that do not hold ------------------------------------------------------------------------ */

/* Lemma 1: covering 1 - delta of the calls takes at least 2^(H - delta log2 E) experts. */
TEST(lemma_1_fails)
{
    const double p[] = {0.9, 0.1}, delta = 0.1;
    double entropy = -p[0] * log2(p[0]) - p[1] * log2(p[1]);
    double bound = pow(2, entropy - delta * log2(2));
    assert_true(p[0] >= 1 - delta); /* one expert is enough */
    assert_true(bound > 1.29);      /* the lemma requires more than one */
}

/* Theorem 1: Algorithms 1 and 2 reach at least 1 - 1/e of the calls that could be local. A layer that only calls one
 * expert has entropy 0 and so no slot, though it has calls. */
TEST(theorem_1_fails)
{
    enum { MANY = 64 };
    static double calls[2 * 2 * MANY];
    struct efs_place_server servers[] = {server(2), server(2 * MANY - 2)};
    const struct efs_place_problem p = problem(2, 2, MANY, servers, calls);
    static uint8_t held[2 * 2 * MANY];
    uint32_t counts[4];
    double here = 0, could = 1 + 1.0 / MANY;
    calls[0] = 1; /* layer 0: one expert */
    for (unsigned e = 0; e < MANY; e++) {
        calls[MANY + e] = 1.0 / MANY;
        calls[2 * MANY + e] = calls[3 * MANY + e] = 1.0 / MANY;
    }
    assert_int_equal(efs_place_counts(&p, counts), 0);
    assert_int_equal(counts[0], 0);
    assert_int_equal(counts[1], 2);
    assert_int_equal(efs_place_by(EFS_PLACE_PRISM, &p, 1, held), 0);
    for (unsigned i = 0; i < 2 * MANY; i++)
        here += held[i] ? calls[i] : 0;
    assert_true(here < (1 - exp(-1)) * could);
    assert_true(here < 0.05 * could);
    assert_int_equal(efs_place_by(EFS_PLACE_GAIN, &p, 1, held), 0);
    assert_true(held[0]); /* ours holds this expert */
}

TEST_MAIN(NULL, NULL)
