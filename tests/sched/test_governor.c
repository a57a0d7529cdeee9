/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c - which predictions are worth a read and in which order, prompts, caps, and decisions by measured
 * time. */
#include "test.h"
#include "cases.h"
#include "governor.h"

#include <math.h>

enum { LAYERS = 4, EXPERTS = 32 };

/* 1 ms for 1000 bytes. */
static const struct efs_governor_disk disk = {.bytes_per_second = 1e6};

static struct efs_governor governor_of(enum efs_governor_mode mode)
{
    struct efs_governor g;

    efs_governor_init(&g, LAYERS, &(struct efs_governor_config){.mode = mode, .least = 0.0005});
    return g;
}

static struct efs_governor_candidate candidate(unsigned expert, int64_t due, double p)
{
    return (struct efs_governor_candidate){
        .layer = 1, .expert = (uint16_t)expert, .due = due, .probability = (float)p, .missing_bytes = 1000};
}

/* Passes `count` requests to the governor, `every` ns apart, each with `missing` bytes to read. Returns the last
 * answer. */
static enum efs_governor_decision ask_for(struct efs_governor *g, unsigned count, uint64_t every, unsigned asked,
                                          unsigned tokens, uint64_t missing)
{
    enum efs_governor_decision now = EFS_GOVERNOR_NOTHING;

    for (unsigned i = 0; i < count; i++)
        now = efs_governor_requested(g, &(struct efs_governor_request){.now_ns = g->last_ns + every,
                                                                       .tokens = tokens,
                                                                       .requested = asked,
                                                                       .experts = EXPERTS,
                                                                       .missing_bytes = missing});
    return now;
}

static enum efs_governor_decision ask(struct efs_governor *g, unsigned count, uint64_t every, unsigned asked,
                                      unsigned tokens)
{
    return ask_for(g, count, every, asked, tokens, 1000);
}

TEST(predictions_are_ranked)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_ALWAYS);
    struct efs_prefetch_prediction predictions[8];
    struct efs_governor_candidate c[] = {candidate(1, 1, 0.2), candidate(2, 1, 0.9), candidate(3, 0, 1),
                                         candidate(4, 2, 0),   candidate(5, 2, 0.5), candidate(6, 2, 0.5)};

    assert_int_equal(ask(&g, 100, 4000000, 4, 1), EFS_GOVERNOR_PREDICTIONS);
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
    struct efs_governor g = governor_of(EFS_GOVERNOR_ALWAYS);
    struct efs_governor_disk pieces = disk;
    struct efs_prefetch_prediction guess;
    struct efs_governor_candidate above = candidate(1, 1, 0.13), below = candidate(1, 1, 0.12);

    ask(&g, 100, 4000000, 4, 1);
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

    efs_governor_init(&g, LAYERS, &(struct efs_governor_config){.mode = EFS_GOVERNOR_ALWAYS});
    assert_int_equal(efs_governor_select(&g, &disk, 0, c, 2, predictions), 1);
    assert_int_equal(predictions[0].expert, 1);
}

/* A disk under load by other processes: demand takes 3.9 of 4 ms, and a piece 1 ms. No prefetch completes in time, and
 * each would delay the next demand read. */
TEST(no_prefetch_on_busy_disk)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_AUTO);
    struct efs_governor_disk busy = {.bytes_per_second = 1e6, .latency_ns = 2900000, .piece_bytes = 100};
    const struct efs_governor_candidate sure[] = {candidate(1, 1, 1), candidate(2, 4, 1)};
    struct efs_prefetch_prediction predictions[2];

    ask(&g, 100, 4000000, 4, 1);
    assert_int_equal(efs_governor_select(&g, &busy, 0, sure, 2, predictions), 0);
    g.config.mode = EFS_GOVERNOR_ALWAYS;
    assert_true(efs_governor_select(&g, &busy, 0, sure, 2, predictions) > 0);
    g.config.mode = EFS_GOVERNOR_AUTO;
    busy.latency_ns = 10000;
    assert_int_equal(efs_governor_select(&g, &busy, 0, sure, 2, predictions), 2);
}

