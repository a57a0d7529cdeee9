/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_history.c - histories count within their bounds; the skew sums to the chosen experts; drift is reported when the
 * workload changes and only then.
 */
#include "test.h"
#include "cases.h"
#include "history.h"
#include "planner.h"

#define LAYERS 3u
#define EXPERTS 8u

static bool same(const struct efs_history *a, const struct efs_history *b)
{
    size_t units = (size_t)a->layers * a->experts;

    return memcmp(a->counts, b->counts, units * sizeof(*a->counts)) == 0 &&
           memcmp(a->at_rank, b->at_rank, units * sizeof(*a->at_rank)) == 0 &&
           memcmp(a->passes, b->passes, a->layers * sizeof(*a->passes)) == 0 &&
           memcmp(a->ranked, b->ranked, a->layers * sizeof(*a->ranked)) == 0 && a->sequences == b->sequences;
}

static void check_bounds(const struct efs_history *h)
{
    for (unsigned l = 0; l < h->layers; l++) {
        assert_true(h->passes[l] <= EFS_HISTORY_MAX_PASSES && h->ranked[l] <= h->passes[l]);
        for (unsigned i = l * h->experts; i < (l + 1) * h->experts; i++)
            assert_true(h->counts[i] <= h->passes[l] && h->at_rank[i] <= h->ranked[l]);
    }
}

/* Draws k distinct experts of n, expert i with weight w[i]. */
static void draw(struct cases *cases, const double *w, unsigned n, unsigned k, uint32_t *ids)
{
    bool taken[512] = {false};

    for (unsigned i = 0; i < k; i++) {
        double sum = 0, at;
        unsigned e = 0;

        for (unsigned j = 0; j < n; j++)
            sum += taken[j] ? 0 : w[j];
        at = cases_uniform(cases) * sum;
        for (unsigned j = 0; j < n; j++) {
            if (taken[j])
                continue;
            e = j;
            if ((at -= w[j]) < 0)
                break;
        }
        taken[e] = true;
        ids[i] = e;
    }
}

static void weights(double *w, unsigned n, double skew)
{
    for (unsigned i = 0; i < n; i++)
        w[i] = pow(i + 1, -skew);
}

/* Records requests with weights rank^-skew; ranked: expert i is at rank i. */
static void play(struct cases *cases, struct efs_history *h, unsigned passes, unsigned k, double skew, bool ranked)
{
    double w[512];
    uint32_t ids[64];

    weights(w, h->experts, skew);
    for (unsigned pass = 0; pass < passes; pass++)
        for (unsigned l = 0; l < h->layers; l++) {
            draw(cases, w, h->experts, k, ids);
            assert_int_equal(efs_history_request(h, l, ids, ranked ? ids : NULL, k), 0);
        }
}

TEST(counts_requests)
{
    const uint32_t experts[] = {2, 7}, ranks[] = {0, 5}, wrong[] = {2, EXPERTS};
    struct efs_history h, before;

    assert_int_equal(efs_history_init(&h, LAYERS, EXPERTS), 0);
    assert_int_equal(efs_history_init(&before, LAYERS, EXPERTS), 0);
    assert_int_equal(efs_history_request(&h, 1, experts, ranks, 2), 0);
    assert_int_equal(efs_history_request(&h, 1, experts, NULL, 1), 0);
    assert_int_equal(efs_history_request(&h, 2, experts, NULL, 0), 0); /* a layer without requested experts */
    assert_int_equal(h.passes[0], 0);
    assert_int_equal(h.passes[1], 2);
    assert_int_equal(h.ranked[1], 1);
    assert_int_equal(h.passes[2], 1);
    assert_int_equal(h.counts[EXPERTS + 2], 2);
    assert_int_equal(h.counts[EXPERTS + 7], 1);
    assert_int_equal(h.at_rank[EXPERTS + 0], 1);
    assert_int_equal(h.at_rank[EXPERTS + 5], 1);

    assert_int_equal(efs_history_copy(&before, &h), 0);
    assert_int_equal(efs_history_request(&h, LAYERS, experts, NULL, 1), -EINVAL);
    assert_int_equal(efs_history_request(&h, 0, wrong, NULL, 2), -EINVAL);
    assert_int_equal(efs_history_request(&h, 0, experts, wrong, 2), -EINVAL);
    assert_int_equal(efs_history_request(&h, 0, experts, NULL, EXPERTS + 1), -EINVAL);
    assert_true(same(&h, &before));
    efs_history_clear(&h);
    assert_int_equal(h.passes[1] + h.ranked[1] + h.counts[EXPERTS + 2] + h.at_rank[EXPERTS], 0);
    efs_history_free(&before);
    efs_history_free(&h);
    efs_history_free(&h);

    assert_int_equal(efs_history_init(&h, 0, 1), -EINVAL);
    assert_int_equal(efs_history_init(&h, EFS_HISTORY_MAX_LAYERS + 1, 1), -EINVAL);
    assert_int_equal(efs_history_init(&h, 1, EFS_HISTORY_MAX_EXPERTS + 1), -EINVAL);
    efs_history_free(&h);
}

