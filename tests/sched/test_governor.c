/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c - which predictions are worth a read and in which order, prompts, caps. */
#include "test.h"
#include "cases.h"
#include "governor.h"

#include <math.h>

enum { LAYERS = 4, EXPERTS = 32 };

/* 1 ms for 1000 bytes. */
static const struct efs_governor_disk disk = {.bytes_per_second = 1e6};

static struct efs_governor governor(void)
{
    struct efs_governor g;

    efs_governor_init(&g, &(struct efs_governor_config){.least = 0.0005});
    return g;
}

static struct efs_governor_candidate candidate(unsigned expert, int64_t due, double p)
{
    return (struct efs_governor_candidate){
        .layer = 1, .expert = (uint16_t)expert, .due = due, .probability = (float)p, .missing_bytes = 1000};
}

/* Passes `count` requests to the governor, `every` ns apart, each with `missing` bytes to read. Returns the last
 * answer. */
static bool ask(struct efs_governor *g, unsigned count, uint64_t every, unsigned asked, uint64_t missing)
{
    bool prompt = false;

    for (unsigned i = 0; i < count; i++)
        prompt = efs_governor_requested(
            g, &(struct efs_governor_request){
                   .now_ns = g->last_ns + every, .requested = asked, .experts = EXPERTS, .missing_bytes = missing});
    return prompt;
}

TEST(predictions_are_ranked)
{
    struct efs_governor g = governor();
    struct efs_prefetch_prediction predictions[8];
    struct efs_governor_candidate c[] = {candidate(1, 1, 0.2), candidate(2, 1, 0.9), candidate(3, 0, 1),
                                         candidate(4, 2, 0),   candidate(5, 2, 0.5), candidate(6, 2, 0.5)};

    assert_false(ask(&g, 100, 4000000, 4, 1000));
    c[4].missing_bytes = 0;
    c[5].victim_bytes = 1000; /* as probable as the prediction */
    c[5].victim_probability = 0.5F;
    assert_int_equal(efs_governor_select(&g, &disk, 0, c, 6, predictions), 2);
    assert_int_equal(predictions[0].expert, 1);
    assert_int_equal(predictions[1].expert, 2);
    assert_true(predictions[1].worth > predictions[0].worth);
    assert_int_equal(predictions[1].due, 1);
    assert_int_equal(predictions[1].bytes, 1000);
    c[5].victim_probability = 0.1F;
    assert_int_equal(efs_governor_select(&g, &disk, 0, c, 6, predictions), 3);
}

/* By hand: a request every 4 ms, each of which reads. A read takes 1 ms, so one in four delays a demand read, by 0.5 ms
 * on average: a cost of 1/8 ms, so p must exceed 1/8. */
TEST(delayed_demand_is_a_cost)
{
    struct efs_governor g = governor();
    struct efs_governor_disk pieces = disk;
    struct efs_prefetch_prediction guess;
    struct efs_governor_candidate above = candidate(1, 1, 0.13), below = candidate(1, 1, 0.12);

    ask(&g, 100, 4000000, 4, 1000);
    assert_int_equal(efs_governor_select(&g, &disk, 0, &above, 1, &guess), 1);
    assert_int_equal(efs_governor_select(&g, &disk, 0, &below, 1, &guess), 0);
    pieces.piece_bytes = 100; /* demand waits for a tenth of the read, and rarely: a cost below 1/800 */
    assert_int_equal(efs_governor_select(&g, &pieces, 0, &below, 1, &guess), 1);
    below.probability = 0.001F;
    assert_int_equal(efs_governor_select(&g, &pieces, 0, &below, 1, &guess), 0);
}

TEST(improbable_experts_are_not_read)
{
    struct efs_governor g;
    const struct efs_governor_candidate c[] = {candidate(1, 1, EFS_GOVERNOR_LEAST + 0.01),
                                               candidate(2, 1, EFS_GOVERNOR_LEAST - 0.01)};
    struct efs_prefetch_prediction predictions[2];

    efs_governor_init(&g, &(struct efs_governor_config){0});
    assert_int_equal(efs_governor_select(&g, &disk, 0, c, 2, predictions), 1);
    assert_int_equal(predictions[0].expert, 1);
}

/* One layer every 0.5 ms: a prefetch for the next layer is half done when that layer is requested. */
TEST(late_prefetch_saves_less)
{
    struct efs_governor g = governor();
    struct efs_prefetch_prediction predictions[2];
    const struct efs_governor_candidate c[] = {candidate(1, 1, 0.6), candidate(2, 2, 0.5)};
    struct efs_governor_disk pieces = disk;

    pieces.piece_bytes = 100;
    ask(&g, 100, 500000, 4, 0);
    assert_int_equal(efs_governor_select(&g, &pieces, 0, c, 2, predictions), 2);
    assert_true(fabs((double)predictions[0].worth - 0.3) < 1e-4);
    assert_true(fabs((double)predictions[1].worth - 0.5) < 1e-4);
}

TEST(a_prompt_reads_the_next_layer_in_order)
{
    struct efs_governor g = governor();
    struct efs_governor_candidate c[] = {candidate(1, 1, 0), candidate(2, 1, 0), candidate(3, 1, 0)};
    struct efs_prefetch_prediction predictions[3];

    assert_false(ask(&g, 1, 1000000, 24, 1000));
    assert_true(ask(&g, 1, 1000000, 25, 1000));
    c[1].missing_bytes = 0;
    assert_int_equal(efs_governor_select_layer(c, 3, predictions), 2);
    assert_int_equal(predictions[0].expert, 1);
    assert_int_equal(predictions[1].expert, 3);
    assert_true(predictions[0].worth > predictions[1].worth);
}

/* A pause of 1 s by the client is no time of a layer. */
TEST(pauses_are_capped)
{
    struct efs_governor g = governor();

    for (unsigned i = 0; i < 200; i++) {
        ask(&g, 40, 900000, 4, 1000);
        ask(&g, 1, 1000000000, 4, 1000);
    }
    assert_true(g.interval_ns < 5e6);
}

TEST(caps_follow_the_budget)
{
    struct efs_governor g = governor();
    struct efs_prefetch_config caps = {.layers = LAYERS};

    efs_governor_caps(&g, 1000000, 1000, &caps);
    assert_int_equal(caps.resident_bytes, (uint64_t)(1000000 * EFS_GOVERNOR_SHARE));
    assert_int_equal(caps.in_flight_bytes, 1000);
    efs_governor_caps(&g, 30000, 1000, &caps); /* two experts, even above the share */
    assert_int_equal(caps.resident_bytes, 2000);
    efs_governor_caps(&g, 5000, 1000, &caps); /* but at most a tenth of the budget */
    assert_int_equal(caps.resident_bytes, 500);
    g.config.share = 0.5;
    efs_governor_caps(&g, 100000, 1000, &caps);
    assert_int_equal(caps.resident_bytes, 50000);
}

TEST_MAIN(NULL, NULL)