/* One layer every 0.5 ms: a prefetch for the next layer is half done when that layer is requested. */
TEST(late_prefetch_saves_less)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_ALWAYS);
    struct efs_prefetch_prediction predictions[2];
    const struct efs_governor_candidate c[] = {candidate(1, 1, 0.6), candidate(2, 2, 0.5)};
    struct efs_governor_disk pieces = disk;

    pieces.piece_bytes = 100;
    ask_for(&g, 100, 500000, 4, 1, 0);
    assert_int_equal(efs_governor_select(&g, &pieces, 0, c, 2, predictions), 2);
    assert_true(fabs((double)predictions[0].worth - 0.3) < 1e-4);
    assert_true(fabs((double)predictions[1].worth - 0.5) < 1e-4);
}

TEST(a_prompt_reads_the_next_layer_in_order)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_ALWAYS);
    struct efs_governor_candidate c[] = {candidate(1, 1, 0), candidate(2, 1, 0), candidate(3, 1, 0)};
    struct efs_prefetch_prediction predictions[3];

    assert_int_equal(ask(&g, 1, 1000000, 24, 40), EFS_GOVERNOR_PREDICTIONS);
    assert_int_equal(ask(&g, 1, 1000000, 25, 40), EFS_GOVERNOR_LAYER);
    c[1].missing_bytes = 0;
    assert_int_equal(efs_governor_select_layer(c, 3, predictions), 2);
    assert_int_equal(predictions[0].expert, 1);
    assert_int_equal(predictions[1].expert, 3);
    assert_true(predictions[0].worth > predictions[1].worth);
}

/* Iterations with prefetch take with_ns a layer, those without 1 ms. Returns the fraction with prefetch in the last
 * half. */
static double play(struct efs_governor *g, unsigned iterations, uint64_t with_ns)
{
    unsigned with = 0;
    uint64_t every = 1000000;

    for (unsigned i = 0; i < iterations * LAYERS; i++) {
        bool guess = ask(g, 1, every, 4, 1) == EFS_GOVERNOR_PREDICTIONS;

        every = guess ? with_ns : 1000000;
        with += guess && 2 * i >= iterations * LAYERS;
    }
    return 2.0 * with / (iterations * LAYERS);
}

TEST(measured_time_decides)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_AUTO);

    assert_true(play(&g, 400, 800000) > 0.9);
    assert_true(play(&g, 800, 1500000) < 0.1);
    assert_true(play(&g, 800, 800000) > 0.9);
    g = governor_of(EFS_GOVERNOR_ALWAYS);
    assert_true(play(&g, 400, 1500000) > 0.99);
}

/* Prefetch has a share of the budget only while it reads: not before, not if no prediction is worth a read, and not if
 * it slows the client down. */
TEST(memory_follows_use)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_AUTO);
    const struct efs_governor_candidate sure = candidate(1, 2, 1), unlikely = candidate(1, 2, 0);
    struct efs_prefetch_prediction guess;

    assert_false(efs_governor_has_share(&g));
    for (unsigned i = 0; i < 20 * LAYERS; i++)
        if (ask_for(&g, 1, g.trial.with ? 500000 : 1000000, 4, 1, 0) == EFS_GOVERNOR_PREDICTIONS)
            assert_int_equal(efs_governor_select(&g, &disk, 0, &sure, 1, &guess), 1);
    assert_true(efs_governor_has_share(&g));
    for (unsigned i = 0; i < 400 * LAYERS; i++)
        if (ask_for(&g, 1, 1000000, 4, 1, 0) == EFS_GOVERNOR_PREDICTIONS)
            assert_int_equal(efs_governor_select(&g, &disk, 0, &unlikely, 1, &guess), 0);
    assert_false(efs_governor_has_share(&g));
    g = governor_of(EFS_GOVERNOR_ALWAYS);
    assert_true(efs_governor_has_share(&g));
}

/* A pause of 1 s by the client is not counted as slowness of the block around it. */
TEST(pauses_are_not_measured)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_AUTO);

    for (unsigned i = 0; i < 200; i++) {
        play(&g, 10, 900000);
        ask(&g, 1, 1000000000, 4, 1);
    }
    assert_true(efs_trial_ratio(&g.trial) < 1.01);
    assert_true(g.interval_ns < 5e6);
}

TEST(caps_follow_the_budget)
{
    struct efs_governor g = governor_of(EFS_GOVERNOR_AUTO);
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