TEST(counts_decay)
{
    struct cases cases = {3};
    struct efs_history a, b, sum, other;

    assert_int_equal(efs_history_init(&a, LAYERS, EXPERTS), 0);
    assert_int_equal(efs_history_init(&b, LAYERS, EXPERTS), 0);
    assert_int_equal(efs_history_init(&sum, LAYERS, EXPERTS), 0);
    assert_int_equal(efs_history_init(&other, LAYERS, EXPERTS + 1), 0);
    play(&cases, &a, 300, 2, 1, true);
    play(&cases, &b, 100, 2, 0, false);
    a.sequences = 3;
    b.sequences = 4;
    assert_int_equal(efs_history_copy(&sum, &a), 0);
    assert_int_equal(efs_history_add(&sum, &b), 0);
    assert_int_equal(sum.sequences, 7);
    for (unsigned l = 0; l < LAYERS; l++) {
        assert_int_equal(sum.passes[l], 400);
        assert_int_equal(sum.ranked[l], 300);
    }
    for (unsigned i = 0; i < LAYERS * EXPERTS; i++)
        assert_int_equal(sum.counts[i], a.counts[i] + b.counts[i]);
    assert_int_equal(efs_history_add(&sum, &other), -EINVAL);
    assert_int_equal(efs_history_copy(&sum, &other), -EINVAL);

    assert_int_equal(efs_history_copy(&b, &sum), 0);
    efs_history_fade(&sum, 400);
    assert_true(same(&sum, &b));
    efs_history_fade(&sum, 40);
    check_bounds(&sum);
    for (unsigned l = 0; l < LAYERS; l++) {
        assert_int_equal(sum.passes[l], 40);
        assert_int_equal(sum.ranked[l], 30);
    }
    for (unsigned i = 0; i < LAYERS * EXPERTS; i++)
        assert_int_equal(sum.counts[i], b.counts[i] / 10);

    /* at the limit all counters are halved, also when two histories at the limit are added */
    for (unsigned i = 0; i < EXPERTS; i++)
        a.counts[i] = a.at_rank[i] = b.counts[i] = b.at_rank[i] = 1u << (23 + i);
    a.passes[0] = a.ranked[0] = b.passes[0] = b.ranked[0] = EFS_HISTORY_MAX_PASSES;
    assert_int_equal(efs_history_add(&a, &b), 0);
    check_bounds(&a);
    assert_int_equal(a.counts[3], 1u << 26);
    assert_int_equal(a.passes[0], EFS_HISTORY_MAX_PASSES);
    assert_int_equal(efs_history_request(&a, 0, &(uint32_t){3}, NULL, 1), 0);
    check_bounds(&a);
    assert_int_equal(a.passes[0], EFS_HISTORY_MAX_PASSES / 2 + 1);
    assert_int_equal(a.counts[3], (1u << 25) + 1);
    assert_int_equal(a.counts[2], 1u << 24);
    efs_history_free(&other);
    efs_history_free(&sum);
    efs_history_free(&b);
    efs_history_free(&a);
}

/* Each layer sums to chosen, with values in [0, 1]; the planner accepts the skew. */
static void check_skew(const struct efs_skew *skew)
{
    for (unsigned l = 0; l <= skew->layers; l++) {
        const double *f = l < skew->layers ? skew->inclusion + (size_t)l * skew->experts : skew->mean;
        const unsigned none[EFS_POOLS] = {0};
        struct efs_plan plan;
        struct efs_plan_request r = {.inclusion = f,
                                     .experts = skew->experts,
                                     .chosen = skew->chosen,
                                     .expert_bytes = {3, 2, 1, 1},
                                     .pools = EFS_PLAN_ALL_POOLS,
                                     .step = 0.5};
        double sum = 0;

        for (unsigned i = 0; i < skew->experts; i++) {
            assert_true(f[i] > 0 && f[i] <= 1);
            sum += f[i];
        }
        assert_double_equal(sum, skew->chosen, 1e-9 * skew->chosen);
        assert_int_equal(efs_plan_evaluate(&r, none, &plan), 0);
    }
}

TEST(assumed)
{
    static const unsigned shapes[][3] = {{24, 32, 4}, {48, 128, 8}, {7, 512, 16}, {3, 4, 4}, {2, 1, 1}, {61, 256, 8}};
    struct efs_skew skew;

    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        assert_int_equal(efs_skew_learn(&skew, NULL, shapes[i][0], shapes[i][1], shapes[i][2]), 0);
        assert_int_equal(skew.source, EFS_SKEW_ASSUMED);
        assert_string_equal(efs_skew_source_name(skew.source), "assumed");
        assert_int_equal(skew.chosen, shapes[i][2]);
        assert_int_equal(skew.passes, 0);
        check_skew(&skew);
        for (unsigned r = 1; r < skew.experts; r++)
            assert_true(skew.mean[r] <= skew.mean[r - 1]);
        if (skew.experts == 32) /* where no value is clipped to 1 it is Zipf's law */
            assert_double_equal(skew.mean[3] / skew.mean[7], 2, 1e-9);
        efs_skew_free(&skew);
    }
    assert_int_equal(efs_skew_learn(&skew, NULL, 0, 4, 1), -EINVAL);
    assert_int_equal(efs_skew_learn(&skew, NULL, 4, EFS_HISTORY_MAX_EXPERTS + 1, 1), -EINVAL);
    efs_skew_free(&skew);
    assert_int_equal(efs_skew_learn(&skew, NULL, 2, 8, NAN), 0); /* NaN becomes one expert */
    assert_int_equal(skew.chosen, 1);
    efs_skew_free(&skew);
}

TEST(from_ranks)
{
    static const uint32_t at_rank[4] = {8, 6, 4, 2}; /* of 10 passes with 2 experts each */
    struct efs_history h;
    struct efs_skew skew;

    assert_int_equal(efs_history_init(&h, 3, 4), 0);
    h.passes[0] = h.ranked[0] = 10;
    memcpy(h.at_rank, at_rank, sizeof(at_rank));
    memcpy(h.counts, (const uint32_t[]){2, 8, 6, 4}, sizeof(at_rank));
    h.passes[2] = 10; /* without ranks; layer 1 has no requests */
    memcpy(h.counts + 8, (const uint32_t[]){2, 8, 6, 4}, sizeof(at_rank));
    assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, 0), 0);
    check_skew(&skew);
    assert_int_equal(skew.source, EFS_SKEW_RANKS);
    assert_int_equal(skew.passes, 20);
    assert_int_equal(skew.chosen, 2);
    assert_double_equal(skew.mean_chosen, 2, 0);
    for (unsigned r = 0; r < 4; r++) {
        assert_double_equal(skew.inclusion[r], (at_rank[r] + 0.5) / 22 * 2, 1e-12);
        assert_double_equal(skew.inclusion[4 + r], (skew.inclusion[r] + skew.inclusion[8 + r]) / 2, 1e-12);
    }
    /* counts without ranks: sorted, and shrunk towards uniform */
    for (unsigned r = 1; r < 4; r++)
        assert_true(skew.inclusion[8 + r] < skew.inclusion[8 + r - 1]);
    assert_true(skew.inclusion[8] < 0.8 && skew.inclusion[8] > 0.5);
    efs_skew_free(&skew);
    efs_history_free(&h);
}

/* Half the sum of absolute differences of two lists, divided by `sum`. */
static double apart(const double *a, const double *b, unsigned n, double sum)
{
    double all = 0;

    for (unsigned i = 0; i < n; i++)
        all += fabs(a[i] - b[i]);
    return all / 2 / sum;
}

/* Few passes of a uniform workload give a nearly uniform skew; many passes of a skewed one give its skew. */
TEST(from_counts)
{
    struct cases cases = {5};
    struct efs_history h;
    struct efs_skew skew;
    double naive[64], even[64];

    assert_int_equal(efs_history_init(&h, 1, 64), 0);
    play(&cases, &h, 300, 4, 0, false);
    assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, 0), 0);
    assert_int_equal(skew.source, EFS_SKEW_COUNTS);
    check_skew(&skew);
    for (unsigned i = 0; i < 64; i++) {
        naive[i] = h.counts[i] / 300.0;
        even[i] = 4.0 / 64;
    }
    assert_true(apart(skew.mean, even, 64, 4) < 0.5 * apart(naive, even, 64, 4));
    efs_skew_free(&skew);

    efs_history_clear(&h);
    play(&cases, &h, 20000, 4, 1, false);
    assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, 0), 0);
    for (unsigned i = 0; i < 64; i++)
        naive[i] = h.counts[i] / 20000.0; /* sorted already: expert 0 is the most frequent */
    assert_true(apart(skew.mean, naive, 64, 4) < 0.01);
    efs_skew_free(&skew);
    efs_history_free(&h);
}

/* A plan from two passes would fit their experts only: the history is not used until noise is smaller than drift. */
TEST(too_few_passes)
{
    static const unsigned needed[][3] = {{32, 4, 112}, {128, 8, 239}, {8, 2, 48}, {4, 4, 1}};

    for (unsigned i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        unsigned n = needed[i][0], k = needed[i][1];
        struct efs_history h;
        struct efs_skew skew, none;
        struct cases cases = {9};

        assert_int_equal(efs_history_init(&h, 3, n), 0);
        assert_int_equal(efs_skew_learn(&none, NULL, 3, n, k), 0);
        for (unsigned pass = 0; pass < 300; pass++) {
            double w[128];
            uint32_t ids[8];

            assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, k), 0);
            assert_int_equal(skew.source, pass < needed[i][2] ? EFS_SKEW_ASSUMED : EFS_SKEW_RANKS);
            assert_int_equal(skew.passes, pass < needed[i][2] ? 0 : pass);
            assert_true(pass >= needed[i][2] || memcmp(skew.mean, none.mean, n * sizeof(*skew.mean)) == 0);
            efs_skew_free(&skew);
            weights(w, n, 0);
            draw(&cases, w, n, k, ids);
            assert_int_equal(efs_history_request(&h, pass % 3, ids, ids, k), 0);
        }
        efs_skew_free(&none);
        efs_history_free(&h);
    }
}

/* The planner accepts the skew of any history. */
TEST(any_history)
{
    struct cases cases = {77};

    for (unsigned round = 0; round < 300; round++) {
        unsigned layers = 1 + cases_below(&cases, 5), n = 1 + cases_below(&cases, 40), most = n < 20 ? n : 20;
        unsigned passes = round % 3 == 0 ? 3 : 200;
        struct efs_history h;
        struct efs_skew skew;

        assert_int_equal(efs_history_init(&h, layers, n), 0);
        for (unsigned pass = 0; pass < passes; pass++) {
            double w[40];
            uint32_t ids[20];
            unsigned k = 1 + cases_below(&cases, most), l = cases_below(&cases, layers);

            weights(w, n, round % 4);
            draw(&cases, w, n, k, ids);
            assert_int_equal(efs_history_request(&h, l, ids, cases_below(&cases, 2) ? ids : NULL, k), 0);
        }
        assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, 4), 0);
        check_skew(&skew);
        efs_history_fade(&h, 1 + cases_below(&cases, 100));
        check_bounds(&h);
        efs_skew_free(&skew);
        assert_int_equal(efs_skew_learn(&skew, &h, 0, 0, 4), 0);
        check_skew(&skew);
        efs_skew_free(&skew);
        efs_history_free(&h);
    }
}

TEST(drift)
{
    struct cases cases = {13};
    struct efs_history past, seen, other;
    struct efs_skew planned;
    double little = 0, much;

    assert_int_equal(efs_history_init(&past, LAYERS, 32), 0);
    assert_int_equal(efs_history_init(&seen, LAYERS, 32), 0);
    assert_int_equal(efs_history_init(&other, LAYERS, 31), 0);
    play(&cases, &past, 5000, 4, 1, true);
    assert_int_equal(efs_skew_learn(&planned, &past, 0, 0, 0), 0);
    assert_double_equal(efs_history_drift(&planned, &seen), 0, 0);
    assert_double_equal(efs_history_drift(&planned, &other), 1, 0);
    assert_true(efs_history_drift(&planned, &past) < 0.001);

    for (unsigned round = 0; round < 20; round++) { /* the same workload, for EFS_DRIFT_LEAST_PASSES passes */
        efs_history_clear(&seen);
        play(&cases, &seen, EFS_DRIFT_LEAST_PASSES, 4, 1, true);
        little = fmax(little, efs_history_drift(&planned, &seen));
        assert_false(efs_history_drifted(&planned, &seen, EFS_DRIFT_REPLAN));
    }
    efs_history_clear(&seen);
    play(&cases, &seen, EFS_DRIFT_LEAST_PASSES - 1, 4, 0, true);
    assert_true(efs_history_drift(&planned, &seen) > EFS_DRIFT_REPLAN);
    assert_false(efs_history_drifted(&planned, &seen, EFS_DRIFT_REPLAN)); /* too early */
    play(&cases, &seen, 1, 4, 0, true);
    assert_true(efs_history_drifted(&planned, &seen, EFS_DRIFT_REPLAN));
    much = efs_history_drift(&planned, &seen);
    assert_true(much > 2 * EFS_DRIFT_REPLAN && much <= 1 && much > 3 * little);

    efs_history_clear(&seen); /* requests twice as large */
    play(&cases, &seen, 1000, 8, 1, true);
    assert_true(efs_history_drift(&planned, &seen) > EFS_DRIFT_REPLAN);
    efs_history_clear(&seen); /* without ranks the drift is unknown */
    play(&cases, &seen, 1000, 8, 1, false);
    assert_double_equal(efs_history_drift(&planned, &seen), 0, 0);
    assert_false(efs_history_drifted(&planned, &seen, 0));
    efs_skew_free(&planned);
    efs_history_free(&other);
    efs_history_free(&seen);
    efs_history_free(&past);
}

TEST_MAIN(NULL, NULL)
